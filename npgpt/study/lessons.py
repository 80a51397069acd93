"""The lessons: each pair of a forward and a backward, in learning order, with small inputs at unit scale.

All sizes are different, and so are the products of sizes that meet in a matmul. So a missing transpose does not run,
and a wrong shape tells which axis is wrong. Each branch of a forward runs: in the lesson itself, or in one of its
`cases`.
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
from npgpt.model.masks import BlockMasks, draw_masks, dropout_mask
from npgpt.model.parameters import flatten, nest, parameter_shapes
from npgpt.study import basics as lesson_0


class Sizes(NamedTuple):
    """The sizes of a set of lessons. S: keys, which are more than the queries; P: rows of wpe, more than T."""

    B: int
    T: int
    C: int
    H: int
    V: int
    S: int
    F: int
    P: int

    def letter(self, size):
        """What an axis of that size is called in the lessons: "T"."""
        more = {"D": self.C // self.H, "N": self.B * self.T, "3C": 3 * self.C}
        return next((name for name, value in (self._asdict() | more).items() if value == size), str(size))


SIZES = Sizes(B=4, T=5, C=6, H=2, V=8, S=7, F=9, P=10)
OTHER_SIZES = Sizes(B=3, T=4, C=10, H=2, V=7, S=6, F=11, P=9)       # for solutions that are right for one size only
EPS = 0.1       # large, so that a backward that forgets it is seen
SMALL = 1e-5    # the step of a difference by hand: its error, of order SMALL^2 and 1e-16 / SMALL, is below 1e-9


@dataclasses.dataclass(frozen=True)
class Lesson:
    """One pair of functions, and how to call it.

    name: what the commands call it; title: in words; inputs: name -> array of everything that gets a gradient, in the
    order in which the backward returns them; constants: the other arguments of the forward. Inputs with a dot in their
    name, such as "c_fc.weight", are the leaves of a composite layer's tree of parameters, the argument `p`. results:
    the names of the inputs whose gradients the backward returns beside that tree; one that is not in `inputs` has the
    gradient None. cases: in words -> the same pair on other branches, "without a bias".
    """

    name: str
    title: str
    forward: Callable
    backward: Callable
    inputs: dict[str, np.ndarray]
    constants: dict
    results: tuple[str, ...]
    cases: dict[str, "Lesson"] = dataclasses.field(default_factory=dict)

    @property
    def is_composite(self):
        """Whether it calls other layers: then it has a tree of parameters, and its backward takes `ops` too."""
        return "ops" in self.constants

    def run_forward(self, inputs, forward=None):
        """(y, cache) of the forward, or of another function in its place."""
        arguments = {name: value for name, value in inputs.items() if "." not in name}
        if self.is_composite:
            arguments["p"] = nest({name: value for name, value in inputs.items() if "." in name})
        return (forward or self.forward)(**arguments, **self.constants)

    def run_backward(self, dy, cache, backward=None):
        """{"dx": …}, a gradient for each of `inputs`, by the backward, or by another function in its place."""
        ops = [self.constants["ops"]] if self.is_composite else []
        return self.named((backward or self.backward)(dy, cache, *ops))

    def named(self, result):
        """What a backward returned, by names: arrays, and the leaves of a tree. What this lesson lacks is left out."""
        result = result if isinstance(result, tuple) else (result,)
        named = {f"d{name}": gradient for name, gradient in zip(self.results, result, strict=False)}
        return named | (flatten(result[-1], "d") if result and isinstance(result[-1], dict) else {})

    @property
    def upstream(self):
        """The name of the backward's first argument: the gradient of the output."""
        return self.backward.__code__.co_varnames[0]

    def astype(self, dtype):
        """The same lesson with all its floating arrays in another dtype."""
        def cast(array):
            return array.astype(dtype) if array.dtype.kind == "f" else array

        return dataclasses.replace(self, inputs=map_arrays(cast, self.inputs),
                                   constants=map_arrays(cast, self.constants))

    def without(self, *names, **constants):
        """The same lesson without some inputs, and with other constants."""
        left = {name: value for name, value in self.inputs.items() if name not in names}
        return dataclasses.replace(self, inputs=left, constants=self.constants | constants)


