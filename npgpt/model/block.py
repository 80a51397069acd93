"""The block that a model repeats, GPT-2's or a user's own: its parameters, its forward and its
backward.
"""

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

from npgpt.checks import is_real, require, shown
from npgpt.errors import UserError, describe, raised_at
from npgpt.files import run_python, tool
from npgpt.model import transformer
from npgpt.model.tree import flatten

FUNCTIONS, INITS = ("parameters", "forward", "backward"), ("linear", "residual", "bias", "normal")
PLACES = "positions", "distances"  # what a forward may ask for, by arguments of these names
NAME = r"([A-Za-z]\w*\.)*[A-Za-z]\w*"


@dataclasses.dataclass(frozen=True)
class Block:
    """A block. GPT-2's is `GPT2`; another one is a Python file, or an object, with the same three
    functions.

    parameters(config) -> {name: (shape, init)} of one block, with names such as
    "attn.c_attn.weight". Matrices are (in, out), and decay. init: a number, or how `initialize`
    draws: "linear", the matrix of a linear layer; "residual", of one whose result is added to the
    residual stream; "bias", of either; "normal". forward, backward: called as `block_forward` and
    `block_backward` in npgpt/model/transformer.py. Each call returns new arrays. A parameter of
    which the backward returns no gradient must be frozen. If the texts of a batch depend on each
    other, as in a batch norm, no engine divides a batch. To continue texts,
    the forward reads new tokens alone: others are seen only in `ops.attention_forward`, called
    once, with the mask that the block is given, or one that hides more. So a forward that needs
    places asks for them by an argument: `positions` gets those of the tokens, (1 or B, T)
    integers; `distances` the query's minus the key's, (1, 1, T, S) integers, for a bias of the
    scores.

    source: the text of the file, by which blocks are compared (not what a closure or an object
    holds); texts: file -> text, of each function's; file: the forward's; path: of a file that was
    given.
    """

    parameters: Callable = dataclasses.field(compare=False)
    forward: Callable = dataclasses.field(compare=False)
    backward: Callable = dataclasses.field(compare=False)
    source: str
    texts: dict[str, str] = dataclasses.field(compare=False)
    file: str = dataclasses.field(compare=False)
    path: str | None = dataclasses.field(default=None, compare=False)

    names = property(lambda self: [each.__qualname__ for each in (self.forward, self.backward)])
    sha256 = property(lambda self: hashlib.sha256(self.source.encode()).hexdigest())

    def __repr__(self):
        return "GPT-2's block" if self == GPT2 else os.path.basename(self.path or self.file)

    def __deepcopy__(self, memo):
        return self

    def parameters_of(self, config):
        """Return `parameters(config)`. Raises UserError, with the line, if it fails or returns
        something else.
        """
        with self.blamed():
            found = self.parameters(config)
            require(f"parameters(config) of {self}", found, bool(found), "a dict with names")
            for name, (shape, init) in found.items():
                longer = any(other.startswith(f"{name}.") for other in found)
                if longer or not re.fullmatch(NAME, name):
                    raise UserError(
                        f"{name!r} in parameters(config) of {self} cannot be nested: join words by "
                        "dots, as in mlp.c_fc.weight; what is before a dot is no other name"
                    )
                is_shape = isinstance(shape, tuple) and shape and min(shape) > 0
                is_init = is_real(init) or init in INITS
                what = f'((64, 256), "linear"), say; init is a number, or {", ".join(INITS)}'
                where = f"{name} in parameters(config) of {self}"
                require(where, (shape, init), is_shape and is_init, what)
        return found

    def extends_gpt2(self, config):
        """Return whether this block has all parameters of GPT-2's, and others."""
        return self.parameters_of(config).keys() > GPT2.parameters_of(config).keys()

    def lacks(self, name):
        return UserError(f"{self} returns no gradient of {name}: return it, or freeze it")

    def guarded(self, forward, backward):
        """Return the block with an engine's versions of its functions, guarded if it is a user's.

        A guard raises UserError for what a function raises, and for results that are missing or of
        another shape or dtype. The cache also holds p, for the gradients' shapes.
        """
        if self == GPT2:
            return dataclasses.replace(self, forward=forward, backward=backward)

        asks = arguments_of(self.forward) & {*PLACES}

        @functools.wraps(forward)
        def guarded_forward(x, p, *others, **named):
            named = (asked(self.forward, places(x)) if asks else {}) | named
            with self.blamed():
                x_out, cache = forward(x, p, *others, **named)
                self.check_kind("x_out", x_out, x)
            return x_out, (p, cache)

        @functools.wraps(backward)
        def guarded_backward(dx_out, cache, ops):
            p, cache = flatten(cache[0]), cache[1]
            with self.blamed():
                dx, dp = backward(dx_out, cache, ops)
                self.check_kind("dx", dx, dx_out)
                grads = flatten(dp)
                known, what = grads.keys() <= p.keys(), "of parameters(config)"
                require(f"the gradients of {self}", [*grads], known, what)
                for name, each in grads.items():
                    self.check_kind(f"the gradient of {name}", each, p[name])
            return dx, dp

        return dataclasses.replace(self, forward=guarded_forward, backward=guarded_backward)

    def check_kind(self, name, array, like):
        """Raise UserError unless a result is an array with the shape and dtype of another one."""
        shape, dtype = getattr(array, "shape", ""), getattr(array, "dtype", type(array).__name__)
        if shape != like.shape or dtype != like.dtype:
            is_wide = shape == like.shape and dtype == np.float64
            advice = ": np.sqrt(D) of an integer is float64, math.sqrt(D) is not" * is_wide
            raise UserError(
                f"{name} of {self} must be an array {like.shape} {like.dtype}, not {shape} "
                f"{dtype}{advice}"
            )

    @contextlib.contextmanager
    def blamed(self, when=""):
        """Turn what the block's code raises into a UserError with the line."""
        try:
            yield
        except (UserError, KeyboardInterrupt, MemoryError, BrokenPipeError):
            raise
        except BaseException as error:  # also SystemExit
            is_cuda = isinstance(error, RuntimeError) and hasattr(error, "status")
            if is_cuda or hasattr(error, "in_edit"):
                raise  # see `out_of_memory` and `users`
            number = raised_at(error, self.file)
            line = f", line {number}" if number else ""
            raise UserError(f"{self}{line}{when}: {describe(error)}") from error


