"""The lessons: for each pair of layers, in learning order, inputs at unit scale to study and check it with."""

import dataclasses
import inspect
import math
from collections.abc import Callable

import numpy as np

from npgpt.errors import UserError
from npgpt.layers.attention import attention_backward, attention_forward
from npgpt.layers.attention_tiles import tiled_attention_backward, tiled_attention_forward
from npgpt.layers.dropout import dropout_backward, dropout_forward, dropout_mask
from npgpt.layers.embedding import embedding_backward, embedding_forward
from npgpt.layers.gelu import gelu_exact_backward, gelu_exact_forward, gelu_tanh_backward, gelu_tanh_forward
from npgpt.layers.layernorm import layernorm_backward, layernorm_forward
from npgpt.layers.linear import head_backward, head_forward, linear_backward, linear_forward
from npgpt.layers.loss import (
    cross_entropy_backward,
    cross_entropy_forward,
    softmax_loss_backward,
    softmax_loss_forward,
)
from npgpt.layers.mlp import mlp_backward, mlp_forward
from npgpt.layers.self_attention import self_attention_backward, self_attention_forward
from npgpt.model.config import GPTConfig
from npgpt.model.parameters import Parameters
from npgpt.model.transformer import block_backward, block_forward, gpt_backward, gpt_forward

B, T, C, H, V = 2, 3, 6, 2, 7
D = C // H
EPS = 0.1       # large, so that a backward that forgets it is seen


@dataclasses.dataclass(frozen=True)
class Lesson:
    """One pair of functions, and how to call it.

    name: what the commands call it; title: in words; inputs: name -> array of everything that gets a gradient, in the
    order in which the backward returns them; constants: the other arguments of the forward.
    """

    name: str
    title: str
    forward: Callable
    backward: Callable
    inputs: dict[str, np.ndarray]
    constants: dict

    def run_forward(self, inputs, forward=None):
        """(y, cache) of the forward, or of another function that takes its place."""
        return (forward or self.forward)(**inputs, **self.constants)

    def run_backward(self, dy, cache, backward=None):
        """{"dx": …}, a gradient for each of `inputs`, by the backward, or by another function that takes its place."""
        return self.named((backward or self.backward)(dy, cache))

    def named(self, result):
        """What a backward returned, by names. Gradients of things that this lesson does not have are left out."""
        if isinstance(result, np.ndarray) and len(self.inputs) > 1 and len(result) == len(self.inputs):
            result = tuple(result)                      # dq, dk and dv of the tiles: one array
        result = result if isinstance(result, tuple) else (result,)
        return {f"d{name}": gradient for name, gradient in zip(self.inputs, result, strict=False)}

    @property
    def upstream(self):
        """The name of the backward's first argument: the gradient of the output."""
        return inspect.unwrap(self.backward).__code__.co_varnames[0]


class ModelLesson(Lesson):
    """A block or the whole model: its parameters are given in a mapping, and their gradients are written to another."""

    def run_forward(self, inputs, forward=None):
        params = Parameters(self.constants["config"], "float64")
        for name in params:
            if name in inputs:
                params[name] = inputs[name]
        forward = forward or self.forward
        if "x" in inputs:
            return forward(inputs["x"], params.block(0), params.config, 0)
        return forward(self.constants["idx"], params)

    def run_backward(self, dy, cache, backward=None):
        grads = Parameters(self.constants["config"], "float64")
        backward = backward or self.backward
        if "x" in self.inputs:
            result = {"dx": backward(dy, cache, grads.block(0))}
        else:
            backward(dy, cache, grads)
            result = {}
        return result | {f"d{name}": grads[name] for name in grads if name in self.inputs}


