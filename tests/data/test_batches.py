import numpy as np
import pytest

from npgpt.data.batches import IGNORED, count_targets, crops_of, strided_windows, windows
from npgpt.data.token_files import Documents
from npgpt.errors import UserError
from npgpt.layers.loss import IGNORE_INDEX

DOCUMENTS = Documents(np.arange(100, 117, dtype=np.uint16), [0, 2, 7, 13])      # of 2, 5, 6 and 4 tokens


def test_random_crops_reach_every_start_equally():
    crops = crops_of(np.arange(7, dtype=np.uint16), 3)
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
    crops = crops_of(tokens, T)
    if count == 24:
        with pytest.raises(UserError, match="24 tokens and a batch in order needs 25: lower the batch size"):
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


def test_a_window_of_a_document_is_truncated_or_padded():
    assert IGNORED == IGNORE_INDEX
    crops = crops_of(DOCUMENTS, 4)
    x, y = crops.at(np.arange(4))
    assert x.dtype == y.dtype == np.int64
    assert x.tolist() == [[100, 101, 101, 101], [102, 103, 104, 105], [107, 108, 109, 110], [113, 114, 115, 116]]
    assert y.tolist() == [[101, -1, -1, -1], [103, 104, 105, 106], [108, 109, 110, 111], [114, 115, 116, -1]]
    assert count_targets(DOCUMENTS, 4) == 12
    x, y = crops_of(Documents(DOCUMENTS.tokens, DOCUMENTS.starts, pad_token_id=58), 4).at(np.arange(1))
    assert x.tolist() == [[100, 101, 58, 58]] and y.tolist() == [[101, -1, -1, -1]]


def test_prompts_are_no_targets():
    """Nor is a window in which there is nothing else. The first token of a completion is predicted by the prompt."""
    documents = Documents(DOCUMENTS.tokens, DOCUMENTS.starts, [1, 3, 5, 0])
    x, y = crops_of(documents, 4).at(np.arange(3))
    assert x.tolist() == [[100, 101, 101, 101], [102, 103, 104, 105], [113, 114, 115, 116]]
    assert y.tolist() == [[101, -1, -1, -1], [-1, -1, 105, 106], [114, 115, 116, -1]]
    assert crops_of(documents, 4).n_starts == 3 and crops_of(documents, 5).n_starts == 4
    assert crops_of(documents, 5).at(np.array([2]))[1].tolist() == [[-1, -1, -1, -1, 112]]
    with pytest.raises(UserError, match="every prompt has more than 2 tokens, .*raise the block size"):
        crops_of(Documents(np.arange(8), [0, 4], [3, 3]), 2)


def test_too_few_tokens():
    tokens = np.zeros(8, dtype=np.uint16)
    assert crops_of(tokens, 7).n_starts == 1
    with pytest.raises(UserError, match="8 tokens and a crop needs 9 .*lower the block size"):
        crops_of(tokens, 8)
    for count in (0, 1):
        with pytest.raises(UserError, match=f"{count} tokens and evaluation needs 2"):
            next(windows(tokens[:count], 4))


@pytest.mark.parametrize("length", [2, 8, 9, 31])
@pytest.mark.parametrize("stride", [1, 3, 7, 8])
def test_strided_windows_score_what_transformers_documentation_scores(length, stride):
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
    assert [(x.tolist(), y.tolist()) for x, y in strided_windows(tokens, 8, stride)] == expected
    if stride < 8:
        assert sorted(t for _, labels in expected for t in labels if t != IGNORE_INDEX) == tokens[1:].tolist()


def test_even_crops_reach_from_the_first_to_the_last_target_in_equal_strides():
    crops = crops_of(np.arange(101, dtype=np.uint16), 10)
    starts = crops.evenly(5, 2)
    assert starts.tolist() == [[0, 10], [20, 30], [40, 50], [60, 70], [80, 90]]
    for x, y in map(crops.at, starts):
        assert x.shape == y.shape == (2, 10) and (np.diff(x, axis=1) == 1).all() and (y == x + 1).all()
    assert y[-1, -1] == 100
