"""The embedding's kernels against layers/embedding.py. All of their arrays are float."""

import numpy as np
import pytest

from npgpt.layers.embedding import embedding_backward, embedding_forward
from tests.cuda.compare import assert_close, device, dropout, exact, float_precisions, layer_mask

pytestmark = pytest.mark.slow


def random_case(gpu, B, T, C, V, seed=0):
    """idx (B, T), wte (V, C), wpe (T + 2, C), dx (B, T, C), dwte (V, C)."""
    rng = np.random.default_rng(seed)
    arrays = (rng.standard_normal(shape) for shape in [(V, C), (T + 2, C), (B, T, C), (V, C)])
    return rng.integers(0, V, (B, T), dtype=np.int32), *map(gpu.floats, arrays)


def sorted_by_token(idx):
    """What embedding_backward_wte takes: order, starts, tokens, n_tokens. What it must not look at is out of range."""
    flat = idx.ravel()
    order = np.argsort(flat, kind="stable").astype(np.int32)
    found, starts = np.unique(flat, return_index=True)
    starts = np.searchsorted(flat[order], found)
    behind = np.full(len(flat) - len(found), 2**30)
    return (order, np.concatenate([starts, [len(flat)], behind]).astype(np.int32),
            np.concatenate([found, behind]).astype(np.int32), np.array([len(found)], np.int32))


@float_precisions
@pytest.mark.parametrize("B, T, C, block", [(1, 1, 8, 32), (3, 5, 64, 32), (2, 7, 384, 96), (1, 3, 768, 64),
                                            (2, 2, 1600, 1024)])
@pytest.mark.parametrize("p, site", [(0.0, 0), (0.3, 4)])
def test_forward(precision, B, T, C, block, p, site):
    gpu = device(precision)
    idx, wte, wpe, *_ = random_case(gpu, B, T, C, 11)
    x = gpu.nans(B, T, C)
    gpu.launch("embedding_forward", B * T, block, x, idx, wte, wpe, T, C, *dropout(p, site))
    expected = embedding_forward(idx, exact(wte), exact(wpe))[0] * layer_mask(p, site, (B, T, C))
    assert_close(x, expected)


@float_precisions
@pytest.mark.parametrize("n, grid", [(4, 1), (4 * 37, 1), (4 * 37, 2), (4096, 3)])
@pytest.mark.parametrize("p, site", [(0.0, 0), (0.3, 4)])
def test_dropout_backward(precision, n, grid, p, site):
    gpu = device(precision)
    dx = gpu.floats(np.random.default_rng(1).standard_normal(n))
    expected = exact(dx) * layer_mask(p, site, (n,))
    gpu.launch("dropout_backward", grid, 32, dx, n, *dropout(p, site))
    assert_close(dx, expected)


@float_precisions
@pytest.mark.parametrize("B, T, C, V, block", [(1, 1, 8, 5, 32), (3, 7, 8, 3, 64), (5, 60, 8, 2, 512),
                                               (5, 60, 64, 3, 128), (2, 9, 128, 1000, 32),
                                               (2, 20, 384, 7, 64), (1, 9, 1600, 4, 256)])
def test_backward_of_tokens_adds_up_their_rows(precision, B, T, C, V, block):
    gpu = device(precision)
    idx, _, _, dx, dwte = random_case(gpu, B, T, C, V)
    before = dwte.copy()
    expected = exact(dwte) + embedding_backward(exact(dx), (idx, V, T))[0]
    order, starts, tokens, n_tokens = sorted_by_token(idx)
    gpu.launch("embedding_backward_wte", (min(B * T, V + 2), -(-C // 128)), block,
               dwte, dx, order, starts, tokens, n_tokens, C)
    assert_close(dwte, expected)
    unread = np.setdiff1d(np.arange(V), idx)
    np.testing.assert_array_equal(dwte[unread], before[unread])


@float_precisions
@pytest.mark.parametrize("B, T, C, block_size, grid", [(1, 1, 8, 1, 1), (3, 5, 8, 9, 2), (7, 4, 64, 4, 1),
                                                       (2, 3, 768, 5, 3)])
@pytest.mark.parametrize("add", [0, 1])
def test_backward_of_positions(precision, B, T, C, block_size, grid, add):
    gpu = device(precision)
    idx, _, _, dx, _ = random_case(gpu, B, T, C, 3)
    dwpe = gpu.floats(np.random.default_rng(2).standard_normal((block_size, C))) if add else gpu.nans(block_size, C)
    before = exact(dwpe)
    gpu.launch("embedding_backward_wpe", grid, 64, dwpe, dx, B, T, C, block_size, add)
    dwpe_expected = embedding_backward(exact(dx), (idx, 3, block_size))[1]
    assert_close(dwpe, dwpe_expected + before if add else dwpe_expected)


def test_every_order_of_threads_gives_the_same_bits():
    gpu = device("float32")
    idx, _, _, dx, dwte = random_case(gpu, 5, 60, 64, 3)
    results = []
    for order_of_threads in ("forward", "reverse"):
        out = dwte.copy()
        gpu.launch("embedding_backward_wte", (5, 1), 256, out, dx, *sorted_by_token(idx), 64, order=order_of_threads)
        results.append(out)
    np.testing.assert_array_equal(*results)
