"""Load NumPy's BLAS with a short thread timeout. This module is imported before NumPy.

After each matmul OpenBLAS's threads spin for about a tenth of a second, waiting for work, and keep the cores from our
threads: between two matmuls, two threads are then no faster than one (GELU at 1024 x 3072: 3.3 ms instead of 2.2). We
let them spin for 2^18 cycles, a tenth of a millisecond, which is enough for the small matmuls of generation. OpenBLAS
reads the variable only when it is loaded: if NumPy was imported before npgpt, or the variable is set already, nothing
changes.
"""

import os

TIMEOUT = "OPENBLAS_THREAD_TIMEOUT"

was_set = TIMEOUT in os.environ
os.environ.setdefault(TIMEOUT, "18")
import numpy  # noqa: E402, F401 (this loads OpenBLAS)

if not was_set:
    del os.environ[TIMEOUT]
