"""One-line errors when the GPU's memory is full."""

import contextlib
import re
import sys

from npgpt.errors import UserError, one_line

ERROR_MEMORY_ALLOCATION = 2     # cudaErrorMemoryAllocation


@contextlib.contextmanager
def out_of_memory(advice):
    """Within it, an array that does not fit on the GPU raises UserError: what was needed, what is free, and advice.

    advice: what to do, as a clause: "lower --batch-size". Neither CuPy nor JAX need be installed.
    """
    try:
        yield
    except MemoryError as error:
        cupy = sys.modules.get("cupy")
        if cupy is None or not isinstance(error, cupy.cuda.memory.OutOfMemoryError):
            raise                   # the host's memory
        needed = re.search(r"allocating ([\d,]+) bytes", str(error))[1].replace(",", "")
        free, total = cupy.cuda.Device().mem_info
        raise UserError(f"the GPU's memory is full: an array needs {_size(int(needed))}, and {_size(free)} of "
                        f"{_size(total)} are free: {advice}") from error
    except RuntimeError as error:       # from CUDA itself, or from JAX
        status = getattr(error, "status", None) if type(error).__name__ == "CUDARuntimeError" else None
        if status != ERROR_MEMORY_ALLOCATION and not str(error).startswith("RESOURCE_EXHAUSTED"):
            raise
        raise UserError(f"the memory of the device is full ({one_line(error, 200)}): {advice}") from error


def _size(n):
    return f"{n / 2**30:,.2f} GiB" if n >= 2**30 else f"{n / 2**20:,.1f} MiB"
