"""The CUDA engine against the layers' own lines: the same kernels, emulated on the CPU."""

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig
from npgpt.engine.cuda.engine import CudaEngine, why_not_fused
from npgpt.engine.cuda.gpu import GPU
from npgpt.engine.philox import Philox
from npgpt.model.parameters import Parameters
from tests import strict_cupy
from tests.cuda.gpu import EmulatedGPU, install_emulated_gpu

pytestmark = pytest.mark.slow

SMALL = {"vocab_size": 65, "block_size": 24, "n_layer": 2, "n_head": 2, "n_embd": 32}
VARIANTS = {
    "plain": {},
    "dropout": {"dropout": 0.2},
    "some dropouts": {"embd_pdrop": 0.3, "attn_pdrop": 0.0, "resid_pdrop": 0.1},
    "attention's dropout alone": {"attn_pdrop": 0.4},
    "the mlp's dropout alone": {"mlp_pdrop": 0.4},
    "no biases": {"bias": False},
    "only biases of qkv": {"bias": False, "qkv_bias": True},
    "only biases of the mlp": {"bias": False, "mlp_bias": True},
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
    """(float64 model, CUDA engine of the same weights, idx, targets); weights of unit scale, some targets ignored."""
    config = GPTConfig(**{**SMALL, **variant})
    plain = GPT(config, seed=None, dtype="float64", threads=1)
    rng = np.random.default_rng(seed)
    for name, shape in plain.params.shapes.items():
        plain.params[name] = rng.standard_normal(shape) / (np.sqrt(shape[0]) if len(shape) == 2 else 1.0)
    gpu = EmulatedGPU(precision, config.head_size)
    params = Parameters(config, "float64" if precision == "float64" else "float32")
    params.flat[:] = plain.params.flat
    idx, targets = rng.integers(0, config.vocab_size, (2, B, T))
    targets[0, 3] = targets[2, 5] = -1
    return plain, CudaEngine(params, gpu), idx, targets


def assert_same(grads, expected, rtol=1e-9):
    for name, gradient in expected.items():
        smallest = rtol * 1e-2 * abs(gradient).max()
        np.testing.assert_allclose(grads[name], gradient, rtol=rtol, atol=smallest, err_msg=name)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_loss_and_gradients_are_those_of_the_lines(variant):
    plain, engine, idx, targets = models(**variant)
    rng = [Philox(1234567890123, step=7, micro_batch=2) for _ in range(2)]
    expected_loss, expected = plain.loss_and_grads(idx, targets, rng[0])
    loss, grads = engine.loss_and_grads(idx, targets, rng[1])
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    assert_same(grads, expected)
    assert engine.loss(idx, targets) == pytest.approx(plain.evaluate(idx, targets), rel=1e-12)


def test_a_recorded_step_reads_the_next_batch_and_draws_the_next_masks():
    """The first step runs as it is, the second is recorded, the third replays the record."""
    plain, engine, idx, targets = models(dropout=0.2)
    rng = np.random.default_rng(1)
    ran = []
    for step in range(4):
        idx = rng.integers(0, 65, idx.shape)
        engine.gpu.launched.clear()
        expected_loss, expected = plain.loss_and_grads(idx, targets, Philox(5, step))
        loss, grads = engine.loss_and_grads(idx, targets, Philox(5, step))
        assert loss == pytest.approx(expected_loss, rel=1e-12)
        assert_same(grads, expected)
        ran.append(list(engine.gpu.launched))
        engine.params.flat[:] = plain.params.flat[:] = plain.params.flat * 0.9       # read anew, too
    assert ran[0] == ran[1] == ran[2] == ran[3]
    assert len(engine._graphs) == 1 and None not in engine._graphs.values()


def test_after_the_first_step_nothing_is_allocated(monkeypatch):
    """Recorded graphs hold on to the arrays' addresses."""
    _, engine, idx, targets = models(dropout=0.2)
    engine.loss_and_grads(idx, targets, Philox(5))
    monkeypatch.setattr(engine.gpu, "empty", None)
    for step in (1, 2):
        engine.loss_and_grads(idx, targets, Philox(5, step))
        engine.loss(idx, targets)


def test_batches_of_other_shapes_have_buffers_of_their_own():
    plain, engine, _, _ = models()
    rng = np.random.default_rng(2)
    for B, T in [(3, 20), (1, 24), (3, 20), (2, 1), (3, 20), (1, 24), (3, 20)]:
        idx, targets = rng.integers(0, 65, (2, B, T))
        expected_loss, expected = plain.loss_and_grads(idx, targets)
        loss, grads = engine.loss_and_grads(idx, targets)
        assert loss == pytest.approx(expected_loss, rel=1e-12)
        assert_same(grads, expected)
        assert len(engine._buffers) <= 2


def test_what_was_recorded_is_replayed_only_for_the_same():
    """With and without dropout; but also for another number of targets that count."""
    plain, engine, idx, targets = models(dropout=0.2)
    for _ in range(3):
        for rng in (lambda: Philox(5), lambda: None):
            loss, _ = plain.loss_and_grads(idx, targets, rng())
            assert engine.loss_and_grads(idx, targets, rng())[0] == pytest.approx(loss, rel=1e-12)
        assert engine.loss(idx, targets) == pytest.approx(loss, rel=1e-12)
    recorded = set(engine._graphs)
    for count in range(40, 57):
        assert float(engine.loss_and_grads(idx, targets, count=count)[0]) == pytest.approx(loss * 58 / count, rel=1e-12)
        assert set(engine._graphs) == recorded


def test_with_a_mask_the_lines_run():
    """There are no kernels for one; the gradients are added to those of the kernels."""
    plain, engine, idx, targets = models()
    mask = np.where(np.random.default_rng(4).random((3, 1, 20, 20)) < 0.3, -np.inf, 0.0)
    expected_loss, expected = plain.loss_and_grads(idx, targets, mask=mask)
    assert engine.loss(idx, targets, mask) == pytest.approx(expected_loss, rel=1e-12)
    loss, grads = engine.loss_and_grads(idx, targets, mask=mask)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    assert_same(grads, expected)
    _, expected = plain.loss_and_grads(idx, targets, add_to=expected)
    _, grads = engine.loss_and_grads(idx, targets)
    _, grads = engine.loss_and_grads(idx, targets, add_to=grads, mask=mask)
    assert_same(grads, expected)


@pytest.mark.parametrize("variant", [{}, {"tie_word_embeddings": False, "vocab_size": 700},
                                     {"bias": False, "vocab_size": 700}], ids=["tied", "untied", "no biases"])
def test_micro_batches_add_up(variant):
    plain, engine, _, _ = models(**variant)
    rng = np.random.default_rng(3)
    elsewhere = {name: np.ones(shape) for name, shape in plain.params.shapes.items()}
    for _ in range(2):      # the second time replayed
        grads = expected = None
        for _ in range(3):
            idx, targets = rng.integers(0, 65, (2, 2, 11))
            expected_loss, expected = plain.loss_and_grads(idx, targets, count=66, add_to=expected)
            loss, grads = engine.loss_and_grads(idx, targets, count=66, add_to=grads)
            assert loss == pytest.approx(expected_loss, rel=1e-12)
        assert grads is engine.grads
        assert_same(grads, expected)
    _, last = plain.loss_and_grads(idx, targets, count=66)          # added to gradients that are not the engine's own
    _, grads = engine.loss_and_grads(idx, targets, count=66, add_to=elsewhere)
    assert grads is elsewhere
    assert_same(grads, {name: 1.0 + gradient for name, gradient in last.items()})


def relative_error(grads, expected):
    squares = [(np.sum((grads[name] - expected[name]) ** 2), np.sum(expected[name] ** 2)) for name in expected]
    return np.sqrt(np.sum(squares, axis=0)[0] / np.sum(squares, axis=0)[1])


@pytest.mark.parametrize(("precision", "between"), [("float32", (0.0, 2e-6)), ("tf32", (1e-5, 2e-3)),
                                                    ("bfloat16", (1e-3, 1e-2))])
def test_errors_of_each_precision(precision, between):
    """Of the gradient as a whole; the lower bounds show that products are as coarse as they are said to be."""
    plain, engine, idx, targets = models(precision, dropout=0.1)
    for name, shape in plain.params.shapes.items():     # GPT-2's own scale, at which people train
        plain.params[name] = plain.params[name] * (0.2 if len(shape) == 2 else 1.0)
    engine.params.flat[:] = plain.params.flat
    for step in range(3):
        expected_loss, expected = plain.loss_and_grads(idx, targets, Philox(5, step))
        loss, grads = engine.loss_and_grads(idx, targets, Philox(5, step))
        assert loss == pytest.approx(expected_loss, rel=between[1])
        assert between[0] < relative_error(grads, expected) < between[1]


@pytest.mark.parametrize("decay", ["matrices", "all"])
@pytest.mark.parametrize("max_norm", [None, 0.5, 1e6])
def test_adamw_takes_the_steps_of_the_lines(max_norm, decay):
    plain, engine, idx, targets = models()
    options = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-7, "weight_decay": 0.3, "decay": decay}
    lines, kernels = AdamW(plain.params, **options), AdamW(engine.params, engine=engine, **options)
    for step in range(4):
        lines.lr = kernels.lr = 0.01 / (step + 1)
        _, grads = plain.loss_and_grads(idx, targets)
        assert kernels.step(grads, max_norm) == pytest.approx(lines.step(grads, max_norm), rel=1e-12)
        for ours, expected in ((engine.params, plain.params), (kernels.m, lines.m), (kernels.v, lines.v)):
            np.testing.assert_allclose(ours.flat, expected.flat, rtol=1e-9, atol=1e-12)
    assert kernels.t == lines.t == 4


