import itertools
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from npgpt.data import tinystories
from npgpt.data.batches import TokenFile, open_dataset
from npgpt.data.corpora import list_corpora, open_corpus
from npgpt.data.tinystories import (
    REPOSITORY,
    SEPARATOR,
    SPLITS,
    pieces,
    prepare_split,
    prepare_tinystories,
    tinystories_folder,
)
from npgpt.data.tokenizers import TOKENIZER_FILE, ByteTokenizer
from npgpt.errors import UserError

STORIES = [f"\nOnce there was an owl 🦉, Zoë by name, {n} years old.\n\nShe was naïve.\n" for n in range(50)]
TEXT = SEPARATOR.join(STORIES)  # as it is on the hub, but that there the last one is followed by a separator too
SMALL_PIECE = 300  # bytes: about three stories


class EndingBytes(ByteTokenizer):
    """Bytes, and an id that ends a story."""

    vocab_size = 257
    eos_token_id = 256


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A file of fifty stories, in many pieces."""
    monkeypatch.setattr(tinystories, "PIECE_BYTES", SMALL_PIECE)
    path = tmp_path / "source.txt"
    path.write_bytes(TEXT.encode())
    return path


@pytest.fixture
def expected(source, tmp_path):
    """What an undisturbed run writes."""
    path = tmp_path / "expected.bin"
    prepare_split(source, EndingBytes(), path, progress=False)
    return path.read_bytes()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The hub, as far as fetch_file shows it: the value is the list of what was asked for."""
    asked = []

    def fetch_file(repo_id, filename, revision=None, repo_type="model"):
        asked.append((repo_id, filename, repo_type))
        path = tmp_path / filename
        path.write_bytes(TEXT.encode())
        return path

    monkeypatch.setattr("npgpt.hub.fetch_file", fetch_file)
    return asked


def tokens_of(data):
    return np.frombuffer(data, dtype="<u2")


def test_each_story_is_followed_by_the_id_that_ends_it(expected):
    tokens = []
    for story in STORIES:
        tokens += [*story.strip().encode(), 256]
    assert tokens_of(expected).tolist() == tokens


def test_without_such_an_id_the_separator_stays_as_text(source, tmp_path):
    prepare_split(source, ByteTokenizer(), tmp_path / "out.bin", progress=False)
    text = ByteTokenizer().decode(tokens_of((tmp_path / "out.bin").read_bytes()))
    assert text == "".join(f"{story.strip()}\n{SEPARATOR}\n" for story in STORIES)


@pytest.mark.parametrize("size", [150, 151, 152, 163, 1000, 1 << 20])
def test_where_the_pieces_are_cut_changes_nothing(source, tmp_path, monkeypatch, expected, size):
    monkeypatch.setattr(tinystories, "PIECE_BYTES", size)
    with open(source, "rb") as file:
        parts = list(pieces(file))
    assert b"".join(parts) == TEXT.encode()
    assert all(part.endswith(SEPARATOR.encode()) for part in parts[:-1])
    prepare_split(source, EndingBytes(), tmp_path / "out.bin", progress=False)
    assert (tmp_path / "out.bin").read_bytes() == expected


class Killed(BaseException):
    """As sudden as a signal: nobody catches it."""


def kill_at(call, module, name, monkeypatch):
    """Let the run end at that call of a function."""
    counter, original = itertools.count(1), getattr(module, name)

    def function(*args):
        if next(counter) == call:
            raise Killed
        return original(*args)

    monkeypatch.setattr(module, name, function)


@pytest.mark.parametrize("step", ["flush_to_disk", "write_atomically", "decode_piece", "os.replace"])
@pytest.mark.parametrize("call", [1, 2, 5])
def test_a_run_that_is_killed_is_continued(source, tmp_path, monkeypatch, expected, step, call):
    """Killed at this call of that function, continued, killed again at the same call, and then left in peace."""
    path = tmp_path / "out.bin"
    module, name = (os, "replace") if step == "os.replace" else (tinystories, step)
    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill_at(call, module, name, patch)
            while True:  # the file is renamed once a run, so that its second call is one of the second run
                prepare_split(source, EndingBytes(), path, progress=False)
                assert path.read_bytes() == expected
                path.unlink()
        assert not path.exists()
        if (tmp_path / "out.partial").exists():
            with open(tmp_path / "out.partial", "ab") as file:
                file.write(b"what a killed process had in its buffers")
    prepare_split(source, EndingBytes(), path, progress=False)
    assert path.read_bytes() == expected
    assert not list(tmp_path.glob("out.p*"))


