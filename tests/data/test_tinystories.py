import os

import numpy as np
import pytest

from npgpt.data import tinystories
from npgpt.data.corpora import list_corpora, open_corpus
from npgpt.data.dataset import open_dataset
from npgpt.data.tinystories import SOURCES, prepare_split, prepare_tinystories
from npgpt.data.token_files import SEPARATOR, TokenFile
from npgpt.data.tokenizers import TOKENIZER_FILE, ByteTokenizer, CharTokenizer, save_tokenizer
from npgpt.errors import UserError
from tests.conftest import traced

STORIES = [f"\nOnce there was an owl 🦉, Zoë by name, {n} years old.\n\nShe was naïve.\r\n" for n in range(50)]
TEXT = SEPARATOR.join(STORIES)


class EndingBytes(ByteTokenizer):
    """Bytes, and an id that ends a story."""

    vocab_size = 257
    eos_token_id = 256


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.txt"
    path.write_bytes(TEXT.encode())
    return path


@pytest.fixture
def hub(source, monkeypatch):
    """The hub, interrupted at the second file. The value is the list of the files that were asked for."""
    asked = []

    def fetch_file(repo_id, filename, repo_type):
        asked.append(filename)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return source

    monkeypatch.setattr("npgpt.download.hub.fetch_file", fetch_file)
    return asked


@pytest.mark.parametrize("piece", [150, 151, 163, 1 << 20])
def test_each_story_is_followed_by_its_end(source, tmp_path, monkeypatch, piece):
    monkeypatch.setattr(tinystories, "PIECE", piece)
    for tokenizer, end in ((EndingBytes(), [256]), (ByteTokenizer(), f"\n{SEPARATOR}\n".encode())):
        prepare_split(source, tokenizer, tmp_path / "out.bin")
        expected = [token for story in STORIES for token in [*story.strip().encode(), *end]]
        assert np.fromfile(tmp_path / "out.bin", "<u2").tolist() == expected


@pytest.mark.parametrize(("content", "says"), [
    (b"", "does not contain a story"), (b" \n" + SEPARATOR.encode() * 3, "does not contain a story"),
    (b"word " * 1000, r"lacks <\|endoftext\|> in 300 characters"),
    (TEXT.encode()[:2000] + b"\xff" + TEXT.encode()[2000:], "not UTF-8 text"),
])
def test_a_text_that_is_not_tinystories(source, tmp_path, monkeypatch, content, says):
    monkeypatch.setattr(tinystories, "PIECE", 300)
    source.write_bytes(content)
    with pytest.raises(UserError, match=f"source.txt .*{says}"):
        prepare_split(source, EndingBytes(), tmp_path / "out.bin")
    assert os.listdir(tmp_path) == ["source.txt"]


def test_memory_does_not_grow_with_the_text(tmp_path):
    """24 MiB of text whose characters take four bytes each in memory, in 20 MiB."""
    source = tmp_path / "large.txt"
    source.write_text(f"{'Once upon a time there was a small owl 🦉.' * 20}\n{SEPARATOR}\n" * 28_000, encoding="utf-8")
    _, peak = traced(lambda: prepare_split(source, EndingBytes(), tmp_path / "out.bin"))
    assert (tmp_path / "out.bin").stat().st_size > 40 << 20 and peak < 20 << 20


@pytest.mark.usefixtures("terminal")
def test_interrupted_continued_and_opened(hub, tmp_path, capsys):
    folder = tmp_path / "tinystories/byte"
    with pytest.raises(KeyboardInterrupt):
        prepare_tinystories(tmp_path, "byte")
    assert sorted(os.listdir(folder)) == [TOKENIZER_FILE, "val.bin"]
    assert prepare_tinystories(tmp_path, "byte") == folder
    assert hub == [SOURCES[2][split] for split in ("val", "train", "train")]
    assert "train.bin: 100%" in capsys.readouterr().err
    corpus = open_corpus("tinystories", tmp_path)
    assert (corpus.name, corpus.text, corpus.folder) == (str(folder), None, folder) and str(folder) in corpus.reason
    train, val, tokenizer = open_dataset(corpus)
    assert isinstance(train, TokenFile) and np.array_equal(train[:], val[:]) and isinstance(tokenizer, ByteTokenizer)
    save_tokenizer(CharTokenizer("ab"), folder / TOKENIZER_FILE)
    with pytest.raises(UserError, match="another tokenizer of that name: delete"):
        prepare_tinystories(tmp_path, "byte")


def test_a_folder_that_is_incomplete_is_not_found_and_one_of_several_is_not_chosen(hub, tmp_path):
    hub += ["an earlier file"] * 2
    folder = prepare_tinystories(tmp_path, "byte")
    for name in ("train.bin", "val.bin", TOKENIZER_FILE):
        (folder / name).rename(tmp_path / "away")
        with pytest.raises(UserError, match="not prepared in .*npgpt data get tinystories"):
            open_corpus("tinystories", tmp_path)
        assert ("tinystories", "not downloaded") in [row[:2] for row in list_corpora(tmp_path)]
        (tmp_path / "away").rename(folder / name)
    assert ("tinystories", "downloaded") in [row[:2] for row in list_corpora(tmp_path)]
    prepare_tinystories(tmp_path, "byte", limit=3)
    with pytest.raises(UserError, match=r"several ways: give one of .*byte, .*byte\+limit-3"):
        open_corpus("tinystories", tmp_path)
