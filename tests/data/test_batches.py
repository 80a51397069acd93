import numpy as np
import pytest

from npgpt.data.batches import IGNORED, count_targets, crops_of, windows
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
    assert [crops.count(np.array([place])) for place in (0, 1, 2, 3)] == [1, 4, 4, 3]
    assert crops.count(np.array([3, 0, 3])) == 7 == (crops.at(np.array([3, 0, 3]))[1] != -1).sum()
    assert [targets.tolist() for targets in crops.targets()] == [[*y[y != -1]]]
    pieces = list(crops_of(Documents(np.arange(20_000), np.arange(0, 20_000, 2)), 4).targets())
    assert len(pieces) == 3 and np.array_equal(np.concatenate(pieces), np.arange(1, 20_000, 2))


@pytest.mark.parametrize("length", [2, 3, 4, 5])
@pytest.mark.parametrize("count_padding", [False, True])
@pytest.mark.parametrize("pad", [None, 58])
def test_all_windows_are_the_overflowing_tokens_of_transformers(length, count_padding, pad):
    """Except those of one token, the separator alone."""
    transformers = pytest.importorskip("transformers", reason="transformers, the oracle, is in the extra test")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [str(number) for number in range(60)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=str(pad or 59))
    lengths = np.array([2, 3, 5, 6, 7, 11, 12])
    starts, ids = lengths.cumsum() - lengths, np.arange(lengths.sum(), dtype=np.uint16)
    ids[starts + lengths - 1] = 59                          # the end of text, by default also the padding
    texts = [" ".join(map(str, ids[start:start + n])) for start, n in zip(starts, lengths, strict=True)]
    found = theirs(texts, truncation=True, max_length=length + 1, padding="max_length", return_overflowing_tokens=True)
    expected, real = np.array(found["input_ids"]), np.array(found["attention_mask"])
    expected, real = expected[real.sum(axis=1) > 1], real[real.sum(axis=1) > 1]
    documents = Documents(ids, starts, all_windows=True, count_padding=count_padding, pad_token_id=pad)
    crops = crops_of(documents, length)
    x, y = crops.at(np.arange(crops.places))
    assert np.array_equal(x, expected[:, :-1])
    assert np.array_equal(y, expected[:, 1:] if count_padding else np.where(real[:, 1:], expected[:, 1:], -1))
    assert all(map(np.array_equal, zip(*windows(documents, length), strict=True), (x, y)))
    assert crops.count(np.arange(crops.places)) == (y != -1).sum() == count_targets(documents, length)
    assert np.array_equal(np.concatenate(list(crops.targets())), y[y != -1])


def test_prompts_are_no_targets():
    """Nor is a window in which there is nothing else. The first token of a completion is predicted by the prompt."""
    documents = Documents(DOCUMENTS.tokens, DOCUMENTS.starts, [1, 3, 5, 0])
    x, y = crops_of(documents, 4).at(np.arange(3))
    assert x.tolist() == [[100, 101, 101, 101], [102, 103, 104, 105], [113, 114, 115, 116]]
    assert y.tolist() == [[101, -1, -1, -1], [-1, -1, 105, 106], [114, 115, 116, -1]]
    assert crops_of(documents, 4).places == 3 and crops_of(documents, 5).places == 4
    assert crops_of(documents, 5).at(np.array([2]))[1].tolist() == [[-1, -1, -1, -1, 112]]
    all_windows = crops_of(Documents(DOCUMENTS.tokens, DOCUMENTS.starts, [1, 4, 5, 0], all_windows=True), 2)
    assert all_windows.at(np.arange(all_windows.places))[1].tolist() == [
        [101, -1], [106, -1], [-1, 112], [114, 115]]        # the window of only token 116 has no target
    assert all_windows.count(np.array([0, 2, 3])) == 4
    with pytest.raises(UserError, match="every prompt has more than 2 tokens, .*raise the block size"):
        crops_of(Documents(np.arange(8), [0, 4], [3, 3]), 2)


@pytest.mark.parametrize("tokens", [np.arange(60), DOCUMENTS], ids=["stream", "documents"])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 50])
def test_a_partial_last_batch_as_of_torchs_loader(tokens, batch_size):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    crops = crops_of(tokens, 8)
    everything = [crops.at(np.array([i * crops.stride])) for i in range(crops.crops)]
    loader = torch.utils.data.DataLoader([(x[0], y[0]) for x, y in everything], batch_size)
    for n, (x, y) in enumerate([*loader, *loader]):
        ours = crops.at(crops.in_order(n, batch_size, partial=True))
        assert np.array_equal(ours[0], x) and np.array_equal(ours[1], y)
    assert crops.in_epoch(batch_size, partial=True) == len(loader) * batch_size


def test_documents_in_order_at_random_and_evenly():
    crops = crops_of(DOCUMENTS, 1000)       # longer than all of them together
    assert crops.in_epoch(3) == 4
    assert [crops.in_order(n, 3).tolist() for n in range(4)] == [[0, 1, 2], [3, 0, 1], [2, 3, 0], [1, 2, 3]]
    assert abs(np.bincount(crops.random(40_000, np.random.default_rng(0))) - 10_000).max() < 450
    assert crops.evenly(2, 2).tolist() == [[0, 1], [2, 3]]


def test_too_few_tokens():
    tokens = np.zeros(8, dtype=np.uint16)
    assert crops_of(tokens, 7).places == 1
    with pytest.raises(UserError, match="8 tokens and a crop needs 9 .*lower the block size"):
        crops_of(tokens, 8)
    for count in (0, 1):
        with pytest.raises(UserError, match=f"{count} tokens and evaluation needs 2"):
            next(windows(tokens[:count], 4))


@pytest.mark.parametrize(
    ("count", "lengths"), [(2, [1]), (4, [3]), (5, [4]), (6, [4, 1]), (9, [4, 4]), (12, [4, 4, 3])]
)
def test_windows_hold_every_target_once(count, lengths):
    tokens = np.arange(count, dtype=np.uint16)
    pairs = list(windows(tokens, 4))
    assert [len(x) for x, _ in pairs] == lengths and count_targets(tokens, 4) == sum(lengths)
    assert all(x.dtype == y.dtype == np.int64 and np.array_equal(y, x + 1) for x, y in pairs)
    assert np.array_equal(np.concatenate([y for _, y in pairs]), tokens[1:])


def test_even_crops_reach_from_the_first_to_the_last_target_in_equal_strides():
    crops = crops_of(np.arange(101, dtype=np.uint16), 10)
    places = crops.evenly(5, 2)
    assert places.tolist() == [[0, 10], [20, 30], [40, 50], [60, 70], [80, 90]] and crops.count(places[0]) == 20
    for x, y in map(crops.at, places):
        assert x.shape == y.shape == (2, 10) and (np.diff(x, axis=1) == 1).all() and (y == x + 1).all()
    assert y[-1, -1] == 100
