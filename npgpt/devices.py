"""The array library of a device, and what to install if it is missing."""

import re

import numpy as np

from npgpt.checks import check, check_text
from npgpt.errors import UserError

INSTALL = 'install the one for your driver, pip install "npgpt[cuda12]" or "npgpt[cuda13]", or use --device cpu'


def array_module(device):
    """Return the array library of a device: numpy for "cpu", cupy for "gpu" or "gpu:N", whichever works for "auto".

    "cuda" means "gpu". "gpu:N" also makes GPU N the one that CuPy works on. Raises UserError, with what to do, if a GPU
    was asked for and CuPy, the driver or the GPU is missing.
    """
    check_text("device", device)
    if device == "cpu":
        return np
    if device == "mps":
        raise UserError("device mps needs a CuPy for Apple's GPUs, which does not exist: use --device cpu")
    if device == "tpu":
        raise UserError("device tpu needs --kernels xla, and is untested: add it, or use --device cpu")
    known = re.fullmatch(r"auto|(gpu|cuda)(:[0-9]{1,4})?", device)
    check("device", device, known, '"cpu", "gpu", "gpu:N" (or "cuda", "cuda:N") or "auto"')
    wanted = device.partition(":")[2]
    try:
        cupy = import_cupy()
        n = count_gpus(cupy)
        if wanted:
            if int(wanted) >= n:
                raise UserError(f"there is no GPU {wanted}: the {n} here are numbered from 0")
            cupy.cuda.Device(int(wanted)).use()
    except UserError:
        if device == "auto":
            return np
        raise
    return cupy


def import_cupy():
    """Import the package cupy. Raises UserError, with what to install, if it is missing or broken."""
    try:
        import cupy
    except ImportError as error:
        raise UserError(f"a GPU needs CuPy, which cannot be imported ({error}): {INSTALL}") from None
    return cupy


def count_gpus(cupy):
    """Count the NVIDIA GPUs that CuPy can use. Raises UserError if there is none, or a library of CUDA is missing."""
    try:
        n = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise UserError(f"CuPy finds no NVIDIA GPU and driver that it can use ({error}): "
                        f"look at what nvidia-smi says, {INSTALL}") from None
    if n == 0:
        raise UserError("there is no NVIDIA GPU in this machine: use --device cpu")
    try:
        from cupy.cuda import cublas, nvrtc  # noqa: F401 (CuPy loads these libraries at their first use)
        nvrtc.getVersion()
    except (ImportError, RuntimeError) as error:
        raise UserError(f"CuPy lacks libraries of CUDA ({str(error).splitlines()[0]}): {INSTALL}") from None
    return n
