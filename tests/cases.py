"""The layers under test: for each its inputs at unit scale, our pair, and the same function in torch.

The tests run every case against torch, against finite differences and in float32; tools/gradient_errors.py prints the
errors of the same cases as a table.
"""

import dataclasses
import math
from collections.abc import Callable
from unittest import mock

import numpy as np

from npgpt.arrays import library_of
from npgpt.layers import attention_tiles
from npgpt.layers.attention import attention_backward, attention_forward
from npgpt.layers.attention_tiles import tiled_attention_backward, tiled_attention_forward
from npgpt.layers.dropout import dropout_backward, dropout_forward, dropout_mask
from npgpt.layers.embedding import embedding_backward, embedding_forward
from npgpt.layers.gelu import gelu_exact_backward, gelu_exact_forward, gelu_tanh_backward, gelu_tanh_forward
from npgpt.layers.layernorm import layernorm_backward, layernorm_forward
from npgpt.layers.linear import head_backward, head_forward, linear_backward, linear_forward
from npgpt.layers.loss import cross_entropy_backward, cross_entropy_forward
from npgpt.layers.mlp import mlp_backward, mlp_forward
from npgpt.layers.self_attention import self_attention_backward, self_attention_forward

B, T, C, H, V = 3, 5, 12, 3, 11
D = C // H


@dataclasses.dataclass
class Case:
    """One layer at one setting. `inputs` are the differentiable arguments, in the order of the backward's results."""

    name: str
    inputs: dict[str, np.ndarray]
    forward: Callable           # (**inputs) -> output or tuple of outputs, cache
    backward: Callable          # (dy, cache) -> gradient or tuple of gradients
    reference: Callable         # (torch, **tensors) -> output or tuple of outputs

    def run(self, inputs, dy=None):
        """outputs and, given the upstream gradient, {"dx": …}; checks that nothing given was written to."""
        copies = {name: array.copy() for name, array in inputs.items()}
        y, cache = self.forward(**inputs)
        grads = None
        if dy is not None:
            frozen = [(array, array.copy()) for array in arrays_in((dy, cache))]
            grads = self.backward(dy, cache)
            grads = grads if isinstance(grads, tuple) else (grads,)
            assert len(grads) >= len(inputs)
            assert all(extra is None for extra in grads[len(inputs):]), "a gradient for a bias that is not there"
            grads = {f"d{name}": grad for name, grad in zip(inputs, grads, strict=False)}
            assert all(np.array_equal(array, copy) for array, copy in frozen), "the backward wrote to its arguments"
        assert all(np.array_equal(array, copies[name]) for name, array in inputs.items()), "an argument was written to"
        return y, grads


