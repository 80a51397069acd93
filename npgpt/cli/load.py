"""A model and its tokenizer, from whatever the user calls a model: a run, a checkpoint, a folder, a file, a hub id."""

import dataclasses
from pathlib import Path

from npgpt.api import GPT
from npgpt.arrays import DTYPES
from npgpt.checkpoints.load import find_model, open_model
from npgpt.checkpoints.run import Checkpoint, checkpoints, find_checkpoint, read_checkpoint
from npgpt.checkpoints.tokenizer import model_tokenizer
from npgpt.cli.arguments import add_device_arguments
from npgpt.training.options import options_of


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A model that a command was given. `checkpoint` is None for a model that npgpt did not train."""

    model: GPT
    tokenizer: object
    folder: Path
    checkpoint: Checkpoint | None


def add_model_argument(parser):
    """MODEL, --revision, --which, --device, --threads, --kernels."""
    parser.add_argument("model", nargs="?", default="out",
                        help="a run (by default out), a folder with config.json and model.safetensors, a .safetensors "
                             "file, or a model of the hub: gpt2, distilgpt2, owner/name")
    parser.add_argument("--revision", help="branch, tag or commit of a model of the hub")
    parser.add_argument("--which", choices=("best", "latest"), default="best",
                        help="which checkpoint of a run: the one of the lowest validation loss (default), or the last")
    add_device_arguments(parser)


def is_run(path):
    """Whether a path is a run or a checkpoint of one, and not a model from elsewhere."""
    path = Path(path)
    return (path / "state.json").exists() or bool(checkpoints(path)) or str(path) == "out"


def load_given_model(args):
    """What the arguments of `add_model_argument` say, as `load_model` gives it."""
    return load_model(args.model, args.revision, args.which, device=args.device, threads=args.threads,
                      kernels=args.kernels)


def load_model(name, revision=None, which="best", dtype=None, device="cpu", threads=None, dropouts=None,
               kernels="fused"):
    """A model by whatever name, a `Loaded`, in a dtype (by default the one that a run is stored in, else float32).

    dropouts: fields of its config that are set anew, a dict. UserError where it is not to be had.
    """
    checkpoint = None
    if is_run(name):
        checkpoint = read_checkpoint(find_checkpoint(name, which))
        found, tokenizer = checkpoint.folder, checkpoint.tokenizer
        dtype = dtype or DTYPES[options_of(checkpoint.state, checkpoint.folder / "state.json").dtype]
    else:
        found = find_model(name, revision)
    folder = found.parent if found.suffix == ".safetensors" else found
    config, load = open_model(found)
    if checkpoint is None:
        tokenizer = model_tokenizer(folder, config.vocab_size)
    config = dataclasses.replace(config, **(dropouts or {}))
    model = GPT(config, None, dtype or "float32", device, threads, kernels)
    load(model.params)
    return Loaded(model, tokenizer, folder, checkpoint)
