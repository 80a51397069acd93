"""The layers under test: for each its inputs at unit scale, our pair, and the same function in torch.

The tests run every case against torch, against finite differences and in float32, with two tables of operations: the
lesson's, `npgpt.layers`, and the CPU engine's, cut into parts so small that there are several of everything.
tools/gradient_errors.py prints the errors of the same cases as a table.
"""

import contextlib
import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import numpy as np

from npgpt import GPTConfig, layers
from npgpt.engine.cpu import CPUEngine, is_installed
from npgpt.engine.threads import using_cores
from npgpt.model import transformer
from npgpt.model.masks import BlockMasks, draw_masks, dropout_mask
from npgpt.model.parameters import Parameters, flatten, nest, parameter_shapes
from tests.torch_gpt import torch_attention, torch_block, torch_gpt, torch_loss, torch_mlp, torch_self_attention

B, T, C, H, V = 3, 5, 12, 3, 11
D = C // H
# Functions that give an array another layout in memory: C's, Fortran's, with gaps, backwards.
LAYOUTS = [np.copy, np.asfortranarray, lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
           lambda array: np.flip(np.flip(array).copy())]
CPU_KERNELS = ["numpy", *["numba"] * (find_spec("numba") is not None), *["mkl"] * is_installed()]
SMALL = {"vocab_size": V, "block_size": T + 2, "n_layer": 2, "n_head": H, "n_embd": C}


@dataclasses.dataclass
class Case:
    """One layer at one setting. `inputs` are the differentiable arguments, in the order of the backward's results."""

    name: str
    inputs: dict[str, np.ndarray]
    forward: Callable           # (**inputs) -> output, cache
    backward: Callable          # (dy, cache) -> gradient or tuple of gradients
    reference: Callable         # (torch, **tensors) -> output

    def run(self, inputs, dy=None):
        """Return the output and, given the upstream gradient, {"dx": …}; checks that nothing given was written to."""
        with unchanged(inputs):
            y, cache = self.forward(**inputs)
            if dy is None:
                return y, None
            with unchanged((dy, cache)):
                grads = self.backward(dy, cache)
        grads = grads if isinstance(grads, tuple) else (grads,)
        assert all(extra is None for extra in grads[len(inputs):]), "a gradient for a bias that is not there"
        return y, {f"d{name}": grad for name, grad in zip(inputs, grads[:len(inputs)], strict=True)}


@contextlib.contextmanager
def unchanged(value):
    """Within it, no array in a nest of dicts, tuples and lists may be written to."""
    frozen = [(array, array.tobytes()) for array in arrays_in(value)]
    yield
    assert all(array.tobytes() == before for array, before in frozen), "an argument was written to"


def arrays_in(value):
    """Yield every array in a nest of dicts, tuples and lists."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict | tuple | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from arrays_in(item)


@contextlib.contextmanager
def small_parts(row_bytes=4 * C * 8, queries=2, tile_bytes=4 * T * 8, kept=512, cores=2):
    """Within it, the CPU engine works on blocks of 4 rows and on tiles of 2 queries and 2 heads, on two cores."""
    with mock.patch("npgpt.engine.row_blocks.BLOCK_BYTES", row_bytes), using_cores(cores), \
         mock.patch.multiple("npgpt.engine.tiles", QUERIES=queries, BLOCK_BYTES=tile_bytes, KEPT=kept):
        yield


def cpu_ops(config, kernels="numpy"):
    """Return the CPU engine's table of operations for a model of this config."""
    return CPUEngine(Parameters(config), 2, kernels).ops


def engine_cases(kernels=CPU_KERNELS, cores=None, **options):
    """Return `layer_cases`, in the same order, by the CPU engine in small parts, once with each kernels."""
    # MKL has one core: beside torch's threads, its own take seconds.
    parts = {by: small_parts(cores=cores or 2 - (by == "mkl"), **options) for by in kernels}
    return [dataclasses.replace(case, name=f"{case.name}, in parts by {by}", forward=parts[by](case.forward),
                                backward=parts[by](case.backward))
            for by in kernels for case in layer_cases(functools.partial(cpu_ops, kernels=by))]


@contextlib.contextmanager
def uncompiled():
    """Within it, Numba's loops are plain Python. Yields them, name -> function, whose code a mutant may replace."""
    from npgpt.engine import few_rows
    loops = {name: value.py_func for name, value in vars(few_rows).items() if hasattr(value, "py_func")}
    with mock.patch.multiple(few_rows, **loops, prefetch=id):
        yield loops


def layer_calls(function):
    """Return function(), and how often it calls each layer in this thread: {("gelu_tanh_forward", shape of x): n}."""
    calls, folder = Counter(), str(Path(layers.__file__).parent)

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(folder) and code.co_name.endswith(("_forward", "_backward")):
            calls[code.co_name, np.shape(frame.f_locals[code.co_varnames[0]])] += 1

    sys.setprofile(note)
    try:
        result = function()
    finally:
        sys.setprofile(None)
    return result, calls


