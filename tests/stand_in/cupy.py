"""If this folder is first in PYTHONPATH, `import cupy` gives the stand-in."""

import os
import sys

from tests import strict_cupy

strict_cupy.gpu.memory = int(os.environ.get("CUPY_GPU_MEMORY_LIMIT", strict_cupy.gpu.memory))
sys.modules.update(strict_cupy.MODULES)         # among them this module's own name
