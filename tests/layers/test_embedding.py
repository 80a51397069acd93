"""Where an embedding's gradient goes: to the rows that were read, whichever they are, in the arrays' own library."""

import numpy as np
import pytest

from npgpt.layers.embedding import embedding_backward, embedding_forward
from tests.layers.elsewhere import Elsewhere


@pytest.mark.parametrize("smallest", [0, 1, 2, 690])
@pytest.mark.parametrize("vocab_size", [1, 8, 700])
def test_each_token_gets_the_sum_of_its_gradients(vocab_size, smallest):
    """Whatever the smallest token is: the sums of a large vocabulary begin where the sorted tokens change."""
    rng = np.random.default_rng(0)
    smallest = min(smallest, vocab_size - 1)
    idx = rng.integers(smallest, vocab_size, (4, 6))
    idx[2, 3] = smallest
    _, cache = embedding_forward(idx, rng.standard_normal((vocab_size, 5)), rng.standard_normal((9, 5)))
    dx = rng.standard_normal((4, 6, 5))
    dwte, dwpe = embedding_backward(dx, cache)
    expected = np.zeros((vocab_size, 5))
    np.add.at(expected, idx, dx)
    np.testing.assert_allclose(dwte, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(dwpe, np.concatenate([dx.sum(axis=0), np.zeros((3, 5))]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("vocab_size", [8, 700])
def test_a_gradient_that_is_given_is_added_to(vocab_size):
    """As the tied head's is, which is there first."""
    rng = np.random.default_rng(0)
    idx = rng.integers(0, vocab_size, (4, 6))
    _, cache = embedding_forward(idx, rng.standard_normal((vocab_size, 5)), rng.standard_normal((9, 5)))
    dx, given = rng.standard_normal((4, 6, 5)), rng.standard_normal((vocab_size, 5))
    alone, dwpe_alone = embedding_backward(dx, cache)
    before = given.copy()
    dwte, dwpe = embedding_backward(dx, cache, given)
    assert dwte is given
    np.testing.assert_allclose(dwte, before + alone, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(dwpe, dwpe_alone)


def test_the_gradients_are_made_in_the_library_of_their_upstream():
    rng = np.random.default_rng(0)
    _, cache = embedding_forward(np.zeros((2, 3), int), rng.standard_normal((4, 5)), rng.standard_normal((3, 5)))
    dwte, dwpe = embedding_backward(rng.standard_normal((2, 3, 5)).view(Elsewhere), cache)
    assert isinstance(dwte, Elsewhere) and isinstance(dwpe, Elsewhere)
