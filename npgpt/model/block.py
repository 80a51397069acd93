"""What a model repeats: a transformer block, GPT-2's own or another one, with its parameters and both its functions."""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from npgpt import layers
from npgpt.checks import check, check_path, is_real, shown
from npgpt.errors import UserError, describe, raised_at
from npgpt.files import run_python
from npgpt.model import transformer
from npgpt.model.masks import BlockMasks
from npgpt.model.tree import flatten, nest

PARTS = "parameters", "forward", "backward"
INITS = "linear", "residual", "bias", "normal"


@dataclasses.dataclass(frozen=True)
class Block:
    """A block. GPT-2's is `GPT2`; another one is a file, or any object, with the same three functions.

    parameters(config) -> {name: (shape, init)} of one block, with names such as "attn.c_attn.weight". Matrices are
    (in, out), and decay. init: a number, or how `initialize` draws: "linear", the matrix of a linear layer; "residual",
    of one whose result is added to the residual stream; "bias", of either; "normal". forward, backward: called as
    `block_forward` and `block_backward` in npgpt/model/transformer.py. If the forward has an argument `positions`, it
    gets those of x, (B, T) integers, when a text is continued; otherwise they are 0 to T - 1. A forward used for
    generation calls `ops.attention_forward` once.

    name, sha256: of the file, which checkpoints name; two blocks are equal if the files are. path: to read it again.
    """

    parameters: Callable = dataclasses.field(compare=False)
    forward: Callable = dataclasses.field(compare=False)
    backward: Callable = dataclasses.field(compare=False)
    name: str = dataclasses.field(compare=False)
    sha256: str
    path: str | None = dataclasses.field(default=None, compare=False)

    def __repr__(self):
        return self.name

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):       # the functions of a file are not in a module that pickle finds
        if self.path:
            return unpickled, (self.path, self.sha256)
        return Block, tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def parameters_of(self, config):
        """Return `parameters(config)`. Raises UserError, with the line, if it fails or returns something else."""
        with self.blamed():
            found = self.parameters(config)
        check(f"parameters(config) of {self}", found, isinstance(found, dict) and found, "a dict name -> (shape, init)")
        for name, each in found.items():
            right = isinstance(name, str) and re.fullmatch(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*", name) and not any(
                isinstance(other, str) and other.startswith(f"{name}.") for other in found)
            check(f"a name in parameters(config) of {self}", name, right, 'one such as "mlp.c_fc.weight"')
            right = isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], tuple) and each[0] and all(
                type(size) is int and size > 0 for size in each[0]) and (is_real(each[1]) or each[1] in INITS)
            check(f"{name} in parameters(config) of {self}", each, right,
                  f"(shape, init), such as ((64, 256), \"linear\"); init is a number, or {', '.join(INITS)}")
        return found

    def check(self, config):
        """Run both functions on a few tokens, in float32. Raises UserError unless all results fit."""
        rng, T, shapes = np.random.default_rng(0), min(3, config.block_size), self.parameters_of(config)
        x = rng.standard_normal((2, T, config.n_embd), np.float32)
        p = nest({name: rng.standard_normal(shape, np.float32) * 0.1 for name, (shape, _) in shapes.items()})
        mask = transformer.causal_mask(None, x) if config.causal else None
        x_out, cache = self.called("forward", "x_out and a cache", x, p, config, 0, mask, BlockMasks(), layers)
        dx, dp = self.called("backward", "dx and a tree of gradients", x, cache, layers)
        check(f"the tree of gradients of {self}", dp, isinstance(dp, dict), "a dict, nested like p")
        grads = flatten(dp)
        results = {"forward: x_out": (x_out, x.shape), "backward: dx": (dx, x.shape)} | {
            f"backward: the gradient of {name}": (grads.pop(name, None), shape) for name, (shape, _) in shapes.items()}
        for name, (array, shape) in results.items():
            if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != (shape, x.dtype):
                raise UserError(f"{self}, {name} must be an array of shape {shape} and float32, as x is, "
                                f"not {shown(array)}")
        if grads:
            raise UserError(f"{self}, backward: {min(grads)} has a gradient, but is not in parameters(config)")

    def called(self, name, wanted, *arguments):
        """Return the two results of a function."""
        with self.blamed(), np.errstate(all="ignore"):
            result = getattr(self, name)(*arguments)
        check(f"what {name} of {self} returns", result, isinstance(result, tuple) and len(result) == 2, wanted)
        return result

    def functions_in(self, names):
        """Return both functions from the names of its file, which was run a second time."""
        functions = [names.get(each.__name__) for each in (self.forward, self.backward)]
        if None in functions:
            raise UserError(f"{self} must have functions forward and backward, not methods: for XLA and for looking "
                            "inside, the file is run again")
        return functions

    @contextlib.contextmanager
    def blamed(self):
        """Turn what the block's code raises into a UserError with the line in its file."""
        try:
            yield
        except Exception as error:
            line = raised_at(error, self.forward.__code__.co_filename)
            raise UserError(f"{self}{f', line {line}' if line else ''}: {describe(error)}") from None


@functools.lru_cache
def asks_for_positions(forward):
    return "positions" in inspect.signature(forward).parameters


GPT2 = Block(transformer.block_parameters, transformer.block_forward, transformer.block_backward, "GPT-2's block", "")


def read_block(source):
    """Return the `Block` of a Python file, whose code is run, or of an object: a module, an instance. None stays None.

    Raises UserError, with the line, if the file cannot be run, or one of the three functions is missing.
    """
    if source is None or isinstance(source, Block):
        return source
    path, names = None, source
    if isinstance(source, str | os.PathLike):
        check_path("block", source)
        path = os.path.abspath(source)
        try:
            names = run_python(path)[1]
        except OSError as error:
            raise UserError(f"block {source} cannot be read ({error.strerror}): give a Python file") from None
    functions = [names.get(each) if path else getattr(source, each, None) for each in PARTS]
    for name, function in zip(PARTS, functions, strict=True):
        if not hasattr(function, "__code__"):
            raise UserError(f"{shown(source) if path is None else source} has no function {name}: a block has "
                            "parameters(config), forward and backward, see tools/examples/modern_block.py")
    code = functions[1].__code__
    try:
        data = Path(path or code.co_filename).read_bytes()
    except OSError:                                         # in a notebook
        data = "".join(inspect.findsource(code)[0]).encode()
    return Block(*functions, os.path.basename(path or code.co_filename), hashlib.sha256(data).hexdigest(), path)


def unpickled(path, sha256):
    """Return the block of a file. Raises UserError if it is not the same any more."""
    block = read_block(path)
    check(f"the SHA-256 of {path}", block.sha256, block.sha256 == sha256, sha256)
    return block
