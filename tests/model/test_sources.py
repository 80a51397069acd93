"""The models of published write-ups, by GPTConfig or a few calls of the layers, against torch's own modules in float64.

The oracle is not tests/torch_gpt.py, which was written beside our lines, but torch.nn.TransformerEncoder.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, UserError
from npgpt.model.parameters import parameter_shapes
from npgpt.model.transformer import (
    block_parameters,
    mlp_backward,
    mlp_forward,
    self_attention_backward,
    self_attention_forward,
)
from npgpt.study.page.whole_model import in_block
from tests.torch_gpt import assert_equal, torch_loss, torch_parameters, unit_scale

torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")

GPT2 = {"vocab_size": 50257, "block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768}
WORDPIECE = {"vocab_size": 30522, "block_size": 128, "n_layer": 4, "n_head": 4, "n_embd": 64, "qkv_bias": False,
             "embedding_layer_norm": True, "final_layer_norm": False, "lm_head_bias": True}
PUBLISHED = {       # name -> fields, number of parameters
    "GPT-2": (GPT2, 124_439_808),
    "a head of its own, no biases of queries, keys and values":
        ({**GPT2, "tie_word_embeddings": False, "qkv_bias": False}, 163_009_536),
    "nanoGPT's baby GPT": ({"vocab_size": 65, "block_size": 256, "n_layer": 6, "n_head": 6, "n_embd": 384,
                            "bias": False, "activation": "gelu"}, 10_646_784 + 256 * 384),      # and positions
    "BERT's tokens, no final layernorm, a head with bias": ({**WORDPIECE, "tie_word_embeddings": False}, 4_144_826),
    "the same, tied": (WORDPIECE, 4_144_826 - 30522 * 64),
    "an encoder": ({"vocab_size": 30522, "block_size": 512, "n_layer": 2, "n_head": 4, "n_embd": 64, "causal": False},
                   30522 * 64 + 512 * 64 + 2 * 49_984 + 128),
}
B, T = 3, 7


def test_torchs_initial_weights():
    """Bounds, deviation and mean of each parameter as torch's modules draw them; then the write-up's first loss."""
    torch.manual_seed(0)
    config = GPTConfig(**{**WORDPIECE, "tie_word_embeddings": False, "final_layer_norm": True, "qkv_bias": True})
    C, V, F, T = config.n_embd, config.vocab_size, config.mlp_width, config.block_size
    ours, modules = GPT(config, init="torch", threads=1).params, {
        "wte": torch.nn.Embedding(V, C), "wpe": torch.nn.Embedding(T, C), "ln_e": torch.nn.LayerNorm(C),
        "h.2.ln_1": torch.nn.LayerNorm(C), "h.2.attn.c_attn": torch.nn.Linear(C, 3 * C),
        "h.2.attn.c_proj": torch.nn.Linear(C, C), "h.2.mlp.c_fc": torch.nn.Linear(C, F),
        "h.2.mlp.c_proj": torch.nn.Linear(F, C), "ln_f": torch.nn.LayerNorm(C), "lm_head": torch.nn.Linear(C, V)}
    for layer, module in modules.items():
        for kind, theirs in module.state_dict().items():
            found, theirs = ours[f"{layer}.{kind}"], theirs.numpy()
            assert found.size == theirs.size
            near, std = 6 / math.sqrt(found.size), float(theirs.std())
            assert float(found.std()) == pytest.approx(std, rel=near)
            assert float(found.mean()) == pytest.approx(float(theirs.mean()), abs=near * std)
            if isinstance(module, torch.nn.Linear):
                bound = 1 / math.sqrt(module.in_features)
                assert abs(theirs).max() <= bound and 0.9 * bound < abs(found).max() <= bound
    config = GPTConfig(**WORDPIECE, tie_word_embeddings=False)
    idx, targets = np.random.default_rng(0).integers(0, V, (2, 4, T))
    losses = [GPT(config, seed, init="torch").evaluate(idx, targets) for seed in range(3)]
    assert np.mean(losses) == pytest.approx(10.49, abs=0.1)     # of one draw there; GPT-2's weights begin at 10.34


def test_the_positions_at_half():
    drawn = {init: GPT(GPTConfig(), init=init, threads=1).params for init in ("gpt2", "half-wpe", "normal")}
    for name, array in drawn["gpt2"].items():
        np.testing.assert_array_equal(drawn["half-wpe"][name], array / 2 if name == "wpe.weight" else array)
        residual = math.sqrt(2 * 4) if name.endswith("c_proj.weight") else 1        # 4 layers
        np.testing.assert_allclose(drawn["normal"][name], residual * array, rtol=1e-6)


def torchs(model):
    """(a function idx, mask -> hidden and logits by torch's modules, name -> (module's parameter, is transposed))."""
    config = model.config
    gelu = torch.nn.functional.gelu if config.activation == "gelu" else torch.nn.GELU(approximate="tanh")
    block = torch.nn.TransformerEncoderLayer(config.n_embd, config.n_head, config.mlp_width, 0.0, gelu, norm_first=True,
                                             batch_first=True)
    final = torch.nn.LayerNorm(config.n_embd) if config.final_layer_norm else None
    stack = torch.nn.TransformerEncoder(block, config.n_layer, final, enable_nested_tensor=False)
    modules = {"wte": torch.nn.Embedding(config.vocab_size, config.n_embd),
               "wpe": torch.nn.Embedding(config.block_size, config.n_embd), "ln_f": final,
               "ln_e": torch.nn.LayerNorm(config.n_embd) if config.embedding_layer_norm else torch.nn.Identity(),
               "lm_head": torch.nn.Linear(config.n_embd, config.vocab_size)}
    theirs = {f"{name}.{kind}": (getattr(modules[name], kind, None), False)
              for name in modules for kind in ("weight", "bias")}
    for i, each in enumerate(stack.layers):
        attention = each.self_attn
        for name, module in (("ln_1", each.norm1), ("ln_2", each.norm2), ("attn.c_proj", attention.out_proj),
                             ("mlp.c_fc", each.linear1), ("mlp.c_proj", each.linear2)):
            theirs[f"h.{i}.{name}.weight"] = module.weight, not name.startswith("ln")
            theirs[f"h.{i}.{name}.bias"] = module.bias, False
        theirs[f"h.{i}.attn.c_attn.weight"] = attention.in_proj_weight, True
        theirs[f"h.{i}.attn.c_attn.bias"] = attention.in_proj_bias, False
    if config.tie_word_embeddings:
        theirs["lm_head.weight"] = modules["lm_head"].weight, False
        modules["lm_head"].weight = modules["wte"].weight
    stack.double()
    for module in modules.values():
        if module is not None:
            module.double()
    with torch.no_grad():
        for name, (parameter, transposed) in theirs.items():
            if parameter is not None:           # a bias that our model lacks is 0 there
                value = torch.tensor(model.params[name]) if name in model.params else torch.zeros(())
                parameter.copy_(value.T if transposed else value)

    def run(idx, padded):
        x = modules["ln_e"](modules["wte"](torch.tensor(idx)) + modules["wpe"].weight[:idx.shape[1]])
        mask = torch.nn.Transformer.generate_square_subsequent_mask(idx.shape[1], dtype=x.dtype)
        padding = torch.zeros(padded.shape, dtype=x.dtype).masked_fill(torch.tensor(padded), -math.inf)
        hidden = stack(x, mask if config.causal else None, padding, is_causal=config.causal)
        return hidden, modules["lm_head"](hidden)

    return run, theirs


def compared(fields):
    """{"logits": (ours, torch's), …}, with every gradient, for texts of three lengths, padded.

    The widths of the 124M models are reduced.
    """
    if fields["n_embd"] > 64:
        fields = {**fields, "vocab_size": 80, "n_layer": 2, "n_head": 3, "n_embd": 24, "block_size": 9}
    model = GPT(GPTConfig(**fields), dtype="float64", seed=None)
    rng = np.random.default_rng(0)
    for name, shape in model.params.shapes.items():
        deviation = 1.0 if len(shape) == 1 else math.sqrt(1 / shape[0]) if name.endswith("c_proj.weight") else 0.5
        model.params[name] = rng.standard_normal(shape) * deviation
    idx, targets = rng.integers(0, model.config.vocab_size, (2, B, T))
    padded = np.arange(T) >= np.array([[T], [T - 2], [T - 3]])              # (B, T)
    targets[padded] = -1
    mask = np.where(padded, -np.inf, 0.0)[:, None, None, :]
    run, theirs = torchs(model)
    hidden, logits = run(idx, padded)
    torch_loss(logits, targets).backward()
    _, grads = model.loss_and_grads(idx, targets, mask=mask)
    return {"logits": (model.forward(idx, mask=mask)[0], logits), "hidden": (model.hidden(idx, mask=mask), hidden)} | {
        name: (grads[name], parameter.grad.T if transposed else parameter.grad)
        for name, (parameter, transposed) in theirs.items() if name in grads}


@pytest.mark.parametrize(("fields", "count"), PUBLISHED.values(), ids=PUBLISHED)
def test_parameters_outputs_and_gradients_are_those_of_torchs_modules(fields, count):
    shapes, pairs = parameter_shapes(GPTConfig(**fields)), compared(fields)
    assert sum(map(math.prod, shapes.values())) == count
    assert len(pairs) == 2 + len(shapes) or fields["n_embd"] > 64
    for name, (ours, theirs) in pairs.items():
        assert_equal(ours, theirs, name)


def post_forward(x, p, config, layer, mask, dropout_masks, ops):
    """x = ln(x); x = x + attn(x); then the same with the MLP: the residual stream itself is normalised."""
    x, ln_1 = ops.layernorm_forward(x, **p["ln_1"], eps=config.layer_norm_epsilon)
    attended, attn = self_attention_forward(x, p["attn"], config, layer, mask, dropout_masks.att, ops)
    x, ln_2 = ops.layernorm_forward(x + attended, **p["ln_2"], eps=config.layer_norm_epsilon)
    mlp_out, mlp = mlp_forward(x, p["mlp"], config, ops)
    return x + mlp_out, (ln_1, attn, ln_2, mlp)


def post_backward(dx_out, cache, ops):
    ln_1, attn, ln_2, mlp = cache
    dx, dmlp = mlp_backward(dx_out, mlp, ops)
    dx, dweight_2, dbias_2 = ops.layernorm_backward(dx_out + dx, ln_2)
    dattended, dattn = self_attention_backward(dx, attn, ops)
    dx, dweight_1, dbias_1 = ops.layernorm_backward(dx + dattended, ln_1)
    return dx, {"ln_1": {"weight": dweight_1, "bias": dbias_1}, "attn": dattn,
                "ln_2": {"weight": dweight_2, "bias": dbias_2}, "mlp": dmlp}


POST_BLOCK = SimpleNamespace(parameters=block_parameters, forward=post_forward, backward=post_backward)
POST = {"config": GPTConfig(vocab_size=11, block_size=9, n_layer=2, n_head=3, n_embd=12), "dtype": "float64",
        "block": POST_BLOCK}


@pytest.mark.parametrize("kernels", ["reference", "numpy", "numba", pytest.param("xla", marks=pytest.mark.slow)])
def test_a_block_of_ones_own_that_is_not_pre_norm(kernels):
    model, functional = GPT(**POST, kernels=kernels, threads=2), torch.nn.functional
    unit_scale(model.params)
    idx, targets = np.random.default_rng(2).integers(0, 11, (2, B, T))
    p = torch_parameters(model.params)
    x = p["wte.weight"][torch.tensor(idx)] + p["wpe.weight"][:T]
    for i in range(2):
        def part(name, x, i=i):
            return x @ p[f"h.{i}.{name}.weight"] + p[f"h.{i}.{name}.bias"]

        x = functional.layer_norm(x, (12,), p[f"h.{i}.ln_1.weight"], p[f"h.{i}.ln_1.bias"])
        q, k, v = part("attn.c_attn", x).unflatten(2, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        mix = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + part("attn.c_proj", mix.transpose(1, 2).flatten(2))
        x = functional.layer_norm(x, (12,), p[f"h.{i}.ln_2.weight"], p[f"h.{i}.ln_2.bias"])
        x = x + part("mlp.c_proj", functional.gelu(part("mlp.c_fc", x), approximate="tanh"))
    logits = functional.layer_norm(x, (12,), p["ln_f.weight"], p["ln_f.bias"]) @ p["wte.weight"].T
    torch_loss(logits, targets).backward()
    assert_equal(model.forward(idx, targets)[0], logits)
    assert_equal(model.hidden(idx), functional.layer_norm(x, (12,), p["ln_f.weight"], p["ln_f.bias"]))
    model.forward(idx, targets)
    for grads in (model.backward(), model.loss_and_grads(idx, targets)[1]):
        assert grads.keys() == p.keys()
        for name, gradient in grads.items():
            assert_equal(gradient, p[name].grad, name)
    found = model.run_with_cache(idx, targets)[1]                   # x is assigned again, so it is not a name
    assert found.keys() & {"h.1.x", "h.1.attended", "h.1.attn.q"} == {"h.1.attended", "h.1.attn.q"}
    assert_equal(model.backward()["h.0.ln_1.weight"], p["h.0.ln_1.weight"].grad)
    with pytest.raises(UserError, match="the page shows x of each block"):
        in_block(found, 1, "x")
    written = model.generate(idx[:, :1], 8, temperature=0.0)        # by the cache of keys and values
    for t in range(1, 9):
        np.testing.assert_array_equal(model.forward(written[:, :t])[0][:, -1].argmax(axis=-1), written[:, t])
