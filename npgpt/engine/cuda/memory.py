"""A GPU whose memory is full, in one line."""

import contextlib
import re
import sys

from npgpt.errors import UserError

ERROR_MEMORY_ALLOCATION = 2     # cudaErrorMemoryAllocation


@contextlib.contextmanager
def out_of_memory(advice):
    """Within it, a CuPy array that does not fit on the GPU raises UserError: what was needed, what is free, and advice.

    advice: what to do, as a clause: "lower --batch-size". CuPy need not be installed: then nothing happens.
    """
    try:
        yield
    except MemoryError as error:
        cupy = sys.modules.get("cupy")
        if cupy is None or not isinstance(error, cupy.cuda.memory.OutOfMemoryError):
            raise                   # the host's
        needed = re.search(r"allocating ([\d,]+) bytes", str(error))[1].replace(",", "")
        free, total = cupy.cuda.Device().mem_info
        raise UserError(f"the GPU's memory is full: an array needs {_size(int(needed))}, and {_size(free)} of "
                        f"{_size(total)} are free: {advice}") from error
    except RuntimeError as error:       # not for an array: for CUDA itself, pinned memory or a graph
        if type(error).__name__ != "CUDARuntimeError" or error.status != ERROR_MEMORY_ALLOCATION:
            raise
        raise UserError(f"the memory of the GPU, or of this machine, is full ({error}): {advice}") from error


def _size(n):
    return f"{n / 2**30:,.2f} GiB" if n >= 2**30 else f"{n / 2**20:,.1f} MiB"