def places(x):
    """Return the PLACES of whole texts x (B, T, C), for a forward that asks for them."""
    like = x if hasattr(x, "__array_function__") else None  # JAX's arrays have none
    positions = np.arange(x.shape[1], like=like)[None]  # (1, T)
    distances = positions[0, :, None] - positions[0]  # (T, T)
    return dict(zip(PLACES, (positions, distances[None, None]), strict=True))


def asked(forward, places):
    """Return the places for which a forward has an argument."""
    return {name: places[name] for name in arguments_of(forward) & places.keys()}


@functools.lru_cache
def arguments_of(forward):
    return inspect.signature(forward).parameters.keys()


def read_block(source):
    """Return the `Block` of a Python file, whose code is run, or of an object: a module, an
    instance. None stays None.

    Raises UserError, with the line, if the file cannot be run, or one of the three functions is
    missing; OSError if it cannot be read.
    """
    if source is None or isinstance(source, Block):
        return source
    if isinstance(source, str | os.PathLike):
        path = os.path.abspath(source)
        names = run_python(path)[1]
    else:
        path = None
        names = {name: getattr(source, name, None) for name in FUNCTIONS}
    for name in FUNCTIONS:
        if not hasattr(names.get(name), "__code__"):
            raise UserError(
                f"block {shown(source)} has no function {name}, unlike "
                + tool("tools/examples/modern_block.py")
            )
    return block_of([names[name] for name in FUNCTIONS], path)


def block_of(functions, path=None):
    """Return the `Block` of three functions. path: of the file that was given."""
    texts = {}
    for file in filter(None, [path, *(each.__code__.co_filename for each in functions)]):
        linecache.checkcache(file)  # the text of a file, or of a notebook's cell
        texts[file] = "".join(linecache.getlines(file))
    sources = dict(texts)
    if len(texts) > 1:
        sources.pop(transformer.__file__, None)  # skip npgpt's file: versions differ
    source = "".join(sources.values()) or repr(functions)
    return Block(*functions, source, texts, functions[1].__code__.co_filename, path)


GPT2 = block_of(
    [transformer.block_parameters, transformer.block_forward, transformer.block_backward]
)
