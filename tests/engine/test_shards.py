"""How a batch is divided, where it is not, and what a thread's failure does."""

import threading

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, UserError
from npgpt.engine import rowwise, threads
from npgpt.engine.memory import number_of_shards
from npgpt.engine.shards import Shards
from npgpt.engine.threads import spread
from npgpt.layers import attention_tiles

GPT2 = GPTConfig(vocab_size=50257, block_size=1024, n_layer=12, n_head=12, n_embd=768)      # 124 million parameters


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


@pytest.mark.parametrize(("config", "B", "T", "cores", "parts"), [
    (GPTConfig(), 12, 64, 2, 2),        # a small model: its gradients are smaller than what the batch keeps
    (GPTConfig(), 12, 64, 8, 8),
    (GPTConfig(), 3, 64, 8, 3),         # no more parts than rows,
    (GPTConfig(), 12, 64, 1, 1),        # or threads
    (GPT2, 4, 64, 2, 1),                # 124 million more numbers to add up, for 4 short rows
    (GPT2, 4, 1024, 2, 2),              # long rows, or many of them, are worth it
    (GPT2, 64, 64, 2, 2),
    (GPT2, 12, 64, 2, 2),               # worth one buffer more,
    (GPT2, 12, 64, 8, 1),               # but not seven
])
def test_a_batch_is_divided_where_its_activations_are_larger_than_the_buffers(config, B, T, cores, parts):
    assert number_of_shards(config, B, T, cores) == parts


def cores_and_blas(_=None):
    """The threads that a spread uses here, and BLAS's own."""
    blas = {library["num_threads"] for library in threads._controller().info() if library["user_api"] == "blas"}
    return len(set(spread(lambda _: threading.current_thread(), range(12)))) > 1, blas


def test_the_cores_go_to_the_shards_or_to_what_is_inside_the_layers():
    seen = []

    def note(*_):
        seen.append(cores_and_blas())
        return 0.0

    shards = Shards(3)
    shards.sum(note, 8)
    assert seen == [(False, {1})] * 3
    seen.clear()
    shards.sum_with_grads(note, 8, 2, None, FakeParameters())
    assert seen == [(False, {1})] * 2
    seen.clear()
    shards.sum(note, 1)
    shards.sum_with_grads(note, 8, 1, None, FakeParameters())
    shards.whole(note)
    assert seen == [(True, {3})] * 3


def test_a_batch_that_is_not_divided_gives_the_same_on_all_cores(monkeypatch):
    """Row blocks, heads and blocks of queries on three cores: the gradients of the whole, and always the same bits."""
    config = GPTConfig(vocab_size=50, block_size=8, n_layer=2, n_head=4, n_embd=48, dropout=0.2)
    idx, targets = np.random.default_rng(0).integers(0, 50, (2, 3, 8))
    assert number_of_shards(config, 3, 8, 3) == 1
    model = GPT(config, seed=0, dtype="float64")
    _, loss = model.forward(idx, targets, np.random.default_rng(1))
    whole = model.backward().flat

    monkeypatch.setattr(rowwise, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(attention_tiles, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(attention_tiles, "QUERIES", 3)
    runs = [GPT(config, seed=0, dtype="float64", threads=cores).loss_and_grads(idx, targets, np.random.default_rng(1))
            for cores in (1, 3, 3)]
    for loss_in_blocks, grads in runs:
        assert loss_in_blocks == pytest.approx(loss, rel=1e-12)
        np.testing.assert_allclose(grads.flat, whole, rtol=1e-9, atol=1e-12 * abs(whole).max())
    assert runs[1][0] == runs[2][0]
    np.testing.assert_array_equal(runs[1][1].flat, runs[2][1].flat)
