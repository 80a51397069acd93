"""All parameters in one array, each one a named view into it."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from npgpt.checks import as_array, check, shown
from npgpt.errors import UserError


def parameter_shapes(config):
    """name -> shape of every parameter of a model, with the names, layouts and order of GPT-2's checkpoints.

    Linear weights are (in, out). A tied head has no entry of its own.
    """
    C, V = config.n_embd, config.vocab_size
    shapes = {}

    def layer(name, weight, bias=config.bias):
        shapes[f"{name}.weight"] = weight
        if bias:
            shapes[f"{name}.bias"] = weight[-1:]

    layer("wte", (V, C), bias=False)
    layer("wpe", (config.block_size, C), bias=False)
    if config.embedding_layer_norm:
        layer("ln_e", (C,))
    for i in range(config.n_layer):
        layer(f"h.{i}.ln_1", (C,))
        layer(f"h.{i}.attn.c_attn", (C, 3 * C), bias=config.qkv_bias)
        layer(f"h.{i}.attn.c_proj", (C, C))
        layer(f"h.{i}.ln_2", (C,))
        layer(f"h.{i}.mlp.c_fc", (C, config.n_inner))
        layer(f"h.{i}.mlp.c_proj", (config.n_inner, C))
    layer("ln_f", (C,))
    if not config.tie_word_embeddings:
        layer("lm_head", (V, C), bias=False)
    return shapes


class Parameters(Mapping):
    """A mapping name -> array whose values are all views of one contiguous array, `flat`.

    Assignment writes through: `params["ln_f.bias"] = 0` changes `flat`. With tied embeddings "lm_head.weight" is
    another name for the array "wte.weight", which iteration does not repeat. The matrices stand first in `flat`, so
    that `flat[:n_matrix]` is what weight decay touches, and the head's first of all, so that others stand behind it
    (`FusedGPT` reads on into them). Parameters, gradients and moments all have this one layout.
    """

    def __init__(self, config, dtype="float32", xp=np):
        self.config = config
        self.xp = xp
        self.fused = None       # the `FusedGPT` that computes with them, if there is one
        self.shapes = parameter_shapes(config)
        # The biases that this model does not have: a backward gives None for their gradients.
        self.absent = parameter_shapes(dataclasses.replace(config, bias=True, qkv_bias=True)).keys() - self.shapes
        sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        self.flat = xp.zeros(sum(sizes.values()), dtype=dtype)
        self._views = {}
        start = 0
        order = sorted(self.shapes.items(), key=lambda item: (len(item[1]) < 2, item[0] != "lm_head.weight"))   # stable
        for name, shape in order:
            self._views[name] = self.flat[start:start + sizes[name]].reshape(shape)
            start += sizes[name]
        self.n_matrix = sum(size for name, size in sizes.items() if len(self.shapes[name]) == 2)
        if config.tie_word_embeddings:
            self._views["lm_head.weight"] = self._views["wte.weight"]

    def __getitem__(self, name):
        return self._views[name]

    def __setitem__(self, name, value):
        if value is None and name in self.absent:
            return
        if name not in self._views:
            raise UserError(f"there is no parameter {shown(name)} in this model")
        view = self._views[name]
        if value is view:                   # a backward that was given the view has written to it already
            return
        if not isinstance(value, int | float):
            value = value if hasattr(value, "dtype") else as_array(name, value)
            check(name, value, value.dtype.kind in "fiu", "an array of numbers, or one number")
        if np.shape(value) not in ((), view.shape):
            raise UserError(f"{name} has shape {view.shape}, but the value has shape {np.shape(value)}")
        view[...] = value

    def __iter__(self):
        return iter(self.shapes)

    def __len__(self):
        return len(self.shapes)

    def zeros_like(self):
        """Parameters of the same names, shapes and dtype, all zero: a gradient buffer, or a moment."""
        return Parameters(self.config, self.flat.dtype, self.xp)

    def block(self, i):
        """The parameters of block i by their short names: `params.block(0)["ln_1.weight"]` is `h.0.ln_1.weight`."""
        return Block(self, f"h.{i}.")


class Block:
    """The part of a `Parameters` whose names begin with a prefix, by the rest of the name."""

    def __init__(self, parameters, prefix):
        self.parameters = parameters
        self.prefix = prefix

    def __getitem__(self, name):
        return self.parameters[self.prefix + name]

    def get(self, name):
        """The array of that name, or None for a bias that this model does not have."""
        return self.parameters.get(self.prefix + name)

    def __setitem__(self, name, value):
        self.parameters[self.prefix + name] = value


def initialize(params, seed):
    """GPT-2's initial weights: normal with deviation 0.02, biases 0, LayerNorm gains 1.

    The two projections that write to the residual stream have 0.02 / sqrt(2 n_layer), so that the variance of the
    stream does not grow with the number of layers that add to it. Drawn by NumPy in float32 on any device and for any
    dtype: a seed means the same model everywhere.
    """
    rng = np.random.default_rng(seed)
    for name, shape in params.shapes.items():
        if len(shape) == 2:
            deviation = 0.02 / math.sqrt(2 * params.config.n_layer) if name.endswith("c_proj.weight") else 0.02
            params[name] = params.xp.asarray(rng.standard_normal(shape, dtype=np.float32) * deviation)
        elif name.endswith(".weight"):
            params[name] = 1.0
