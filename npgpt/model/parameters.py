"""All parameters of a model in one array, each a named view into it."""

import fnmatch
import math
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType

import numpy as np
from numpy.typing import ArrayLike

from npgpt.arrays import on_device_of, table
from npgpt.checks import is_real, shown
from npgpt.errors import UserError
from npgpt.model.config import GPTConfig
from npgpt.model.tree import flatten, nest

INITS = ("gpt2", "half-wpe", "torch", "normal")  # what `initialize` draws


def parameter_shapes(config: GPTConfig) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of every parameter, with the names, layouts and order of GPT-2's
    checkpoints.

    Linear weights are (in, out). A tied head has no matrix of its own.
    """
    return {name: shape for name, (shape, _) in parameters_of(config).items()}


def parameters_of(config):
    """Return name -> (shape, init) of every parameter; init as in `Block`."""
    C, V = config.n_embd, config.vocab_size
    ln = {"weight": ((C,), 1.0)} | ({"bias": ((C,), 0.0)} if config.bias else {})
    found = {"wte.weight": ((V, C), "normal")}
    if config.positions == "learned":
        found["wpe.weight"] = (config.block_size, C), "normal"
    if config.embedding_layer_norm:
        found |= {f"ln_e.{kind}": each for kind, each in ln.items()}
    block = config.block.parameters_of(config)
    for i in range(config.n_layer):
        found |= {f"h.{i}.{name}": each for name, each in block.items()}
    if config.final_layer_norm:
        found |= {f"ln_f.{kind}": each for kind, each in ln.items()}
    if not config.tie_word_embeddings:
        found["lm_head.weight"] = (V, C), "linear"
    if config.lm_head_bias:
        found["lm_head.bias"] = (V,), "bias"
    return found


def matching(names, pattern):
    """Return the set of the names that are `pattern`, begin with it and a dot, or match it.

    So "h.0", "*.bias" and "h.*.mlp" are patterns.
    """
    return {*fnmatch.filter(names, pattern), *fnmatch.filter(names, f"{pattern}.*")}


def frozen_names(config, freeze=()):
    """Return the names of the frozen parameters.

    freeze: names, prefixes up to a dot ("h.0"), or patterns of either ("*.bias", "h.*.mlp"), as a
    list or one string separated by commas. Raises UserError if there is no such parameter, or
    nothing is left to train.
    """
    parts = freeze.split(",") if isinstance(freeze, str) else freeze
    shapes, frozen = parameter_shapes(config), set()
    for part in filter(None, map(str.strip, parts)):
        found = matching(shapes, part)
        if not found:
            raise UserError(
                f"there is no parameter {shown(part)} to freeze: `npgpt info` lists them all"
            )
        frozen |= found
    if len(frozen) == len(shapes):
        raise UserError("every parameter is frozen, so nothing is left to train: freeze fewer")
    return frozen


def zeros_at_a_cache_line(size, dtype, xp):
    """Return zeros (size,). In NumPy they begin at a cache line of 64 bytes, so loops read the
    weights a third faster.
    """
    if xp is not np:
        return xp.zeros(size, dtype=dtype)
    memory = np.zeros(size * dtype.itemsize + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + size * dtype.itemsize].view(dtype)


class Parameters(Mapping[str, np.ndarray]):
    """A mapping name -> array whose values are views of one contiguous array, `flat`.

    Assignment writes through: `params["ln_f.bias"] = 0` changes `flat`. With a tied head,
    "lm_head.weight" is an alias of "wte.weight"; iteration, `len` and gradients have each array
    once, as torch's `parameters()`.

    Parameters
    ----------
    config : GPTConfig
        The model's shape.
    dtype : str or np.dtype
        Of all arrays.
    xp : module
        The array library, numpy or cupy.
    frozen : iterable of str
        The parameters without gradients.
    moment : bool
        Whether this is a moment of an optimizer, without frozen parameters.

    Attributes
    ----------
    flat : array, shape (size,)
        All values. Matrices come first, so weight decay applies to `flat[:n_matrix]`, and frozen
        parameters last, so gradients and AdamW's moments are those of `flat[:n_trained]`.
    tree : dict
        The same views, nested by the dots of their names.
    trained : dict
        Name -> shape of the parameters that are not frozen.
    """

    def __init__(
        self,
        config: GPTConfig,
        dtype: str | np.dtype = "float32",
        xp: ModuleType = np,
        frozen: Iterable[str] = (),
        moment: bool = False,
    ):
        self.config, self.xp, self.frozen, self.moment = config, xp, frozenset(frozen), moment
        shapes = parameter_shapes(config)
        self.trained = {name: shape for name, shape in shapes.items() if name not in self.frozen}
        self.shapes = self.trained if moment else shapes
        sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        self.size, self.dtype = sum(sizes.values()), np.dtype(dtype)
        self._flat = zeros_at_a_cache_line(self.size, self.dtype, xp)
        self.flat_names = sorted(self.trained, key=lambda name: len(shapes[name]) < 2)
        self._views, start = {}, 0
        rest = [name for name in self.shapes if name not in self.trained]
        for name in self.flat_names + rest:
            self._views[name] = self._flat[start : start + sizes[name]].reshape(self.shapes[name])
            start += sizes[name]
        if config.tie_word_embeddings and "wte.weight" in self._views:
            self._views["lm_head.weight"] = self._views["wte.weight"]
        self.n_matrix = sum(sizes[name] for name in self.trained if len(shapes[name]) > 1)
        self.n_trained = sum(sizes[name] for name in self.trained)
        self._tree = nest({name: self._views[name] for name in self.shapes})

    @property
    def flat(self) -> np.ndarray:
        return self._flat

    @property
    def tree(self) -> dict:
        return self._tree

    def __reduce__(self):  # copies of the views would not share memory with `flat`
        raise TypeError("parameters cannot be copied alone: copy.deepcopy(model) copies a model")

    def __getitem__(self, name: str) -> np.ndarray:
        return self._views[name]

    def __setitem__(self, name: str, value: ArrayLike) -> None:
        view = self[name]
        with on_device_of(view):
            new = self.xp.asarray(value)
            if new.shape not in ((), view.shape):
                raise UserError(
                    f"{name} has shape {view.shape}, but the value has shape {new.shape}"
                )
            view[...] = new

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    __repr__ = table(
        "", lambda self, k: (self.shapes[k], self.dtype, "frozen" * (k in self.frozen))
    )

    def check_gradients(self, what, grads):
        """Raise UserError unless grads has an array of the right shape and dtype for each of
        `trained` and no other.
        """
        found = {name: (array.shape, array.dtype) for name, array in grads.items()}
        if found != {name: (shape, self.dtype) for name, shape in self.trained.items()}:
            others = sorted(map(str, grads.keys() - self.trained.keys()))
            advice = f"pop {', '.join(others[:3])}" if others else "as loss_and_grads returns them"
            raise UserError(
                f"{what} must be gradients of this model's trained parameters: {advice}"
            )

    def flatten(self, tree):
        """Return the leaves of a tree of gradients, a dict with the trained parameters' names in
        their order.

        Edited lines may have given them another shape, (1, C), or dtype. Raises UserError if there
        is none of a trained parameter.
        """
        named = flatten(tree)
        if missing := [name for name in self.trained if name not in named]:
            raise self.config.block.lacks(missing[0])
        return {
            name: named[name].reshape(shape).astype(self.dtype, copy=False)
            for name, shape in self.trained.items()
        }

    def zeros_like(self) -> "Parameters":
        """Return zeros with the names, shapes and dtype of the trained parameters."""
        with on_device_of(self.flat):
            return Parameters(self.config, self.dtype, self.xp, self.frozen, moment=True)


def initialize(params, seed, init="gpt2", names=None):
    """Draw GPT-2's initial weights: normal with standard deviation `initializer_range`, biases 0,
    LayerNorm gains 1.

    For the two projections that add to the residual stream it is divided by sqrt(2 n_layer), so
    that the variance of the stream does not grow with the number of layers. The same seed gives the
    same model on every device, in every dtype. init: "gpt2"; "half-wpe", half that deviation for
    the positions, as in OpenAI's code; "normal", that deviation for every matrix; or "torch", as
    torch's modules: embeddings with deviation 1, linear layers uniform within 1 / sqrt(fan in).
    names: which parameters are drawn, by default all.
    """
    rng, config = np.random.default_rng(seed), params.config
    known = parameters_of(config)
    for name in params if names is None else names:
        shape, how = known[name]
        if is_real(how):
            params[name] = how
        elif init == "torch" and how != "normal":
            layer = name.rpartition(".")[0]
            matrix = known.get(f"{layer}.weight", known[name])[0] if how == "bias" else shape
            fan_in = config.n_embd if layer == "lm_head" else matrix[-2:][0]
            uniform = rng.random(shape, dtype=np.float32) * 2 - 1
            params[name] = uniform / math.sqrt(fan_in)
        elif how == "bias":
            params[name] = 0.0
        else:
            is_embedding = name in ("wte.weight", "wpe.weight")
            deviation = 1.0 if init == "torch" and is_embedding else config.initializer_range
            if how == "residual" and init != "normal":
                deviation /= math.sqrt(2 * config.n_layer)
            if name == "wpe.weight" and init == "half-wpe":
                deviation /= 2
            params[name] = rng.standard_normal(shape, dtype=np.float32) * deviation