def arrays_in(value):
    """Every array in a nest of tuples and lists."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from arrays_in(item)


def layer_cases():
    """A fresh list of all cases; the seed is fixed, so that a failure can be looked at again."""
    rng = np.random.default_rng(20240)

    def unit(*shape):
        return rng.standard_normal(shape)

    def drawn_mask(*shape):
        return dropout_mask(rng, shape, 0.3, np.float64)

    def as_x(mask, x):                  # the layers leave it to their caller to give masks of x's dtype
        return None if mask is None else beside(x, mask.astype(x.dtype))

    def beside(x, array):               # in the same library: the cases are run on a stand-in for a card, too
        return library_of(x).asarray(array)

    cases = []

    def case(name, inputs, forward, backward, reference):
        cases.append(Case(name, inputs, forward, backward, reference))

    # linear and head
    case("linear", {"x": unit(B, T, C), "weight": unit(C, 7), "bias": unit(7)}, linear_forward, linear_backward,
         lambda torch, x, weight, bias: x @ weight + bias)
    case("linear without bias", {"x": unit(B, T, C), "weight": unit(C, 7)}, linear_forward, linear_backward,
         lambda torch, x, weight: x @ weight)
    case("linear on rows", {"x": unit(4, C), "weight": unit(C, C), "bias": unit(C)}, linear_forward, linear_backward,
         lambda torch, x, weight, bias: x @ weight + bias)
    case("head", {"x": unit(B, T, C), "weight": unit(V, C)}, head_forward, head_backward,
         lambda torch, x, weight: torch.nn.functional.linear(x, weight))

    # layernorm; the large eps shows whether the backward knows about it
    for eps in (1e-5, 0.5):
        case(f"layernorm, eps {eps}", {"x": 2 * unit(B, T, C) + 1, "weight": unit(C), "bias": unit(C)},
             lambda x, weight, bias, eps=eps: layernorm_forward(x, weight, bias, eps), layernorm_backward,
             lambda torch, x, weight, bias, eps=eps: torch.nn.functional.layer_norm(x, (C,), weight, bias, eps))
    case("layernorm without bias", {"x": unit(B, T, C), "weight": unit(C)}, layernorm_forward, layernorm_backward,
         lambda torch, x, weight: torch.nn.functional.layer_norm(x, (C,), weight))

    # gelu and mlp
    case("gelu_tanh", {"x": 2 * unit(B, T, C)}, gelu_tanh_forward, gelu_tanh_backward,
         lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"))
    case("gelu_exact", {"x": 2 * unit(B, T, C)}, gelu_exact_forward, gelu_exact_backward,
         lambda torch, x: torch.nn.functional.gelu(x))
    for activation, approximate in (("gelu_tanh", "tanh"), ("gelu", "none")):
        case(f"mlp, {activation}", {"x": unit(B, T, C), "c_fc_weight": unit(C, 4 * C), "c_fc_bias": unit(4 * C),
                                    "c_proj_weight": unit(4 * C, C), "c_proj_bias": unit(C)},
             lambda x, *args, activation=activation, **kw: mlp_forward(x, *args, activation=activation, **kw),
             mlp_backward,
             lambda torch, x, c_fc_weight, c_fc_bias, c_proj_weight, c_proj_bias, approximate=approximate:
             torch.nn.functional.gelu(x @ c_fc_weight + c_fc_bias, approximate=approximate)
             @ c_proj_weight + c_proj_bias)
    case("mlp without biases", {"x": unit(B, T, C), "c_fc_weight": unit(C, 4 * C), "c_proj_weight": unit(4 * C, C)},
         lambda x, c_fc_weight, c_proj_weight: mlp_forward(x, c_fc_weight, None, c_proj_weight, None),
         lambda dy, cache: without_none(mlp_backward(dy, cache)),
         lambda torch, x, c_fc_weight, c_proj_weight:
         torch.nn.functional.gelu(x @ c_fc_weight, approximate="tanh") @ c_proj_weight)

    # dropout
    mask_x = drawn_mask(B, T, C)
    case("dropout", {"x": unit(B, T, C)}, lambda x: dropout_forward(x, as_x(mask_x, x)), dropout_backward,
         lambda torch, x: x * torch.from_numpy(mask_x))
    case("dropout in evaluation", {"x": unit(B, T, C)}, lambda x: dropout_forward(x, None), dropout_backward,
         lambda torch, x: x)

    # embedding, with repeated tokens, for a small and a large vocabulary
    for vocab_size in (V, 700):
        idx = rng.integers(0, vocab_size, (B, T))
        idx[1] = idx[0, 0]
        case(f"embedding, V={vocab_size}", {"wte": unit(vocab_size, C), "wpe": unit(T + 2, C)},
             lambda wte, wpe, idx=idx: embedding_forward(beside(wte, idx), wte, wpe), embedding_backward,
             lambda torch, wte, wpe, idx=idx: wte[torch.from_numpy(idx)] + wpe[torch.arange(T)])

    # attention: the core, then the layer
    future = np.triu(np.full((T, T), -np.inf), k=1)
    mask_att = drawn_mask(B, H, T, T)
    for name, mask, dropped in (("attention, causal", future, None), ("attention, every position", None, None),
                                ("attention, causal, dropout", future, mask_att)):
        case(name, {"q": unit(B, H, T, D), "k": unit(B, H, T, D), "v": unit(B, H, T, D)},
             lambda q, k, v, mask=mask, dropped=dropped:
             attention_forward(q, k, v, 0.7, as_x(mask, q), as_x(dropped, q)), attention_backward,
             lambda torch, q, k, v, mask=mask, dropped=dropped: torch_attention(torch, q, k, v, 0.7, mask, dropped))
    case("attention, two queries on five keys", {"q": unit(B, H, 2, D), "k": unit(B, H, T, D), "v": unit(B, H, T, D)},
         lambda q, k, v: attention_forward(q, k, v, 0.7, as_x(future[-2:], q)), attention_backward,
         lambda torch, q, k, v: torch_attention(torch, q, k, v, 0.7, future[-2:], None))

    one_without, some_without = future.copy(), np.zeros((T, T))
    one_without[1], some_without[[0, 3, 4]] = -np.inf, -np.inf
    for name, mask, dropped in (("a query without keys", one_without, None),
                                ("queries without keys", some_without, None),
                                ("queries without keys, dropout", some_without, mask_att)):
        case(f"attention, {name}", {"q": unit(B, H, T, D), "k": unit(B, H, T, D), "v": unit(B, H, T, D)},
             lambda q, k, v, mask=mask, dropped=dropped:
             attention_forward(q, k, v, 0.7, as_x(mask, q), as_x(dropped, q)), attention_backward,
             lambda torch, q, k, v, mask=mask, dropped=dropped: torch_sdpa(torch, q, k, v, 0.7, mask, dropped))

    for name, heads, options in (("self-attention", H, {}), ("self-attention, one head", 1, {}),
                                 ("self-attention, an encoder", H, {"causal": False}),
                                 ("self-attention, unscaled", H, {"scale": 1.0}),
                                 ("self-attention, dropout", H, {"dropout_mask": mask_att})):
        case(name, {"x": unit(B, T, C), "c_attn_weight": unit(C, 3 * C), "c_attn_bias": unit(3 * C),
                    "c_proj_weight": unit(C, C), "c_proj_bias": unit(C)},
             lambda x, heads=heads, options=options, **inputs: self_attention_forward(
                 x, **inputs, n_head=heads, **{name: as_x(value, x) if name == "dropout_mask" else value
                                               for name, value in options.items()}),
             self_attention_backward,
             lambda torch, heads=heads, options=options, **inputs:
             torch_self_attention(torch, **inputs, n_head=heads, **options))
    case("self-attention without biases", {"x": unit(B, T, C), "c_attn_weight": unit(C, 3 * C),
                                           "c_proj_weight": unit(C, C)},
         lambda x, c_attn_weight, c_proj_weight:
         self_attention_forward(x, c_attn_weight, None, c_proj_weight, None, n_head=H),
         lambda dy, cache: without_none(self_attention_backward(dy, cache)),
         lambda torch, x, c_attn_weight, c_proj_weight:
         torch_self_attention(torch, x, c_attn_weight, 0.0, c_proj_weight, 0.0, n_head=H))

    # the same in tiles so small that there are several blocks of queries, and of heads or batch entries; the sizes are
    # all different, so that none can stand for another
    entries, heads, time, size = 5, 4, 7, 6
    mask_tiles = drawn_mask(entries, heads, time, time)
    for name, causal, dropped, fit in (("causal, dropout", True, mask_tiles, 3),
                                       ("every position", False, None, 2 * heads)):
        tiled = in_tiles(3, fit * 3 * time * 8)         # of 3 queries; so many heads' scores fit
        case(f"attention in tiles, {name}", {name: unit(entries, heads, time, size) for name in ("q", "k", "v")},
             tiled(lambda q, k, v, causal=causal, dropped=dropped:
                   tiled_attention_forward(q, k, v, 0.7, causal, as_x(dropped, q))),
             tiled(lambda dmix, cache: tuple(tiled_attention_backward(dmix, cache))),
             lambda torch, q, k, v, causal=causal, dropped=dropped: torch_attention(
                 torch, q, k, v, 0.7, np.triu(np.full((time, time), -np.inf), k=1) if causal else None, dropped))
    width = heads * size
    tiled = in_tiles(3, 3 * 3 * time * 8)
    case("self-attention in tiles", {"x": unit(entries, time, width), "c_attn_weight": unit(width, 3 * width) / 5,
                                     "c_attn_bias": unit(3 * width), "c_proj_weight": unit(width, width),
                                     "c_proj_bias": unit(width)},
         tiled(lambda x, **inputs: self_attention_forward(x, **inputs, n_head=heads)), tiled(self_attention_backward),
         lambda torch, **inputs: torch_self_attention(torch, **inputs, n_head=heads))

    # loss: the upstream gradient is one number
    targets = rng.integers(0, V, (B, T))
    some = np.where(rng.random((B, T)) < 0.4, -1, targets)
    some[0, :2] = -1, targets[0, 1]         # at least one of each kind
    for name, chosen, count in (("cross-entropy", targets, None), ("cross-entropy, some ignored", some, None),
                                ("cross-entropy, part of a batch", some, 40)):
        n = count or int((chosen != -1).sum())
        case(name, {"logits": 2 * unit(B, T, V)},
             lambda logits, chosen=chosen, count=count: cross_entropy_forward(logits, beside(logits, chosen), count),
             cross_entropy_backward,
             lambda torch, logits, chosen=chosen, n=n: torch.nn.functional.cross_entropy(
                 logits.reshape(-1, V), torch.from_numpy(chosen.reshape(-1)), ignore_index=-1, reduction="sum") / n)
    return cases


def in_tiles(queries, block_bytes):
    """A decorator: in the function, attention works on tiles of so many queries, and of so many bytes of scores."""
    def decorate(function):
        def tiled(*arguments, **named):
            with mock.patch.multiple(attention_tiles, QUERIES=queries, BLOCK_BYTES=block_bytes):
                return function(*arguments, **named)
        return tiled
    return decorate


def without_none(grads):
    """The gradients of a layer without biases; the places of the biases must hold None."""
    dx, dfirst, none_1, dsecond, none_2 = grads
    assert none_1 is None and none_2 is None
    return dx, dfirst, dsecond


def torch_attention(torch, q, k, v, scale, mask, dropout_mask):
    scores = scale * (q @ k.transpose(-1, -2))
    if mask is not None:
        scores = scores.masked_fill(torch.from_numpy(mask < 0), -math.inf)
    att = scores.softmax(-1)
    return (att if dropout_mask is None else att * torch.from_numpy(dropout_mask)) @ v


def torch_sdpa(torch, q, k, v, scale, mask, dropout_mask):
    """torch's own attention: to a query without keys it gives 0, where a softmax gives NaN."""
    def mixed(values):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return torch.nn.functional.scaled_dot_product_attention(q, k, values, torch.from_numpy(mask), scale=scale)

    if dropout_mask is None:
        return mixed(v)
    att = mixed(torch.eye(k.shape[2], dtype=k.dtype).expand(*k.shape[:2], -1, -1))      # a mix of unit vectors
    return (att * torch.from_numpy(dropout_mask)) @ v


def torch_self_attention(torch, x, c_attn_weight, c_attn_bias, c_proj_weight, c_proj_bias, n_head, scale=None,
                         causal=True, dropout_mask=None):
    batch, time, width = x.shape
    q, k, v = ((x @ c_attn_weight + c_attn_bias)[..., i * width:(i + 1) * width]
               .reshape(batch, time, n_head, -1).transpose(1, 2) for i in range(3))
    scale = 1 / math.sqrt(width / n_head) if scale is None else scale
    mask = np.triu(np.full((time, time), -np.inf), k=1) if causal else None
    mix = torch_attention(torch, q, k, v, scale, mask, dropout_mask)
    return mix.transpose(1, 2).reshape(batch, time, width) @ c_proj_weight + c_proj_bias
