"""What a model repeats: a block, GPT-2's or one's own, with its parameters, its forward and its backward."""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import linecache
import os
import re
from collections.abc import Callable

import numpy as np

from npgpt import layers
from npgpt.checks import check, check_path, is_real, shown
from npgpt.errors import UserError, describe, raised_at
from npgpt.files import run_python
from npgpt.model import transformer
from npgpt.model.masks import BlockMasks
from npgpt.model.tree import flatten, nest

FUNCTIONS, INITS = ("parameters", "forward", "backward"), ("linear", "residual", "bias", "normal")


@dataclasses.dataclass(frozen=True)
class Block:
    """A block. GPT-2's is `GPT2`; another one is a Python file, or an object, with the same three functions.

    parameters(config) -> {name: (shape, init)} of one block, with names such as "attn.c_attn.weight". Matrices are
    (in, out), and decay. init: a number, or how `initialize` draws: "linear", the matrix of a linear layer; "residual",
    of one whose result is added to the residual stream; "bias", of either; "normal". forward, backward: called as
    `block_forward` and `block_backward` in npgpt/model/transformer.py. If the forward has an argument `positions`, it
    gets those of x, (B, T) integers, when a text is continued; otherwise they are 0 to T - 1. A forward that continues
    texts calls `ops.attention_forward` once.

    source: the text of the functions' files, by which blocks are compared; path: of a file, to read it again.
    """

    parameters: Callable = dataclasses.field(compare=False)
    forward: Callable = dataclasses.field(compare=False)
    backward: Callable = dataclasses.field(compare=False)
    source: str
    path: str | None = dataclasses.field(default=None, compare=False)

    file = property(lambda self: self.forward.__code__.co_filename)
    sha256 = property(lambda self: hashlib.sha256(self.source.encode()).hexdigest())
    __repr__ = __str__ = lambda self: "GPT-2's block" if self == GPT2 else os.path.basename(self.file)

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):       # pickle does not find the functions of a file
        return (read_block, (self.path,)) if self.path else (
            Block, (self.parameters, self.forward, self.backward, self.source))

    def parameters_of(self, config):
        """Return `parameters(config)`. Raises UserError, with the line, if it fails or returns something else."""
        with self.blamed():
            found = self.parameters(config)
        what = f"parameters(config) of {self}"
        check(what, found, isinstance(found, dict) and found and all(isinstance(name, str) for name in found), "a dict")
        for name, fact in found.items():
            right = re.fullmatch(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*", name) and not any(
                other.startswith(f"{name}.") for other in found)
            check(f"a name in {what}", name, right, 'one such as "mlp.c_fc.weight"')
            right = isinstance(fact, tuple) and len(fact) == 2 and isinstance(fact[0], tuple) and fact[0] and all(
                type(size) is int and size > 0 for size in fact[0]) and (is_real(fact[1]) or fact[1] in INITS)
            check(f"{name} in {what}", fact, right,
                  f'(shape, init), such as ((64, 256), "linear"); init is a number, or {", ".join(INITS)}')
        return found

    def check(self, config):
        """Run both functions on a few tokens, in float32. Raises UserError unless all results fit."""
        rng, T, facts = np.random.default_rng(0), min(3, config.block_size), self.parameters_of(config)
        x = rng.standard_normal((2, T, config.n_embd), np.float32)
        p = nest({name: rng.standard_normal(shape, np.float32) * 0.1 for name, (shape, _) in facts.items()})
        mask = transformer.causal_mask(None, x) if config.causal else None
        x_out, cache = self.two("forward", "x_out and a cache", x, p, config, 0, mask, BlockMasks(), layers)
        dx, dp = self.two("backward", "dx and a dict dp, nested as p", x, cache, layers)
        grads = flatten(dp)
        results = {"x_out": (x_out, x.shape), "dx": (dx, x.shape)} | {
            f"the gradient of {name}": (grads.pop(name, None), shape) for name, (shape, _) in facts.items()}
        for name, (array, shape) in results.items():
            right = isinstance(array, np.ndarray) and (array.shape, array.dtype) == (shape, x.dtype)
            check(f"{name} of {self}", array, right, f"an array of shape {shape} and of x's dtype, float32")
        check(f"the gradients of {self}", [*grads], not grads, "those of parameters(config), and no others")

    def two(self, name, wanted, *arguments):
        """Return the two results of a function."""
        with self.blamed():
            result = getattr(self, name)(*arguments)
        right = isinstance(result, tuple) and len(result) == 2 and (name == "forward" or isinstance(result[1], dict))
        check(f"what {name} of {self} returns", result, right, wanted)
        return result

    @contextlib.contextmanager
    def blamed(self):
        """Turn what the block's code raises into a UserError with the line."""
        try:
            with np.errstate(all="ignore"):
                yield
        except Exception as error:
            line = f", line {line}" if (line := raised_at(error, self.file)) else ""
            raise UserError(f"{self}{line}: {describe(error)}") from None

    def functions_in(self, names):
        """Return forward and backward from the names of the file, which was run a second time."""
        functions = [names.get(each.__name__) for each in (self.forward, self.backward)]
        if None in functions:
            raise UserError(f"forward and backward of {self} must be functions of one file: XLA and run_with_cache run "
                            "it again")
        return functions


@functools.lru_cache
def asks_for_positions(forward):
    return "positions" in inspect.signature(forward).parameters


def source_of(file):
    """Return the text of a file, or of a notebook's cell."""
    linecache.checkcache(file)
    return "".join(linecache.getlines(file))


def read_block(source):
    """Return the `Block` of a Python file, whose code is run, or of an object: a module, an instance. None stays None.

    Raises UserError, with the line, if the file cannot be run, or one of the three functions is missing.
    """
    if source is None or isinstance(source, Block):
        return source
    path, names = None, {name: getattr(source, name, None) for name in FUNCTIONS}
    if isinstance(source, str | os.PathLike):
        check_path("block", source)
        path = os.path.abspath(source)
        try:
            names = run_python(path)[1]
        except OSError as error:
            raise UserError(f"block {source} cannot be read ({error.strerror}): give a Python file") from None
    functions = [names.get(name) for name in FUNCTIONS]
    for name, function in zip(FUNCTIONS, functions, strict=True):
        if not hasattr(function, "__code__"):
            raise UserError(f"block {shown(source)} has no function {name}, unlike tools/examples/modern_block.py")
    files = dict.fromkeys([path] if path else [each.__code__.co_filename for each in functions])
    own = [file for file in files if file != transformer.__file__ or len(files) == 1]       # its other lines may change
    return Block(*functions, "".join(map(source_of, own)) or repr(functions), path)


GPT2 = Block(transformer.block_parameters, transformer.block_forward, transformer.block_backward,
             source_of(transformer.__file__))
