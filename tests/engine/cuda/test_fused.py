"""The fused passes against the layers' own lines, on a card that is emulated: the same kernels, run on the CPU."""

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig
from npgpt.engine.cuda.fused import GRAPHS, FusedGPT, why_not_fused
from npgpt.engine.philox import Philox
from npgpt.model.parameters import Parameters
from tests.cuda.card import EmulatedCard

SMALL = {"vocab_size": 65, "block_size": 24, "n_layer": 2, "n_head": 2, "n_embd": 32}
VARIANTS = {
    "plain": {},
    "dropout": {"dropout": 0.2},
    "some dropouts": {"embd_pdrop": 0.3, "attn_pdrop": 0.0, "resid_pdrop": 0.1},
    "attention's dropout alone": {"attn_pdrop": 0.4},
    "no biases": {"bias": False},
    "only biases of qkv": {"bias": False, "qkv_bias": True},
    "untied": {"tie_word_embeddings": False},
    "exact gelu": {"activation": "gelu"},
    "encoder": {"causal": False},
    "unscaled": {"scale_attn_weights": False},
    "scaled by layer": {"scale_attn_by_inverse_layer_idx": True},
    "another inner width": {"n_inner": 72},
    "one layer": {"n_layer": 1},
    "a large vocabulary": {"vocab_size": 700},
    "no padding": {"vocab_size": 64},
    "large eps": {"layer_norm_epsilon": 0.3},
}


def models(precision="float64", B=3, T=20, seed=0, **variant):
    """(plain model in float64, fused one of the same weights, idx, targets); weights of unit scale, some ignored."""
    config = GPTConfig(**{**SMALL, **variant})
    plain = GPT(config, seed=None, dtype="float64", threads=1)       # one part: its masks are those of the batch
    rng = np.random.default_rng(seed)
    for name, shape in plain.params.shapes.items():
        plain.params[name] = rng.standard_normal(shape) / (np.sqrt(shape[0]) if len(shape) == 2 else 1.0)
    card = EmulatedCard(precision, config.head_size)
    params = Parameters(config, "float64" if precision == "float64" else "float32")
    params.flat[:] = plain.params.flat
    idx, targets = rng.integers(0, config.vocab_size, (2, B, T))
    targets[0, 3] = targets[2, 5] = -1
    return plain, FusedGPT(params, card), idx, targets


def assert_same(grads, expected, rtol=1e-9):
    for name, gradient in expected.items():
        smallest = rtol * 1e-2 * abs(gradient).max()
        np.testing.assert_allclose(grads[name], gradient, rtol=rtol, atol=smallest, err_msg=name)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_loss_and_gradients_are_those_of_the_lines(variant):
    plain, fused, idx, targets = models(**variant)
    rng = [Philox(1234567890123, step=7, micro_batch=2) for _ in range(2)]
    expected_loss, expected = plain.loss_and_grads(idx, targets, rng[0])
    loss, grads = fused.loss_and_grads(idx, targets, rng[1], count=58, add=False)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    assert_same(grads, expected)
    assert fused.loss(idx, targets, 58) == pytest.approx(plain.evaluate(idx, targets), rel=1e-12)


def test_a_recorded_step_reads_the_next_batch_and_draws_the_next_masks():
    """The first step runs as it is, the second is recorded, the third replays the record."""
    plain, fused, idx, targets = models(dropout=0.2)
    rng = np.random.default_rng(1)
    ran = []
    for step in range(4):
        idx = rng.integers(0, 65, idx.shape)
        fused.card.launched.clear()
        expected_loss, expected = plain.loss_and_grads(idx, targets, Philox(5, step))
        loss, grads = fused.loss_and_grads(idx, targets, Philox(5, step), count=58, add=False)
        assert loss == pytest.approx(expected_loss, rel=1e-12)
        assert_same(grads, expected)
        ran.append(list(fused.card.launched))
        fused.params.flat[:] = plain.params.flat[:] = plain.params.flat * 0.9       # read anew, too
    assert ran[0] == ran[1] == ran[2] == ran[3]
    assert len(fused._graphs) == 1 and None not in fused._graphs.values()


def test_after_the_first_step_nothing_is_allocated(monkeypatch):
    """Recorded graphs hold on to the arrays' addresses."""
    _, fused, idx, targets = models(dropout=0.2)
    fused.loss_and_grads(idx, targets, Philox(5), 58, False)
    monkeypatch.setattr(fused.card, "empty", None)
    for step in (1, 2):
        fused.loss_and_grads(idx, targets, Philox(5, step), 58, False)
        fused.loss(idx, targets, 58)


def test_batches_of_other_shapes_have_buffers_of_their_own():
    plain, fused, _, _ = models()
    rng = np.random.default_rng(2)
    for B, T in [(3, 20), (1, 24), (3, 20), (2, 1), (3, 20), (1, 24), (3, 20)]:
        idx, targets = rng.integers(0, 65, (2, B, T))
        expected_loss, expected = plain.loss_and_grads(idx, targets)
        loss, grads = fused.loss_and_grads(idx, targets, None, B * T, False)
        assert loss == pytest.approx(expected_loss, rel=1e-12)
        assert_same(grads, expected)
        assert len(fused._buffers) <= 2