class Counting(EndingBytes):
    """How many stories it has encoded."""

    stories = 0

    def encode(self, text):
        self.stories += 1
        return super().encode(text)


@pytest.mark.usefixtures("terminal")
def test_what_is_done_is_not_done_again(source, tmp_path, monkeypatch, expected, capsys):
    path, tokenizer = tmp_path / "out.bin", Counting()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(7, tinystories, "decode_piece", patch)
        prepare_split(source, tokenizer, path, progress=False)
    assert 10 < tokenizer.stories < len(STORIES)
    prepare_split(source, tokenizer, path)
    assert tokenizer.stories == len(STORIES) and path.read_bytes() == expected
    assert "out.bin: 100%" in capsys.readouterr().err


def cut_partial(folder, source):
    os.truncate(folder / "out.partial", 100)


def edit_partial(folder, source):
    data = (folder / "out.partial").read_bytes()
    (folder / "out.partial").write_bytes(data[:50] + b"\xff" + data[51:])


def delete_partial(folder, source):
    (folder / "out.partial").unlink()


def edit_note(folder, source):
    note = json.loads((folder / "out.progress").read_text())
    (folder / "out.progress").write_text(json.dumps(note | {"read": note["read"] - 1}))


def cut_note(folder, source):
    os.truncate(folder / "out.progress", 10)


def strange_note(folder, source):
    (folder / "out.progress").write_text('{"read": "all", "more": []}')


def other_source(folder, source):
    source.write_bytes(TEXT.replace("Zoë", "Eve").encode())


@pytest.mark.parametrize(
    "damage", [cut_partial, edit_partial, delete_partial, edit_note, cut_note, strange_note, other_source]
)
def test_a_beginning_that_does_not_fit_is_not_continued(source, tmp_path, monkeypatch, damage):
    path = tmp_path / "out.bin"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(7, tinystories, "decode_piece", patch)
        prepare_split(source, EndingBytes(), path, progress=False)
    damage(tmp_path, source)
    prepare_split(source, EndingBytes(), path, progress=False)
    prepare_split(source, EndingBytes(), tmp_path / "fresh.bin", progress=False)
    assert path.read_bytes() == (tmp_path / "fresh.bin").read_bytes()


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's")
def test_a_process_that_is_killed_is_continued(source, tmp_path, expected):
    path = tmp_path / "out.bin"
    code = f"""
import os, signal, sys
from npgpt.data import tinystories
from tests.data.test_tinystories import EndingBytes
from pathlib import Path
tinystories.PIECE_BYTES = {SMALL_PIECE}
note, calls = tinystories.write_atomically, []
def kill_at_the_fifth(*args):
    calls.append(args)
    if len(calls) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    note(*args)
tinystories.write_atomically = kill_at_the_fifth
tinystories.prepare_split(sys.argv[1], EndingBytes(), Path(sys.argv[2]), progress=False)
"""
    root = Path(__file__).parents[2]
    result = subprocess.run([sys.executable, "-c", code, source, path], cwd=root)
    assert result.returncode == -signal.SIGKILL
    assert not path.exists() and (tmp_path / "out.partial").stat().st_size > 0
    assert json.loads((tmp_path / "out.progress").read_text())["read"] > 0
    prepare_split(source, EndingBytes(), path, progress=False)
    assert path.read_bytes() == expected


def test_memory_does_not_grow_with_the_text(tmp_path):
    """48 MiB of text whose characters take four bytes each in memory, in 20 MiB."""
    story = "Once upon a time there was a small owl 🦉.\n" * 20
    source = tmp_path / "large.txt"
    with open(source, "w", encoding="utf-8") as file:
        while file.tell() < 48 << 20:
            file.write(f"{story}{SEPARATOR}\n" * 100)
    tracemalloc.start()
    prepare_split(source, EndingBytes(), tmp_path / "out.bin", progress=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "out.bin").stat().st_size > 48 << 20
    assert peak < 20 << 20


