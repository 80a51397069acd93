"""Write a model in transformers' format."""

import dataclasses
import os
from pathlib import Path

import numpy as np

from npgpt.arrays import library_of, on_device_of
from npgpt.checkpoints.config_json import config_to_fields, unsupported_by_transformers
from npgpt.checkpoints.tensorfile import NAMES, write_tensors
from npgpt.checks import as_floats, check_choice
from npgpt.errors import UserError
from npgpt.files import atomic_writer, write_json
from npgpt.model.parameters import Parameters, parameter_shapes


def save_model(params: Parameters, folder: str | os.PathLike, dtype: str | None = None) -> None:
    """Write model.safetensors and config.json of a `Parameters` to a folder; transformers opens it
    with equal logits.

    Biases that the model does not have are written as zeros, which transformers' GPT-2 needs.
    dtype: of the file, "float16", "float32" or "float64"; by default that of the parameters.
    Raises UserError for a model that transformers' GPT-2 cannot compute, or a number that the dtype
    cannot hold, OSError if the folder cannot be written.
    """
    config = params.config
    if field := unsupported_by_transformers(config):
        raise UserError(f"{field}={getattr(config, field)} has no counterpart in transformers' GPT-2")
    config = dataclasses.replace(config, bias=True, qkv_bias=True, mlp_bias=True)
    dtype = str(params.dtype) if dtype is None else dtype
    check_choice("dtype", dtype, NAMES)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, shape in parameter_shapes(config).items():
        stored = name if name.startswith("lm_head") else f"transformer.{name}"
        with on_device_of(params.flat):
            value = params[name] if name in params else np.zeros(shape, dtype)
            tensors[stored] = as_floats(name, value, dtype, library_of(value))
    with atomic_writer(folder / "model.safetensors") as file:
        write_tensors(file, tensors)
    write_json(folder / "config.json", config_to_fields(config, dtype), indent=2)
