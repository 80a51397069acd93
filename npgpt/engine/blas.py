"""How NumPy's BLAS is loaded: imported before NumPy.

After each product OpenBLAS's threads go on looking for work for a tenth of a second or so, and keep the cores from
ours: what runs between two products on two threads then takes as long as on one (gelu at 1024 x 3072: 3.3 ms for 2.2).
We let them look for 2^18 cycles, a tenth of a millisecond, which is enough for the small products of generation.
OpenBLAS reads the variable only when it is loaded; where the program has imported NumPy before npgpt, or has set the
variable itself, nothing changes.
"""

import os

TIMEOUT = "OPENBLAS_THREAD_TIMEOUT"

was_set = TIMEOUT in os.environ
os.environ.setdefault(TIMEOUT, "18")
import numpy  # noqa: E402, F401 (this loads OpenBLAS)

if not was_set:
    del os.environ[TIMEOUT]
