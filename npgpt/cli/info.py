"""Show a model's parameters, the memory that training needs, and the engines on this machine."""

import importlib.metadata
import math

from npgpt.checkpoints.load import find_model, open_model
from npgpt.checkpoints.run import (
    find_checkpoint,
    has_checkpoint,
    read_checkpoint,
    read_while_it_trains,
)
from npgpt.checks import check_whole
from npgpt.cli.arguments import (
    add_block_argument,
    add_json_argument,
    add_model_arguments,
    add_quiet_argument,
    given_fields,
    only,
)
from npgpt.cli.output import print_json
from npgpt.devices import array_module
from npgpt.engine.cpu import BY, cpu_kernels
from npgpt.engine.memory import training_memory
from npgpt.engine.threads import available_cores
from npgpt.errors import UserError
from npgpt.model.block import GPT2, read_block
from npgpt.model.config import GPTConfig
from npgpt.model.parameters import parameter_shapes
from npgpt.training.options import MODEL_FIELDS, TrainOptions, load_preset, options_of

VOCABULARIES = {"char": 65, "byte": 256, "gpt2": 50257}


def add_arguments(parser):
    parser.add_argument(
        "model",
        nargs="?",
        help="a run, a folder, a .safetensors file or a model on the hub; without "
        "it, a preset is described",
    )
    parser.add_argument("--revision", help="branch, tag or commit of a model on the hub")
    parser.add_argument(
        "--vocab-size", type=int, help="of a preset; by default its tokenizer's, or 65 for char"
    )
    parser.add_argument(
        "--batch-size", type=int, help="for the memory of a training step; by default the preset's"
    )
    add_json_argument(
        parser,
        "parameters (how many), shapes (of each), memory (bytes of a training step, in float32, "
        "with its batch_size, block_size and threads); of a run also step, best_loss and best_step",
    )
    add_quiet_argument(parser)
    add_block_argument(parser)
    add_model_arguments(parser)


def engines():
    """Yield a line for each choice of --device and --kernels on this machine."""
    yield "(default)", f"the CPU engine, {available_cores()} threads{BY[cpu_kernels()]}"
    for choice, describe in {
        "--kernels numba": loops,
        "--dtype bfloat16": bfloat16_matmuls,
        "--device gpu": gpu,
        "--kernels xla": xla,
    }.items():
        try:
            yield choice, describe()
        except UserError as error:
            yield choice, f"not here: {error}"


def loops():
    cpu_kernels("numba")
    return "loops by Numba"


def bfloat16_matmuls():
    cpu_kernels("numba")
    from npgpt.engine import bfloat16

    bfloat16.library()
    return "matmuls by oneDNN"


def gpu():
    name = array_module("gpu").cuda.runtime.getDeviceProperties(0)["name"].decode()
    return f"the lines by CuPy, on {name}"


def xla():
    try:
        version = importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        raise UserError('pip install "npgpt[xla]"') from None
    return f"XLA by JAX {version}, on --device cpu or gpu"


def described(args):
    """Return what the arguments describe: a config, a batch size, and the state of a run or {}."""
    block = read_block(args.block)
    if args.model is None:
        fields = {**load_preset(args.preset or "char-cpu"), **given_fields(args, MODEL_FIELDS)}
        tokenizer = fields.get("tokenizer", "char")
        vocab_size = VOCABULARIES.get(tokenizer) if args.vocab_size is None else args.vocab_size
        if vocab_size is None:
            raise UserError(
                f"the vocabulary of {tokenizer} is unknown here: give it as --vocab-size"
            )
        config = GPTConfig(vocab_size=vocab_size, block=block or GPT2, **only(fields, MODEL_FIELDS))
        return config, fields.get("batch_size", TrainOptions.batch_size), {}
    if args.preset or args.vocab_size or given_fields(args, MODEL_FIELDS):
        raise UserError("a model has a fixed shape: give either a model, or a preset and flags")
    if not has_checkpoint(args.model):
        config, *_ = open_model(find_model(args.model, args.revision), block)
        return config, 1, {}
    checkpoint = read_while_it_trains(
        args.model, lambda: read_checkpoint(find_checkpoint(args.model), block)
    )
    found = only(checkpoint.state, ("step", "best_loss", "best_step"))
    if not args.json:
        words = "{}: step {step}, best loss {best_loss:.4f} at step {best_step}"
        print(words.format(checkpoint.folder, **found))
    return checkpoint.config, options_of(checkpoint).batch_size, found


def run_info(args):
    config, batch_size, found = described(args)
    if args.batch_size is not None:
        batch_size = args.batch_size
    check_whole("--batch-size", batch_size, 1)
    shapes = parameter_shapes(config)
    parameters = sum(map(math.prod, shapes.values()))
    threads = min(available_cores(), batch_size)
    memory = training_memory(config, batch_size, threads)
    if args.json:
        print_json(
            **found,
            parameters=parameters,
            shapes=shapes,
            memory=memory,
            batch_size=batch_size,
            block_size=config.block_size,
            threads=threads,
        )
        return
    for name, shape in shapes.items():
        print(f"{name:<28} {' x '.join(map(str, shape)):>16} {math.prod(shape):>14,}")
    print(f"{'all parameters':<28} {'':>16} {parameters:>14,}")
    batch = f"batch {batch_size} x {config.block_size} tokens"
    print(f"\nmemory, float32, {batch}, {threads} thread{'s' * (threads > 1)}")
    for part, size in {**memory, "in training, about": sum(memory.values())}.items():
        print(f"{part:<28} {size / 2**20:>14,.1f} MiB")
    print("\nengines on this machine")
    for choice, what in engines():
        print(f"{choice:<28} {what}")
