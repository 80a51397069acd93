"""The block that a model repeats, GPT-2's or a user's own: its parameters, its forward and its backward."""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import itertools
import linecache
import os
import re
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from npgpt import layers
from npgpt.checks import check_path, is_real, require, shown
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
    `block_forward` and `block_backward` in npgpt/model/transformer.py; the rows of a batch do not depend on each other.
    To continue texts, the forward reads new tokens alone: others are seen only in `ops.attention_forward`, called once,
    with GPT-2's mask. An argument `positions` gets the tokens' positions then, (B, T) integers; otherwise it is None.

    source: the text of the file, by which blocks are compared (not what a closure or an object holds); texts: file ->
    text, of each function's; path: of a file that was given.
    """

    parameters: Callable = dataclasses.field(compare=False)
    forward: Callable = dataclasses.field(compare=False)
    backward: Callable = dataclasses.field(compare=False)
    source: str
    texts: dict[str, str] = dataclasses.field(compare=False)
    path: str | None = dataclasses.field(default=None, compare=False)

    sha256 = property(lambda self: hashlib.sha256(self.source.encode()).hexdigest())
    file = property(lambda self: self.forward.__code__.co_filename)

    def __repr__(self):
        return "GPT-2's block" if self == GPT2 else os.path.basename(self.path or self.file)

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):       # pickle does not find the functions of a file
        functions = self.parameters, self.forward, self.backward
        return (read_block, (self.path,)) if self.path else (Block, (*functions, self.source, self.texts))

    def parameters_of(self, config):
        """Return `parameters(config)`. Raises UserError, with the line, if it fails or returns something else."""
        with self.blamed():
            found = self.parameters(config)
            require(f"parameters(config) of {self}", found, found and isinstance(found, dict), "a dict")
            for name, (shape, init) in found.items():
                right = (re.fullmatch(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*", name) and (is_real(init) or init in INITS) and
                         shape and isinstance(shape, tuple) and all(type(size) is int and size > 0 for size in shape))
                require(f"{name} in parameters(config) of {self}", (shape, init), right,
                        f'such as "mlp.c_fc.weight": ((64, 256), "linear"); init is a number, or {", ".join(INITS)}')
        return found

    def trial(self, config):
        """Return x (B, T, C), the parameters p of one block, and a mask: random numbers of unit scale, in float32."""
        rng, T = np.random.default_rng(0), min(3, config.block_size)
        x = rng.standard_normal((2, T, config.n_embd), np.float32)
        x.flags.writeable = False           # others need what it holds
        facts = self.parameters_of(config).items()
        p = nest({name: rng.standard_normal(shape, np.float32) / np.float32(shape[0] ** 0.5 if len(shape) > 1 else 1)
                  for name, (shape, _) in facts})
        return x, p, transformer.causal_mask(None, x) if config.causal else None

    def tried(self, config, ops=layers, by=lambda function: function):
        """Run both functions on a `trial`; return x_out, dx, gradients by name. by: wraps a function of x, p."""
        x, p, mask = self.trial(config)

        def run(x, p):
            x_out, cache = self.forward(x, p, config, 0, mask, BlockMasks(), ops)
            dx, dp = self.backward(x, cache, ops)
            return x_out, dx, flatten(dp)

        with self.blamed():
            return by(run)(x, p)

    def validate(self, config):
        """Raise UserError unless both functions run, all results fit, and the gradients can be added to in place."""
        x, p, _ = self.trial(config)
        x_out, dx, grads = self.tried(config)
        require(f"the gradients of {self}", [*grads], grads.keys() == flatten(p).keys(), "those of parameters(config)")
        for name, array, like in (("x_out", x_out, x), ("dx", dx, x), *(
                (f"the gradient of {name}", grads[name], each) for name, each in flatten(p).items())):
            kind, right = f"{np.shape(array)} {getattr(array, 'dtype', '')}", f"{like.shape} float32"
            require(f"{name} of {self}", kind, kind == right, f"an array {right}")
        for (name, one), (other, two) in itertools.product(grads.items(), repeat=2):
            if not one.flags.writeable or name != other and np.shares_memory(one, two):
                raise UserError(f"{self}: the gradient of {name} must have memory of its own, because others are added "
                                "to it: return a copy")

    def check_continuing(self, config):
        """Raise UserError unless reading token by token, with cached keys and values, equals reading all at once."""
        if self == GPT2:
            return
        x, p, mask = self.trial(config)
        kept, H, D = [], config.n_head, config.head_size

        def attention_forward(q, k, v, scale, mask=None, dropout_mask=None):
            kept.append((k, v))
            k, v = (np.concatenate(each, axis=2) for each in zip(*kept, strict=True))
            return layers.attention_forward(q, k, v, scale)

        ops, rows = SimpleNamespace(**{**vars(layers), "attention_forward": attention_forward}), []
        with self.blamed():
            whole, _ = self.forward(x, p, config, 0, mask, BlockMasks(), layers)
        with self.blamed(" for a token that continues a text"):
            for t in range(x.shape[1]):
                forward = config.at(np.full((2, 1), t)).block.forward
                rows.append(forward(x[:, t:t + 1], p, config, 0, None, BlockMasks(), ops)[0])
        once = len(kept) in (0, len(rows)) and all(each.shape == (2, H, 1, D) for pair in kept for each in pair)
        if not once or abs(np.concatenate(rows, axis=1) - whole).max() > 1e-3 * abs(whole).max():
            raise UserError(f"{self} cannot continue texts: token by token it computes something else than at once; a "
                            "token sees others in ops.attention_forward alone, called once, with GPT-2's heads, mask")

    @contextlib.contextmanager
    def blamed(self, when=""):
        """Turn what the block's code raises into a UserError with the line."""
        try:
            with np.errstate(all="ignore"):
                yield
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            line = f", line {line}" if (line := raised_at(error, self.file)) else ""
            raise UserError(f"{self}{line}{when}: {describe(error)}") from None


@functools.lru_cache
def asks_for_positions(forward):
    return "positions" in inspect.signature(forward).parameters


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
    return block_of(functions, path)


def block_of(functions, path=None):
    """Return the `Block` of three functions. path: of the file that was given."""
    texts = {}
    for file in [*([path] if path else []), *(each.__code__.co_filename for each in functions)]:
        linecache.checkcache(file)          # the text of a file, or of a notebook's cell
        texts[file] = "".join(linecache.getlines(file))
    own = [text for file, text in texts.items() if file != transformer.__file__ or len(texts) == 1]    # npgpt changes
    return Block(*functions, "".join(own) or repr(functions), texts, path)


GPT2 = block_of([transformer.block_parameters, transformer.block_forward, transformer.block_backward])