def test_a_gradient_that_is_not_finite_changes_nothing():
    _, engine, idx, targets = models()
    optimizer = AdamW(engine.params, engine=engine)
    _, grads = engine.loss_and_grads(idx, targets)
    grads["ln_f.bias"][3] = np.inf
    before = engine.params.flat.copy()
    assert not np.isfinite(optimizer.step(grads, 1.0))
    np.testing.assert_array_equal(engine.params.flat, before)
    assert not optimizer.m.flat.any() and not optimizer.v.flat.any()


@pytest.mark.parametrize(("fields", "dtype", "words"), [
    ({}, "float64", "float64"), ({"embedding_layer_norm": True}, "float32", "embedding_layer_norm"),
    ({"final_layer_norm": False}, "float32", "final_layer_norm"), ({"lm_head_bias": True}, "tf32", "lm_head_bias"),
    ({"n_embd": 36, "n_head": 3}, "bfloat16", "head size"), ({"n_embd": 512, "n_head": 2}, "tf32", "head size"),
    ({"n_inner": 100}, "float32", "n_inner 100"), ({"n_embd": 6272, "n_head": 49}, "float32", "n_embd is 6272")])
def test_what_the_kernels_cannot_do(fields, dtype, words):
    assert words in why_not_fused(GPTConfig(**{**SMALL, **fields}), dtype)