def layer_cases(ops_of=lambda config: layers):
    """Return a fresh list of all cases; the seed is fixed, so that a failure can be looked at again.

    ops_of: a function of a config that returns the table of operations.
    """
    rng = np.random.default_rng(20240)
    ops = ops_of(GPTConfig(tie_word_embeddings=False))

    def unit(*shape):
        return rng.standard_normal(shape)

    def drawn_mask(*shape):
        return dropout_mask(rng, shape, 0.3, np.float64)

    def as_x(mask, x):
        return None if mask is None else mask.astype(x.dtype)

    cases = []

    def case(name, inputs, forward, backward, reference):
        cases.append(Case(name, inputs, forward, backward, reference))

    # linear and head
    for name, rows, bias in (("linear", (B, T), True), ("linear without bias", (B, T), False),
                             ("linear on rows", (4,), True)):
        case(name, {"x": unit(*rows, C), "weight": unit(C, 7)} | ({"bias": unit(7)} if bias else {}),
             ops.linear_forward, ops.linear_backward, lambda torch, x, weight, bias=0.0: x @ weight + bias)
    for name, bias in (("head", {}), ("head with bias", {"bias": unit(V)})):
        case(name, {"x": unit(B, T, C), "weight": unit(V, C)} | bias, ops.head_forward, ops.head_backward,
             lambda torch, x, weight, bias=None: torch.nn.functional.linear(x, weight, bias))

    # layernorm; the large eps shows whether the backward knows about it
    for eps, bias in ((1e-5, True), (0.5, True), (0.5, False)):
        case(f"layernorm, eps {eps}" + " without bias" * (not bias),
             {"x": 2 * unit(B, T, C) + 1, "weight": unit(C)} | ({"bias": unit(C)} if bias else {}),
             lambda x, weight, bias=None, eps=eps: ops.layernorm_forward(x, weight, bias, eps), ops.layernorm_backward,
             lambda torch, x, weight, bias=None, eps=eps: torch.nn.functional.layer_norm(x, (C,), weight, bias, eps))

    # gelu and dropout
    case("gelu_tanh", {"x": 2 * unit(B, T, C)}, ops.gelu_tanh_forward, ops.gelu_tanh_backward,
         lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"))
    case("gelu_exact", {"x": 2 * unit(B, T, C)}, ops.gelu_exact_forward, ops.gelu_exact_backward,
         lambda torch, x: torch.nn.functional.gelu(x))
    mask_x = drawn_mask(B, T, C)
    case("dropout", {"x": unit(B, T, C)}, lambda x: ops.dropout_forward(x, as_x(mask_x, x)), ops.dropout_backward,
         lambda torch, x: x * torch.from_numpy(mask_x))
    case("dropout in evaluation", {"x": unit(B, T, C)}, lambda x: ops.dropout_forward(x, None), ops.dropout_backward,
         lambda torch, x: x)

    # embedding, with repeated tokens, for a small and a large vocabulary
    for vocab_size in (V, 700):
        idx = rng.integers(0, vocab_size, (B, T))
        idx[1] = idx[0, 0]
        case(f"embedding, V={vocab_size}", {"wte": unit(vocab_size, C), "wpe": unit(T + 2, C)},
             lambda wte, wpe, idx=idx: ops.embedding_forward(idx, wte, wpe), ops.embedding_backward,
             lambda torch, wte, wpe, idx=idx: wte[torch.from_numpy(idx)] + wpe[torch.arange(T)])

    # attention; each query sees at least one key
    future = np.triu(np.full((T, T), -np.inf), k=1)
    mask_att = drawn_mask(B, H, T, T)
    hidden = (rng.random((B, 1, T, T)) < 0.3) & ~np.eye(T, dtype=bool)
    added = np.where(hidden, -np.inf, unit(B, 1, T, T))                             # one for each batch entry
    of_heads = np.where((rng.random((B, H, T, T)) < 0.3) & ~np.eye(T, dtype=bool), -np.inf, 0.5)
    for name, queries, mask, dropped in (
            ("causal", T, future, None), ("every position", T, None, None), ("causal, dropout", T, future, mask_att),
            ("two queries on five keys", 2, future[-2:], None), ("a mask for each entry", T, added, None),
            ("a mask for each head", T, of_heads, None)):
        case(f"attention, {name}", {"q": unit(B, H, queries, D), "k": unit(B, H, T, D), "v": unit(B, H, T, D)},
             lambda q, k, v, mask=mask, dropped=dropped:
             ops.attention_forward(q, k, v, 0.7, as_x(mask, q), as_x(dropped, q)), ops.attention_backward,
             lambda torch, q, k, v, mask=mask, dropped=dropped: torch_attention(q, k, v, 0.7, mask, dropped))

    # loss: the upstream gradient is one number
    targets = rng.integers(0, V, (B, T))
    some = np.where(rng.random((B, T)) < 0.4, -1, targets)
    some[0, :2] = -1, targets[0, 1]         # at least one of each kind
    for name, chosen in (("cross-entropy", targets), ("cross-entropy, some ignored", some)):
        case(name, {"logits": 2 * unit(B, T, V)},
             lambda logits, chosen=chosen: ops.cross_entropy_forward(logits, chosen),
             ops.cross_entropy_backward, lambda torch, logits, chosen=chosen: torch_loss(logits, chosen))

    # The composite layers: their parameters are inputs like x, named by the path in the tree. The arguments between
    # config and ops, the block's number and masks, are the oracle's too.
    def composite(kind, fields, arguments, reference, inputs=None, name=None):
        config = GPTConfig(**{**SMALL, **fields})
        part = {"mlp": "h.1.mlp.", "self_attention": "h.1.attn.", "block": "h.1."}[kind]
        inputs = inputs or {"x": unit(B, T, C), **parameters(config, part)}

        def forward(x, **p):
            given = [BlockMasks(*(as_x(mask, x) for mask in each)) if isinstance(each, BlockMasks) else as_x(each, x)
                     if isinstance(each, np.ndarray) else each for each in arguments]
            return getattr(transformer, f"{kind}_forward")(x, nest(p), config, *given, ops)

        def backward(dy, cache):
            dx, dp = getattr(transformer, f"{kind}_backward")(dy, cache, ops)
            return tuple({"x": dx, **flatten(dp)}[name] for name in inputs)

        case(name or f"{kind} {fields}", inputs, forward, backward,
             lambda torch, x, **p: reference(x, nest(p), config, *arguments))

    def parameters(config, part=""):
        return {name.removeprefix(part): unit(*shape) / (3 if len(shape) == 2 else 1)
                for name, shape in parameter_shapes(config).items() if name.startswith(part)}

    for fields in ({}, {"activation": "gelu"}, {"bias": False, "n_inner": 7}, {"bias": False, "mlp_bias": True}):
        composite("mlp", fields, (), torch_mlp)
    for fields, mask, dropped in (
            ({}, future, None), ({"n_head": 1}, future, None), ({"causal": False}, None, None),
            ({"scale_attn_weights": False}, future, None), ({"scale_attn_by_inverse_layer_idx": True}, future, None),
            ({"bias": False}, future, None), ({"bias": False, "qkv_bias": True}, future, mask_att)):
        composite("self_attention", fields, (1, mask, dropped), torch_self_attention)
    composite("self_attention", {}, (1, future, None), torch_self_attention, {
        "x": unit(B, T, C), "c_attn.weight": unit(C, 3 * 6 * H) / 3, "c_attn.bias": unit(3 * 6 * H),
        "c_proj.weight": unit(6 * H, 7), "c_proj.bias": unit(7)}, name="self_attention of another width than its input")
    masks = BlockMasks(mask_att, drawn_mask(B, T, C), drawn_mask(B, T, C))
    composite("block", {}, (1, future, BlockMasks()), torch_block)
    composite("block", {"layer_norm_epsilon": 0.5, "bias": False}, (1, None, masks), torch_block)

    for fields, given_mask in (
            ({}, None), ({"vocab_size": 700}, None), ({"vocab_size": 700, "tie_word_embeddings": False}, None),
            ({"embedding_layer_norm": True, "bias": False, "causal": False, "activation": "gelu"}, None),
            ({"final_layer_norm": False, "lm_head_bias": True}, added), ({"causal": False}, unit(T, T)),
            ({"final_layer_norm": False, "lm_head_bias": True, "tie_word_embeddings": False}, None)):
        config = GPTConfig(**{**SMALL, **fields})
        idx = rng.integers(0, config.vocab_size, (B, T))
        case(f"gpt {fields}" + ", mask" * (given_mask is not None), parameters(config),
             lambda config=config, idx=idx, mask=given_mask, **p: transformer.gpt_forward(
                 idx, nest(p), config, draw_masks(config, B, T, None), ops_of(config),
                 as_x(mask, p["wte.weight"])),
             lambda dlogits, cache, config=config: tuple(
                 flatten(transformer.gpt_backward(dlogits, cache, ops_of(config)))[name]
                 for name in parameter_shapes(config)),
             lambda torch, config=config, idx=idx, mask=given_mask, **p: torch_gpt(p, config, idx, mask=mask))
    # lora: what is frozen gets no gradient
    weight, drawn_bias = unit(C, 7), unit(7)
    for name, rows, bias in (("lora", (B, T), drawn_bias), ("lora without bias", (4,), None)):
        case(name, {"x": unit(*rows, C), "lora_a": unit(C, 2), "lora_b": unit(2, 7)},
             lambda x, lora_a, lora_b, bias=bias: ops.lora_forward(x, as_x(weight, x), as_x(bias, x), lora_a, lora_b),
             ops.lora_backward, lambda torch, x, lora_a, lora_b, bias=bias:
             x @ (torch.tensor(weight) + lora_a @ lora_b) + (0.0 if bias is None else torch.tensor(bias)))
    return cases
