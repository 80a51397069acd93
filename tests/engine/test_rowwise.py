"""Row blocks: what the undecorated function gives, and on any number of cores the same bits."""

import importlib
import math
import pkgutil

import numpy as np
import pytest

from npgpt import layers
from npgpt.engine import rowwise as module
from npgpt.engine.rowwise import row_blocks, rowwise
from npgpt.engine.threads import spread, using_cores
from npgpt.layers.gelu import gelu_exact_backward, gelu_exact_forward, gelu_tanh_backward, gelu_tanh_forward
from npgpt.layers.layernorm import layernorm_backward, layernorm_forward
from npgpt.layers.loss import softmax_loss_backward, softmax_loss_forward

C = 6
ROW = C * 8         # bytes of a row in float64


def calls(shape=(2, C), dtype=np.float64):
    """name -> (a decorated function, its arguments), for every one of the layers."""
    rng = np.random.default_rng(0)

    def unit(*shape):
        return rng.standard_normal(shape).astype(dtype)

    x, dy, weight, bias, share = unit(*shape), unit(*shape), unit(C), unit(C), unit(*shape[:-1], 1)
    column = rng.integers(0, C, (*shape[:-1], 1))
    found = {}
    for name, upstream, forward, backward, arguments in (
            ("gelu_tanh", dy, gelu_tanh_forward, gelu_tanh_backward, (x,)),
            ("gelu_exact", dy, gelu_exact_forward, gelu_exact_backward, (x,)),
            ("layernorm", dy, layernorm_forward, layernorm_backward, (x, weight, bias, 0.5)),
            ("layernorm without bias", dy, layernorm_forward, layernorm_backward, (x, weight)),
            ("softmax_loss", 0.7, softmax_loss_forward, softmax_loss_backward, (x, column, share))):
        _, cache = forward.__wrapped__(*arguments)
        found[f"{name}, forward"] = forward, arguments
        found[f"{name}, backward"] = backward, (upstream, cache)
    return found


@pytest.fixture
def blocks_of(monkeypatch):
    """blocks_of(n) makes blocks of n bytes; it returns a list of the slices that are worked on from then on."""
    worked_on = []

    def noting(function, items):
        worked_on.extend(items)
        return spread(function, items)

    def cut(n):
        monkeypatch.setattr(module, "BLOCK_BYTES", n)
        monkeypatch.setattr(module, "spread", noting)
        return worked_on

    return cut


def leaves(nest):
    """What a nest of tuples holds."""
    return [leaf for item in nest for leaf in leaves(item)] if isinstance(nest, tuple) else [nest]


def test_every_decorated_function_is_among_the_calls():
    names = [f"npgpt.layers.{found.name}" for found in pkgutil.iter_modules(layers.__path__)]
    decorated = {value for name in names for value in vars(importlib.import_module(name)).values()
                 if callable(value) and hasattr(value, "__wrapped__") and value.__module__ in names}
    assert decorated == {function for function, _ in calls().values()}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "rows"), [((7, C), 4), ((8, C), 4), ((3, 5, C), 4), ((2, 3, 3, C), 4),
                                             ((2, 3, C), 0.5), ((C,), 0.5)], ids=str)
@pytest.mark.parametrize("name", calls())
def test_layers_give_the_same_in_blocks(name, shape, rows, dtype, blocks_of):
    """With blocks of 4 rows, of which the last has fewer, and with rows that are larger than a block."""
    function, arguments = calls(shape, dtype)[name]
    expected = leaves(function.__wrapped__(*arguments))
    worked_on = blocks_of(int(rows * C * np.dtype(dtype).itemsize))
    on_one_core = leaves(function(*arguments))
    assert len(worked_on) == math.ceil(math.prod(shape[:-1]) / max(1, rows))
    with using_cores(3):
        on_three = leaves(function(*arguments))
    for whole, one, three in zip(expected, on_one_core, on_three, strict=True):
        if not isinstance(whole, np.ndarray | np.generic) or any(whole is given for given in leaves(arguments)):
            assert one is whole and three is whole          # None, True, or an argument: not a copy of it
        else:
            assert one.shape == whole.shape and one.dtype == whole.dtype
            tolerance = 1e-5 if dtype == np.float32 else 1e-12
            np.testing.assert_allclose(one, whole, rtol=tolerance, atol=tolerance)
            np.testing.assert_array_equal(one, three)


