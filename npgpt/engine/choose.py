"""Choose the engine of a model by kernels, device and dtype."""

import math

import numpy as np

from npgpt.arrays import DTYPES
from npgpt.checks import check_memory
from npgpt.devices import array_module
from npgpt.engine.cpu import CPUEngine, cpu_kernels
from npgpt.engine.reference import ReferenceEngine
from npgpt.engine.trial import validate
from npgpt.errors import UserError
from npgpt.model.block import GPT2
from npgpt.model.config import GPTConfig
from npgpt.model.parameters import Parameters, parameter_shapes

KERNELS = ("auto", "numpy", "numba", "reference", "xla")


def make_engine(
    config: GPTConfig, dtype: str, device: str, threads: int, kernels: str, frozen
) -> tuple[Parameters, ReferenceEngine]:
    """Return the parameters of a model, zero, and an engine for them. Raises UserError if no engine
    supports this.
    """
    xp = np if kernels == "xla" else array_module(device)
    bfloat16 = dtype == "bfloat16"
    if bfloat16 and (xp is not np or kernels in ("numpy", "reference")):
        needed = "xla on a GPU" if xp is not np else "auto, numba or xla"
        raise UserError(f"dtype bfloat16 needs --kernels {needed}: use it, or --dtype float32")
    if dtype == "tf32" and kernels != "xla" and xp is np:  # XLA checks this itself
        raise UserError("dtype tf32 needs a GPU: use --dtype float32")
    if xp is not np and kernels in ("numpy", "numba"):
        raise UserError(f"--kernels {kernels} runs on a CPU: leave it out, or use --device cpu")
    if xp is np:
        values = sum(map(math.prod, parameter_shapes(config).values()))
        check_memory(values * np.dtype(DTYPES[dtype]).itemsize, "the model")
    if config.block != GPT2:
        validate(config)
    if kernels == "xla":
        from npgpt.engine.xla.engine import on_xla  # imports JAX

        return on_xla(config, dtype, device, frozen)
    if xp is not np:
        from npgpt.engine.gpu import on_gpu

        return on_gpu(config, dtype, device, kernels, frozen)
    params = Parameters(config, DTYPES[dtype], np, frozen)
    if kernels == "reference" or kernels == "auto" and threads == 1 and not bfloat16:
        return params, ReferenceEngine(params, threads)
    kernels = cpu_kernels("numba" if bfloat16 else kernels)
    return params, CPUEngine(params, threads, kernels, bfloat16)
