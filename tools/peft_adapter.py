"""LoRA as peft stores it (adapter_config.json, adapter_model.safetensors), for
examples/lora_block.py.

    python tools/peft_adapter.py read ADAPTER --init-from gpt2 --out-dir model
    npgpt train --init-from model --block model/lora_block.py --freeze "*.weight,*.bias"
    python tools/peft_adapter.py write out --block model/lora_block.py --out-dir adapter
    python tools/peft_adapter.py merge out --block model/lora_block.py --out-dir merged

`read` writes a copy of the block beside the model, with the adapter's rank and alpha. An adapter is
of c_attn and c_proj. `merge` writes a GPT-2, which transformers opens.
"""

import argparse
import re
import sys
from pathlib import Path

import numpy as np

from npgpt.arrays import to_host
from npgpt.checkpoints.tensorfile import check_tensors, open_tensors, write_tensors
from npgpt.checks import check_real, check_whole, require, shown
from npgpt.cli.main import fail
from npgpt.data.tokenizers import TOKENIZER_FILE, save_tokenizer
from npgpt.errors import UserError
from npgpt.files import atomic_writer, new_folder, read_json, write_json
from npgpt.loading import load_model
from npgpt.model.parameters import parameter_shapes

BLOCK = Path(__file__).parent / "examples/lora_block.py"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TARGETS = "c_attn", "c_proj", "attn.c_attn", "attn.c_proj", "mlp.c_proj"
# Fields that do not change what an adapter computes; others must be off, or have one of VALUES.
HARMLESS = {
    "auto_mapping",
    "base_model_name_or_path",
    "fan_in_fan_out",
    "inference_mode",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "target_modules",
    "task_type",
}
VALUES = {"peft_type": ("LORA",), "bias": ("none",), "init_lora_weights": (True, False, "gaussian")}


def peft_matrices(config, targets):
    """Return our name -> (peft's name, its shape there: transposed) of A and B in some layers."""
    found = {}
    for name, shape in parameter_shapes(config).items():
        if any(f".{part}.lora_" in name for part in targets):
            stored = f"base_model.model.transformer.{name[:-1]}{name[-1].upper()}.weight"
            found[name] = stored, shape[::-1]
    return found


def read_fields(path):
    """Return r, alpha and the adapted layers in adapter_config.json. Raises UserError."""
    try:
        fields = read_json(path)
        require("it", fields, isinstance(fields, dict), "an object of JSON")
        for name, value in {"peft_type": None, **fields}.items():
            allowed = VALUES.get(name, (None, False, {}, []))
            if name not in HARMLESS and value not in allowed:
                raise UserError(f'"{name}" is {shown(value)}, which npgpt does not support')
        rank, alpha, targets = (fields.get(name) for name in ("r", "lora_alpha", "target_modules"))
        right = isinstance(targets, list) and all(target in TARGETS for target in targets)
        require('"target_modules"', targets, right, "a list of c_attn and c_proj")
        check_whole('"r"', rank, 1)
        check_real('"lora_alpha"', alpha, above=0.0, below=1e30)
    except (OSError, UserError) as error:
        raise UserError(f"{path} cannot be used: {error}") from None
    return rank, alpha, targets


def write_block(adapter, folder):
    """Write lora_block.py with an adapter's rank and alpha to a folder; return its path."""
    rank, alpha, _ = read_fields(Path(adapter) / CONFIG)
    text, path = BLOCK.read_text(), Path(folder) / BLOCK.name
    line = f"RANK, ALPHA = {rank}, {alpha}"
    path.write_text(re.sub("(?m)^RANK, ALPHA = .*$", line, text))
    return path


def read_adapter(adapter, model):
    """Read an adapter into a model with the block of `write_block`.

    Raises UserError for an adapter of other layers or sizes than the model's, or a damaged file.
    """
    _, _, targets = read_fields(Path(adapter) / CONFIG)
    stored = open_tensors(Path(adapter) / WEIGHTS)
    matrices = peft_matrices(model.config, targets)
    check_tensors(dict(matrices.values()), stored, Path(adapter) / WEIGHTS)
    for name, (theirs, shape) in matrices.items():
        matrix = np.empty(shape, model.params.dtype)
        stored[theirs].read_into(matrix)
        model.params[name] = matrix.T


def write_adapter(model, folder):
    """Write the A and B of a model with lora_block.py to a folder, as an adapter of peft."""
    folder, block = Path(folder), names_of(model)
    tensors = {}
    for name, (stored, _) in peft_matrices(model.config, TARGETS).items():
        tensors[stored] = np.ascontiguousarray(to_host(model.params[name]).T)
    with atomic_writer(folder / WEIGHTS) as file:
        write_tensors(file, tensors)
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": block["RANK"],
        "lora_alpha": block["ALPHA"],
        "target_modules": TARGETS[:2],
        "fan_in_fan_out": True,
        "bias": "none",
        "inference_mode": True,
    }
    write_json(folder / CONFIG, fields, indent=2)


def merged(model):
    """Return the GPT-2 that a model with lora_block.py is, by the function of its block."""
    return names_of(model)["merged"](model)


def names_of(model):
    """Return the names of a model's block. Raises UserError unless it is lora_block.py."""
    block = model.config.block
    names = block.forward.__globals__
    if not names.keys() >= {"RANK", "ALPHA", "ADAPTED", "merged"}:
        raise UserError(f"the model has {block}: give lora_block.py, or a copy, as --block")
    return names


def run(args):
    """Run a command."""
    with new_folder(args.out_dir) as folder:
        if args.command == "read":
            loaded = load_model(args.init_from, block=write_block(args.adapter, folder))
            read_adapter(args.adapter, loaded.model)
            loaded.model.save_pretrained(folder)
        else:
            loaded = load_model(args.model, block=args.block)
            if args.command == "write":
                write_adapter(loaded.model, folder)
                return
            merged(loaded.model).save_pretrained(folder)
        save_tokenizer(loaded.tokenizer, folder / TOKENIZER_FILE)


def main(arguments=None):
    """Run the command line. Returns its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    read = commands.add_parser("read", help="read a folder of peft into a model")
    read.add_argument("adapter")
    read.add_argument("--init-from", required=True, help="the model that was adapted, such as gpt2")
    read.add_argument("--out-dir", required=True, help="the folder to write, new or empty")
    for name, does in (("write", "write a folder of peft"), ("merge", "write a GPT-2")):
        command = commands.add_parser(name, help=does)
        command.add_argument("model", help="a run, or what `read` wrote")
        command.add_argument("--block", default=BLOCK, help="its block, by default lora_block.py")
        command.add_argument("--out-dir", required=True, help="the folder to write, new or empty")
    args = parser.parse_args(arguments)
    try:
        run(args)
    except UserError as error:
        return fail(error)
    except OSError as error:
        return fail(error.strerror or error, error.filename)
    print(f"{args.out_dir}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
