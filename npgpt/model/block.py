"""The block that a model repeats, GPT-2's or a user's own: its parameters, its forward and its backward."""

import contextlib
import copy
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
from npgpt.checks import is_real, require, shown
from npgpt.errors import UserError, describe, raised_at
from npgpt.files import run_python
from npgpt.model import transformer
from npgpt.model.masks import BlockMasks
from npgpt.model.tree import flatten, nest

FUNCTIONS, INITS = ("parameters", "forward", "backward"), ("linear", "residual", "bias", "normal")
NAME = r"([A-Za-z]\w*\.)*[A-Za-z]\w*"
ALONE = slice(0, 1), slice(1, 2)        # each text of a trial


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

    sha256 = property(lambda self: hashlib.sha256(self.source.encode()).hexdigest())

    def __repr__(self):
        return "GPT-2's block" if self == GPT2 else os.path.basename(self.path or self.file)

    def __deepcopy__(self, memo):
        return self

    def parameters_of(self, config):
        """Return `parameters(config)`. Raises UserError, with the line, if it fails or returns something else."""
        with self.blamed():
            found = self.parameters(config)
            require(f"parameters(config) of {self}", found, bool(found), "a dict with names")
            for name, (shape, init) in found.items():
                longer = any(other.startswith(f"{name}.") for other in found)
                if longer or not re.fullmatch(NAME, name):
                    raise UserError(
                        f"{name!r} in parameters(config) of {self} cannot be nested: join "
                        "words by dots, as in mlp.c_fc.weight; what is before a dot is no other name"
                    )
                right = isinstance(shape, tuple) and shape and min(shape) > 0
                right = right and (is_real(init) or init in INITS)
                require(f"{name} in parameters(config) of {self}", (shape, init), right,
                        f'such as "mlp.c_fc.weight": ((64, 256), "linear"); init is a number, or {", ".join(INITS)}')
        return found

    def extends_gpt2(self, config):
        """Return whether this block has all parameters of GPT-2's, and others."""
        return self.parameters_of(config).keys() > GPT2.parameters_of(config).keys()

    def trial(self, config):
        """Return x and dx_out (2, T, C), the parameters p of one block, and a mask.

        The numbers are random, of unit scale, in float32. Nothing can be written to x, dx_out and
        p, because others need what they hold.
        """
        rng, T = np.random.default_rng(0), min(3, config.block_size)
        x, dx_out = rng.standard_normal((2, 2, T, config.n_embd), np.float32)
        facts = self.parameters_of(config).items()
        p = {}
        for name, (shape, _) in facts:
            scale = np.float32(shape[0] ** 0.5 if len(shape) > 1 else 1)
            p[name] = rng.standard_normal(shape, np.float32) / scale
        for array in (x, dx_out, *p.values()):
            array.flags.writeable = False
        return x, dx_out, nest(p), layers.causal_mask(None, x) if config.causal else None

    def tried(self, config, ops=layers, by=lambda function: function, texts=(slice(2),)):
        """Run all forwards, then all backwards, on a `trial`.

        by: wraps a function of x, dx_out and p.
        texts: slices, one for each call; by default one call with both texts.
        Returns a dict for each call: "x_out", "dx", "the gradient of …" -> array.
        """
        x, dx_out, p, mask = self.trial(config)
        block = self.guarded(self.forward, self.backward)

        def run(x, dx_out, p):
            masks, results = BlockMasks(), []
            ran = [block.forward(x[part], p, config, 0, mask, masks, ops) for part in texts]
            for part, (x_out, cache) in zip(texts, ran, strict=True):
                dx, dp = block.backward(dx_out[part], cache, ops)
                grads = {f"the gradient of {name}": each for name, each in flatten(dp).items()}
                results.append({"x_out": x_out, "dx": dx, **grads})
            return results

        with np.errstate(all="ignore"):
            return by(run)(x, dx_out, p)

    def validate(self, config):
        """Raise UserError unless both functions run, and their results fit and stay what they are.

        Others are added to the gradients: none may share memory with another or with a parameter.
        """
        results, = self.tried(config)
        grads = {name: array for name, array in results.items() if name not in ("x_out", "dx")}
        for (name, one), (other, two) in itertools.product(grads.items(), repeat=2):
            if not one.flags.writeable or name != other and np.shares_memory(one, two):
                raise UserError(f"{self}: {name} must have memory of its own, because others are "
                                "added to it: return a copy")
        first, = self.tried(config, texts=ALONE[:1])
        before = copy.deepcopy(first)
        again, _ = self.tried(config, texts=ALONE)
        if changed := differing(before, first) + differing(before, again):
            raise UserError(f"{self}: {changed[0]} differs after the block has been called for "
                            "another text: return new arrays and a new cache each time, draw no "
                            "random numbers")

    def check_trained(self, config, trained):
        """Raise UserError unless the backward returns the gradients of these parameters of a model."""
        results, = self.tried(config)
        for name in trained:
            if name.startswith("h.") and f"the gradient of {name.split('.', 2)[2]}" not in results:
                raise self.lacks(name)

    def lacks(self, name):
        return UserError(f"{self} returns no gradient of {name}: return it, or freeze it")

    def mixes_texts(self, config):
        """Return whether the results for a text of a batch depend on the other texts."""
        if self == GPT2:
            return False
        (whole,), (one, two) = self.tried(config), self.tried(config, texts=ALONE)
        with np.errstate(all="ignore"):
            alone = {name: one[name] + two[name] for name in whole}
        for name in ("x_out", "dx"):
            alone[name] = np.concatenate([one[name], two[name]])
        return differing(whole, alone) != []

    def guarded(self, forward, backward):
        """Return the block with an engine's versions of its functions, guarded if it is a user's.

        A guard raises UserError for what a function raises, and for results that are missing or of
        another shape or dtype. The cache holds p as well, whose shapes the gradients have.
        """
        if self == GPT2:
            return dataclasses.replace(self, forward=forward, backward=backward)

        @functools.wraps(forward)
        def guarded_forward(x, p, *others, **named):
            named = asked(self.forward, places(x)) | named
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
            raise UserError(f"{name} of {self} must be an array {like.shape} {like.dtype}, "
                            f"not {shape} {dtype}")

    def check_continuing(self, config):
        """Raise UserError unless reading token by token, with cached keys and values, equals reading all at once."""
        if self == GPT2:
            return
        x, _, p, mask = self.trial(config)
        kept, H, D = [], config.n_head, config.head_size

        def attention_forward(q, k, v, scale, mask=None, dropout_mask=None):
            kept.append((k, v))
            k, v = (np.concatenate(each, axis=2) for each in zip(*kept, strict=True))
            return layers.attention_forward(q, k, v, scale, mask)

        ops, rows = SimpleNamespace(**{**vars(layers), "attention_forward": attention_forward}), []
        with self.blamed(), np.errstate(all="ignore"):
            at = config.at(**places(x))
            whole, _ = at.block.forward(x, p, config, 0, mask, BlockMasks(), layers)
        with self.blamed(" for a token that continues a text"), np.errstate(all="ignore"):
            for t in range(x.shape[1]):
                token, distances = slice(t, t + 1), places(x)["distances"]
                at = config.at(positions=np.full((2, 1), t), distances=distances[..., token, :t + 1])
                seen = np.zeros((1, 1), x.dtype)
                rows.append(at.block.forward(x[:, token], p, config, 0, seen, BlockMasks(), ops)[0])
        once = len(kept) in (0, len(rows)) and all(each.shape == (2, H, 1, D) for pair in kept for each in pair)
        if not once or abs(np.concatenate(rows, axis=1) - whole).max() > 1e-3 * abs(whole).max():
            raise UserError(f"{self} cannot continue texts: token by token it computes something else than at once; a "
                            "token sees others in ops.attention_forward alone, called once, with GPT-2's heads, mask")

    @contextlib.contextmanager
    def blamed(self, when=""):
        """Turn what the block's code raises into a UserError with the line."""
        try:
            yield
        except (UserError, KeyboardInterrupt, MemoryError, BrokenPipeError):
            raise
        except BaseException as error:          # also SystemExit
            if isinstance(error, RuntimeError) and hasattr(error, "status"):
                raise                           # CUDA's: see `out_of_memory`
            number = raised_at(error, self.file)
            line = f", line {number}" if number else ""
            raise UserError(f"{self}{line}{when}: {describe(error)}") from error


