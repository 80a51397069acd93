"""The array library of a device, and what to install if it is missing."""

import re

import numpy as np

from npgpt.checks import require
from npgpt.errors import UserError, one_line

INSTALL = (
    'install the one for your driver, pip install "npgpt[cuda12]" or "npgpt[cuda13]", or use '
    "--device cpu"
)


def array_module(device):
    """Return the array library of a device: numpy for "cpu", cupy for "gpu" or "gpu:N".

    "cuda" means "gpu". Raises UserError, with what to do, if CuPy, the driver or the GPU is
    missing.
    """
    check_device(device)
    if device == "cpu":
        return np
    try:
        import cupy
        from cupy.cuda import cublas, nvrtc  # noqa: F401 (otherwise loaded at their first use)

        n = cupy.cuda.runtime.getDeviceCount()
        nvrtc.getVersion()
    except (ImportError, RuntimeError) as error:  # CUDARuntimeError is a RuntimeError
        raise UserError(
            f"CuPy cannot use a GPU ({one_line(error, 200)}): look at what nvidia-smi says, "
            f"{INSTALL}"
        ) from None
    if n == 0:
        raise UserError("there is no NVIDIA GPU in this machine: use --device cpu")
    if (number_of(device) or 0) >= n:
        raise UserError(f"there is no GPU {number_of(device)}: the {n} here are numbered from 0")
    return cupy


def check_device(device):
    """Raise UserError unless this is the name of a device."""
    is_name = re.fullmatch(r"cpu|(gpu|cuda)(:[0-9]{1,4})?", device)
    require("device", device, is_name, '"cpu", "gpu" or "gpu:N" (or "cuda", "cuda:N")')


def check_tf32(name, capability):
    """Raise UserError if a GPU lacks tf32. capability: CUDA's compute capability, "7.5"; AMD's have
    names, "gfx90a".
    """
    if re.match(r"[1-7]\.", capability):
        raise UserError(
            f"dtype tf32 needs a GPU of compute capability 8.0 or higher, and {name} has "
            f"{capability}: use --dtype float32"
        )


def number_of(device):
    """Return the number in "gpu:N", an int; None for "gpu" and "cpu"."""
    number = device.partition(":")[2]
    return int(number) if number else None