def test_what_was_recorded_is_replayed_only_for_the_same():
    """With and without dropout, for another number of targets that count; and only so many records are kept."""
    plain, fused, idx, targets = models(dropout=0.2)
    for _ in range(3):
        for rng in (lambda: Philox(5), lambda: None):
            loss, _ = plain.loss_and_grads(idx, targets, rng())
            assert fused.loss_and_grads(idx, targets, rng(), 58, False)[0] == pytest.approx(loss, rel=1e-12)
        assert fused.loss(idx, targets, 58) == pytest.approx(loss, rel=1e-12)
    for count in range(40, 57):
        assert fused.loss(idx, targets, count) == pytest.approx(loss * 58 / count, rel=1e-12)
        assert len(fused._graphs) <= GRAPHS


@pytest.mark.parametrize("variant", [{}, {"tie_word_embeddings": False, "vocab_size": 700},
                                     {"bias": False, "vocab_size": 700}], ids=["tied", "untied", "no biases"])
def test_micro_batches_add_up(variant):
    plain, fused, _, _ = models(**variant)
    rng = np.random.default_rng(3)
    for _ in range(2):      # the second time replayed
        for i in range(3):
            idx, targets = rng.integers(0, 65, (2, 2, 11))
            expected_loss, expected = plain.loss_and_grads(idx, targets, None, count=66, add=i > 0)
            loss, grads = fused.loss_and_grads(idx, targets, None, count=66, add=i > 0)
            assert loss == pytest.approx(expected_loss, rel=1e-12)
        assert_same(grads, expected)


def relative_error(grads, expected):
    return np.linalg.norm(grads.flat - expected.flat) / np.linalg.norm(expected.flat)


@pytest.mark.parametrize(("precision", "between"), [("float32", (0.0, 2e-6)), ("tf32", (1e-5, 2e-3)),
                                                    ("bfloat16", (1e-3, 1e-2))])
def test_errors_of_each_precision(precision, between):
    """Of the gradient as a whole; the lower bounds show that products are as coarse as they are said to be."""
    plain, fused, idx, targets = models(precision, dropout=0.1)
    for name, shape in plain.params.shapes.items():     # GPT-2's own scale, at which people train
        plain.params[name] = plain.params[name] * (0.2 if len(shape) == 2 else 1.0)
    fused.params.flat[:] = plain.params.flat
    for step in range(3):
        expected_loss, expected = plain.loss_and_grads(idx, targets, Philox(5, step))
        loss, grads = fused.loss_and_grads(idx, targets, Philox(5, step), 58, False)
        assert loss == pytest.approx(expected_loss, rel=between[1])
        assert between[0] < relative_error(grads, expected) < between[1]


@pytest.mark.parametrize("max_norm", [None, 0.5, 1e6])
def test_adamw_takes_the_steps_of_the_lines(max_norm):
    plain, fused, idx, targets = models()
    options = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-7, "weight_decay": 0.3}
    lines, kernels = AdamW(plain.params, **options), AdamW(fused.params, **options)
    for step in range(4):
        lines.lr = kernels.lr = 0.01 / (step + 1)
        _, grads = plain.loss_and_grads(idx, targets)
        assert kernels.step(grads, max_norm) == pytest.approx(lines.step(grads, max_norm), rel=1e-12)
        for ours, expected in ((fused.params, plain.params), (kernels.m, lines.m), (kernels.v, lines.v)):
            np.testing.assert_allclose(ours.flat, expected.flat, rtol=1e-9, atol=1e-12)
    assert kernels.t == lines.t == 4


def test_a_gradient_that_is_not_finite_changes_nothing():
    _, fused, idx, targets = models()
    optimizer = AdamW(fused.params)
    _, grads = fused.loss_and_grads(idx, targets, None, 58, False)
    grads["ln_f.bias"][3] = np.inf
    before = fused.params.flat.copy()
    assert not np.isfinite(optimizer.step(grads, 1.0))
    np.testing.assert_array_equal(fused.params.flat, before)
    assert not optimizer.m.flat.any() and not optimizer.v.flat.any()


@pytest.mark.parametrize(("fields", "dtype", "words"), [
    ({}, "float64", "float64"), ({"embedding_layer_norm": True}, "float32", "embedding_layer_norm"),
    ({"n_embd": 36, "n_head": 3}, "bfloat16", "head size"), ({"n_embd": 512, "n_head": 2}, "tf32", "head size"),
    ({"n_inner": 100}, "float32", "n_inner 100"), ({"n_embd": 6272, "n_head": 49}, "float32", "n_embd is 6272")])
def test_what_the_kernels_cannot_do(fields, dtype, words):
    assert words in why_not_fused(GPTConfig(**{**SMALL, **fields}), dtype)


def test_what_they_can():
    for fields in ({}, {"n_embd": 768, "n_head": 12}, {"n_embd": 1600, "n_head": 25}, {"n_embd": 256, "n_head": 2}):
        for dtype in ("float32", "tf32", "bfloat16"):
            assert why_not_fused(GPTConfig(**{**SMALL, **fields}), dtype) is None
