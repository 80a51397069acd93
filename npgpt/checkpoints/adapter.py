"""LoRA of a model: new matrices, or an adapter of peft, adapter_config.json and adapter_model.safetensors."""

import dataclasses
from pathlib import Path

import numpy as np

from npgpt.arrays import to_host
from npgpt.checkpoints.tensorfile import TensorFile, check_tensors, write_tensors
from npgpt.checks import check_whole, require, shown
from npgpt.errors import UserError
from npgpt.files import atomic_writer, read_json, write_json
from npgpt.model.parameters import initialize, parameter_shapes

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TARGETS = "c_attn", "c_proj", "attn.c_attn", "attn.c_proj", "mlp.c_proj"
# Fields that do not change what an adapter computes; others must be off, or have one of these values.
HARMLESS = {"auto_mapping", "base_model_name_or_path", "fan_in_fan_out", "inference_mode", "lora_alpha", "lora_dropout",
            "megatron_core", "peft_version", "qalora_group_size", "r", "revision", "target_modules", "task_type"}
VALUES = {"peft_type": ("LORA",), "bias": ("none",), "init_lora_weights": (True, False, "gaussian")}


def peft_matrices(config, targets):
    """Return {our name: (peft's name, its shape there: transposed)} of LoRA's matrices in the layers `targets`."""
    return {name: (f"base_model.model.transformer.{name[:-1]}{name[-1].upper()}.weight", shape[::-1])
            for name, shape in parameter_shapes(config).items() if any(f".{part}.lora_" in name for part in targets)}


def save_adapter(params, folder):
    """Write LoRA's matrices to a folder. Raises UserError for a model without LoRA, OSError."""
    config, folder = params.config, Path(folder)
    if not config.lora_rank:
        raise UserError("this model has no LoRA to write as an adapter: train one with --lora")
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_writer(folder / WEIGHTS) as file:
        write_tensors(file, {stored: np.ascontiguousarray(to_host(params[name]).T)
                             for name, (stored, _) in peft_matrices(config, TARGETS).items()})
    write_json(folder / CONFIG, {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": config.lora_rank, "lora_alpha": config.used("lora_alpha"),
        "target_modules": TARGETS[:2], "fan_in_fan_out": True, "bias": "none", "inference_mode": True}, indent=2)


def open_adapter(folder, config):
    """Return (config with the adapter's LoRA, fill); fill(params) copies the matrices of the layers that it adapts.

    Raises UserError for an adapter of another kind, of other layers or sizes than the model's, or a damaged file.
    """
    path, weights = Path(folder) / CONFIG, Path(folder) / WEIGHTS
    try:
        fields = read_json(path)
        require("it", fields, isinstance(fields, dict), "an object of JSON")
        for name, value in {"peft_type": None, **fields}.items():
            if name not in HARMLESS and value not in VALUES.get(name, (None, False, {}, [])):
                raise UserError(f'"{name}" is {shown(value)}, which npgpt does not support')
        targets, alpha = fields.get("target_modules"), fields.get("lora_alpha") or 0
        right = isinstance(targets, list) and all(target in TARGETS for target in targets)
        require('"target_modules"', targets, right, "a list of c_attn and c_proj")
        config = dataclasses.replace(config, lora_rank=fields.get("r"), lora_alpha=alpha)
    except (OSError, UserError) as error:
        raise UserError(f"{path} cannot be used: {error}") from None
    matrices = peft_matrices(config, targets)
    file = TensorFile(weights)
    check_tensors(dict(matrices.values()), {name: (file, name) for name in file.shapes}, weights)

    def fill(params):
        for name, (stored, shape) in matrices.items():
            file.read_into(stored, matrix := np.empty(shape, params.dtype))
            params[name] = matrix.T

    return config, fill


def lora_added(config, read, lora_rank, lora_alpha, adapter):
    """Return (config, read) of a checkpoint with new LoRA of a rank, or an adapter's; unchanged with neither."""
    if lora_rank is lora_alpha is adapter is None:
        return config, read
    if config.lora_rank:
        raise UserError(f"the model has LoRA of rank {config.lora_rank} already: continue training it, or merge it "
                        "first with `npgpt export`")
    if adapter is None:
        check_whole("lora_rank", lora_rank, 1)
        config, load_adapter = dataclasses.replace(config, lora_rank=lora_rank, lora_alpha=lora_alpha), None
    elif lora_rank is lora_alpha is None:
        config, load_adapter = open_adapter(adapter, config)
    else:
        raise UserError("an adapter has its own rank and alpha: leave lora_rank and lora_alpha out")

    def read_both(params):
        read(params)
        initialize(params, 0, names=[name for name in params if ".lora_" in name])
        if load_adapter:
            load_adapter(params)

    return config, read_both
