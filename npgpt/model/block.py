"""What a model repeats: a block, GPT-2's or one's own, with its parameters, its forward and its backward."""

import ast
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
from types import FunctionType, SimpleNamespace

import numpy as np

from npgpt import layers
from npgpt.checks import check, check_path, is_real, shown
from npgpt.errors import UserError, describe, raised_at
from npgpt.files import run_python
from npgpt.model import transformer
from npgpt.model.masks import BlockMasks
from npgpt.model.tree import flatten, nest

FUNCTIONS, INITS = ("parameters", "forward", "backward"), ("linear", "residual", "bias", "normal")
DEFINITIONS = ast.Import | ast.ImportFrom | ast.FunctionDef


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
        return (unpickled, (self.path, self.sha256)) if self.path else (
            Block, (self.parameters, self.forward, self.backward, self.source, self.texts))

    def parameters_of(self, config):
        """Return `parameters(config)`. Raises UserError, with the line, if it fails or returns something else."""
        with self.blamed():
            found = self.parameters(config)
        what = f"parameters(config) of {self}"
        right = isinstance(found, dict) and found and all(isinstance(name, str) for name in found)
        check(what, found, right, "a dict name -> (shape, init)")
        for name, fact in found.items():
            right = re.fullmatch(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*", name) and not any(
                other.startswith(f"{name}.") for other in found)
            check(f"a name in {what}", name, right, 'one such as "mlp.c_fc.weight", and none the beginning of another')
            right = isinstance(fact, tuple) and len(fact) == 2 and isinstance(fact[0], tuple) and fact[0] and all(
                type(size) is int and size > 0 for size in fact[0]) and (is_real(fact[1]) or fact[1] in INITS)
            check(f"{name} in {what}", fact, right,
                  f'(shape, init), such as ((64, 256), "linear"); init is a number, or {", ".join(INITS)}')
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
        """Run both functions on a `trial`; return x_out, dx, and the gradients by name. by: wraps a function of x, p.

        Raises UserError, with the line, if they fail, or do not return two results.
        """
        x, p, mask = self.trial(config)

        def run(x, p):
            forward = self.forward(x, p, config, 0, mask, BlockMasks(), ops)
            check(f"what forward of {self} returns", forward, is_pair(forward, object), "x_out and a cache")
            backward = self.backward(x, forward[1], ops)
            check(f"what backward of {self} returns", backward, is_pair(backward, dict), "dx and dp, a dict like p")
            return forward[0], backward[0], flatten(backward[1])

        with self.blamed():
            return by(run)(x, p)

    def check(self, config):
        """Raise UserError unless both functions run, all results fit, and the gradients can be added to in place."""
        x, p, _ = self.trial(config)
        x_out, dx, grads = self.tried(config)
        wanted = {"x_out": x, "dx": x} | {f"the gradient of {name}": each for name, each in flatten(p).items()}
        found = {"x_out": x_out, "dx": dx} | {f"the gradient of {name}": each for name, each in grads.items()}
        for name, like in wanted.items():
            array, right = found.pop(name, None), f"{like.shape} float32"
            kind = f"{array.shape} {array.dtype}" if isinstance(array, np.ndarray) else array
            check(f"{name} of {self}", kind, kind == right, f"an array {right}")
        check(f"the gradients of {self}", [*found], not found, "those of parameters(config), and no others")
        for (name, one), (other, two) in itertools.product(grads.items(), repeat=2):
            if not one.flags.writeable or name != other and np.shares_memory(one, two):
                raise UserError(f"{self}: the gradient of {name} must have memory of its own, because others are added "
                                "to it: return a copy")

    def check_continuing(self, config):
        """Raise UserError unless tokens that are read one by one, with the keys and values before, give the same."""
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

    def again(self, visitor, names, lesson):
        """Run the definitions of the file a second time, changed by a NodeTransformer; return forward and backward.

        names: those that they get; lesson: functions of the layers and of the transformer, loaded again, by name.
        """
        tree = ast.parse(self.texts[self.file])
        tree.body = [node for node in tree.body if isinstance(node, DEFINITIONS)]
        there, originals = {**self.forward.__globals__, **names}, vars(layers) | vars(transformer)
        exec(compile(ast.fix_missing_locations(visitor.visit(tree)), self.file, "exec"), there)
        there.update({name: lesson[value.__name__] for name, value in there.items()
                      if isinstance(value, FunctionType) and originals.get(value.__name__) is value})
        functions = [there.get(each.__name__) for each in (self.forward, self.backward)]
        for old, new in zip((self.forward, self.backward), functions, strict=True):
            if not isinstance(new, FunctionType) or (new.__code__.co_filename, new.__code__.co_firstlineno) != (
                    old.__code__.co_filename, old.__code__.co_firstlineno):
                raise UserError(f"forward and backward of {self} must be functions of one file, which runs again for "
                                "XLA and for run_with_cache")
        return functions


def is_pair(result, kind):
    return isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], kind)


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


def unpickled(path, sha256):
    """Return the block of a file. Raises UserError if it has changed."""
    block = read_block(path)
    check(f"the SHA-256 of {path}", block.sha256, block.sha256 == sha256, sha256)
    return block


GPT2 = block_of([transformer.block_parameters, transformer.block_forward, transformer.block_backward])
