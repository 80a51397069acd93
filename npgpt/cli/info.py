"""Show a model's parameters, the memory that training needs, and the engines on this machine."""

import importlib.metadata
import math

from npgpt.checkpoints.load import find_model, open_model
from npgpt.checkpoints.run import find_checkpoint, is_run, read_checkpoint, read_while_it_trains
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
    parser.add_argument("model", nargs="?", help="a run, a folder, a .safetensors file or a model on the hub; without "
                                                 "it, a preset is described")
    parser.add_argument("--revision", help="branch, tag or commit of a model on the hub")
    parser.add_argument("--vocab-size", type=int, help="of a preset; by default its tokenizer's, or 65 for char")
    parser.add_argument("--batch-size", type=int, help="for the memory of a training step; by default the preset's")
    add_json_argument(parser, "parameters (how many), shapes (of each), memory (bytes of a "
                              "training step, in float32, with its batch_size, block_size and "
                              "threads); of a run also step, best_loss and best_step")
    add_quiet_argument(parser)
    add_block_argument(parser)
    add_model_arguments(parser)


def engines():
    """Yield a line for each choice of --device and --kernels on this machine."""
    yield "(default)", f"the CPU engine, {available_cores()} threads{BY[cpu_kernels()]}"
    try:
        yield f"--kernels {cpu_kernels('numba')}", "loops by Numba"
    except UserError as error:
        yield "--kernels numba", f"not here: {error}"
    try:
        cpu_kernels("numba")
        from npgpt.engine import bfloat16
        bfloat16.library()
        yield "--dtype bfloat16", "matmuls by oneDNN"
    except UserError as error:
        yield "--dtype bfloat16", f"not here: {error}"
    try:
        name = array_module("gpu").cuda.runtime.getDeviceProperties(0)["name"].decode()
        yield "--device gpu", f"the lines by CuPy, on {name}"
    except UserError as error:
        yield "--device gpu", f"not here: {error}"
    try:
        yield (
            "--kernels xla",
            f"XLA by JAX {importlib.metadata.version('jax')}, on --device cpu or gpu",
        )
    except importlib.metadata.PackageNotFoundError:
        yield "--kernels xla", 'not here: pip install "npgpt[xla]"'


def run(args):
    if args.model is not None and (args.preset or args.vocab_size or given_fields(args, MODEL_FIELDS)):
        raise UserError("a model has a fixed shape: give either a model, or a preset and flags")
    block = read_block(args.block)
    found = {}
    if args.model is None:
        fields = {**load_preset(args.preset or "char-cpu"), **given_fields(args, MODEL_FIELDS)}
        tokenizer = fields.get("tokenizer", "char")
        vocab_size = VOCABULARIES.get(tokenizer) if args.vocab_size is None else args.vocab_size
        if vocab_size is None:
            raise UserError(f"the vocabulary of {tokenizer} is unknown here: give it as --vocab-size")
        config = GPTConfig(vocab_size=vocab_size, block=block or GPT2,
                           **only(fields, MODEL_FIELDS))
        batch_size = fields.get("batch_size", TrainOptions.batch_size)
    elif is_run(args.model):
        checkpoint = read_while_it_trains(
            args.model, lambda: read_checkpoint(find_checkpoint(args.model), block)
        )
        config = checkpoint.config
        batch_size = options_of(checkpoint).batch_size
        found = only(checkpoint.state, ("step", "best_loss", "best_step"))
        if not args.json:
            print("{}: step {step}, best loss {best_loss:.4f} at step {best_step}".format(
                checkpoint.folder, **found))
    else:
        config, *_ = open_model(find_model(args.model, args.revision), block)
        batch_size = 1
    if args.batch_size is not None:
        batch_size = args.batch_size
    check_whole("--batch-size", batch_size, 1)

    shapes = parameter_shapes(config)
    parameters = sum(map(math.prod, shapes.values()))
    threads = min(available_cores(), batch_size)
    memory = training_memory(config, batch_size, threads)
    if args.json:
        print_json(**found, parameters=parameters, shapes=shapes, memory=memory,
                   batch_size=batch_size, block_size=config.block_size, threads=threads)
        return
    for name, shape in shapes.items():
        print(f"{name:<28} {' x '.join(map(str, shape)):>16} {math.prod(shape):>14,}")
    print(f"{'all parameters':<28} {'':>16} {parameters:>14,}")
    print(f"\nmemory, float32, batch {batch_size} x {config.block_size} tokens, {threads} thread{'s' * (threads > 1)}")
    for part, size in {**memory, "in training, about": sum(memory.values())}.items():
        print(f"{part:<28} {size / 2**20:>14,.1f} MiB")
    print("\nengines on this machine")
    for choice, what in engines():
        print(f"{choice:<28} {what}")
