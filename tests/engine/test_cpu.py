"""The CPU engine: each function against the lesson's, and how work is divided."""

from unittest import mock

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, layers
from npgpt.engine import cpu, sources, threads
from npgpt.engine.cpu import loss_in_blocks
from npgpt.engine.embedding import ONE_HOT_LIMIT, fast_embedding_backward, sorted_embedding_backward
from npgpt.engine.threads import blas_threads, using_cores
from npgpt.layers.embedding import embedding_backward
from npgpt.layers.loss import cross_entropy_backward, cross_entropy_forward
from tests.cases import CPU_KERNELS, engine_cases, layer_calls, layer_cases, small_parts

CASES = layer_cases()


@pytest.mark.parametrize(("lesson", "one", "three"), list(zip(
    len(CPU_KERNELS) * CASES, *(engine_cases(cores) for cores in (1, 3)), strict=True)),
    ids=[each.name for each in engine_cases()])
def test_each_layer_equals_the_lesson_on_any_number_of_cores(lesson, one, three):
    """To 1e-12, because sums are added in another order; the number of cores changes no bit."""
    with blas_threads(1):
        y, _ = lesson.run(lesson.inputs)
        dy = np.asarray(np.random.default_rng(1).standard_normal(np.shape(y)))
        (y, grads), (y_one, grads_one), (y_three, grads_three) = (
            case.run(case.inputs, dy) for case in (lesson, one, three))
    for name, expected in {"y": y, **grads}.items():
        ours, again = {"y": y_one, **grads_one}[name], {"y": y_three, **grads_three}[name]
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12 * max(1.0, abs(expected).max()), err_msg=name)
        np.testing.assert_array_equal(ours, again)


def test_a_model_is_run_in_parts():
    """Layers that can be divided get parts only: 4 rows of LayerNorm and of the loss, tiles of 2 queries."""
    model = GPT(GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=4, n_embd=12), dtype="float64", threads=2,
                kernels="numpy")
    idx, targets = np.random.default_rng(0).integers(0, 11, (2, 3, 5))
    with small_parts(), mock.patch.object(cpu, "number_of_shards", lambda *_: 1), \
         mock.patch.object(threads, "in_threads", lambda function, *arguments: list(map(function, *arguments))):
        _, calls = layer_calls(lambda: model.loss_and_grads(idx, targets))
    sizes = {name: {size for called, size in calls if called.startswith(name)}
             for name in ("layernorm", "gelu", "attention", "cross_entropy_forward")}
    assert sizes == {"layernorm": {(4, 12), (3, 12)}, "gelu": {(1, 48)}, "attention": {(1, 2, 2, 3), (1, 2, 1, 3)},
                     "cross_entropy_forward": {(4, 11), (3, 11)}}


