"""tools/mutate.py makes every kind of mistake, and tells whether tests catch it."""

import numpy as np
import pytest

from npgpt.layers import linear
from tests.helpers.mutation import mutants, mutate

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("mutated", "caught"),
    [("rows = x.reshape(-2, x.shape[-1])", False), ("rows = -x.reshape(-1, x.shape[-1])", True)],
)
def test_a_mutant_is_caught_if_a_test_fails(mutated, caught):
    """Not if it computes the same."""
    x, weight, dy = np.ones((2, 3)), np.ones((3, 4)), np.ones((2, 4))

    def run():
        np.testing.assert_array_equal(linear.linear_backward(dy, (x, weight, False))[1], x.T @ dy)

    mutant = next(
        each for each in mutants.mutants(linear.linear_backward) if each.mutated == mutated
    )
    assert mutate.is_caught(mutant, linear.linear_backward, [run]) == caught
