"""Attention in tiles: the core's numbers, from tiles so small that there are several of queries, heads and entries."""

import numpy as np
import pytest

from npgpt.arrays import causal_mask
from npgpt.engine.threads import blas_threads, using_cores
from npgpt.layers import attention_tiles
from npgpt.layers.attention import attention_backward, attention_forward
from npgpt.layers.attention_tiles import head_groups, tiled_attention_backward, tiled_attention_forward, tiles
from npgpt.layers.dropout import dropout_mask
from npgpt.layers.self_attention import split_heads
from tests.cases import arrays_in
from tests.layers.elsewhere import Elsewhere

B, H, T, D = 5, 4, 7, 6         # all different, so that none can stand for another
SCALE = 0.7
TILE = 3 * T * 8                # bytes of one head's scores with 3 queries, float64
EACH_TILING = pytest.mark.parametrize(("queries", "block_bytes"), [
    (3, 1), (3, 3 * TILE), (3, 2 * H * TILE), (1, TILE), (7, 1), (100, 1 << 20)], ids=[
    "one head each", "three heads of one entry", "two entries", "one query", "all queries", "one tile"])


@pytest.fixture
def cut(monkeypatch):
    """cut(queries, block_bytes, kept) sets the size of the tiles, and of how many keys the weights are kept."""
    def set_sizes(queries, block_bytes, kept=attention_tiles.KEPT):
        monkeypatch.setattr(attention_tiles, "QUERIES", queries)
        monkeypatch.setattr(attention_tiles, "BLOCK_BYTES", block_bytes)
        monkeypatch.setattr(attention_tiles, "KEPT", kept)
    return set_sizes


def inputs(dropped=False, dtype=np.float64):
    """q, k, v as views of one array, as the layer gives them, dmix and a dropout mask or None."""
    rng = np.random.default_rng(0)
    q, k, v = split_heads(rng.standard_normal((B, T, 3 * H * D)).astype(dtype), H)
    dmix = rng.standard_normal((B, H, T, D)).astype(dtype)
    return q, k, v, dmix, dropout_mask(rng, (B, H, T, T), 0.3, dtype) if dropped else None


@pytest.mark.parametrize("kept", [T - 1, T], ids=["weights worked out again", "weights kept"])
@pytest.mark.parametrize("dropped", [False, True], ids=["no dropout", "dropout"])
@pytest.mark.parametrize("causal", [False, True], ids=["an encoder", "causal"])
@EACH_TILING
def test_equals_the_core(queries, block_bytes, causal, dropped, kept, cut):
    cut(queries, block_bytes, kept)
    q, k, v, dmix, drop = inputs(dropped)
    expected, core = attention_forward(q, k, v, SCALE, causal_mask(T, like=q) if causal else None, drop)
    for cores in (1, 3):
        with using_cores(cores):
            mix, cache = tiled_attention_forward(q, k, v, SCALE, causal, drop)
            dheads = tiled_attention_backward(dmix, cache)
        np.testing.assert_allclose(mix, expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(dheads, attention_backward(dmix, core), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True], ids=["an encoder", "causal"])
@pytest.mark.parametrize("new", [1, 2, 4, 7])
@EACH_TILING
def test_new_queries_see_all_the_keys_before_them(queries, block_bytes, new, causal, cut):
    """As in generation: the queries are those of the last positions."""
    cut(queries, block_bytes)
    q, k, v, _, _ = inputs()
    q, mask = q[:, :, T - new:], causal_mask(T, like=q)[T - new:] if causal else None
    expected, _ = attention_forward(q, k, v, SCALE, mask)
    mix, _ = tiled_attention_forward(q, k, v, SCALE, causal)
    np.testing.assert_allclose(mix, expected, rtol=1e-9, atol=1e-12)


def test_tiles_of_new_queries_are_as_large_as_fits(cut, monkeypatch):
    """Two heads of three queries on all seven keys; where fewer keys were counted, more heads would not fit."""
    cut(3, 2 * TILE)
    shapes = []
    monkeypatch.setattr(attention_tiles, "attention_forward", lambda q, k, *others:
                        shapes.append((*q.shape[:3], k.shape[2])) or attention_forward(q, k, *others))
    q, k, v, _, _ = inputs()
    tiled_attention_forward(q[:, :, 3:], k, v, SCALE, causal=False)
    assert shapes == [(1, 2, 3, 7), (1, 2, 1, 7)] * B * 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@EACH_TILING