@pytest.mark.parametrize("smallest", [0, 2])
@pytest.mark.parametrize("vocab_size", [1, ONE_HOT_LIMIT, ONE_HOT_LIMIT + 1])
def test_the_embeddings_gradient_equals_the_lessons(vocab_size, smallest):
    """Whatever the smallest token is: the sums of a large vocabulary begin where the sorted tokens change."""
    rng = np.random.default_rng(0)
    smallest = min(smallest, vocab_size - 1)
    idx = rng.integers(smallest, vocab_size, (4, 6))
    idx[2, 3] = smallest
    for dtype in (np.float64, np.float32):
        dx = rng.standard_normal((4, 6, 5)).astype(dtype)
        head = rng.standard_normal((vocab_size, 5)).astype(dtype)
        cache = idx, vocab_size, 9
        expected, dwpe = embedding_backward(dx, cache)
        tolerance = 1e-12 if dtype == np.float64 else 1e-5
        dwte, fast_dwpe = fast_embedding_backward(dx, cache)
        assert dwte.dtype == fast_dwpe.dtype == dtype
        np.testing.assert_allclose(dwte, expected, rtol=tolerance, atol=tolerance)
        np.testing.assert_array_equal(fast_dwpe, dwpe)
        if vocab_size > ONE_HOT_LIMIT:
            added, _ = fast_embedding_backward(dx, cache, total := head.copy())
            assert added is total
            np.testing.assert_allclose(added, expected + head, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("count", [None, 40])
def test_the_loss_in_blocks_equals_the_lessons_and_dlogits_replace_the_logits(count, cores, dtype):
    rng = np.random.default_rng(0)
    logits, targets = rng.standard_normal((3, 5, 11)).astype(dtype), rng.integers(-1, 11, (3, 5))
    targets[0, :4] = -1                             # a whole block that does not count
    counted = (targets != -1).sum()
    loss, cache = cross_entropy_forward(logits, targets)
    share = counted / (count or counted)
    expected = cross_entropy_backward(float(share), cache)
    tolerance = 1e-12 if dtype == np.float64 else 1e-5
    with small_parts(row_bytes=4 * 11 * logits.itemsize), using_cores(cores):
        for gradient in (False, True):
            ours = loss_in_blocks(logits, targets, count or counted, gradient)
            assert isinstance(ours, float) and ours == pytest.approx(loss * share, rel=tolerance)
    np.testing.assert_allclose(logits, expected, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize(
    ("B", "T", "V", "P"), [(3, 5, 11, 7), (1, 1, 2, 1), (4, 8, 3, 8), (2, 3, 600, 9)]
)
def test_the_embeddings_gradient_by_sorting_equals_the_lessons(B, T, V, P):
    """By NumPy: a GPU and XLA run these lines. With few tokens each has many rows, more of them
    than two.
    """
    rng = np.random.default_rng(0)
    for C, dtype in ((1, np.float64), (4, np.float32)):
        dx, idx = rng.standard_normal((B, T, C)).astype(dtype), rng.integers(0, V, (B, T))
        before = dx.copy()
        found = sorted_embedding_backward(dx, (idx, V, P))
        for ours, lessons in zip(found, layers.embedding_backward(dx, (idx, V, P)), strict=True):
            assert ours.dtype == dtype
            eps = np.finfo(dtype).eps
            np.testing.assert_allclose(ours, lessons, rtol=1e2 * eps, atol=1e2 * eps)
        np.testing.assert_array_equal(dx, before)


@pytest.mark.parametrize("reads_once", [True, False])
def test_a_blocks_cache_is_freed_after_its_backward(reads_once, monkeypatch):
    """All caches together are the most of a step's memory; an edited lesson may read one twice."""
    config = GPTConfig(vocab_size=11, block_size=8, n_layer=3, n_head=2, n_embd=12)
    engine = GPT(config, threads=2, kernels="numpy").engine
    assert engine.reads_once
    with mock.patch.dict(sources.TESTED, gpt_backward="edited"):
        assert not GPT(config, threads=2, kernels="numpy").engine.reads_once
    engine.reads_once, left = reads_once, []
    logits, cache = engine.run_forward(np.zeros((2, 5), int), None, None)
    looks = lambda dy, mask: left.append([*cache[2]]) or dy  # noqa: E731
    monkeypatch.setattr(engine.ops, "dropout_backward", looks)
    engine.model_backward(np.ones_like(logits), cache, engine.ops)
    assert [each is None for each in left[0]] == [False, False, reads_once]
    assert [each is None for each in left[-1]] == 3 * [reads_once]


def test_only_the_list_of_the_blocks_caches_forgets():
    """The cache of an edited layer may be a list, and read twice."""
    config = GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=12)
    engine = GPT(config, threads=2, kernels="numpy").engine
    plain = engine.ops.layernorm_forward

    def layernorm_forward(*arguments, **named):
        y, cache = plain(*arguments, **named)
        return y, [cache]

    engine.ops.layernorm_forward = layernorm_forward
    _, (_, _, blocks, ln_f, *_) = engine.run_forward(np.zeros((2, 5), int), None, None)
    assert type(ln_f) is list and type(blocks) is cpu.Once
