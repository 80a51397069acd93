import numpy as np
import pytest

from npgpt.data.batches import IGNORED, Crops, count_targets, windows
from npgpt.errors import UserError
from npgpt.layers.loss import IGNORE_INDEX


def test_random_crops_reach_every_start_equally():
    crops = Crops(np.arange(7, dtype=np.uint16), 3)
    x, y = crops.at(crops.random(40_000, np.random.default_rng(0)))
    assert x.shape == y.shape == (40_000, 3) and x.dtype == y.dtype == np.int64
    assert np.array_equal(y, x + 1) and np.array_equal(x, x[:, :1] + np.arange(3))
    counts = np.bincount(x[:, 0])
    assert counts.size == 4  # 0 to 3, of which the last has its target in the last token
    assert abs(counts - 10_000).max() < 450  # five standard deviations
    x[:] = 0
    assert y.max() == 6  # not two views of one array


@pytest.mark.parametrize("count", [24, 25, 48, 49, 60, 72, 73])
def test_batches_in_order_are_those_of_build_nanogpt(count):
    """Against its loop: a position that grows by B T, and returns to 0 if the next batch would not fit."""
    B, T, tokens, position = 3, 8, np.arange(count, dtype=np.uint16), 0
    crops = Crops(tokens, T)
    if count == 24:
        with pytest.raises(
            UserError, match="24 tokens and a batch in order needs 25: lower --batch"
        ):
            crops.in_order(0, B)
        return
    assert crops.in_epoch(B) == (count - 1) // (B * T) * B
    for n in range(7):
        x, y = crops.at(crops.in_order(n, B))
        buffer = tokens[position:position + B * T + 1]
        assert np.array_equal(x, buffer[:-1].reshape(B, T)) and np.array_equal(y, buffer[1:].reshape(B, T))
        position += B * T
        if position + B * T + 1 > count:
            position = 0


def test_masked_tokens_are_read_but_are_no_targets():
    assert IGNORED == IGNORE_INDEX
    tokens = np.ma.array(np.arange(100, 110, dtype=np.uint16), mask=[1, 1, 0, 0, 1, 1, 1, 0, 0, 1])
    x, y = Crops(tokens, 4).at(np.arange(6))
    assert x.dtype == y.dtype == np.int64 and type(x) is type(y) is np.ndarray
    assert np.array_equal(x, 100 + np.arange(6)[:, None] + np.arange(4))
    ignored = np.isin(x + 1, [101, 104, 105, 106, 109])
    assert np.array_equal(y, np.where(ignored, -1, x + 1)) and (y != -1).any(axis=1).all()
    assert count_targets(tokens) == 4 and count_targets(tokens[2:]) == 3
    assert count_targets(tokens.data) == 9
    for size, stride in ((5, 4), (6, 2)):
        parts = [*windows(tokens, size, stride)]
        assert sorted(t for _, y in parts for t in y if t != -1) == [102, 103, 107, 108]
        assert parts[0][0].tolist() == [*range(100, 99 + size)]
    assert [x.tolist() for x, _ in windows(tokens, 2, 1)] == [[101], [102], [106], [107]]
    crops = Crops(tokens, 2)        # of the crops that begin at 3, 4 and 8, none has a target
    assert [*crops.starts] == [0, 1, 2, 5, 6, 7] and [*crops.in_turn] == [0, 2, 6]
    assert (crops.at(crops.starts)[1] != -1).any(axis=1).all()
    assert crops.in_order(0, 2).tolist() == [0, 2] and crops.in_order(1, 3).tolist() == [0, 2, 6]
    assert crops.evenly(2, 2).tolist() == [[0, 1], [5, 7]]
    assert {*crops.random(99, np.random.default_rng(0)).tolist()} == {0, 1, 2, 5, 6, 7}
    for masked in (np.ones(10), np.arange(10) > 0):
        nothing = np.ma.array(tokens.data, mask=masked)
        with pytest.raises(UserError, match="validation split has 10 tokens, none of which is "):
            Crops(nothing, 5, "validation")
        with pytest.raises(UserError, match="of 10 tokens none is to be predicted"):
            next(windows(nothing, 5, 4))


def test_a_crop_follows_a_short_split():
    tokens = np.arange(8, dtype=np.uint16)
    assert len(Crops(tokens, 7).starts) == 1 and len(Crops(tokens, 6).starts) == 2
    crops = Crops(tokens, 8)
    assert ([*crops.starts], crops.length) == ([0], 7)
    assert [each.tolist() for each in crops.at(np.array([0, 0]))] == [
        [[*range(7)]] * 2,
        [[*range(1, 8)]] * 2,
    ]
    for count in (0, 1):
        with pytest.raises(
            UserError,
            match=f"the validation split has {count} tokens, none .*--val-fraction 0",
        ):
            Crops(tokens[:count], 4, "validation")
        with pytest.raises(UserError, match=f"of {count} tokens none is to be predicted"):
            next(windows(tokens[:count], 5, 4))


@pytest.mark.parametrize("length", [2, 8, 9, 31])
@pytest.mark.parametrize("stride", [1, 3, 7, 8])
def test_windows_score_what_transformers_documentation_scores(length, stride):
    """Against the procedure itself: windows of ids, the tokens of earlier windows masked, torch's shift by one."""
    tokens = np.arange(100, 100 + length)
    expected, seen = [], 0
    for begin in range(0, length, stride):
        end = min(begin + 8, length)
        labels = np.where(np.arange(begin, end) < seen, IGNORE_INDEX, tokens[begin:end])
        expected.append((tokens[begin:end].tolist(), labels[1:].tolist()))
        seen = end
        if end == length:
            break
    expected = [(ids[:-1], labels) for ids, labels in expected if any(label != IGNORE_INDEX for label in labels)]
    assert [(x.tolist(), y.tolist()) for x, y in windows(tokens, 8, stride)] == expected
    if stride < 8:
        assert sorted(t for _, labels in expected for t in labels if t != IGNORE_INDEX) == tokens[1:].tolist()


def test_even_crops_reach_from_the_first_to_the_last_target_in_equal_strides():
    crops = Crops(np.arange(101, dtype=np.uint16), 10)
    starts = crops.evenly(5, 2)
    assert starts.tolist() == [[0, 10], [20, 30], [40, 50], [60, 70], [80, 90]]
    for x, y in map(crops.at, starts):
        assert x.shape == y.shape == (2, 10) and (np.diff(x, axis=1) == 1).all() and (y == x + 1).all()
    assert y[-1, -1] == 100