def test_blocks_are_as_large_as_fits_and_the_last_has_the_rest(blocks_of):
    seen = []

    @rowwise
    def noting(x, vector):
        seen.append((x.shape, vector.shape))
        return x + vector

    x, vector = np.random.default_rng(0).standard_normal((7, C)), np.arange(float(C))
    blocks_of(3 * ROW + 10)
    y = noting(x, vector)
    assert seen == [((rows, C), (C,)) for rows in (0, 3, 3, 1)]         # the call on no rows tells what comes back
    np.testing.assert_array_equal(y, x + vector)


def test_what_fits_into_one_block_is_not_cut(blocks_of):
    seen = []
    identity = rowwise(lambda *given, **named: seen.append((given, named)))
    small = np.ones((2, 3, C))
    worked_on = blocks_of(small.nbytes)
    identity(small, 1)
    identity(1, x=small)
    identity("an array of another library", None)
    identity()
    assert seen == [((small, 1), {}), ((1,), {"x": small}), (("an array of another library", None), {}), ((), {})]
    assert not worked_on


def test_arguments_may_be_named(blocks_of):
    _, (x, weight, bias, eps) = calls((5, C))["layernorm, forward"]
    expected, _ = layernorm_forward.__wrapped__(x, weight, bias, eps)
    worked_on = blocks_of(2 * ROW)
    np.testing.assert_allclose(layernorm_forward(x, eps=eps, weight=weight, bias=bias)[0], expected, rtol=1e-12)
    np.testing.assert_allclose(layernorm_forward(bias=bias, eps=eps, weight=weight, x=x)[0], expected, rtol=1e-12)
    assert len(worked_on) == 6


def test_results_may_be_rows_sums_arguments_or_no_arrays(blocks_of):
    @rowwise
    def function(pair, weight):
        x, column = pair
        return 2 * x, (x.sum(axis=0), (x.sum(), None), True), weight, pair, x[:, :2] > column

    rng = np.random.default_rng(0)
    x, column, weight = rng.standard_normal((3, 3, C)), rng.integers(-1, 2, (3, 3, 1)), rng.standard_normal(C)
    blocks_of(2 * ROW)
    y, (over_rows, (over_all, nothing), true), same_weight, (same_x, same_column), part = function((x, column), weight)
    np.testing.assert_array_equal(y, 2 * x)
    np.testing.assert_allclose(over_rows, x.sum(axis=(0, 1)), rtol=1e-12)
    assert over_all == pytest.approx(x.sum(), rel=1e-12) and np.ndim(over_all) == 0
    assert nothing is None and true is True
    assert same_weight is weight and same_x is x and same_column is column
    assert part.dtype == bool
    np.testing.assert_array_equal(part, x[..., :2] > column)        # as many axes, but another width and dtype


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_an_exception_in_a_block_is_raised(cores, blocks_of):
    @rowwise
    def refuses(x):
        if (x == 5).any():
            raise ValueError("a five")
        return x * 2

    blocks_of(2 * ROW)
    with using_cores(cores), pytest.raises(ValueError, match="a five"):
        refuses(np.repeat(np.arange(7.0)[:, None], C, axis=1))


@pytest.mark.parametrize("cores", [2, 3, 8])
def test_sums_have_the_same_bits_on_any_number_of_cores(cores, blocks_of):
    """Numbers of which each order of adding gives another sum."""
    x = np.random.default_rng(0).standard_normal((40, C)) * 10.0 ** np.arange(40)[:, None]
    total = rowwise(lambda x: x.sum(axis=0))
    blocks_of(ROW)
    expected = total(x)
    assert not np.array_equal(total(x[::-1]), expected)
    with using_cores(cores):
        np.testing.assert_array_equal(total(x), expected)


@pytest.mark.parametrize(("rows", "block_bytes", "sizes"), [
    (7, 3 * ROW, [3, 3, 1]), (7, 7 * ROW, [7]), (7, 7 * ROW - 1, [6, 1]), (2, 1, [1, 1]), (6, 3 * ROW, [3, 3])])
def test_row_blocks(rows, block_bytes, sizes, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    blocks = row_blocks(np.empty((rows, C)))
    assert [block.stop - block.start for block in blocks] == sizes
    assert [row for block in blocks for row in range(rows)[block]] == list(range(rows))


def test_row_blocks_of_a_gpu_are_larger():
    class There:
        """Stands for an array on a GPU of 5 rows."""

        nbytes = 5 << 20

        def __len__(self):
            return 5

    assert row_blocks(There()) == [slice(0, 5)]
    There.nbytes = 5 << 27
    assert row_blocks(There()) == [slice(0, 2), slice(2, 4), slice(4, 5)]
