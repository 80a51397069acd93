"""How a batch is divided, and what a thread's failure does."""

import numpy as np
import pytest

from npgpt import UserError
from npgpt.model.shards import Shards


def test_an_error_in_a_thread_reaches_the_caller():
    def fails(part):
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        Shards(2).sum(fails, 4)


def test_each_shard_draws_its_own_dropout():
    drawn = []
    Shards(2).sum_with_grads(lambda part, rng, grads: drawn.append(rng.random()) or 0.0, 4, 2,
                             np.random.default_rng(0), FakeParameters())
    assert len(set(drawn)) == 2


class FakeParameters:
    flat = np.zeros(3)

    def zeros_like(self):
        return FakeParameters()


def test_threads_must_be_positive():
    with pytest.raises(UserError, match="threads"):
        Shards(0)
