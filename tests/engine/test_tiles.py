"""Attention in tiles: the lesson's numbers, with several blocks of queries, groups of heads and of
entries.
"""

import numpy as np
import pytest

from npgpt.engine.threads import blas_threads
from npgpt.engine.tiles import in_tiles
from npgpt.layers.attention import attention_backward, attention_forward
from npgpt.model.masks import dropout_mask
from tests.cases import arrays_in, small_parts

B, H, T, D = 5, 4, 7, 6  # all different, so that none can stand for another
SCALE = 0.7
TILE = 3 * T * 8  # bytes of one head's scores with 3 queries, float64
CAUSAL = np.triu(np.full((T, T), -np.inf), k=1)
HIDDEN = (np.random.default_rng(1).random((B, H, T, T)) < 0.4) & ~np.eye(T, dtype=bool)
HEADS = np.where(HIDDEN, -np.inf, 0.5)  # for each entry and head
ITSELF = np.eye(T, dtype=bool)


def inputs(dtype=np.float64):
    """q, k, v as views of one array, as self-attention gives them, dmix and a dropout mask."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((B, T, 3, H, D)).astype(dtype).transpose(2, 0, 3, 1, 4)
    return (
        q,
        k,
        v,
        rng.standard_normal((B, H, T, D)).astype(dtype),
        dropout_mask(rng, (B, H, T, T), 0.3, dtype),
    )


MASKS = {
    "causal, dropout": (CAUSAL, True),
    "dropout": (None, True),
    "each entry": (CAUSAL + HEADS[:, :1], False),
    "each head": (CAUSAL + HEADS, False),
}


@pytest.mark.parametrize("kept", [T - 1, T], ids=["weights recomputed", "weights kept"])
@pytest.mark.parametrize(("mask", "dropped"), MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(
    ("queries", "tile_bytes"),
    [(3, 1), (3, 3 * TILE), (3, 2 * H * TILE), (1, 2 * TILE), (100, 1 << 20)],
    ids=["one head each", "three heads of one entry", "two entries", "a long context", "one tile"],
)
def test_equals_the_lesson_on_any_number_of_cores(queries, tile_bytes, mask, dropped, kept):
    for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 1e-5)):
        q, k, v, dmix, drop = inputs(dtype)
        mask = None if mask is None else mask.astype(dtype)
        arguments = q, k, v, SCALE, mask, drop if dropped else None
        mix, cache = attention_forward(*arguments)
        tiled_forward, tiled_backward = in_tiles(attention_forward, attention_backward)
        results = []
        for cores in (1, 3):
            parts = {"queries": queries, "tile_bytes": tile_bytes, "kept": kept, "cores": cores}
            with small_parts(**parts), blas_threads(1):
                tiled, tiled_cache = tiled_forward(*arguments)
                results.append((tiled, *tiled_backward(dmix, tiled_cache)))
        expected = mix, *attention_backward(dmix, cache)
        for theirs, one, three in zip(expected, *results, strict=True):
            assert one.dtype == dtype
            np.testing.assert_allclose(one, theirs, rtol=tolerance, atol=tolerance * 10)
            np.testing.assert_array_equal(one, three)


@pytest.mark.parametrize(("kept", "held"), [(T, B * H), (T - 1, 0)])
def test_long_contexts_do_not_keep_their_weights(kept, held):
    """Then no array of the cache has a row for each query and a column for each key."""
    q, k, v, *_ = inputs()
    tiled_forward, _ = in_tiles(attention_forward, attention_backward)
    with small_parts(queries=T, tile_bytes=1, kept=kept, cores=1):
        _, cache = tiled_forward(q, k, v, SCALE)
    assert [each.shape[-2:] for each in arrays_in(cache)].count((T, T)) == held
