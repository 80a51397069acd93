"""LayerNorm with its residual addition and dropout, against layers/layernorm.py and the lines of block_forward."""

import numpy as np
import pytest

from npgpt.layers.layernorm import layernorm_backward, layernorm_forward
from tests.cuda.compare import assert_close, device, dropout, every_precision, exact, layer_mask

pytestmark = pytest.mark.slow

EPS = 1e-5

# N, C, threads of a block: a row fits in twelve times as many
SHAPES = [(1, 8, 32), (3, 64, 32), (37, 8, 32), (3, 128, 64), (5, 384, 32), (3, 768, 64), (3, 768, 192), (2, 1600, 160),
          (2, 1600, 256), (1, 6144, 512)]


def random_case(gpu, N, C, seed=0):
    """x of some mean (as float), branch and dy (as real), weight and bias of unit scale, dx (as float)."""
    rng = np.random.default_rng(seed)
    x, branch, dy, dx = rng.standard_normal((4, N, C))
    weight, bias = rng.standard_normal((2, C))
    return (gpu.floats(x * 1.5 + 0.7), gpu.reals(branch), gpu.reals(dy), gpu.floats(weight), gpu.floats(bias),
            gpu.floats(dx))


def forward_by_layers(x, branch, weight, bias, mask):
    """x_out, y, mean, rstd in float64."""
    x_out = exact(x) + (0.0 if branch is None else exact(branch) * mask)
    y, (_, rstd, *_) = layernorm_forward(x_out, exact(weight), None if bias is None else exact(bias), EPS)
    return x_out, y, x_out.mean(-1), rstd[:, 0]


@every_precision
@pytest.mark.parametrize("N, C, block", SHAPES)
@pytest.mark.parametrize("p, site, with_bias", [(0.0, 0, True), (0.3, 4, False)])
def test_forward_adds_the_branch(precision, N, C, block, p, site, with_bias):
    gpu = device(precision)
    x, branch, _, weight, bias, _ = random_case(gpu, N, C)
    bias = bias if with_bias else None
    x_out, y, mean, rstd = gpu.nans(N, C), gpu.real_nans(N, C), gpu.nans(N), gpu.nans(N)
    gpu.launch("residual_layernorm_forward", N, block, x_out, y, mean, rstd, x, branch, weight, bias, C, EPS,
               *dropout(p, site))
    expected = forward_by_layers(x, branch, weight, bias, layer_mask(p, site, (N, C)))
    for actual, of_layers in zip((x_out, y, mean, rstd), expected, strict=True):
        assert_close(actual, of_layers)