def test_what_they_can():
    for fields in ({}, {"n_embd": 768, "n_head": 12}, {"n_embd": 1600, "n_head": 25}, {"n_embd": 256, "n_head": 2}):
        for dtype in ("float32", "tf32", "bfloat16"):
            assert why_not_fused(GPTConfig(**{**SMALL, **fields}), dtype) is None


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 2e-6), ("bfloat16", 1e-2)])
def test_training_through_cublaslt_and_cuda_graphs(monkeypatch, precision, tolerance):
    """`GPU` and `Matmul` themselves: on CuPy's stand-in, whose kernels are emulated and whose matmuls are NumPy's."""
    cupy = install_emulated_gpu(monkeypatch)
    config = GPTConfig(**SMALL, dropout=0.1)
    plain = GPT(config, seed=0, dtype="float64", threads=1)
    params = Parameters(config, "float32", cupy)
    params.flat[:] = cupy.asarray(plain.params.flat, "float32")
    engine = CudaEngine(params, GPU(precision, config.head_size))
    lines, kernels = AdamW(plain.params, 0.01), AdamW(params, 0.01, engine=engine)
    rng = np.random.default_rng(0)
    for step in range(4):                   # as it is, recorded, and replayed twice
        plain.params.flat[:] = params.flat.get()
        grads = expected = None
        for micro_batch in range(2):
            idx, targets = rng.integers(0, config.vocab_size, (2, 3, 20))
            masks = [Philox(1, step, micro_batch) for _ in range(2)]
            expected_loss, expected = plain.loss_and_grads(idx, targets, masks[0], 120, expected)
            loss, grads = engine.loss_and_grads(idx, targets, masks[1], 120, grads)
            assert float(loss) == pytest.approx(expected_loss, rel=tolerance)
        there = {name: grads[name].get().astype(np.float64) for name in grads}
        assert relative_error(there, expected) < tolerance
        assert float(kernels.step(grads, 0.5)) == pytest.approx(lines.step(there, 0.5), rel=1e-6)
        np.testing.assert_allclose(params.flat.get(), plain.params.flat, rtol=1e-5, atol=1e-7)
    assert sum(entry[0] == "replay" for entry in strict_cupy.gpu.log) == 3 * 2
