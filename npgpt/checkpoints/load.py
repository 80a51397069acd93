"""Read GPT-2 weights: find the files, compare names and shapes with the config, and copy."""

import dataclasses
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path

from npgpt.checkpoints.config_json import read_config
from npgpt.checkpoints.run import is_deleted
from npgpt.checkpoints.tensorfile import check_tensors, open_tensors
from npgpt.checks import shown
from npgpt.errors import UserError, remark
from npgpt.files import AnyPath, open_regular, read_json
from npgpt.model.block import GPT2, Block
from npgpt.model.config import GPTConfig
from npgpt.model.parameters import Parameters, initialize, parameter_shapes

INDEX = "model.safetensors.index.json"
TINY = Path(__file__).parent / "tiny"  # comes with npgpt; its README.md says how it was trained
LLM_C = struct.pack("<i", 20240326)  # the first bytes of its weight files
PREFIX = re.compile(r"^(?:module\.|_orig_mod\.)*")  # of torch's DataParallel and compile
BIASES = {  # fields of biases that transformers' GPT-2 has -> their names
    "bias": r"(h\.\d+\.(ln_.*|attn\.c_proj)|ln_f)\.bias",
    "qkv_bias": r"h\.\d+\.attn\.c_attn\.bias",
    "mlp_bias": r"h\.\d+\.mlp\..*\.bias",
}


def find_model(name_or_path: AnyPath, revision: str | None = None) -> Path:
    """Return the folder or .safetensors file of a model: a path, "tiny", or a hub id, which is
    downloaded or cached.

    Raises UserError as `hub.fetch_model` does, for another file, and for a deleted checkpoint.
    """
    path = Path(name_or_path)
    if path.is_dir() or path.suffix == ".safetensors":
        return path
    if str(path) == "tiny":
        return TINY
    if is_deleted(path):
        raise UserError(
            f"{path} is not there, or no longer: a run keeps only its latest and its best "
            f"checkpoint, so give the run, {path.parent}"
        )
    if path.is_file():
        kind = "not a .safetensors file"
        with open_regular(path) as file:
            if file.read(4) == LLM_C:
                kind = "llm.c's weights, which npgpt does not read"
        raise UserError(f"{path} is {kind}: give a folder with config.json and model.safetensors")
    from npgpt.download import hub  # imports a progress bar

    return hub.fetch_model(str(name_or_path), revision)


def stored_tensors(path, files):
    """Return our name -> `Tensor`. Raises UserError for a name given twice."""
    stored = {}
    for file in files:
        for name, tensor in open_tensors(file).items():
            ours = name.removeprefix("transformer.")
            if ours in stored:
                raise UserError(f"{path} has {ours} twice, also under the prefix transformer.")
            stored[ours] = tensor
    return stored


def open_model(
    path: Path, block: Block | None = None
) -> tuple[GPTConfig, str, Callable[[Parameters], None]]:
    """Return (GPTConfig, dtype, fill) for a folder or .safetensors file; fill(params) fills a
    `Parameters` of that config. dtype: "float64" if it is stored, else "float32".

    Everything is checked before anything large is allocated. If the weights are GPT-2's, `fill`
    draws what an own block adds to them, and names it on standard error. A stored head that differs
    from the embedding makes the config untied. Biases that the config lacks are skipped if they are
    zero, else the config gets them; `fill` says so. Raises UserError for a config that npgpt does
    not support, a damaged file, and tensors that are missing, extra, or of the wrong shape or type.
    """
    is_file = path.suffix == ".safetensors"
    folder = path.parent if is_file else path
    config = read_config(folder / "config.json", block)
    stored = stored_tensors(path, [path] if is_file else weight_files(path))
    prefixes = {PREFIX.findall(name)[0] for name in stored}
    if len(prefixes) == 1 and (prefix := prefixes.pop()):
        raise UserError(
            f"{path}: the name of every tensor begins with {prefix!r}, which torch's DataParallel "
            "or compile adds: remove it from the names"
        )
    remarks = []
    if config.tie_word_embeddings and "lm_head.weight" in stored and "wte.weight" in stored:
        if stored["lm_head.weight"].equals(stored["wte.weight"]):
            del stored["lm_head.weight"]
        else:
            config = dataclasses.replace(config, tie_word_embeddings=False)
            remarks.append(
                f"{path}: lm_head.weight differs from wte.weight, so the model is untied, "
                "though its config says tied"
            )
    tuned = [field for field in BIASES if has_tuned_biases(field, config, stored)]
    if tuned:
        fields: dict = {field: field in tuned or config.resolved(field) for field in BIASES}
        config = dataclasses.replace(config, **fields).derived()
        remarks.append(
            f"{path}: biases that are not zero are stored, so the model has them, though its "
            f"config says {'=False, '.join(sorted(tuned))}=False"
        )
    shapes = parameter_shapes(config)
    drawn = shapes.keys() - parameter_shapes(dataclasses.replace(config, block=GPT2)).keys()
    if stored.keys() & drawn:
        drawn = set()
    check_tensors({name: shapes[name] for name in shapes if name not in drawn}, stored, path)
    if drawn:
        names = sorted({re.sub(r"^h\.\d+", "h.*", name) for name in drawn})
        remarks.append(f"not in the checkpoint, so drawn by {config.block}: {', '.join(names)}")

    def fill(params):
        for name, tensor in stored.items():
            tensor.read_into(params[name])
        initialize(params, 0, names=[name for name in shapes if name in drawn])
        for each in remarks:
            remark(f"npgpt: {each}", file=sys.stderr)

    is_double = any(tensor.dtype == "F64" for tensor in stored.values())
    return config, "float64" if is_double else "float32", fill


def has_tuned_biases(field, config, stored):
    """Return whether biases that a config lacks are stored and not zero; forget those of zeros.

    transformers' GPT-2 has all biases, so a model without is stored with zeros.
    """
    known = parameter_shapes(config)
    names = [name for name in stored if re.fullmatch(BIASES[field], name) and name not in known]
    if not all(stored[name].is_zero() for name in names):
        return True
    for name in names:
        del stored[name]
    return False


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder: model.safetensors, or the shards in its index.
    Raises UserError.
    """
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    try:
        names = sorted(set(read_json(folder / INDEX, 1 << 24)["weight_map"].values()))
    except (OSError, UserError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{folder} contains neither model.safetensors nor a valid {INDEX}: copy the weights "
            "there"
        ) from error
    for name in names:  # untrusted, and it becomes a path: no folders, no drives
        if not (isinstance(name, str) and re.fullmatch(r"\w[\w.-]*\.safetensors", name)):
            raise UserError(
                f"{folder / INDEX} names {shown(name)}, which is not a weight file beside it"
            )
    return [folder / name for name in names]
