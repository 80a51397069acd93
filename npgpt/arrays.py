"""Which array library holds the numbers, on which device, and the few arrays that layers need made for them."""

import functools
import importlib.metadata
import re
import sys

import numpy as np

from npgpt.checks import check
from npgpt.errors import UserError

# What a model can be computed in, and what its parameters are then stored in. tf32 and bfloat16 are a GPU's: products
# of numbers rounded to 10 and 7 bits of fraction, summed in float32.
DTYPES = {"float32": "float32", "float64": "float64", "tf32": "float32", "bfloat16": "float32"}
INSTALL = 'install the one for your driver, pip install "npgpt[cuda12]" or "npgpt[cuda13]", or use --device cpu'


def array_module(device):
    """The array library of a device: numpy for "cpu", cupy for "gpu" or "gpu:N", whichever works for "auto".

    "gpu:N" also makes card N the one that CuPy works on. Raises UserError, with what to do, where a GPU is asked for
    and CuPy, its driver or the card is missing, or two CuPy packages stand in each other's way.
    """
    if device == "cpu":
        return np
    known = isinstance(device, str) and re.fullmatch(r"auto|gpu(:[0-9]{1,4})?", device)
    check("device", device, known, '"cpu", "gpu", "gpu:N" or "auto"')
    try:
        cupy = import_cupy()
        n = count_cards(cupy)
        if device.startswith("gpu:"):
            if int(device[4:]) >= n:
                raise UserError(f"there is no card {device[4:]}: the {n} here are numbered from 0")
            cupy.cuda.Device(int(device[4:])).use()
    except UserError:
        if device == "auto":
            return np
        raise
    return cupy


def import_cupy():
    """The package cupy; UserError, with what to install, where it is missing, broken, or there twice."""
    wheels = [name for name in ("cupy", "cupy-cuda12x", "cupy-cuda13x") if is_installed(name)]
    if len(wheels) > 1:
        raise UserError(f"two CuPy packages are installed, {' and '.join(wheels)}, and overwrite each other: "
                        f"pip uninstall {' '.join(wheels)}, then {INSTALL}")
    try:
        import cupy
    except ImportError as error:
        missing = f"CuPy cannot be loaded ({error})" if wheels else "a GPU needs CuPy, and it is not installed"
        raise UserError(f"{missing}: {INSTALL}") from None
    return cupy


def is_installed(package):
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def count_cards(cupy):
    """How many NVIDIA cards CuPy can use; UserError where there is none, or what it takes to use one is missing."""
    try:
        n = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise UserError(f"CuPy finds no NVIDIA card and driver that it can use ({error}): "
                        f"look at what nvidia-smi says, {INSTALL}") from None
    if n == 0:
        raise UserError("there is no NVIDIA card in this machine: use --device cpu")
    try:
        from cupy.cuda import cublas, nvrtc  # noqa: F401 (CuPy loads these libraries when they are first asked for)
        nvrtc.getVersion()
    except (ImportError, RuntimeError) as error:
        raise UserError(f"CuPy lacks libraries of CUDA ({str(error).splitlines()[0]}): {INSTALL}") from None
    return n


def is_on_host(array):
    """Whether an array, or a number, is in this machine's own memory: NumPy's."""
    return isinstance(array, np.ndarray | np.generic | int | float)


def to_host(array):
    """The array as NumPy's; one on a GPU is waited for and copied."""
    return array if is_on_host(array) else array.get()


def number(value):
    """A float; of a 0-d array on a GPU that array itself, since to read it is to wait for the card."""
    return float(value) if is_on_host(value) else value


def library_of(array):
    """The library that an array belongs to: numpy, or cupy."""
    return np if is_on_host(array) else sys.modules["cupy"]


def causal_mask(T, like):
    """(T, T) of the dtype and library of `like`: 0 on and below the diagonal, -inf above it. Shared: do not write."""
    return _causal_mask(T, like.dtype.str, str(like.device), library_of(like))


@functools.lru_cache(maxsize=32)    # to add a cached mask is several times faster than to write through a boolean one
def _causal_mask(T, dtype, device, xp):
    return xp.triu(xp.full((T, T), -xp.inf, dtype=dtype), k=1)
