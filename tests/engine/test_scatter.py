"""Sums of rows by index, added on both of its ways, against a loop."""

import numpy as np
import pytest

from npgpt.engine.scatter import ONE_HOT_LIMIT, add_rows_by_index
from tests import strict_cupy


@pytest.mark.parametrize("n_index", [1, 7, ONE_HOT_LIMIT, ONE_HOT_LIMIT + 1, 5000])
@pytest.mark.parametrize("n_rows", [1, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equals_a_loop(n_index, n_rows, dtype):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n_rows, 3)).astype(dtype)
    for index in (rng.integers(0, n_index, n_rows), np.full(n_rows, n_index - 1), np.zeros(n_rows, int)):
        out = rng.standard_normal((n_index, 3)).astype(dtype)
        expected = out.astype(np.float64)
        for i, row in zip(index, rows, strict=True):
            expected[i] += row
        add_rows_by_index(out, index, rows)
        np.testing.assert_allclose(out, expected, rtol=1e-5 if dtype == np.float32 else 1e-12, atol=1e-6)


@pytest.mark.parametrize("n_index", [1, 7, ONE_HOT_LIMIT, ONE_HOT_LIMIT + 1])
def test_on_a_card_nothing_waits(n_index, monkeypatch):
    cupy = strict_cupy.install(monkeypatch)
    rng = np.random.default_rng(0)
    index, rows, out = rng.integers(0, n_index, 40), rng.standard_normal((40, 3)), rng.standard_normal((n_index, 3))
    there = cupy.asarray(out)
    add_rows_by_index(there, cupy.asarray(index), cupy.asarray(rows))
    assert strict_cupy.syncs == 0, strict_cupy.sync_places
    add_rows_by_index(out, index, rows)
    np.testing.assert_allclose(there.get(), out, rtol=1e-12, atol=1e-12)
