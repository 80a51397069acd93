"""The command `npgpt`. It may set what a library must leave to its host: how the process waits and
keeps memory.
"""

import os

# After each matmul OpenBLAS's threads spin for about a tenth of a second, waiting for work, and
# keep the cores from our threads: between two matmuls, two threads are then no faster than one
# (GELU at 1024 x 3072: 3.3 ms instead of 2.2). With this they spin for 2^18 cycles, a tenth of a
# millisecond, which is enough for the small matmuls of generation. OpenBLAS reads it when NumPy is
# loaded, so it is set before anything imports NumPy.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")
