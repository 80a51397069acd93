"""The whole model: every variant's logits, loss and every gradient against torch; what the API promises."""

import math

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, UserError
from npgpt.layers.loss import cross_entropy_backward, cross_entropy_forward
from npgpt.model.transformer import gpt_backward, gpt_forward
from tests.torch_gpt import ours_and_torchs, unit_scale

SMALL = {"vocab_size": 11, "block_size": 8, "n_layer": 2, "n_head": 3, "n_embd": 12}
VARIANTS = {
    "default": {},
    "no biases": {"bias": False},
    "no qkv biases": {"qkv_bias": False},
    "only qkv biases": {"bias": False, "qkv_bias": True},
    "one head": {"n_head": 1},
    "three layers": {"n_layer": 3},
    "encoder": {"causal": False},
    "unscaled scores": {"scale_attn_weights": False},
    "embedding layernorm": {"embedding_layer_norm": True},
    "untied head": {"tie_word_embeddings": False},
    "exact gelu": {"activation": "gelu"},
    "dropout": {"dropout": 0.3},
    "three dropouts": {"embd_pdrop": 0.1, "attn_pdrop": 0.3, "resid_pdrop": 0.5},
    "scores divided by the layer": {"scale_attn_by_inverse_layer_idx": True},
    "narrow mlp": {"n_inner": 7},
    "large eps": {"layer_norm_epsilon": 0.1},
    "large vocabulary": {"vocab_size": 700},
    "all at once": {"bias": False, "qkv_bias": True, "causal": False, "scale_attn_weights": False, "n_head": 2,
                    "embedding_layer_norm": True, "tie_word_embeddings": False, "activation": "gelu", "dropout": 0.2},
}
EACH_VARIANT = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())


def batch(config, seed=0, rows=3, time=6):
    rng = np.random.default_rng(seed)
    idx = rng.integers(0, config.vocab_size, (rows, time))
    targets = rng.integers(0, config.vocab_size, (rows, time))
    targets[0, 1] = targets[2, 3] = -1
    return idx, targets


def model_of(variant, **options):
    model = GPT(GPTConfig(**{**SMALL, **variant}), dtype="float64", **options)
    unit_scale(model.params)
    return model


@EACH_VARIANT
def test_every_gradient_equals_torch(variant):
    pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    model = model_of(variant)
    idx, targets = batch(model.config)
    (logits, loss, grads), (reference, reference_loss, tensors) = ours_and_torchs(model, idx, targets)
    np.testing.assert_allclose(logits, reference.detach().numpy(), rtol=1e-9, atol=1e-12)
    assert loss == pytest.approx(reference_loss.item(), rel=1e-12)
    assert set(grads) == set(tensors)
    for name, tensor in tensors.items():
        scale = tensor.grad.abs().max().item()
        np.testing.assert_allclose(grads[name], tensor.grad.numpy(), rtol=1e-9, atol=1e-12 * scale, err_msg=name)


@EACH_VARIANT
def test_vector_jacobian_products_on_random_vectors(variant):
    """No torch: along a random direction of each parameter, projected logits have the slope that the gradient says."""
    model = model_of(variant)
    idx, _ = batch(model.config)
    rng = np.random.default_rng(2)

    def projected():
        logits, cache = gpt_forward(idx, model.params, np.random.default_rng(5))
        return (logits * dlogits).sum(), cache

    dlogits = rng.standard_normal((*idx.shape, model.config.vocab_size))
    grads = model.params.zeros_like()
    gpt_backward(dlogits, projected()[1], grads)
    for name, array in model.params.items():
        direction = rng.standard_normal(array.shape)
        kept, step = array.copy(), 1e-6
        array[...] = kept + step * direction
        above, _ = projected()
        array[...] = kept - step * direction
        below, _ = projected()
        array[...] = kept
        size = np.linalg.norm(grads[name]) * np.linalg.norm(direction)
        assert size > 0
        assert abs((grads[name] * direction).sum() - (above - below) / (2 * step)) < 1e-7 * size, name


