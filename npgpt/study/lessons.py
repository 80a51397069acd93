"""The lessons: each pair of a forward and a backward, in learning order, with small inputs at unit scale."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from npgpt import layers
from npgpt.errors import UserError
from npgpt.model import transformer
from npgpt.model.config import GPTConfig
from npgpt.model.masks import draw_masks, dropout_mask
from npgpt.model.parameters import flatten, nest, parameter_shapes

B, T, C, H, V = 2, 3, 6, 2, 7
D = C // H
EPS = 0.1       # large, so that a backward that forgets it is seen


@dataclasses.dataclass(frozen=True)
class Lesson:
    """One pair of functions, and how to call it.

    name: what the commands call it; title: in words; inputs: name -> array of everything that gets a gradient, in the
    order in which the backward returns them; constants: the other arguments of the forward. Inputs with a dot in their
    name, such as "c_fc.weight", are the leaves of a composite layer's tree of parameters, the argument `p`.
    """

    name: str
    title: str
    forward: Callable
    backward: Callable
    inputs: dict[str, np.ndarray]
    constants: dict

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
        named = {f"d{name}": gradient for name, gradient in zip(
            [name for name in self.inputs if "." not in name], result, strict=False)}
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


def lessons():
    """All lessons by name, with the same random inputs every time."""
    rng = np.random.default_rng(11)
    made = {}

    def unit(*shape):
        return rng.standard_normal(shape)

    def add(name, title, inputs, **constants):
        module = transformer if "ops" in constants else layers
        made[name] = Lesson(name, title, getattr(module, f"{name}_forward"), getattr(module, f"{name}_backward"),
                            inputs, constants)

    targets = rng.integers(0, V, (B, T))
    targets[0, 0] = layers.IGNORE_INDEX
    idx = rng.integers(0, V, (B, T))
    idx[1] = idx[0, 0]                      # a token that is read several times
    future = np.triu(np.full((T, T), -np.inf), k=1)
    add("linear", "Linear layer", {"x": unit(B, T, C), "weight": unit(C, 5), "bias": unit(5)})
    add("gelu_tanh", "GELU, the tanh form", {"x": unit(B, T, C)})
    add("gelu_exact", "GELU, the exact form", {"x": unit(B, T, C)})
    add("layernorm", "LayerNorm", {"x": unit(B, T, C), "weight": unit(C), "bias": unit(C)}, eps=EPS)
    add("cross_entropy", "Softmax cross-entropy", {"logits": unit(B, T, V)}, targets=targets)
    add("embedding", "Embedding", {"wte": unit(V, C), "wpe": unit(T + 1, C)}, idx=idx)
    add("head", "Language-model head", {"x": unit(B, T, C), "weight": unit(V, C), "bias": unit(V)})
    add("dropout", "Dropout", {"x": unit(B, T, C)}, mask=dropout_mask(rng, (B, T, C), 0.3, np.float64))
    add("attention", "Attention", {"q": unit(B, H, T, D), "k": unit(B, H, T, D), "v": unit(B, H, T, D)},
        scale=1.0 / math.sqrt(D), mask=future, dropout_mask=dropout_mask(rng, (B, H, T, T), 0.3, np.float64))

    config = GPTConfig(vocab_size=V, block_size=T + 1, n_layer=2, n_head=H, n_embd=C, layer_norm_epsilon=EPS,
                       dropout=0.3, embedding_layer_norm=True, lm_head_bias=True)
    params = {name: unit(*shape) * (0.5 if len(shape) == 2 else 1.0)
              for name, shape in parameter_shapes(config).items()}
    masks = draw_masks(config, B, T, np.float64, rng)

    def below(prefix):
        return {"x": unit(B, T, C)} | {name.removeprefix(prefix): array for name, array in params.items()
                                       if name.startswith(prefix)}

    add("mlp", "MLP", below("h.0.mlp."), config=config, ops=layers)
    add("self_attention", "Self-attention", below("h.0.attn."), config=config, layer=0, mask=future,
        dropout_mask=masks.blocks[0].att, ops=layers)
    add("block", "Transformer block", below("h.0."), config=config, layer=0, mask=future,
        dropout_masks=masks.blocks[0], ops=layers)
    add("gpt", "The whole GPT-2", params, idx=idx, config=config, dropout_masks=masks, ops=layers)
    return made


def chosen_lessons(name):
    """The lesson of that name as a list, or all for "all"; UserError that lists them for a name that does not exist."""
    all_lessons = lessons()
    if name != "all" and name not in all_lessons:
        raise UserError(f'there is no layer "{name}": choose one of {", ".join(all_lessons)}, or all')
    return [lesson for lesson in all_lessons.values() if name in ("all", lesson.name)]