def lessons():
    """All lessons by name, with the same random inputs every time."""
    rng = np.random.default_rng(11)

    def unit(*shape):
        return rng.standard_normal(shape)

    targets = rng.integers(0, V, (B, T))
    targets[0, 0] = -1
    idx = rng.integers(0, V, (B, T))
    idx[1] = idx[0, 0]                      # a token that is read several times
    column, share = rng.integers(0, V, (B, T, 1)), rng.random((B, T, 1))
    future = np.triu(np.full((T, T), -np.inf), k=1)
    config = GPTConfig(vocab_size=V, block_size=T + 1, n_layer=2, n_head=H, n_embd=C, layer_norm_epsilon=EPS)
    params = {name: unit(*shape) * (0.5 if len(shape) == 2 else 1.0)
              for name, shape in Parameters(config).shapes.items()}
    made = [
        Lesson("linear", "Linear layer", linear_forward, linear_backward,
               {"x": unit(B, T, C), "weight": unit(C, 5), "bias": unit(5)}, {}),
        Lesson("gelu_tanh", "GELU, the tanh form", gelu_tanh_forward, gelu_tanh_backward, {"x": unit(B, T, C)}, {}),
        Lesson("gelu_exact", "GELU, the exact form", gelu_exact_forward, gelu_exact_backward, {"x": unit(B, T, C)}, {}),
        Lesson("layernorm", "LayerNorm", layernorm_forward, layernorm_backward,
               {"x": unit(B, T, C), "weight": unit(C), "bias": unit(C)}, {"eps": EPS}),
        Lesson("softmax_loss", "Softmax and cross-entropy", softmax_loss_forward, softmax_loss_backward,
               {"logits": unit(B, T, V)}, {"column": column, "share": share}),
        Lesson("cross_entropy", "The loss of a batch", cross_entropy_forward, cross_entropy_backward,
               {"logits": unit(B, T, V)}, {"targets": targets}),
        Lesson("embedding", "Embedding", embedding_forward, embedding_backward,
               {"wte": unit(V, C), "wpe": unit(T + 1, C)}, {"idx": idx}),
        Lesson("head", "Language-model head", head_forward, head_backward,
               {"x": unit(B, T, C), "weight": unit(V, C)}, {}),
        Lesson("dropout", "Dropout", dropout_forward, dropout_backward,
               {"x": unit(B, T, C)}, {"mask": dropout_mask(rng, (B, T, C), 0.3, np.float64)}),
        Lesson("attention", "Attention", attention_forward, attention_backward,
               {"q": unit(B, H, T, D), "k": unit(B, H, T, D), "v": unit(B, H, T, D)},
               {"scale": 1.0 / math.sqrt(D), "mask": future,
                "dropout_mask": dropout_mask(rng, (B, H, T, T), 0.3, np.float64)}),
        Lesson("tiled_attention", "Attention in tiles", tiled_attention_forward, tiled_attention_backward,
               {"q": unit(B, H, T, D), "k": unit(B, H, T, D), "v": unit(B, H, T, D)}, {"scale": 1.0 / math.sqrt(D)}),
        Lesson("self_attention", "Self-attention", self_attention_forward, self_attention_backward,
               {"x": unit(B, T, C), "c_attn_weight": unit(C, 3 * C), "c_attn_bias": unit(3 * C),
                "c_proj_weight": unit(C, C), "c_proj_bias": unit(C)}, {"n_head": H}),
        Lesson("mlp", "MLP", mlp_forward, mlp_backward,
               {"x": unit(B, T, C), "c_fc_weight": unit(C, 4 * C), "c_fc_bias": unit(4 * C),
                "c_proj_weight": unit(4 * C, C), "c_proj_bias": unit(C)}, {}),
        ModelLesson("block", "Transformer block", block_forward, block_backward,
                    {"x": unit(B, T, C)} | {name: params[name] for name in params if name.startswith("h.0.")},
                    {"config": config}),
        ModelLesson("gpt", "The whole GPT-2", gpt_forward, gpt_backward, params, {"config": config, "idx": idx}),
    ]
    return {lesson.name: lesson for lesson in made}


def chosen_lessons(name):
    """The lesson of that name as a list, or all for "all"; UserError that lists them for a name that does not exist."""
    all_lessons = lessons()
    if name != "all" and name not in all_lessons:
        raise UserError(f'there is no layer "{name}": choose one of {", ".join(all_lessons)}, or all')
    return [lesson for lesson in all_lessons.values() if name in ("all", lesson.name)]
