"""Read GPT-2 weights: find the files, compare every name and shape with the config, then copy once."""

import dataclasses
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path

from npgpt.checkpoints.config_json import read_config
from npgpt.checkpoints.run import is_deleted
from npgpt.checkpoints.tensorfile import TensorFile, check_tensors, is_zero, same_values
from npgpt.checks import shown
from npgpt.errors import UserError, remark
from npgpt.files import AnyPath, open_regular, read_json
from npgpt.model.block import GPT2, Block
from npgpt.model.config import GPTConfig
from npgpt.model.parameters import Parameters, initialize, parameter_shapes

INDEX = "model.safetensors.index.json"
TINY = Path(__file__).parent / "tiny"       # a small model that comes with npgpt; its README.md says how it was trained
LLM_C = struct.pack("<i", 20240326)         # the first bytes of its weight files
PREFIX = re.compile(r"^(?:module\.|_orig_mod\.)*")        # of torch's DataParallel and compile
BIASES = "bias", "qkv_bias", "mlp_bias"     # fields of biases that transformers' GPT-2 has
BIAS = re.compile(r"(h\.\d+\..*|ln_f)\.bias")
MASK_BUFFER = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")      # old checkpoints contain the causal mask


def find_model(name_or_path: AnyPath, revision: str | None = None) -> Path:
    """Return the folder or .safetensors file of a model: a path, "tiny", or a hub id, which is downloaded or cached.

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


def open_model(
    path: Path, block: Block | None = None
) -> tuple[GPTConfig, str, Callable[[Parameters], None]]:
    """Return (GPTConfig, dtype, fill) for a folder or .safetensors file; fill(params) fills a
    `Parameters` of that config. dtype: "float64" if it is stored, else "float32".

    Everything is checked before anything large is allocated. If the weights are GPT-2's, `fill`
    draws what an own block adds to them, and names it on standard error. A stored head that differs
    from the embedding makes the config untied, and biases that it lacks are passed over if they
    are zeros, else the config gets them; `fill` says so. Raises UserError for a
    config that npgpt does not support, a damaged file, and tensors that are missing, extra, or of
    the wrong shape or type.
    """
    if path.suffix == ".safetensors":
        folder = path.parent
        files = [path]
    else:
        folder = path
        files = weight_files(path)
    config = read_config(folder / "config.json", block)
    stored = {}             # our name -> (file, its name there)
    for tensors in map(TensorFile, files):
        for name in tensors.shapes:
            ours = name.removeprefix("transformer.")
            if ours in stored:
                raise UserError(f"{path} has {ours} twice, also under the prefix transformer.")
            if not MASK_BUFFER.fullmatch(ours):
                stored[ours] = tensors, name
    prefixes = {PREFIX.findall(name)[0] for _, name in stored.values()}
    if len(prefixes) == 1 and (prefix := prefixes.pop()):
        raise UserError(
            f"{path}: the name of every tensor begins with {prefix!r}, which torch's DataParallel "
            "or compile adds: remove it from the names"
        )
    is_double = any(file.dtype(name) == "F64" for file, name in stored.values())
    head = stored.get("lm_head.weight")
    wte = stored.get("wte.weight")
    remarks = []
    if head and wte and config.tie_word_embeddings:
        if same_values(head, wte):
            del stored["lm_head.weight"]
        else:
            config = dataclasses.replace(config, tie_word_embeddings=False)
            remarks.append(
                f"{path}: lm_head.weight differs from wte.weight, so the model is untied, "
                "though its config says tied"
            )
    config, tuned = with_stored_biases(config, stored)
    if tuned:
        remarks.append(
            f"{path}: biases that are not zero are stored, so the model has them, though its "
            f"config says {'=False, '.join(tuned)}=False"
        )
    shapes = parameter_shapes(config)
    gpt2 = parameter_shapes(dataclasses.replace(config, block=GPT2))
    drawn = [name for name in shapes if name not in gpt2]
    if stored.keys() & drawn:
        drawn = []
    check_tensors({name: shapes[name] for name in shapes if name not in drawn}, stored, path)

    if drawn:
        names = sorted({re.sub(r"^h\.\d+", "h.*", name) for name in drawn})
        remarks.append(f"not in the checkpoint, so drawn by {config.block}: {', '.join(names)}")

    def fill(params):
        for name, (file, stored_name) in stored.items():
            file.read_into(stored_name, params[name])
        if drawn:
            initialize(params, 0, names=drawn)
        for each in remarks:
            remark(f"npgpt: {each}", file=sys.stderr)

    return config, "float64" if is_double else "float32", fill


def with_stored_biases(config, stored):
    """Return a config with the biases that it lacks, but that are stored and not zero, and the
    fields that have changed. Other biases that it lacks, zeros for transformers, leave `stored`.
    """
    biases = {*filter(BIAS.fullmatch, stored.keys() - parameter_shapes(config).keys())}
    zeros = {name for name in biases if is_zero(*stored[name])}
    tuned = sorted({*map(field_of, biases - zeros)})
    if tuned:
        used = {field: field in tuned or config.used(field) for field in BIASES}
        config = dataclasses.replace(config, **used).derived()
    for name in zeros - parameter_shapes(config).keys():
        del stored[name]
    return config, tuned


def field_of(bias):
    """Return the field of a config that says whether there is a bias of GPT-2's."""
    if "c_attn" in bias:
        return "qkv_bias"
    return "mlp_bias" if ".mlp." in bias else "bias"


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder: model.safetensors, or the shards in its index. Raises UserError."""
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    try:
        names = sorted(set(read_json(folder / INDEX, 1 << 24)["weight_map"].values()))
    except (OSError, UserError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder} contains neither model.safetensors nor a valid {INDEX}: copy the weights there"
                        ) from error
    for name in names:      # untrusted, and it becomes a path: no folders, no drives
        if not (isinstance(name, str) and re.fullmatch(r"\w[\w.-]*\.safetensors", name)):
            raise UserError(f"{folder / INDEX} names {shown(name)}, which is not a weight file beside it")
    return [folder / name for name in names]
