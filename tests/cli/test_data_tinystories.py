"""`npgpt data get tinystories` and `--tokenizer hf:…`, from the flag to a trained model; the hub is a local file."""

import re
import shutil

import pytest

from tests.cli.test_train import refused
from tests.conftest import TEXT, TINY
from tests.data.tokenizer_json import byte_pairs, word_pieces

STORIES = TEXT.replace("\n", "\n<|endoftext|>\n")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The hub. The value is the list of the files that were asked for."""
    asked = []

    def fetch_file(repo_id, filename, repo_type):
        asked.append((repo_id, filename, repo_type))
        path = tmp_path / f"from-the-hub-{filename}"
        path.write_text(STORIES)
        return path

    monkeypatch.setattr("npgpt.download.hub.fetch_file", fetch_file)
    return asked


def test_get_the_first_stories_as_documents(npgpt, hub):
    get = ["data", "get", "tinystories", "--tokenizer", "byte"]
    refused(npgpt("train", "--corpus", "tinystories", *TINY), "npgpt data get tinystories")
    code, out, _ = npgpt(*get, "--version", 1, "--limit", 20, "--documents")
    assert code == 0 and "data/tinystories/byte+v1+limit-20+documents" in out
    assert hub[1] == ("roneneldan/TinyStories", "TinyStories-train.txt", "dataset")
    assert "tinystories      downloaded" in npgpt("data", "list")[1]
    code, out, _ = npgpt("train", "--corpus", "tinystories", *TINY, "--max-iters", 2)
    assert code == 0 and "in 20 documents to train on" in out
    code, out, _ = npgpt(*get, "--limit", 20, "--documents", "--windows", "all", "--count-padding")
    assert code == 0 and "byte+limit-20+documents+all_windows+count_padding: train.bin" in out
    folder = "data/tinystories/byte+limit-20+documents+all_windows+count_padding"
    code, out, _ = npgpt("train", "--corpus", folder, *TINY, "--out-dir", "all", "--max-iters", 1)
    windows = int(re.search(r"in 20 documents \((.*) windows\) to train on", out)[1])
    assert code == 0 and windows > 60
    assert npgpt(*get, "--limit", 20)[0] == 0
    refused(npgpt("train", "--corpus", "tinystories", "--overwrite", *TINY), "in several ways: give one of",
            "byte+limit-20,")
    for wrong in (["--limit", 0], ["--version", 3]):
        refused(npgpt(*get, *wrong), wrong[0])


def test_get_refuses_in_one_line(npgpt, hub, tmp_path):
    refused(npgpt("data", "get", "tinystories", "--tokenizer", "char"), "char tokenizer")
    for option in ("--tokenizer byte", "--version 1", "--limit 5", "--documents", "--windows all", "--count-padding"):
        refused(npgpt("data", "get", "tinyshakespeare", *option.split()), "kept as text")
    assert hub == [] and not (tmp_path / "data").exists()
    (tmp_path / "data").touch()
    assert npgpt("data", "get", "tinystories", "--tokenizer", "byte")[0] == 2


@pytest.mark.parametrize(("write", "prompt", "continued", "bits"), [
    (byte_pairs, "To be", "To be", "bits per byte  "),
    (word_pieces, "to be", "to be ", "bits per byte  not defined, because"),
])
def test_train_sample_eval_and_resume_with_a_tokenizer_json(train, npgpt, tmp_path, write, prompt, continued, bits):
    pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    shutil.copy(write(tmp_path / "tokenizer.json"), tmp_path / "same.json")
    code, out, _ = train("--tokenizer", "hf:tokenizer.json", "--max-iters", 2)
    assert code == 0 and "best validation loss" in out
    (tmp_path / "tokenizer.json").unlink()      # the checkpoint has it
    code, out, _ = npgpt("sample", "--prompt", prompt, "--max-new-tokens", 20, "--temperature", 0)
    assert code == 0 and out.startswith(continued)
    code, out, _ = npgpt("eval")
    assert code == 0 and "perplexity" in out and bits in out
    code, out, _ = npgpt("train", "--resume", "--tokenizer", "hf:same.json", "--max-iters", 4)
    assert code == 0 and "at step 2" in out
    refused(npgpt("train", "--resume", "--tokenizer", "gpt2"), "tokenizer is hf")
    assert npgpt("data", "prepare", "text.txt", "--tokenizer", "hf:same.json", "--out", "tokens")[0] == 0
    assert npgpt("eval", "--corpus", "tokens")[1].split("\n")[1:] == npgpt("eval")[1].split("\n")[1:]