def differing(results, others):
    """Return the names of the arrays of two dicts that differ by more than rounding."""
    finite = {name: array[np.isfinite(array)] for name, array in results.items()}
    scales = {name: abs(array).max(initial=0.0) for name, array in finite.items()}
    rounding = 1e-5 * max(scales.values())          # of a gradient that is 0, but for rounding

    return [name for name, scale in scales.items() if not np.allclose(
        others[name], results[name], rtol=0.0, atol=1e-4 * scale + rounding, equal_nan=True)]


def places(x):
    """Return where the tokens of x (B, T, C) are, if they are whole texts: what a forward may ask for."""
    like = x if hasattr(x, "__array_function__") else None      # JAX's arrays have none
    positions = np.arange(x.shape[1], like=like)[None]          # (1, T)
    distances = positions[0, :, None] - positions[0]            # (T, T)
    return {"positions": positions, "distances": distances[None, None]}


def asked(forward, places):
    """Return those of the places for which a forward has an argument."""
    return {name: places[name] for name in arguments_of(forward) & places.keys()}


@functools.lru_cache
def arguments_of(forward):
    return inspect.signature(forward).parameters.keys()


def read_block(source):
    """Return the `Block` of a Python file, whose code is run, or of an object: a module, an instance. None stays None.

    Raises UserError, with the line, if the file cannot be run, or one of the three functions is missing.
    """
    if source is None or isinstance(source, Block):
        return source
    path, names = None, {name: getattr(source, name, None) for name in FUNCTIONS}
    if isinstance(source, str | os.PathLike):
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
    for file in filter(None, [path, *(each.__code__.co_filename for each in functions)]):
        linecache.checkcache(file)          # the text of a file, or of a notebook's cell
        texts[file] = "".join(linecache.getlines(file))
    own = [text for file, text in texts.items() if file != transformer.__file__ or len(texts) == 1]    # npgpt changes
    source, file = "".join(own) or repr(functions), functions[1].__code__.co_filename
    return Block(*functions, source, texts, file, path)


GPT2 = block_of([transformer.block_parameters, transformer.block_forward, transformer.block_backward])
