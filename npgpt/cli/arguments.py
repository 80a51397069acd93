"""Arguments that several commands share, and flags made from the fields of GPTConfig and
TrainOptions.
"""

import argparse
import dataclasses
import typing

from npgpt.engine.choose import KERNELS
from npgpt.errors import UserError
from npgpt.files import tool
from npgpt.loading import load_model
from npgpt.model.config import ACTIVATIONS, POSITIONS, GPTConfig
from npgpt.training.options import (
    CHOICES,
    MODEL_FIELDS,
    PRESETS,
    TRAIN_FIELDS,
    load_preset,
    with_mup,
)


def add_field_arguments(parser, dataclass, title, names):
    """Add a flag for each field in `names`. The parsed arguments have a field only if the user gave
    its flag.

    A field's metadata has its help; see npgpt/fields.py.
    """
    defaults = with_mup(load_preset("char-cpu"))
    choices = CHOICES | {"activation": ACTIVATIONS, "positions": POSITIONS}
    group = parser.add_argument_group(title)
    for field in dataclasses.fields(dataclass):
        name = field.name
        subject = field.metadata["group"]
        if subject:
            group = parser.add_argument_group(f"{title}: {subject}")
        if name not in names:
            continue
        default = defaults.get(name, field.default)
        text = field.metadata["help"].replace("None: ", "by default: ")
        if default is not None:
            text += f" (default: {default})"
        options = {"dest": name, "default": argparse.SUPPRESS, "help": text}
        flag = "--" + name.replace("_", "-")
        kind, *_ = typing.get_args(field.type) or [field.type]  # of `int | None`, int
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        else:
            group.add_argument(
                flag,
                type=kind,
                **options,
                metavar="|".join(choices.get(name, [kind.__name__.upper()])),
            )


def add_model_arguments(parser):
    """Add flags for the shape of a model: --preset, and one for each field of GPTConfig."""
    parser.add_argument(
        "--preset",
        help=f"{', '.join(PRESETS)}, or a TOML file of fields; by default char-cpu, whose values "
        "are the defaults below. Above width 128, initializer_range, learning_rate and min_lr "
        "shrink with the width (Yang et al. 2022), unless they are given",
    )
    add_field_arguments(parser, GPTConfig, "the model", MODEL_FIELDS)


def only(fields, names):
    """Return the part of a dict that has these names."""
    return {name: value for name, value in fields.items() if name in names}


def given_fields(args, names=MODEL_FIELDS | TRAIN_FIELDS):
    """Return the fields that the user gave, a dict. Raises UserError for both --epochs and
    --max-iters.
    """
    fields = only(vars(args), names)
    if fields.get("epochs") and "max_iters" in fields:
        raise UserError(
            "--epochs and --max-iters both set the length of training: give one of them"
        )
    if "max_iters" in fields:
        fields["epochs"] = 0  # of a preset, or of the run that is resumed
    return fields


def add_device_arguments(parser):
    parser.add_argument("--device", default="cpu", help="cpu (default), gpu or cuda, or gpu:N")
    parser.add_argument(
        "--threads",
        type=int,
        help="CPU threads; by default one for each core (XLA always uses all)",
    )
    parser.add_argument(
        "--kernels",
        choices=KERNELS,
        default="auto",
        help="how the layers run. auto (default): CuPy on a GPU; on a CPU numba if it is "
        "installed, else numpy. numpy: NumPy in threads; numba: also compiled loops (extra fast); "
        "reference: the lines as written, in one thread; xla: compiled by XLA (extra xla)",
    )


def add_block_argument(parser):
    parser.add_argument(
        "--block",
        metavar="FILE",
        help="a Python file, whose code is run, with the model's block, if it is not GPT-2's, such "
        "as " + tool("tools/examples/modern_block.py").replace("%", "%%"),
    )


def add_data_dir_argument(parser):
    parser.add_argument(
        "--data-dir",
        help="folder of downloaded corpora; by default $NPGPT_DATA_DIR, else data "
        "if they are there, else npgpt in the user's cache",
    )


def add_special_argument(parser):
    parser.add_argument(
        "--special",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="read <|endoftext|>, or another special token of the tokenizer, as this token, also "
        "where a text spells it out (the default)",
    )


def add_quiet_argument(parser):
    parser.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="no progress bars and no remarks: print the result and errors only",
    )


def add_json_argument(parser, keys):
    parser.add_argument(
        "--json",
        action="store_true",
        help=f"print the result as one JSON object with {keys}; remarks are on standard error",
    )


def add_model_argument(parser):
    """Add the arguments that choose the model of a command: MODEL, --revision, --which, --block,
    --device, …
    """
    parser.add_argument(
        "model",
        nargs="?",
        default="out",
        help="a run (by default out), a folder with config.json and model.safetensors, a "
        ".safetensors file, tiny, which comes with npgpt, or a model on the hub: gpt2, distilgpt2, "
        "owner/name",
    )
    parser.add_argument("--revision", help="branch, tag or commit of a model on the hub")
    parser.add_argument(
        "--which",
        choices=("best", "latest"),
        default="best",
        help="the checkpoint of a run with the lowest validation loss (default), or the latest",
    )
    add_block_argument(parser)
    add_device_arguments(parser)
    add_quiet_argument(parser)


def load_given_model(args):
    options = only(vars(args), ("device", "threads", "kernels", "block"))
    return load_model(args.model, args.revision, args.which, **options)
