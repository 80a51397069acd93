"""Which array library holds the numbers, and the few arrays that layers need made for them."""

import functools

import numpy as np

from npgpt.errors import UserError


def array_module(device):
    """The array library of a device: numpy for "cpu", cupy for "gpu" or "gpu:N", whichever works for "auto".

    Raises UserError, with what to install, where a GPU is asked for and CuPy, its driver or a card is missing.
    """
    if device == "cpu":
        return np
    if device != "auto" and device != "gpu" and not (device.startswith("gpu:") and device[4:].isdigit()):
        raise UserError(f'device "{device}" is not one of "cpu", "gpu", "gpu:N" and "auto"')
    try:
        import cupy
        if not cupy.cuda.is_available():
            raise UserError("no NVIDIA card and driver that CuPy can use: use --device cpu, or look at nvidia-smi")
    except (ImportError, UserError) as error:
        if device == "auto":
            return np
        if isinstance(error, UserError):
            raise
        raise UserError(f"device {device} needs CuPy for your CUDA version: pip install 'cupy-cuda12x[ctk]' or "
                        "'cupy-cuda13x[ctk]', or use --device cpu") from None
    if device.startswith("gpu:"):
        cupy.cuda.Device(int(device[4:])).use()
    return cupy


def causal_mask(T, like):
    """(T, T) of the dtype and library of `like`: 0 on and below the diagonal, -inf above it. Shared: do not write."""
    return _causal_mask(T, like.dtype.str, np if isinstance(like, np.ndarray) else array_module("gpu"))


@functools.lru_cache(maxsize=32)    # to add a cached mask is several times faster than to write through a boolean one
def _causal_mask(T, dtype, xp):
    return xp.triu(xp.full((T, T), -xp.inf, dtype=dtype), k=1)
