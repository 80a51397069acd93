"""What all kernels share: rounding to bfloat16, and the random numbers of dropout."""

import numpy as np
import pytest

from npgpt.engine.philox import Philox
from npgpt.model.masks import dropout_mask
from tests.cuda.compare import MICRO_BATCH, SEED, STEP, device, dropout, every_precision

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("grid", [1, 3])
def test_rounds_to_the_nearest_bfloat16_ties_to_even(grid):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 4000, dtype=np.uint32)            # all exponents, NaN among them
    ties = rng.integers(0, 2**16, 4000, dtype=np.uint32) << 16 | 0x8000
    edges = np.array([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F7F7FFF, 0x7F7F8000, 1, 0x7FC00000,
                      0x7F800001, 0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x00008000], np.uint32)
    values = np.concatenate([bits, ties, ties + 1, ties - 1, edges]).view(np.float32)
    copy = np.full(len(values), 0x1234, np.uint16)
    device("bfloat16").launch("round_to_bfloat16", grid, 64, copy, values, len(values))
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    nan = np.isnan(values)
    assert nan.any() and (expected[~nan] != 0x1234).any()
    np.testing.assert_array_equal(copy[~nan], expected[~nan])
    assert ((copy[nan] & 0x7F80) == 0x7F80).all() and (copy[nan] & 0x7F).all()      # NaN stays NaN


@every_precision
@pytest.mark.parametrize("p", [0.1, 0.2, 0.35, 0.5])
@pytest.mark.parametrize("shape, site, grid", [((1,), 0, 1), ((2, 3), 5, 1), ((3, 7, 11), 2**32 - 1, 4),
                                               ((1000,), 1, 2)])
def test_dropout_mask_is_that_of_the_layers_to_the_bit(precision, p, shape, site, grid):
    gpu = device(precision)
    mask = gpu.nans(*shape)
    gpu.launch("dropout_mask", grid, 64, mask, mask.size, *dropout(p, site))
    rng = Philox(SEED, STEP, MICRO_BATCH)
    rng.site = site
    np.testing.assert_array_equal(mask, dropout_mask(rng, shape, p, gpu.float))


def test_where_1_minus_p_loses_bits_the_same_elements_are_kept():
    """The layers take 1 - p before they round to float32, the kernel of a p in float32."""
    mask = device("float32").nans(5000)
    device("float32").launch("dropout_mask", 3, 64, mask, mask.size, *dropout(0.9, 3))
    rng = Philox(SEED, STEP, MICRO_BATCH)
    rng.site = 3
    np.testing.assert_allclose(mask, dropout_mask(rng, mask.shape, 0.9, np.float32), rtol=5e-7)


@every_precision
def test_no_dropout(precision):
    gpu = device(precision)
    mask = gpu.nans(9)
    gpu.launch("dropout_mask", 1, 32, mask, 9, *dropout(0.0, 3))
    np.testing.assert_array_equal(mask, 1)