def test_several_cores_give_the_same_bits(queries, block_bytes, dtype, cut):
    cut(queries, block_bytes)
    q, k, v, dmix, drop = inputs(True, dtype)

    def results(cores):
        with blas_threads(1), using_cores(cores):
            mix, cache = tiled_attention_forward(q, k, v, SCALE, True, drop)
            return mix, tiled_attention_backward(dmix, cache)

    for one, several in zip(results(1) * 2, results(2) + results(3), strict=True):
        assert one.dtype == dtype
        np.testing.assert_array_equal(one, several)


def test_results_lie_in_memory_as_the_linear_layers_take_them():
    """So that no copy is made where heads are merged, and where dq, dk and dv become dqkv."""
    q, k, v, dmix, _ = inputs()
    mix, cache = tiled_attention_forward(q, k, v, SCALE)
    assert mix.transpose(0, 2, 1, 3).flags.c_contiguous
    assert tiled_attention_backward(dmix, cache).transpose(1, 3, 0, 2, 4).flags.c_contiguous


def test_the_gradient_is_made_in_the_library_of_its_upstream():
    q, k, v, dmix, _ = inputs()
    _, cache = tiled_attention_forward(q, k, v, SCALE)
    assert isinstance(tiled_attention_backward(dmix.view(Elsewhere), cache), Elsewhere)


def test_keys_that_no_query_of_a_tile_sees_are_left_out(cut):
    cut(3, 1)
    assert tiles(7, 7, causal=True) == [(slice(0, 3), slice(0, 3)), (slice(3, 6), slice(0, 6)),
                                        (slice(6, 7), slice(0, 7))]
    assert tiles(4, 9, causal=True) == [(slice(0, 3), slice(0, 8)), (slice(3, 4), slice(0, 9))]
    assert tiles(4, 9, causal=False) == [(slice(0, 3), slice(0, 9)), (slice(3, 4), slice(0, 9))]
    assert tiles(2, 2, causal=True) == [(slice(0, 2), slice(0, 2))]


@pytest.mark.parametrize("kept", [T - 1, T], ids=["worked out again", "kept"])
def test_long_contexts_do_not_keep_their_weights(kept, cut, monkeypatch):
    """Then no array of the cache has a row for each query and a column for each key, and the backward makes them."""
    cut(T, 1, kept)
    q, k, v, dmix, _ = inputs()
    _, cache = tiled_attention_forward(q, k, v, SCALE, causal=False)
    assert len([array for array in arrays_in(cache) if array.shape[-2:] == (T, T)]) == (B * H if kept == T else 0)
    again = []
    monkeypatch.setattr(attention_tiles, "attention_forward",
                        lambda *arguments: again.append(1) or attention_forward(*arguments))
    tiled_attention_backward(dmix, cache)
    assert len(again) == (0 if kept == T else B * H)


@pytest.mark.parametrize(("queries", "heads_fit", "expected"), [
    (3, 0.5, [(b, b + 1, h, h + 1) for b in range(B) for h in range(H)]),       # one head at least
    (3, 3.9, [(b, b + 1, h, h + 3) for b in range(B) for h in (0, 3)]),
    (3, H, [(b, b + 1, 0, H) for b in range(B)]),
    (3, 2 * H, [(b, b + 2, 0, H) for b in (0, 2, 4)]),
    (3, 100, [(0, 25, 0, H)]),
    (10, 2 * T / 3, [(b, b + 1, h, h + 2) for b in range(B) for h in (0, 2)]),       # 7 queries: there are no more
])
def test_as_many_heads_as_fit_then_as_many_entries(queries, heads_fit, expected, cut):
    cut(queries, int(heads_fit * TILE))
    groups = head_groups(np.empty((B, H, T, D)), T)
    assert [(b.start, b.stop, h.start, h.stop) for b, h in groups] == expected


def test_groups_are_as_small_as_the_numbers_need(cut):
    cut(3, 2 * TILE)
    assert len(head_groups(np.empty((B, H, T, D)), T)) == B * 2             # two heads of float64,
    assert len(head_groups(np.empty((B, H, T, D), "float32"), T)) == B      # four of float32,
    assert len(head_groups(np.empty((B, H, T, D)), 2 * T)) == B * 4         # one with twice the keys,
    assert len(head_groups(np.empty((B, H, 1, D)), T)) == B                 # four with one query
