"""Flags made from dataclasses: one flag per field, with the field's comment as its help."""

import argparse
import dataclasses
import inspect
import re
import typing

from npgpt.api import KERNELS
from npgpt.arrays import DTYPES
from npgpt.checks import MOST
from npgpt.errors import UserError
from npgpt.model.config import ACTIVATIONS, GPTConfig
from npgpt.model.parameters import INITS
from npgpt.training.adamw import DECAYS
from npgpt.training.options import (
    MODEL_FIELDS,
    SAMPLINGS,
    TRAIN_FIELDS,
    TrainOptions,
    load_preset,
    preset_names,
    with_width_rule,
)

CHOICES = {"activation": ACTIVATIONS, "sampling": SAMPLINGS, "decay": DECAYS, "dtype": DTYPES, "init": INITS}


class Betas(argparse.Action):
    """--betas 0.9 0.95 is --beta1 0.9 --beta2 0.95."""

    def __call__(self, parser, namespace, values, option_string=None):
        namespace.beta1, namespace.beta2 = values


def add_field_arguments(parser, dataclass, title, leave_out=()):
    """Add a flag for each field of a dataclass, absent from the parsed arguments unless the user gave it."""
    group = parser.add_argument_group(title)
    defaults = with_width_rule(load_preset("char-cpu"))
    comments = dict(re.findall(r"^    (\w+): .*?# (.*)$", inspect.getsource(dataclass), re.MULTILINE))
    for field in dataclasses.fields(dataclass):
        if field.name in leave_out:
            continue
        flag = "--" + field.name.replace("_", "-")
        default = defaults.get(field.name, field.default)
        options = {"dest": field.name, "default": argparse.SUPPRESS,
                   "help": comments.get(field.name, "") + (f" (default: {default})" if default is not None else "")}
        kind = typing.get_args(field.type)[0] if typing.get_args(field.type) else field.type    # of `int | None`, int
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        else:
            group.add_argument(flag, type=kind, **options,
                               metavar="|".join(CHOICES.get(field.name, [kind.__name__.upper()])))


def add_model_arguments(parser):
    """Flags for the shape of a model: --preset, and one for each field of GPTConfig."""
    parser.add_argument("--preset", help=f"{', '.join(preset_names())}, or a TOML file; by default char-cpu, whose "
                                           "values are the defaults below. Above a width of 128 the initial weights "
                                           "and the learning rates are smaller, unless they are given")
    fields = {field.name for field in dataclasses.fields(GPTConfig)}
    add_field_arguments(parser, GPTConfig, "the model", leave_out=fields - MODEL_FIELDS)


def add_train_arguments(parser):
    """Flags for each field of TrainOptions."""
    add_field_arguments(parser, TrainOptions, "training")
    parser.add_argument("--betas", nargs=2, type=float, metavar=("BETA1", "BETA2"), action=Betas,
                        default=argparse.SUPPRESS, help="--beta1 and --beta2 in one")


def given(args, names):
    """The fields among `names` that the user gave, a dict."""
    return {name: value for name, value in vars(args).items() if name in names}


def given_model_fields(args):
    return given(args, MODEL_FIELDS)


def given_train_fields(args):
    """The fields of TrainOptions that the user gave. Raises UserError for both --epochs and --max-iters."""
    fields = given(args, TRAIN_FIELDS)
    if fields.get("epochs") and "max_iters" in fields:
        raise UserError("--epochs says how long to train, and so does --max-iters: give one of them")
    if "max_iters" in fields:
        fields["epochs"] = 0            # of a preset, or of the run that is resumed
    elif fields.get("epochs") and "lr_decay_iters" in fields:
        fields["max_iters"] = MOST      # which epochs replace: an lr_decay_iters that the user gave stays as it is
    return fields


def add_device_arguments(parser):
    """--device, --threads and --kernels."""
    parser.add_argument("--device", default="cpu",
                        help="cpu, gpu or cuda, gpu:N, or auto (a GPU if there is one); with --kernels xla also tpu, "
                             "which nobody has tried")
    parser.add_argument("--threads", type=int,
                        help="on a CPU: how many cores to use, by default all; with 1 the layers run as they stand; "
                             "XLA always uses all")
    parser.add_argument("--kernels", choices=KERNELS, default="auto",
                        help="what runs the layers' lines. auto (default): on a GPU through CuPy; on a CPU in parts, "
                             "by numpy, numba (compiled loops, extra fast) or mkl (Intel's matmuls, too, extra mkl), "
                             "the fastest that is there; reference: as they stand; xla: compiled by XLA (extra xla)")


def add_data_dir_argument(parser):
    """--data-dir."""
    parser.add_argument("--data-dir", help="the folder of corpora; by default NPGPT_DATA_DIR, else data")