@every_precision
@pytest.mark.parametrize("N, C, block", [(3, 64, 32), (2, 768, 64)])
@pytest.mark.parametrize("with_x_out", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_forward_without_a_branch(precision, N, C, block, with_x_out, with_bias):
    gpu = device(precision)
    x, _, _, weight, bias, _ = random_case(gpu, N, C)
    bias = bias if with_bias else None
    x_out, y, mean, rstd = gpu.nans(N, C) if with_x_out else None, gpu.real_nans(N, C), gpu.nans(N), gpu.nans(N)
    gpu.launch("residual_layernorm_forward", N, block, x_out, y, mean, rstd, x, None, weight, bias, C, EPS,
               *dropout(0.3, 1))        # there is nothing to drop
    expected = forward_by_layers(x, None, weight, bias, None)
    for actual, of_layers in zip((y, mean, rstd), expected[1:], strict=True):
        assert_close(actual, of_layers)
    if with_x_out:
        np.testing.assert_array_equal(x_out, x)


def test_forward_in_place():
    gpu = device("float64")
    x, branch, _, weight, bias, _ = random_case(gpu, 3, 768)
    y, mean, rstd = gpu.real_nans(3, 768), gpu.nans(3), gpu.nans(3)
    expected = forward_by_layers(x, branch, weight, bias, layer_mask(0.3, 2, (3, 768)))
    gpu.launch("residual_layernorm_forward", 3, 64, x, y, mean, rstd, x, branch, weight, bias, 768, EPS,
               *dropout(0.3, 2))
    for actual, of_layers in zip((x, y, mean, rstd), expected, strict=True):
        assert_close(actual, of_layers)


@pytest.mark.parametrize("offset", [1e4, -300.0])
def test_variance_of_rows_far_from_zero(offset):
    """The mean is subtracted before values are squared; else float32 would have lost the variance."""
    gpu = device("float32")
    x, _, _, weight, bias, _ = random_case(gpu, 4, 768)
    x += np.float32(offset)
    y, mean, rstd = gpu.real_nans(4, 768), gpu.nans(4), gpu.nans(4)
    gpu.launch("residual_layernorm_forward", 4, 64, None, y, mean, rstd, x, None, weight, bias, 768, EPS,
               *dropout(0.0, 0))
    expected = forward_by_layers(x, None, weight, bias, None)
    np.testing.assert_allclose(rstd, expected[3], rtol=1e-6)
    np.testing.assert_allclose(y, expected[1], atol=1e-6 * abs(offset) * np.abs(weight).max())


def check_backward(precision, N, C, block, P, assign, p=0.0, site=0, with_dbranch=True, with_dbias=True):
    gpu = device(precision)
    x, _, dy, weight, bias, dx = random_case(gpu, N, C)
    _, cache = layernorm_forward(exact(x), exact(weight), exact(bias), EPS)
    dx_expected, dweight, dbias = layernorm_backward(exact(dy), cache)
    mean, rstd = gpu.floats(exact(x).mean(-1)), gpu.floats(cache[1][:, 0])
    if assign:
        dx = gpu.nans(N, C)
    else:
        dx_expected = dx_expected + exact(dx)
    dbranch = gpu.real_nans(N, C) if with_dbranch else None
    dweight_parts, dbias_parts = gpu.nans(P, C), gpu.nans(P, C) if with_dbias else None
    gpu.launch("layernorm_backward", P, block, dx, dbranch, dweight_parts, dbias_parts, dy, x, mean, rstd, weight, N, C,
               int(assign), *dropout(p, site))
    assert_close(dx, dx_expected)
    assert_close(dweight_parts.sum(0), dweight)
    if with_dbias:
        assert_close(dbias_parts.sum(0), dbias)
    if with_dbranch:
        assert_close(dbranch, dx_expected * layer_mask(p, site, (N, C)))


@every_precision
@pytest.mark.parametrize("N, C, block", SHAPES)
@pytest.mark.parametrize("assign, p, site", [(True, 0.0, 0), (False, 0.3, 4)])
def test_backward(precision, N, C, block, assign, p, site):
    check_backward(precision, N, C, block, max(1, N // 2), assign, p, site)


@every_precision
@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("with_dbranch, with_dbias", [(False, True), (True, False), (False, False)])
def test_backward_of_what_is_not_there(precision, assign, with_dbranch, with_dbias):
    check_backward(precision, 5, 128, 32, 2, assign, 0.3, 1, with_dbranch, with_dbias)


@pytest.mark.parametrize("P", [1, 2, 5, 37, 40])
def test_backward_with_any_grid(P):
    check_backward("float64", 37, 64, 64, P, False, 0.2, 3)


def test_every_order_of_threads_gives_the_same_bits():
    gpu = device("float32")
    x, _, dy, weight, _, dx = random_case(gpu, 7, 768)
    mean, rstd = x.mean(-1), 1 / x.std(-1)
    results = []
    for order in ("forward", "reverse"):
        out, dweight_parts, dbias_parts = dx.copy(), gpu.nans(3, 768), gpu.nans(3, 768)
        gpu.launch("layernorm_backward", 3, 64, out, None, dweight_parts, dbias_parts, dy, x, mean, rstd, weight,
                   7, 768, 0, *dropout(0.0, 0), order=order)
        results.append((out, dweight_parts, dbias_parts))
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)
