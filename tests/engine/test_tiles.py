"""Attention in tiles: the lesson's numbers, with several blocks of queries, groups of heads and of entries."""

import numpy as np
import pytest

from npgpt.engine.threads import blas_threads
from npgpt.engine.tiles import in_tiles, query_blocks
from npgpt.layers.attention import attention_backward, attention_forward
from npgpt.model.masks import dropout_mask
from tests.cases import arrays_in, layer_calls, small_parts

B, H, T, D = 5, 4, 7, 6         # all different, so that none can stand for another
SCALE = 0.7
TILE = 3 * T * 8                # bytes of one head's scores with 3 queries, float64
CAUSAL = np.triu(np.full((T, T), -np.inf), k=1)
ITSELF = np.eye(T, dtype=bool)
EACH = np.where((np.random.default_rng(1).random((B, 1, T, T)) < 0.6) | ITSELF, 0.5, -np.inf)   # for each entry
HEADS = np.where((np.random.default_rng(2).random((B, H, T, T)) < 0.6) | ITSELF, 0.5, -np.inf)  # and for each head


def inputs(dtype=np.float64):
    """q, k, v as views of one array, as self-attention gives them, dmix and a dropout mask."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((B, T, 3, H, D)).astype(dtype).transpose(2, 0, 3, 1, 4)
    return q, k, v, rng.standard_normal((B, H, T, D)).astype(dtype), dropout_mask(rng, (B, H, T, T), 0.3, dtype)


@pytest.mark.parametrize("kept", [T - 1, T], ids=["weights recomputed", "weights kept"])
@pytest.mark.parametrize(("mask", "dropped"), [(CAUSAL, True), (CAUSAL, False), (None, True), (CAUSAL + EACH, False),
                                               (CAUSAL + HEADS, False)],
                         ids=["causal, dropout", "causal", "dropout", "each entry", "each head"])
@pytest.mark.parametrize(("queries", "tile_bytes"), [
    (3, 1), (3, 3 * TILE), (3, 2 * H * TILE), (1, 2 * TILE), (100, 1 << 20)], ids=[
    "one head each", "three heads of one entry", "two entries", "a long context", "one tile"])
def test_equals_the_lesson_on_any_number_of_cores(queries, tile_bytes, mask, dropped, kept):
    for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 1e-5)):
        q, k, v, dmix, drop = inputs(dtype)
        arguments = q, k, v, SCALE, None if mask is None else mask.astype(dtype), drop if dropped else None
        mix, cache = attention_forward(*arguments)
        tiled_forward, tiled_backward = in_tiles(attention_forward, attention_backward)
        results = []
        for cores in (1, 2, 3):
            with small_parts(queries=queries, tile_bytes=tile_bytes, kept=kept, cores=cores), blas_threads(1):
                tiled, tiled_cache = tiled_forward(*arguments)
                results.append((tiled, *tiled_backward(dmix, tiled_cache)))
        for expected, *ours in zip((mix, *attention_backward(dmix, cache)), *results, strict=True):
            assert ours[0].dtype == dtype
            np.testing.assert_allclose(ours[0], expected, rtol=tolerance, atol=tolerance * 10)
            for others in ours[1:]:
                np.testing.assert_array_equal(others, ours[0])


def test_keys_that_no_query_of_a_tile_sees_are_left_out():
    def keys(*arguments):
        with small_parts(queries=3):
            return [(rows.start, rows.stop, seen.stop) for rows, seen in query_blocks(*arguments)]

    assert keys(7, 7, CAUSAL) == [(0, 3, 3), (3, 6, 6), (6, 7, 7)]
    assert keys(4, 7, CAUSAL[3:]) == [(0, 3, 6), (3, 4, 7)]
    assert keys(4, 9, None) == [(0, 3, 9), (3, 4, 9)]
    # twice as many in a long context
    assert keys(13, 13, None) == [(0, 6, 13), (6, 12, 13), (12, 13, 13)]
    assert keys(7, 7, np.stack([np.where(np.eye(7), 0.0, -np.inf), CAUSAL])[:, None]) == keys(7, 7, CAUSAL)


@pytest.mark.parametrize(("kept", "held", "again"), [(T, B * H, 0), (T - 1, 0, B * H)])
def test_long_contexts_do_not_keep_their_weights(kept, held, again):
    """Then no array of the cache has a row for each query and a column for each key; the backward recomputes them."""
    q, k, v, dmix, _ = inputs()
    tiled_forward, tiled_backward = in_tiles(attention_forward, attention_backward)
    with small_parts(queries=T, tile_bytes=1, kept=kept, cores=1):
        _, cache = tiled_forward(q, k, v, SCALE)
        assert len([array for array in arrays_in(cache) if array.shape[-2:] == (T, T)]) == held
        _, calls = layer_calls(lambda: tiled_backward(dmix, cache))
    assert calls["attention_forward", (1, 1, T, D)] == again and calls["attention_backward", (1, 1, T, D)] == B * H
