"""Texts as users have them: with an end of text, tiny, from Windows; and resumed runs."""

import shutil

import pytest

from npgpt import load
from npgpt.checkpoints.run import find_checkpoint
from npgpt.data.corpora import open_corpus
from npgpt.data.tokenizers import make_tokenizer
from npgpt.training.metrics import read_metrics
from tests.conftest import TINY
from tests.helpers.runs import bits, refused, succeeded
from tests.helpers.tokenizers import byte_pairs

END = "<|endoftext|>"
GREETINGS = f"hello{END}bye{END}" * 60
LEARN = "--n-embd 32 --learning-rate 1e-2 --max-iters 100 --lr-decay-iters 0 --batch-size 8"


@pytest.fixture
def pairs(tmp_path):
    """The name of a byte-pair encoding with an end of text, token 0."""
    pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    return f"hf:{byte_pairs(tmp_path / 'pairs.json')}"


def test_the_end_of_text_is_a_token_where_a_model_stops(train, npgpt, pairs, tmp_path):
    (tmp_path / "chat.txt").write_text(GREETINGS)
    out = succeeded(train(f"--corpus chat.txt --tokenizer {pairs} {LEARN}"))
    assert f"120 {END} in the text, read as special tokens; --no-special reads" in out
    tokenizer = load("out")[1]
    sample = f"sample --max-new-tokens 40 --temperature 0 --prompt {END}".split()
    assert npgpt(*sample[:-1], f"{END}hel")[1] == f"{END}hello\n"  # it stops
    assert npgpt(*sample, "--no-special")[1] != npgpt(*sample)[1]
    score = ["score", "--text", f"{END}hello{END}"]
    first, *_, last, _ = (line.split() for line in npgpt(*score)[1].splitlines())
    assert first == ["-", END] and last[1] == END and float(last[0]) < 1.0
    assert len(npgpt(*score, "--no-special")[1]) > len(npgpt(*score)[1])
    for flags in ([], ["--no-special"]):
        n = len(tokenizer.encode(GREETINGS, special=not flags))
        out = npgpt("eval --corpus chat.txt --split all", *flags)[1]
        assert f"all: {n - 1:,} tokens" in out
    prepare = "data prepare chat.txt --out tokens --documents"
    refused(npgpt(prepare, ""), "two documents separated by ''")
    succeeded(npgpt(prepare), "documents: 120\n")


@pytest.mark.parametrize("flag", ["", "--no-special"])
def test_a_run_remembers_how_its_special_tokens_are_read(train, npgpt, pairs, tmp_path, flag):
    (tmp_path / "chat.txt").write_text(f"\ufeff{GREETINGS}", "utf-8")
    train_text = GREETINGS[: int(0.9 * len(GREETINGS))]
    n = len(make_tokenizer(pairs).encode(train_text, special=not flag))
    chat = f"--corpus chat.txt --max-iters 2 {flag}"
    for result in (
        train(f"{chat} --tokenizer {pairs}"),
        npgpt("train --resume --max-iters 3"),
        npgpt(f"train --init-from out --out-dir tuned {chat}"),
    ):
        assert result[0] == 0 and f"data: {n:,} tokens to train on" in result[1]


def test_what_is_not_special(train, npgpt, pairs, tmp_path):
    """The default prompt stays the end of text, and separators of documents are no text."""
    (tmp_path / "chat.txt").write_text(f"hi\n{END}" * 60)
    succeeded(train(f"--corpus chat.txt --tokenizer {pairs} {LEARN}"))
    sample = "sample --max-new-tokens 9 --temperature 0"
    assert npgpt(sample, "--no-special")[1] == npgpt(sample)[1] == f"{END}hi\n\n"
    prepare = "data prepare chat.txt --documents --no-special --val-fraction 0 --out tokens"
    out = npgpt(prepare, "--tokenizer", pairs)[1]
    assert "documents: 60\n" in out and "in the text" not in out
    succeeded(npgpt("eval --corpus tokens"), "all: ")  # which have no validation
    again = npgpt("data prepare tokens --documents --out more")
    refused(again, "already consists of token files")


TINY_TEXTS = [
    ("to be\n" * 26, ["validation split has 16 tokens, so its crops have 15 instead of 32"]),
    (
        "to be or not",
        [
            "train split has 10 tokens, so its crops have 9 instead of 32",
            "validation split has 2 tokens, so its crops have 1 instead of 32",
        ],
    ),
]


