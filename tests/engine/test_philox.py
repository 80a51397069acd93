"""Philox against the vectors that its authors published, and as a source of random numbers."""

import warnings

import numpy as np
import pytest

from npgpt.engine.philox import Philox, philox

# Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, result.
KNOWN = [("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
         ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
         ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1")]


def words(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize("counter, key, expected", KNOWN)
def test_known_answers(counter, key, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arrays = [np.full(3, word, np.uint64) for word in words(counter)]
        assert list(philox(words(counter), words(key))) == words(expected)
        for array, word in zip(philox(arrays, words(key)), words(expected), strict=True):
            assert array.dtype == np.uint64 and (array == word).all()


@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 2, 8), (0, 4), ()])
def test_each_element_has_its_own_counter(shape):
    seed, step, micro_batch = 0xFEDCBA9876543210, 5, 2
    rng = Philox(seed, step, micro_batch)
    for site in range(3):
        assert rng.site == site
        drawn = rng.random(shape)
        assert drawn.shape == shape and drawn.dtype == np.float32
        for element, value in enumerate(drawn.ravel()):
            word = philox((element // 4, site, micro_batch, step), (0x76543210, 0xFEDCBA98))[element % 4]
            assert value == np.float32(word >> 8) / 2**24 < 1


def test_is_uniform_and_differs_wherever_something_does():
    shape = (4, 5000)
    drawn = [Philox(*arguments).random(shape, np.float64) for arguments in
             [(0,), (1,), (2**32,), (0, 1), (0, 0, 1)]]
    again = Philox(0)
    drawn += [again.random(shape, np.float64) for _ in range(2)][1:]
    assert drawn[0].dtype == np.float64
    for i, a in enumerate(drawn):
        np.testing.assert_allclose(np.histogram(a, 10, (0, 1))[0], a.size / 10, atol=5 * np.sqrt(a.size / 10))
        for b in drawn[:i]:
            assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.04      # 5 standard deviations and more
    np.testing.assert_array_equal(Philox(0).random(shape, np.float64), drawn[0])
