"""With this folder first in PYTHONPATH, a program's CuPy is the stand-in: kernels are emulated on the CPU."""

import sys

from npgpt.engine.cuda import matmul
from tests import strict_cupy
from tests.cuda.gpu import emulated_library, run_kernel

strict_cupy.gpu.run_kernel = run_kernel
library = emulated_library()
matmul.load_cublaslt = lambda: library
sys.modules.update(strict_cupy.MODULES)         # among them this module's own name
