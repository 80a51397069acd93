"""How NumPy's BLAS is loaded: imported before NumPy.

After each product OpenBLAS's threads go on looking for work for a tenth of a second or so, and keep the cores from
ours: what runs between two products on two threads then takes as long as on one (gelu at 1024 x 3072: 3.3 ms for 2.2).
A timeout of 2^4 cycles sends them to sleep at once; products are no slower for it. OpenBLAS reads the variable only
when it is loaded; where the program has imported NumPy before npgpt, or has set it, nothing changes.
"""

import os

TIMEOUT = "OPENBLAS_THREAD_TIMEOUT"

if TIMEOUT in os.environ:
    import numpy  # noqa: F401
else:
    os.environ[TIMEOUT] = "4"
    import numpy  # noqa: F401
    del os.environ[TIMEOUT]