@pytest.mark.parametrize(("text", "says"), TINY_TEXTS)
def test_fine_tuning_on_a_tiny_text(npgpt, train, tmp_path, text, says):
    """Of 26 lines, the validation split is shorter than a crop; of one, also the training split.

    A folder may have the name of what nanoGPT's init_from may be.
    """
    succeeded(train("--max-iters 1 --block-size 32 --out-dir scratch"))
    (tmp_path / "tiny.txt").write_text(text)
    tune = "train --init-from scratch --corpus tiny.txt --overwrite --max-iters 2".split()
    code, out, err = npgpt(*tune)
    assert (code, err) == (0, "") and all(f"the {line}\n" in out for line in says)
    assert out.count("instead of") == len(says) and read_metrics("out")[-1]["step"] == 2
    succeeded(npgpt("train --resume --max-iters 3"))
    refused(npgpt(*tune, "--crop-length", 33), "crop_length 33 is more than block_size 32")
    (tmp_path / "tiny.txt").write_text("to be")
    refused(npgpt(*tune), "the validation split has 1 tokens, none of which", "--val-fraction 0")
    succeeded(npgpt(*tune, "--val-fraction", 0))


def test_a_resumed_run_says_if_its_learning_rate_jumps_or_nothing_is_left(npgpt):
    tiny = [flag for flag in TINY if flag not in ("--lr-decay-iters", "20")]
    train = ["train", "--corpus", "text.txt", *tiny, "--max-iters", 20, "--min-lr", 1e-5]
    succeeded(npgpt(*train))
    out = succeeded(npgpt("train --resume"))
    assert "jumps" not in out
    assert "nothing is left to train: max_iters is 20; to go on, raise --max-iters\n" in out
    shutil.copytree("out", "kept")
    out = npgpt("train --resume --max-iters 40")[1]
    [rate] = [r["lr"] for r in read_metrics("out") if r["step"] == 21 and "lr" in r]
    assert rate > 1e-3 and "nothing is left" not in out
    assert f"the learning rate jumps from 1e-05 to {rate:.3g}, because its decay now ends" in out
    assert "step 40 instead of 20: to keep it, add --lr-decay-iters 20\n" in out
    out = npgpt("train --resume --max-iters 41 --learning-rate 0.1")[1]
    assert "at step 40\n" in out and "jumps" not in out  # it was asked for
    kept = "train --resume --out-dir kept --max-iters 40 --lr-decay-iters 20"
    assert "jumps" not in npgpt(kept)[1]
    rates = [r["lr"] for r in read_metrics("kept") if r["step"] > 20 and "lr" in r]
    assert set(rates) == {1e-5}


def test_a_run_with_partial_batches_of_an_earlier_version(npgpt, train):
    """It can be read and trained on, but not resumed: its batches were others."""
    succeeded(train("--max-iters 1"))
    path = find_checkpoint("out") / "state.json"
    path.write_text(path.read_text().replace('"options": {', '"options": {"partial_batch": true, '))
    succeeded(npgpt("sample --max-new-tokens 2"))
    succeeded(npgpt("eval"))
    tune = "train --init-from out --corpus text.txt --out-dir tuned --max-iters 1"
    succeeded(npgpt(tune, "--val-fraction", 0.5))
    says = "--partial-batch of an earlier version", "--init-from out and another --out-dir"
    refused(npgpt("train --resume --max-iters 2"), *says)


def test_a_text_of_windows_trains_as_any_other(train, npgpt, text_file, tmp_path):
    text = text_file.read_bytes()
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    for name, said in (("text", 0), ("windows", 1)):
        code, _, err = train(f"--corpus {name}.txt --out-dir {name} --max-iters 2")
        assert code == 0 and err.count("\n") == said
        assert err.count(r"the line ends of Windows, \r\n, which are read as \n") == said
        succeeded(npgpt("train --resume", "--out-dir", name, "--max-iters", 3))
    assert bits("text") == bits("windows")
    scored = npgpt("score text --file text.txt")[1]
    assert npgpt("score windows --file windows.txt")[1] == scored


def test_a_run_of_an_earlier_version_on_a_text_of_windows_is_resumed(
    train, npgpt, tmp_path, monkeypatch
):
    """It has read the byte order mark and the carriage returns."""
    text = "\ufeff" + f"to be or {END}\r\n" * 20
    (tmp_path / "windows.txt").write_bytes(text.encode())
    with monkeypatch.context() as earlier:
        earlier.setattr("npgpt.cli.train.open_corpus", lambda name, _: open_corpus(name, raw=True))
        succeeded(train("--corpus windows.txt --max-iters 1"))
    code, out, err = npgpt("train --resume --max-iters 2")
    n = int(0.9 * len(text))
    assert (code, err) == (0, "") and f"data: {n} tokens to train on" in out
