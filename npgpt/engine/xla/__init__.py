"""The XLA engine: the lesson's own lines, compiled for a CPU, or for one or many GPUs.

    lines.py    the lesson's files, loaded a second time with `np` = `jax.numpy`
    replaced.py layers that are replaced
    devices.py  the devices, and the parameters that stay on them
    engine.py   the programs: forward, loss, our backward, accumulation; clipping and AdamW
    reader.py   generation, with a KV cache of fixed shapes

JAX is only the compiler: its automatic differentiation is never used. It is imported only with this
engine.
"""

import os

from npgpt.errors import UserError

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # read when JAX looks for devices
INSTALL = (
    'pip install "npgpt[xla]"; for an NVIDIA GPU "npgpt[xla-cuda12]" or "npgpt[xla-cuda13]", '
    "whichever its "
    "driver is for"
)
try:
    import jax  # noqa: F401
except Exception as error:  # a broken JAX raises anything
    raise UserError(
        f"--kernels xla needs JAX ({error}): {INSTALL}; or use --kernels numpy"
    ) from None