def map_arrays(function, value):
    """A value with `function` applied to each array in its dicts, lists and (named) tuples."""
    if isinstance(value, np.ndarray):
        return function(value)
    if isinstance(value, dict):
        return {name: map_arrays(function, each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        mapped = [map_arrays(function, each) for each in value]
        return type(value)(*mapped) if hasattr(value, "_fields") else type(value)(mapped)
    return value


def basics(sizes=SIZES):
    """The lessons of lesson 0 by name, with the same random inputs every time."""
    T, C, N = sizes.T, sizes.C, sizes.B * sizes.T
    rng = np.random.default_rng(7)

    def unit(*shape):
        return rng.standard_normal(shape)

    def unknown(x):
        return np.sin(2.0 * x) + 0.5 * (x * x)

    def lesson(name, title, inputs, **constants):
        pair = (getattr(lesson_0, f"{name}_{direction}") for direction in ("forward", "backward"))
        return Lesson(name, title, *pair, inputs, constants, tuple(inputs))

    made = [lesson("chain", "The chain rule", {"x": unit(T, C), "a": unit(T, C)}),
            lesson("twice", "A variable used twice", {"x": unit(T, C)}),
            lesson("broadcast", "Broadcasting", {"x": unit(N, C), "gain": unit(N, 1), "bias": unit(C)}),
            lesson("difference", "A derivative, measured", {"x": unit(T, C)}, f=unknown, h=SMALL)]
    return {each.name: each for each in made}


def basics_and_lessons(sizes=SIZES):
    """The lessons of all exercises by name, in learning order: lesson 0, then the layers."""
    return basics(sizes) | lessons(sizes)


def lessons(sizes=SIZES):
    """All lessons by name, with the same random inputs every time."""
    B, T, C, H, V, S, F, P = sizes
    D = C // H
    rng = np.random.default_rng(11)
    made = {}

    def unit(*shape):
        return rng.standard_normal(shape)

    def add(name, title, inputs, **constants):
        module = transformer if "ops" in constants else layers
        made[name] = Lesson(name, title, getattr(module, f"{name}_forward"), getattr(module, f"{name}_backward"),
                            inputs, constants, tuple(name for name in inputs if "." not in name))
        return made[name]

    targets = rng.integers(0, V, (B, T))
    counted = targets.copy()
    targets[0, 0] = layers.IGNORE_INDEX
    idx = rng.integers(0, V, (B, T))
    idx[1] = idx[0, 0]                      # a token that is read several times
    future = np.triu(np.full((T, T), -np.inf), k=1)
    linear = add("linear", "Linear layer", {"x": unit(B, T, C), "weight": unit(C, V), "bias": unit(V)})
    linear.cases["without a bias"] = linear.without("bias", bias=None)
    add("gelu_tanh", "GELU, the tanh form", {"x": unit(B, T, C)})
    add("gelu_exact", "GELU, the exact form", {"x": unit(B, T, C)})
    norm = add("layernorm", "LayerNorm", {"x": unit(B, T, C), "weight": unit(C), "bias": unit(C)}, eps=EPS)
    norm.cases["without a bias"] = norm.without("bias", bias=None)
    loss = add("cross_entropy", "Softmax cross-entropy", {"logits": unit(B, T, V)}, targets=targets)
    loss.cases["if every target counts"] = loss.without(targets=counted)
    add("embedding", "Embedding", {"wte": unit(V, C), "wpe": unit(P, C)}, idx=idx)
    head = add("head", "Language-model head", {"x": unit(B, T, C), "weight": unit(V, C), "bias": unit(V)})
    head.cases["without a bias"] = head.without("bias", bias=None)
    drop = add("dropout", "Dropout", {"x": unit(B, T, C)}, mask=dropout_mask(rng, (B, T, C), 0.3, np.float64))
    drop.cases["without a mask"] = drop.without(mask=None)
    attention = add("attention", "Attention", {"q": unit(B, H, T, D), "k": unit(B, H, S, D), "v": unit(B, H, S, D)},
                    scale=1.0 / math.sqrt(D), mask=np.triu(np.full((T, S), -np.inf), k=1 + S - T),
                    dropout_mask=dropout_mask(rng, (B, H, T, S), 0.3, np.float64))
    attention.cases["without dropout"] = attention.without(dropout_mask=None)
    attention.cases["without a mask"] = attention.without(mask=None)

    config = GPTConfig(vocab_size=V, block_size=P, n_layer=2, n_head=H, n_embd=C, n_inner=F,
                       layer_norm_epsilon=EPS, dropout=0.3, embedding_layer_norm=True, lm_head_bias=True)
    other = dataclasses.replace(config, bias=False, dropout=0.0, causal=False, embedding_layer_norm=False,
                                final_layer_norm=False, tie_word_embeddings=False, lm_head_bias=False)
    if importlib.util.find_spec("scipy"):
        other = dataclasses.replace(other, activation="gelu")

    def parameters(config):
        return {name: unit(*shape) * (0.5 if len(shape) == 2 else 1.0)
                for name, shape in parameter_shapes(config).items()}

    params = parameters(config)
    masks = draw_masks(config, B, T, np.float64, rng)

    def below(prefix):
        return {"x": unit(B, T, C)} | {name.removeprefix(prefix): array for name, array in params.items()
                                       if name.startswith(prefix)}

    mlp = add("mlp", "MLP", below("h.0.mlp."), config=config, ops=layers)
    mlp.cases[f"with {other.activation} and without biases"] = mlp.without("c_fc.bias", "c_proj.bias", config=other)
    self_attention = add("self_attention", "Self-attention", below("h.0.attn."), config=config, layer=0, mask=future,
                         dropout_mask=masks.blocks[0].att, ops=layers)
    self_attention.cases["without a mask, dropout and biases"] = self_attention.without(
        "c_attn.bias", "c_proj.bias", config=other, mask=None, dropout_mask=None)
    block = add("block", "Transformer block", below("h.0."), config=config, layer=0, mask=future,
                dropout_masks=masks.blocks[0], ops=layers)
    block.cases["without a mask, dropout and biases"] = block.without(
        *(name for name in block.inputs if name.endswith("bias")), config=other, mask=None, dropout_masks=BlockMasks())
    gpt = add("gpt", "The whole GPT-2", params, idx=idx, config=config, dropout_masks=masks, ops=layers)
    plain = dataclasses.replace(config, dropout=0.0, lm_head_bias=False)
    gpt.cases["without dropout and a bias of the head"] = gpt.without(
        "lm_head.bias", config=plain, dropout_masks=draw_masks(plain, B, T, np.float64))
    gpt.cases["with an untied head, without biases, dropout and extra LayerNorms"] = dataclasses.replace(
        gpt, inputs=parameters(other), constants=gpt.constants | {
            "config": other, "dropout_masks": draw_masks(other, B, T, np.float64)})
    return made


def chosen_lessons(name):
    """The lesson of that name as a list, or all for "all"; UserError that lists them for a name that does not exist."""
    all_lessons = basics_and_lessons()
    if name != "all" and name not in all_lessons:
        raise UserError(f'there is no layer "{name}": choose one of {", ".join(all_lessons)}, or all')
    return [lesson for lesson in all_lessons.values() if name in ("all", lesson.name)]
