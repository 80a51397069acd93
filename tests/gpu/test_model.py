"""Whole models on the GPU against the CPU in float64: losses, every gradient, replays, and the same bits again."""

import math

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig
from npgpt.engine.philox import Philox
from tests.gpu.conftest import relative_error

# Of the gradients' norm. The lines in float64 have the CPU's own accuracy.
WITHIN = {("reference", "float64"): 1e-10, ("reference", "float32"): 1e-5, ("fused", "float32"): 1e-5,
          ("fused", "tf32"): 3e-3, ("fused", "bfloat16"): 1e-2}
MODELS = {
    "small": ({"vocab_size": 65, "block_size": 100, "n_layer": 2, "n_head": 4, "n_embd": 128}, 3, 77),
    "dropout": ({"vocab_size": 65, "block_size": 64, "n_layer": 2, "n_head": 2, "n_embd": 64, "dropout": 0.2}, 4, 64),
    "untied, no biases": ({"vocab_size": 700, "block_size": 64, "n_layer": 2, "n_head": 2, "n_embd": 256, "bias": False,
                           "tie_word_embeddings": False}, 2, 64),
    "exact gelu, encoder": ({"vocab_size": 65, "block_size": 64, "n_layer": 1, "n_head": 2, "n_embd": 64,
                             "activation": "gelu", "causal": False}, 2, 33),
    "two layers of GPT-2": ({"vocab_size": 50257, "block_size": 1024, "n_layer": 2, "n_head": 12, "n_embd": 768},
                            1, 1024),
    "two layers of GPT-2 XL": ({"vocab_size": 1000, "block_size": 1024, "n_layer": 2, "n_head": 25, "n_embd": 1600},
                               1, 130),
}


def norm(array):
    """The norm of an array, computed on the GPU: some have a hundred million numbers."""
    return math.sqrt(float((array * array).sum()))


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS)
def expected(request, cupy):
    """(config, weights, batches, the CPU's loss and gradients of each); the gradients are on the GPU."""
    fields, B, T = request.param
    # A Philox is for one shard. A single row is one, whatever the number of threads, and the large models have one.
    here = GPT(GPTConfig(**fields), seed=1, dtype="float64", threads=None if B == 1 else 1)
    rng = np.random.default_rng(0)
    for name, shape in here.params.shapes.items():          # biases and gains of unit scale, too
        if len(shape) == 1:
            here.params[name] = rng.standard_normal(shape)
    batches = rng.integers(0, fields["vocab_size"], (3, 2, B, T))
    results = []
    for step, (idx, targets) in enumerate(batches):
        targets[0, :3] = -1
        loss, grads = here.loss_and_grads(idx, targets, Philox(11, step))
        results.append((loss, {name: cupy.asarray(grads[name]) for name in grads}))
    return here.config, here.params, batches, results


@pytest.mark.parametrize(("kernels", "dtype"), WITHIN, ids=map(" ".join, WITHIN))
def test_gradients(expected, kernels, dtype):
    """Three batches: the first runs as it is, the second is recorded as a graph, the third replays it."""
    config, params, batches, results = expected
    there = GPT(config, seed=None, dtype=dtype, device="gpu", kernels=kernels)
    assert (there.why_not_fused is None) == (kernels == "fused")
    there.params.flat[:] = there.xp.asarray(params.flat, dtype=there.params.flat.dtype)
    within = WITHIN[kernels, dtype]
    if kernels == "fused" and dtype == "float32" and batches.shape[-1] == 1024:
        within = 5e-5           # tensor cores cut sums off instead of rounding: a bias of 1e-5 at T = 1024
    for step, ((idx, targets), (loss, grads)) in enumerate(zip(batches, results, strict=True)):
        there_loss, there_grads = there.loss_and_grads(idx, targets, there.engine.dropout_rng(11, step, 0))
        assert float(there_loss) == pytest.approx(loss, rel=within)
        sizes = {name: norm(gradient) for name, gradient in grads.items()}
        errors = {name: norm(there_grads[name] - gradient) for name, gradient in grads.items()}
        size, n = math.hypot(*sizes.values()), there.params.flat.size
        assert math.hypot(*errors.values()) < within * size
        for name, gradient in grads.items():        # none may hide behind the large ones
            floor = 1e-3 * size * math.sqrt(gradient.size / n)
            assert errors[name] < 10 * within * (sizes[name] + floor), name
        if config.used("embd_pdrop") == 0.0:
            assert float(there.evaluate(idx, targets)) == pytest.approx(loss, rel=within)


def test_bits_repeat_and_nothing_waits():
    """Two runs of five steps: the same bits; and CuPy, told to refuse every wait, refuses none."""
    import cupyx
    config = GPTConfig(vocab_size=65, block_size=128, n_layer=2, n_head=2, n_embd=128, dropout=0.1)
    batches = np.random.default_rng(0).integers(0, 65, (5, 2, 4, 128))
    for dtype in ("float32", "bfloat16"):
        runs = []
        for _ in range(2):
            model = GPT(config, seed=0, dtype=dtype, device="gpu")
            optimizer = AdamW(model.params, lr=1e-2, engine=model.engine)
            for step, (idx, targets) in enumerate(batches):
                with cupyx.allow_synchronize(False):
                    _, grads = model.loss_and_grads(idx, targets, model.engine.dropout_rng(1, step, 0))
                    optimizer.step(grads, max_norm=1.0)
            runs.append(model.params.flat.get())
        np.testing.assert_array_equal(*runs)


@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_adamw(max_norm):
    config = GPTConfig(vocab_size=65, block_size=64, n_layer=2, n_head=2, n_embd=128)
    here = GPT(config, seed=0, dtype="float64")
    there = GPT(config, seed=0, device="gpu")
    lines, kernels = AdamW(here.params, lr=1e-2), AdamW(there.params, lr=1e-2, engine=there.engine)
    for idx, targets in np.random.default_rng(0).integers(0, 65, (4, 2, 2, 64)):
        _, grads = here.loss_and_grads(idx, targets)
        grads_there = {name: there.xp.asarray(grads[name], dtype=np.float32) for name in grads}
        assert float(kernels.step(grads_there, max_norm)) == pytest.approx(lines.step(grads, max_norm), rel=1e-5)
    assert relative_error(there.params.flat.get() - GPT(config, seed=0).params.flat,
                          here.params.flat - GPT(config, seed=0).params.flat) < 1e-3


def test_generation():
    config = GPTConfig(vocab_size=65, block_size=32, n_layer=2, n_head=2, n_embd=64)
    idx = np.random.default_rng(0).integers(0, 65, (3, 5))
    here, there = (GPT(config, seed=0, dtype="float64", device=device) for device in ("cpu", "gpu"))
    np.testing.assert_array_equal(there.generate(idx, 60, seed=1), here.generate(idx, 60, seed=1))
