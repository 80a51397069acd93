"""The CPU engine: each function against the lesson's, and how work is divided."""

from unittest import mock

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from npgpt.engine import sources
from npgpt.engine.cpu import loss_in_blocks
from npgpt.engine.embedding import ONE_HOT_LIMIT, fast_embedding_backward, sorted_embedding_backward
from npgpt.engine.threads import blas_threads, using_cores
from npgpt.layers.embedding import embedding_backward
from npgpt.layers.loss import cross_entropy_backward, cross_entropy_forward
from tests.cases import CPU_KERNELS, engine_cases, layer_cases, small_parts
from tests.helpers.close import assert_close

CASES = layer_cases()


@pytest.mark.parametrize(
    ("lesson", "one", "three"),
    list(zip(len(CPU_KERNELS) * CASES, *(engine_cases(cores) for cores in (1, 3)), strict=True)),
    ids=[each.name for each in engine_cases()],
)
def test_each_layer_equals_the_lesson_on_any_number_of_cores(lesson, one, three):
    """Sums are added in another order; the number of cores changes no bit."""
    with blas_threads(1):
        y, _ = lesson.run(lesson.inputs)
        dy = np.asarray(np.random.default_rng(1).standard_normal(np.shape(y)))
        found = []
        for case in (lesson, one, three):
            y, grads = case.run(case.inputs, dy)
            found.append({"y": y, **grads})
    expected, ours, again = found
    assert_close(ours, expected, rtol=1e-12)
    assert_close(ours, again, rtol=0, atol=0)


@pytest.mark.parametrize("gradient", [fast_embedding_backward, sorted_embedding_backward])
@pytest.mark.parametrize("smallest", [0, 2])
@pytest.mark.parametrize("vocab_size", [3, ONE_HOT_LIMIT, ONE_HOT_LIMIT + 1])
def test_the_embeddings_gradient_equals_the_lessons(vocab_size, smallest, gradient):
    """Whatever the smallest token is: the sums of a large vocabulary begin where the sorted tokens
    change. A GPU and XLA sort for any vocabulary.
    """
    rng = np.random.default_rng(0)
    idx = rng.integers(smallest, vocab_size, (4, 6))
    idx[2, 3] = smallest
    for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 1e-5)):
        dx = rng.standard_normal((4, 6, 5)).astype(dtype)
        cache = idx, vocab_size, 9
        for ours, lessons in zip(gradient(dx, cache), embedding_backward(dx, cache), strict=True):
            assert ours.dtype == dtype
            np.testing.assert_allclose(ours, lessons, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("count", [None, 40])
def test_the_loss_in_blocks_equals_the_lessons_and_dlogits_replace_the_logits(count, cores, dtype):
    rng = np.random.default_rng(0)
    logits, targets = rng.standard_normal((3, 5, 11)).astype(dtype), rng.integers(-1, 11, (3, 5))
    targets[0, :4] = -1  # a whole block that does not count
    counted = (targets != -1).sum()
    count = count or counted
    loss, cache = cross_entropy_forward(logits, targets)
    expected = cross_entropy_backward(float(counted / count), cache)
    tolerance = 1e-12 if dtype == np.float64 else 1e-5
    pair = cross_entropy_forward, cross_entropy_backward
    with small_parts(row_bytes=4 * 11 * logits.itemsize), using_cores(cores):
        for gradient in (False, True):
            ours = loss_in_blocks(*pair, True, logits, targets, count, gradient)
            assert ours == pytest.approx(loss * counted / count, rel=tolerance)
    np.testing.assert_allclose(logits, expected, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("edited", [False, True])
def test_a_blocks_cache_is_freed_after_its_backward(edited):
    """All caches together are the most of a step's memory; an edited lesson may read one twice."""
    config = GPTConfig(vocab_size=11, block_size=8, n_layer=3, n_head=2, n_embd=12)
    with mock.patch.dict(sources.TESTED, {"gpt_backward": "another"} if edited else {}):
        engine = GPT(config, threads=2, kernels="numpy").engine
    logits, cache = engine.run_forward(np.zeros((2, 5), int), None, None)
    engine.model_backward(np.ones_like(logits), cache, engine.ops)
    assert [each is None for each in cache[2]] == 3 * [not edited]
