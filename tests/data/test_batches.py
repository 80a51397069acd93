import numpy as np
import pytest

from npgpt.data.batches import Crops, count_targets, windows
from tests.helpers.runs import refusing


def test_random_crops_reach_every_start_equally():
    crops = Crops(np.arange(7, dtype=np.uint16), 3)
    x, y = crops.at(crops.random(40_000, np.random.default_rng(0)))
    assert x.dtype == y.dtype == np.int64 and (y == x + 1).all()
    assert (x == x[:, :1] + np.arange(3)).all()
    counts = np.bincount(x[:, 0])
    assert counts.size == 4  # 0 to 3, of which the last has its target in the last token
    assert abs(counts - 10_000).max() < 450  # five standard deviations
    x[:] = 0
    assert y.max() == 6  # not two views of one array


@pytest.mark.parametrize("count", [25, 48, 49, 73])
def test_batches_in_order_are_those_of_build_nanogpt(count):
    """Against its loop: a position that grows by B T, and returns to 0 if the next batch would not
    fit.
    """
    B, T, tokens, position = 3, 8, np.arange(count, dtype=np.uint16), 0
    crops = Crops(tokens, T)
    assert crops.in_epoch(B) == (count - 1) // (B * T) * B
    for n in range(7):
        x, y = crops.at(crops.in_order(n, B))
        buffer = tokens[position : position + B * T + 1]
        np.testing.assert_array_equal(x, buffer[:-1].reshape(B, T))
        np.testing.assert_array_equal(y, buffer[1:].reshape(B, T))
        position += B * T
        if position + B * T + 1 > count:
            position = 0
    with refusing("24 tokens and a batch in order needs 25: lower --batch"):
        Crops(tokens[:24], T).in_order(0, B)


def test_masked_tokens_are_read_but_are_no_targets():
    tokens = np.ma.array(np.arange(100, 110, dtype=np.uint16), mask=[1, 1, 0, 0, 1, 1, 1, 0, 0, 1])
    x, y = Crops(tokens, 4).at(np.arange(6))
    assert x.dtype == y.dtype == np.int64 and type(x) is type(y) is np.ndarray
    assert np.array_equal(x, 100 + np.arange(6)[:, None] + np.arange(4))
    ignored = np.isin(x + 1, [101, 104, 105, 106, 109])
    assert np.array_equal(y, np.where(ignored, -1, x + 1))
    assert [count_targets(each) for each in (tokens, tokens[2:], tokens.data)] == [4, 3, 9]
    for size, stride in ((5, 4), (6, 2)):
        targets = np.concatenate([y for _, y in windows(tokens, size, stride)])
        assert sorted(targets[targets != -1]) == [102, 103, 107, 108]
    assert [x.tolist() for x, _ in windows(tokens, 2, 1)] == [[101], [102], [106], [107]]


def test_crops_without_a_target_are_left_out():
    tokens = np.ma.array(np.arange(100, 110, dtype=np.uint16), mask=[1, 1, 0, 0, 1, 1, 1, 0, 0, 1])
    crops = Crops(tokens, 2)  # of the crops that begin at 3, 4 and 8, none has a target
    assert [*crops.starts] == [0, 1, 2, 5, 6, 7] and [*crops.in_turn] == [0, 2, 6]
    assert crops.in_order(0, 2).tolist() == [0, 2] and crops.in_order(1, 3).tolist() == [0, 2, 6]
    assert crops.evenly(2, 2).tolist() == [[0, 1], [5, 7]]
    assert {*crops.random(99, np.random.default_rng(0)).tolist()} == {0, 1, 2, 5, 6, 7}


@pytest.mark.parametrize("mask", [np.ones(10), np.arange(10) > 0])
def test_a_split_without_targets_is_refused(mask):
    nothing = np.ma.array(np.arange(10), mask=mask)
    with refusing("validation split has 10 tokens, none of which is "):
        Crops(nothing, 5, "validation")
    with refusing("of 10 tokens none is to be predicted"):
        next(windows(nothing, 5, 4))


def test_a_crop_follows_a_short_split():
    tokens = np.arange(8, dtype=np.uint16)
    assert len(Crops(tokens, 7).starts) == 1 and len(Crops(tokens, 6).starts) == 2
    crops = Crops(tokens, 8)
    assert ([*crops.starts], crops.length) == ([0], 7)
    x, y = crops.at(np.array([0, 0]))
    assert x.tolist() == [[*range(7)]] * 2 and y.tolist() == [[*range(1, 8)]] * 2
    says = "the validation split has 1 tokens, none .*--val-fraction 0"
    with refusing(says):
        Crops(tokens[:1], 4, "validation")


@pytest.mark.parametrize("length", [2, 8, 9, 31])
@pytest.mark.parametrize("stride", [1, 3, 8])
def test_windows_score_what_transformers_documentation_scores(length, stride):
    """Against the procedure itself: windows of ids, the tokens of earlier windows masked, torch's
    shift by one.
    """
    tokens = np.arange(100, 100 + length)
    expected, seen = [], 0
    for begin in range(0, length, stride):
        ids = tokens[begin : begin + 8]
        labels = np.where(ids < 100 + seen, -1, ids)[1:]
        if (labels != -1).any():
            expected.append((ids[:-1].tolist(), labels.tolist()))
        seen = begin + len(ids)
        if seen == length:
            break
    assert [(x.tolist(), y.tolist()) for x, y in windows(tokens, 8, stride)] == expected