@pytest.mark.parametrize(("content", "says"), [
    (b"", "no story"),
    (b" \n" + SEPARATOR.encode() * 3, "no story"),
    (b"word " * 1000, "no <|endoftext|> within 300 bytes"),
    (TEXT.encode()[:2000] + b"\xff" + TEXT.encode()[2000:], "not UTF-8 text at byte 2000"),
])
def test_a_text_that_is_not_tinystories(source, tmp_path, content, says):
    source.write_bytes(content)
    with pytest.raises(UserError, match=says.replace("|", r"\|")) as caught:
        prepare_split(source, EndingBytes(), tmp_path / "out.bin", progress=False)
    assert "source.txt" in str(caught.value) and not (tmp_path / "out.bin").exists()


def test_a_full_disk_is_an_oserror_and_loses_nothing(source, tmp_path, monkeypatch, expected):
    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tinystories, "flush_to_disk", full)
        with pytest.raises(OSError, match="No space left"):
            prepare_split(source, EndingBytes(), tmp_path / "out.bin", progress=False)
    prepare_split(source, EndingBytes(), tmp_path / "out.bin", progress=False)
    assert (tmp_path / "out.bin").read_bytes() == expected


def test_fetched_prepared_and_opened(hub, tmp_path, capsys):
    folder = tinystories_folder(tmp_path, "byte")
    assert folder == tmp_path / "tinystories" / "byte"
    prepare_tinystories(ByteTokenizer(), folder, progress=False)
    assert hub == [(REPOSITORY, filename, "dataset") for filename in SPLITS.values()]
    assert sorted(path.name for path in folder.iterdir()) == [TOKENIZER_FILE, "train.bin", "val.bin"]
    corpus = open_corpus("tinystories", tmp_path)
    assert (corpus.name, corpus.text, corpus.folder) == (str(folder), None, folder) and str(folder) in corpus.reason
    train, val, tokenizer = open_dataset(corpus)
    assert isinstance(train, TokenFile) and np.array_equal(train[:], val[:]) and isinstance(tokenizer, ByteTokenizer)
    before = (folder / "train.bin").stat().st_mtime_ns
    prepare_tinystories(ByteTokenizer(), folder, progress=False)
    assert (folder / "train.bin").stat().st_mtime_ns == before and len(hub) == 2
    assert capsys.readouterr() == ("", "")


def test_another_tokenizer_of_the_same_name_is_refused(hub, tmp_path):
    prepare_tinystories(ByteTokenizer(), tmp_path / "folder", progress=False)

    class Other(ByteTokenizer):
        kind = "gpt2"

    with pytest.raises(UserError, match="another tokenizer of that name: delete"):
        prepare_tinystories(Other(), tmp_path / "folder", progress=False)


def test_half_of_it_is_not_found(hub, tmp_path):
    folder = tinystories_folder(tmp_path, "byte")
    prepare_tinystories(ByteTokenizer(), folder, progress=False)
    for name in (*SPLITS, TOKENIZER_FILE):
        data = (folder / name).read_bytes()
        (folder / name).unlink()
        with pytest.raises(UserError, match="not prepared in .*npgpt data get tinystories"):
            open_corpus("tinystories", tmp_path)
        assert ("tinystories", "not downloaded") in [row[:2] for row in list_corpora(tmp_path)]
        (folder / name).write_bytes(data)
    assert ("tinystories", "at hand") in [row[:2] for row in list_corpora(tmp_path)]


def test_several_of_it_have_to_be_told_apart(hub, tmp_path):
    for name in ("byte", "bytes-of-mine"):
        prepare_tinystories(ByteTokenizer(), tmp_path / "tinystories" / name, progress=False)
    with pytest.raises(UserError, match="several tokenizers: give one of .*byte, .*bytes-of-mine"):
        open_corpus("tinystories", tmp_path)


@pytest.mark.parametrize(("name", "folder"), [
    ("bpe", "gpt2"),
    ("gpt2", "gpt2"),
    ("hf:bert-base-uncased", "hf-bert-base-uncased"),
    ("hf:owner/name", "hf-owner-name"),
    ("hf:/a b/../tokenizer.json", "hf-a-b-..-tokenizer.json"),
])
def test_a_folder_a_tokenizer(name, folder):
    assert tinystories_folder("data", name) == Path("data/tinystories") / folder