@EACH_VARIANT
def test_shards_and_micro_batches_add_up_to_the_whole(variant):
    """Any number of threads, and gradient accumulation, give the gradient of the whole batch."""
    variant = {**variant, "dropout": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    model = model_of(variant, threads=1)
    idx, targets = batch(model.config, rows=5)
    _, loss = model.forward(idx, targets)
    whole = model.backward().flat
    for threads in (1, 2, 3, 8):
        sharded_loss, grads = model_of(variant, threads=threads).loss_and_grads(idx, targets)
        assert sharded_loss == pytest.approx(loss, rel=1e-12)
        np.testing.assert_allclose(grads.flat, whole, rtol=1e-9, atol=1e-12 * abs(whole).max())
    count = int((targets != -1).sum())
    total = sum(model.loss_and_grads(idx[part], targets[part], count=count)[1].flat.copy()
                for part in (slice(0, 1), slice(1, 3), slice(3, 5)))
    np.testing.assert_allclose(total, whole, rtol=1e-9, atol=1e-12 * abs(whole).max())
    assert model.evaluate(idx, targets) == pytest.approx(loss, rel=1e-12)


def test_same_seed_and_threads_give_the_same_bits_with_dropout():
    config = GPTConfig(**SMALL, dropout=0.3)
    idx, targets = batch(config)
    runs = [GPT(config, seed=4, threads=2).loss_and_grads(idx, targets, np.random.default_rng(1))[1].flat
            for _ in range(2)]
    assert np.array_equal(*runs)
    other = GPT(config, seed=4, threads=2).loss_and_grads(idx, targets, np.random.default_rng(2))[1].flat
    assert not np.array_equal(runs[0], other)


def test_tied_weight_gets_the_heads_and_the_embeddings_share():
    """The tied gradient is the sum of the two that an untied model of the same values has, and both are there."""
    tied = model_of({})
    untied = model_of({"tie_word_embeddings": False})
    for name in untied.params:
        untied.params[name] = tied.params[name]
    idx, targets = batch(tied.config)
    tied.forward(idx, targets)
    untied.forward(idx, targets)
    both, apart = tied.backward(), untied.backward()
    head, embedding = apart["lm_head.weight"], apart["wte.weight"]
    assert np.linalg.norm(head) > 0.01 and np.linalg.norm(embedding) > 0.01
    np.testing.assert_allclose(both["wte.weight"], head + embedding, rtol=1e-9, atol=1e-12)
    assert tied.params["lm_head.weight"] is tied.params["wte.weight"]
    assert both["lm_head.weight"] is both["wte.weight"]


def test_no_position_sees_a_later_one_unless_it_is_an_encoder():
    for causal in (True, False):
        model = model_of({"causal": causal})
        idx, _ = batch(model.config)
        changed = idx.copy()
        changed[:, 4] = (changed[:, 4] + 1) % model.config.vocab_size
        difference = abs(model.forward(idx)[0] - model.forward(changed)[0]).max(axis=(0, 2))
        assert (difference[4:] > 0).all()
        assert (difference[:4] == 0).all() == causal


def test_a_fresh_gpt2_starts_at_the_loss_of_guessing():
    config = GPTConfig(vocab_size=50257, block_size=32, n_layer=12, n_head=12, n_embd=192)
    idx, targets = batch(config, time=32)
    _, loss = GPT(config, seed=0).forward(idx, targets)
    assert loss == pytest.approx(math.log(50257), abs=0.1)


def test_gpt2_has_124_million_parameters_of_which_tying_saves_38_6():
    from npgpt.model.parameters import parameter_shapes

    gpt2 = {"vocab_size": 50257, "block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768}
    tied, untied = (sum(map(math.prod, parameter_shapes(GPTConfig(**gpt2, tie_word_embeddings=tie)).values()))
                    for tie in (True, False))
    assert tied == 124439808
    assert untied - tied == 38597376


def test_initial_weights():
    config = GPTConfig(vocab_size=500, block_size=64, n_layer=8, n_head=4, n_embd=128)
    params = GPT(config, seed=1).params
    assert params["wte.weight"].std() == pytest.approx(0.02, rel=0.02)
    assert params["h.3.mlp.c_fc.weight"].std() == pytest.approx(0.02, rel=0.02)
    for name in ("h.0.attn.c_proj.weight", "h.7.mlp.c_proj.weight"):
        assert params[name].std() == pytest.approx(0.02 / 4, rel=0.02)
    for name, array in params.items():
        assert abs(array.mean() - (".ln" in f".{name}" and name.endswith("weight"))) < 0.002, name
    np.testing.assert_array_equal(GPT(config, seed=1, dtype="float64").params.flat.astype("float32"), params.flat)
    assert not np.array_equal(GPT(config, seed=2).params.flat, params.flat)


def test_one_batch_overfits():
    """4 x 32 tokens are learned by heart, to a loss below 0.001, in 500 steps."""
    model = GPT(GPTConfig(vocab_size=65, block_size=32, n_layer=2, n_head=4, n_embd=64), seed=0)
    optimizer = AdamW(model.params, lr=3e-3, weight_decay=0.0)
    rng = np.random.default_rng(0)
    idx, targets = rng.integers(0, 65, (2, 4, 32))
    for _ in range(500):
        loss, grads = model.loss_and_grads(idx, targets)
        optimizer.step(grads, max_norm=1.0)
    assert loss < 0.001


@pytest.mark.parametrize("config", [{}, {"bias": False, "tie_word_embeddings": False}, {"embedding_layer_norm": True},
                                    {"causal": False, "scale_attn_weights": False, "qkv_bias": False},
                                    {"activation": "gelu", "dropout": 0.1}], ids=str)
def test_each_variant_trains(config):
    """Each variant learns to say what token it is looking at."""
    model = GPT(GPTConfig(**{**SMALL, **config}), seed=0)
    optimizer = AdamW(model.params, lr=1e-2, weight_decay=0.0)
    rng = np.random.default_rng(0)
    for _ in range(150):
        idx = rng.integers(0, 11, (8, 8))
        _, grads = model.loss_and_grads(idx, idx, rng)
        optimizer.step(grads, max_norm=1.0)
    assert model.evaluate(idx, idx) < 0.3


def test_dropout_is_off_unless_a_generator_is_given():
    model = model_of({"dropout": 0.5})
    idx, targets = batch(model.config)
    assert model.forward(idx, targets)[1] == model.forward(idx, targets)[1]
    assert model.forward(idx, targets)[1] == pytest.approx(model.evaluate(idx, targets), rel=1e-12)
    assert model.forward(idx, targets)[1] != model.forward(idx, targets, np.random.default_rng(0))[1]


def test_assignment_to_a_parameter_writes_through():
    model = model_of({})
    model.params["ln_f.bias"] = 3.0
    assert (model.params["ln_f.bias"] == 3.0).all() and (model.params.flat == 3.0).sum() == 12
    with pytest.raises(UserError, match="shape"):
        model.params["ln_f.bias"] = np.zeros(5)
    for value in (0.0, None):
        with pytest.raises(UserError, match="no parameter 'ln_g.bias'"):
            model.params["ln_g.bias"] = value


def test_matrices_stand_first_in_the_flat_array():
    params = model_of({}).params
    matrices = {name for name, array in params.items() if array.ndim == 2}
    params.flat[:] = 0.0
    params.flat[:params.n_matrix] = 1.0
    assert all((array == (name in matrices)).all() for name, array in params.items())


@pytest.mark.parametrize(("idx", "targets", "says"), [
    (np.zeros((1, 9), int), None, "longer than block_size 8"),
    (np.array([[0, 11]]), None, "from 0 to 10"),
    (np.array([[0, -1]]), None, "from 0 to 10"),
    (np.zeros((1, 2)), None, "must be integers"),
    (np.zeros(3, int), None, "shape"),
    (np.zeros((0, 3), int), None, "shape"),
    (np.zeros((1, 2), int), np.array([[0, 11]]), "targets must be from 0 to 10"),
    (np.zeros((1, 2), int), np.array([[0, -2]]), "targets must be from 0 to 10"),
    (np.zeros((1, 2), int), np.array([[0]]), "targets have the shape"),
    (np.zeros((1, 2), int), np.array([[-1, -1]]), "nothing to take a loss of"),
])
def test_a_batch_that_does_not_fit_is_refused(idx, targets, says):
    model = model_of({})
    with pytest.raises(ValueError, match=says):
        model.forward(idx, targets)


def test_backward_before_forward_is_refused():
    model = model_of({})
    with pytest.raises(UserError, match="targets"):
        model.backward()
    idx, targets = batch(model.config)
    model.forward(idx, targets)
    model.forward(idx)
    with pytest.raises(UserError, match="targets"):
        model.backward()


def test_large_logits_neither_overflow_nor_lose_the_loss():
    logits = np.array([[[1e4, -1e4, 0.0]]])
    loss, cache = cross_entropy_forward(logits, np.array([[1]]))
    assert loss == 2e4
    np.testing.assert_array_equal(cross_entropy_backward(1.0, cache), [[[1.0, -1.0, 0.0]]])


def test_each_row_of_logits_has_its_own_scale():
    """Rows that lie thousands apart: one row's maximum must not push another's exponentials to zero."""
    logits = np.array([[1e4, 1e4 - 1.0, 0.0], [-1e4, -1e4 - 1.0, -2e4]])
    loss, cache = cross_entropy_forward(logits, np.array([0, 1]))
    assert loss == pytest.approx(math.log(1 + math.exp(-1)) + 0.5, rel=1e-12)
    p = 1 / (1 + math.exp(-1))
    np.testing.assert_allclose(cross_entropy_backward(2.0, cache), [[p - 1, 1 - p, 0], [p, -p, 0]], atol=1e-15)
