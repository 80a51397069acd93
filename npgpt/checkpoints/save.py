"""Write a model in transformers' format."""

import dataclasses
from pathlib import Path

import numpy as np

from npgpt.arrays import library_of, on_device_of
from npgpt.checkpoints.config_json import config_to_fields, unsupported_by_transformers
from npgpt.checkpoints.run import checkpoints
from npgpt.checkpoints.tensorfile import NAMES, write_tensors
from npgpt.checkpoints.tokenizer_files import write_tokenizer
from npgpt.checks import as_floats, check_choice
from npgpt.data.tokenizers import AnyTokenizer, given_tokenizer
from npgpt.errors import UserError
from npgpt.files import AnyPath, atomic_writer, write_json
from npgpt.model.parameters import Parameters, parameter_shapes


def save_model(
    params: Parameters,
    folder: AnyPath,
    tokenizer: AnyTokenizer | None = None,
    dtype: str | None = None,
) -> None:
    """Write model.safetensors and config.json of a `Parameters` to a folder, and a tokenizer.

    transformers opens it with equal logits, unless its GPT-2 cannot compute the model. It needs
    the biases that the model does not have: they are written as zeros, and config.json says so.
    dtype: of the file, "float16", "float32" or "float64"; by default that of the parameters.
    Raises UserError for the folder of a run, a tokenizer as `given_tokenizer` does, or a number
    that the dtype cannot hold, OSError if the folder cannot be written.
    """
    config = params.config
    folder = Path(folder)
    dtype = dtype or str(params.dtype)
    check_choice("dtype", dtype, NAMES)
    if tokenizer is not None:
        tokenizer = given_tokenizer(tokenizer, config.vocab_size)
    if checkpoints(folder) or (folder / "state.json").exists():
        raise UserError(f"{folder} is a run, which `load` reads instead: save in another folder")
    if not any(config.block.texts.values()):
        raise UserError(
            f"the source of {config.block} cannot be read, and `load` compares it: "
            "define the block in a file"
        )
    folder.mkdir(parents=True, exist_ok=True)
    stored_config = config
    if unsupported_by_transformers(config) is None:
        stored_config = dataclasses.replace(config, bias=True, qkv_bias=True, mlp_bias=True)
    tensors = {}
    for name, shape in parameter_shapes(stored_config).items():
        prefix = "" if name.startswith("lm_head") else "transformer."
        value = params.get(name, np.zeros(shape, dtype))
        with on_device_of(value):
            tensors[prefix + name] = as_floats(name, value, dtype, library_of(value))
    with atomic_writer(folder / "model.safetensors") as file:
        write_tensors(file, tensors)
    write_json(folder / "config.json", config_to_fields(config, dtype), indent=2)
    if tokenizer is not None:
        write_tokenizer(tokenizer, folder, config.block_size)
