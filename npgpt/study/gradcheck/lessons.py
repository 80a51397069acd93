"""The lessons: each pair of a forward and a backward, in learning order, with small inputs at unit scale.

All sizes differ, and so do the products of sizes that meet in a matmul. So a missing transpose raises an error, and a
wrong shape tells which axis is wrong. A `Setting` makes the same lessons with other sizes and on other branches.
"""

import dataclasses
import importlib.util
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from npgpt import layers
from npgpt.errors import UserError
from npgpt.model import transformer
from npgpt.model.config import GPTConfig
from npgpt.model.masks import draw_masks, dropout_mask
from npgpt.model.parameters import flatten, nest, parameter_shapes
from npgpt.study.gradcheck import basics as lesson_0


class Sizes(NamedTuple):
    """The sizes of a set of lessons. S: keys, more than queries; P: rows of wpe, more than T."""

    B: int
    T: int
    C: int
    H: int
    V: int
    S: int
    F: int
    P: int

    @property
    def smallest(self):
        """The smallest size of an axis, also of D."""
        return min(*self, self.C // self.H)

    def letter(self, size):
        """Return the letter of an axis of that size: "T"."""
        more = {"D": self.C // self.H, "N": self.B * self.T, "3C": 3 * self.C}
        return next((name for name, value in (self._asdict() | more).items() if value == size), str(size))


SIZES = Sizes(B=4, T=5, C=6, H=2, V=8, S=7, F=9, P=10)
EPS = 0.1       # large, so that forgetting it is noticed
SMALL = 1e-5    # step of the difference in lesson 0: its error, of order SMALL^2 and 1e-16 / SMALL, is below 1e-9


@dataclasses.dataclass(frozen=True)
class Setting:
    """The options of a set of lessons. The defaults are the plain case, which the page and the exercises show.

    p: dropout probability; scale: of attention scores, None: 1 / sqrt(D); step: of the difference in lesson 0; spread:
    standard deviation of the inputs; layer: index of the block; off: the `SWITCHES` that are off; seed: of all random
    numbers; config: of a model whose options the composite layers take, with other sizes, or None.
    """

    sizes: Sizes = SIZES
    n_layer: int = 2
    layer: int = 0
    p: float = 0.3
    eps: float = EPS
    scale: float | None = None
    step: float = SMALL
    spread: float = 1.0
    off: frozenset[str] = frozenset()
    seed: int = 0
    config: GPTConfig | None = None

    def has(self, switch):
        return switch not in self.off


PLAIN = Setting()


@dataclasses.dataclass(frozen=True)
class Lesson:
    """One pair of functions, and how to call it.

    name: in commands; title: in words; inputs: name -> array for everything that gets a gradient, in the order of the
    backward's results; constants: the other arguments of the forward. Inputs with a dot in their name, such as
    "c_fc.weight", are the leaves of a composite layer's parameter tree, the argument `p`. results: the names of the
    inputs whose gradients the backward returns beside that tree; the gradient is None if it is not in `inputs`.
    """

    name: str
    title: str
    forward: Callable
    backward: Callable
    inputs: dict[str, np.ndarray]
    constants: dict
    results: tuple[str, ...]

    @property
    def is_composite(self):
        """Whether it calls other layers. If so, it has a parameter tree, and its backward takes `ops`."""
        return "ops" in self.constants

    def run_forward(self, inputs, forward=None):
        """Return (y, cache) of the forward, or of another function called like it."""
        arguments = {name: value for name, value in inputs.items() if "." not in name}
        if self.is_composite:
            arguments["p"] = nest({name: value for name, value in inputs.items() if "." in name})
        return (forward or self.forward)(**arguments, **self.constants)

    def run_backward(self, dy, cache, backward=None):
        """Return {"dx": …}, a gradient for each of `inputs`, from the backward or another function called like it."""
        ops = [self.constants["ops"]] if self.is_composite else []
        return self.named((backward or self.backward)(dy, cache, *ops))

    def named(self, result):
        """Name the results of a backward: arrays, and the leaves of a tree."""
        result = result if isinstance(result, tuple) else (result,)
        named = {f"d{name}": gradient for name, gradient in zip(self.results, result, strict=False)}
        return named | (flatten(result[-1], "d") if result and isinstance(result[-1], dict) else {})

    @property
    def upstream(self):
        """The name of the backward's first argument: the gradient of the output."""
        return self.backward.__code__.co_varnames[0]

    def astype(self, dtype):
        """Return the lesson with all floating arrays in another dtype."""
        def cast(array):
            return array.astype(dtype) if array.dtype.kind == "f" else array

        return dataclasses.replace(self, inputs=map_arrays(cast, self.inputs),
                                   constants=map_arrays(cast, self.constants))


def map_arrays(function, value):
    """Apply `function` to each array in nested dicts, lists and (named) tuples."""
    if isinstance(value, np.ndarray):
        return function(value)
    if isinstance(value, dict):
        return {name: map_arrays(function, each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        mapped = [map_arrays(function, each) for each in value]
        return type(value)(*mapped) if hasattr(value, "_fields") else type(value)(mapped)
    return value


def lesson_of(module, name, title, inputs, **constants):
    """Return the `Lesson` of a pair in a module. An input that is None is a constant; the backward returns None for it.
    """
    return Lesson(name, title, getattr(module, f"{name}_forward"), getattr(module, f"{name}_backward"),
                  {each: value for each, value in inputs.items() if value is not None},
                  constants | {each: None for each, value in inputs.items() if value is None},
                  tuple(each for each in inputs if "." not in each))


def basics(setting=PLAIN):
    """Return the pairs of lesson 0 by name, with the same random inputs every time."""
    T, C, N = setting.sizes.T, setting.sizes.C, setting.sizes.B * setting.sizes.T
    rng = np.random.default_rng(7 + setting.seed)

    def unit(*shape):
        return setting.spread * rng.standard_normal(shape)

    a, b = (2.0, 0.5) if setting == PLAIN else np.random.default_rng(setting.seed).uniform(0.5, 2.0, 2)

    def unknown(x):
        return np.sin(a * x) + b * (x * x)

    made = [lesson_of(lesson_0, "chain", "The chain rule", {"x": unit(T, C), "a": unit(T, C)}),
            lesson_of(lesson_0, "twice", "A variable used twice", {"x": unit(T, C)}),
            lesson_of(lesson_0, "broadcast", "Broadcasting", {"x": unit(N, C), "gain": unit(N, 1), "bias": unit(C)}),
            lesson_of(lesson_0, "difference", "A derivative, measured", {"x": unit(T, C)}, f=unknown, h=setting.step)]
    return {each.name: each for each in made}


def basics_and_lessons(setting=PLAIN):
    """Return the lessons of all exercises by name, in learning order: lesson 0, then the layers."""
    return basics(setting) | lessons(setting)


def lessons(setting=PLAIN):
    """Return all layers' lessons by name, with the same random inputs every time."""
    B, T, C, H, V, S, F, P = setting.sizes
    D, has = C // H, setting.has
    rng = np.random.default_rng(11 + setting.seed)
    made = {}

    def unit(*shape):
        return setting.spread * rng.standard_normal(shape)

    def add(name, *arguments, **constants):
        made[name] = lesson_of(transformer if "ops" in constants else layers, name, *arguments, **constants)

    def bias(n):
        """Return a bias or None; both advance the random numbers equally."""
        values = unit(n)
        return values if has("bias") else None

    targets = rng.integers(0, V, (B, T))
    if has("ignored"):
        targets[0, 0] = layers.IGNORE_INDEX
    idx = rng.integers(0, V, (B, T))
    idx[1:2] = idx[0, 0]                    # a repeated token
    if not has("repeated"):
        idx = np.random.default_rng(setting.seed).permutation(V)[:B * T].reshape(B, T)
    add("linear", "Linear layer", {"x": unit(B, T, C), "weight": unit(C, V), "bias": bias(V)})
    add("gelu_tanh", "GELU, the tanh form", {"x": unit(B, T, C)})
    add("gelu_exact", "GELU, the exact form", {"x": unit(B, T, C)})
    add("layernorm", "LayerNorm", {"x": unit(B, T, C), "weight": unit(C), "bias": bias(C)}, eps=setting.eps)
    add("cross_entropy", "Softmax cross-entropy", {"logits": unit(B, T, V)}, targets=targets)
    add("embedding", "Embedding", {"wte": unit(V, C), "wpe": unit(P, C)}, idx=idx)
    add("head", "Language-model head", {"x": unit(B, T, C), "weight": unit(V, C), "bias": bias(V)})
    p = setting.p if has("dropout") else 0.0
    add("dropout", "Dropout", {"x": unit(B, T, C)}, mask=dropout_mask(rng, (B, T, C), p, np.float64))
    add("attention", "Attention", {"q": unit(B, H, T, D), "k": unit(B, H, S, D), "v": unit(B, H, S, D)},
        scale=setting.scale or 1.0 / math.sqrt(D), mask=attention_mask(setting, T, S),
        dropout_mask=dropout_mask(rng, (B, H, T, S), p, np.float64))

    activation = "gelu_tanh" if has("tanh") or not importlib.util.find_spec("scipy") else "gelu"
    config = GPTConfig(vocab_size=V, block_size=P, n_layer=setting.n_layer, n_head=H, n_embd=C, n_inner=F,
                       layer_norm_epsilon=setting.eps, dropout=p, embedding_layer_norm=has("ln_e"),
                       final_layer_norm=has("ln_f"), lm_head_bias=has("head_bias"), bias=has("bias"),
                       tie_word_embeddings=has("tied"), causal=has("causal"), activation=activation)
    if setting.config:
        config = dataclasses.replace(setting.config, vocab_size=V, block_size=P, n_head=H, n_embd=C, n_inner=F,
                                     bos_token_id=None, eos_token_id=None)
    params = {name: unit(*shape) * (0.5 if len(shape) == 2 else 1.0)
              for name, shape in parameter_shapes(config).items()}
    masks = draw_masks(config, B, T, np.float64, rng)
    inside = {"config": config, "layer": setting.layer, "mask": attention_mask(setting, T, T), "ops": layers}

    def below(prefix):
        return {"x": unit(B, T, C)} | {name.removeprefix(prefix): array for name, array in params.items()
                                       if name.startswith(prefix)}

    add("mlp", "MLP", below("h.0.mlp."), config=config, ops=layers)
    add("self_attention", "Self-attention", below("h.0.attn."), dropout_mask=masks.blocks[0].att, **inside)
    add("block", "Transformer block", below("h.0."), dropout_masks=masks.blocks[0], **inside)
    add("gpt", "The whole GPT-2", params, idx=idx, config=config, dropout_masks=masks, ops=layers)
    # The rank is D, which differs from the other sizes. Frozen arrays are constants.
    add("lora", "LoRA", {"x": unit(B, T, C), "lora_a": unit(C, D), "lora_b": unit(D, V)},
        weight=unit(C, V), bias=bias(V))
    return made


def attention_mask(setting, T, S):
    """Return the causal mask (T, S), a random mask (B, 1, T, S) in which each query sees a key, or None."""
    if not setting.has("mask"):
        return None
    if setting.has("causal"):
        return np.triu(np.full((T, S), -np.inf), k=1 + S - T)
    rng = np.random.default_rng(setting.seed)
    unseen = rng.random((setting.sizes.B, 1, T, S)) < 0.4
    unseen[..., 0] = False
    return np.where(unseen, -np.inf, 0.0)


def chosen_lessons(name):
    """Return the lesson of a name in a list, or all lessons for "all". Raises UserError for an unknown name."""
    all_lessons = basics_and_lessons()
    if name != "all" and name not in all_lessons:
        raise UserError(f'there is no layer "{name}": choose one of {", ".join(all_lessons)}, or all')
    return [lesson for lesson in all_lessons.values() if name in ("all", lesson.name)]
