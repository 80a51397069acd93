"""Texts as users have them: with an end of text, tiny, from Windows; and what a resumed run says.
"""

import json
import shutil

import pytest

from npgpt import load
from npgpt.checkpoints.run import find_checkpoint
from npgpt.data.corpora import open_corpus
from npgpt.data.tokenizers import make_tokenizer
from npgpt.training.metrics import read_metrics
from tests.conftest import TINY
from tests.helpers.runs import answers, bits, refused
from tests.helpers.tokenizers import byte_pairs

END = "<|endoftext|>"
GREETINGS = f"hello{END}bye{END}" * 60
LEARN = [
    "--n-embd",
    32,
    "--learning-rate",
    1e-2,
    "--max-iters",
    100,
    "--lr-decay-iters",
    0,
    "--batch-size",
    8,
]


@pytest.fixture
def pairs(tmp_path):
    """The name of a byte-pair encoding with an end of text, token 0."""
    pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    return f"hf:{byte_pairs(tmp_path / 'pairs.json')}"


def test_the_end_of_text_is_a_token_where_a_model_stops(npgpt, pairs, tmp_path):
    (tmp_path / "chat.txt").write_text(GREETINGS)
    code, out, _ = npgpt("train", "--corpus", "chat.txt", "--tokenizer", pairs, *TINY, *LEARN)
    assert code == 0 and f"120 {END} in the text, read as special tokens; --no-special reads" in out
    model, tokenizer = load("out")
    ids = tokenizer.encode(GREETINGS, special=True)
    assert (
        (ids == 0).sum() == 120
        and len(ids) < len(tokenizer.encode(GREETINGS))
        and 0 not in tokenizer.encode(END)
    )
    assert model.generate([[0]], 1, temperature=0.0)[0, 1] in (ids[0], tokenizer.encode("bye")[0])
    sample = ["sample", "--max-new-tokens", 40, "--temperature", 0]
    code, out, _ = npgpt(*sample, "--prompt", f"{END}hel")
    assert (code, out) == (0, f"{END}hello\n")          # it stops
    assert npgpt(*sample, "--prompt", END, "--no-special")[1] != npgpt(*sample, "--prompt", END)[1]
    scored = npgpt("score", "--text", f"{END}hello{END}")[1].splitlines()
    assert (scored[0].split(), scored[-2].split()[1]) == (["-", END], END)
    assert float(scored[-2].split()[0]) < 1.0
    spelled = npgpt("score", "--text", f"{END}hello{END}", "--no-special")[1].splitlines()
    assert len(spelled) > len(scored)
    n = len(tokenizer.encode((tmp_path / "text.txt").read_text())) - 1      # none is cut in two
    assert f"all: {n} tokens" in npgpt("eval", "--corpus", "text.txt", "--split", "all")[1]
    tune = "train --init-from out --corpus chat.txt --out-dir tuned --overwrite".split()
    for flags, how in (([], "special tokens"), (["--no-special"], "plain text")):
        n = len(tokenizer.encode(GREETINGS, special=not flags))
        out = npgpt("eval", "--corpus", "chat.txt", "--split", "all", *flags)[1]
        assert f"all: {n - 1:,} tokens" in out
        code, out, _ = npgpt(*tune, "--val-fraction", 0, "--max-iters", 1, *flags)
        assert code == 0 and f"120 {END} in the text, read as {how}" in out
        assert f"data: {n:,} tokens" in out
    prepare = ["data", "prepare", "chat.txt", "--out", "tokens", "--documents"]
    refused(npgpt(*prepare, ""), "two documents separated by ''")
    assert "documents: 120\n" in npgpt(*prepare)[1]


def test_without_special_tokens_a_text_is_read_as_earlier_versions_read_it(npgpt, pairs, tmp_path):
    (tmp_path / "chat.txt").write_text(f"\ufeff{GREETINGS}", "utf-8")
    for flags, special in (([], True), (["--no-special"], False)):
        out_dir = f"special-{special}"
        command = [
            "train",
            "--corpus",
            "chat.txt",
            "--tokenizer",
            pairs,
            *TINY,
            "--out-dir",
            out_dir,
            *flags,
        ]
        code, out, _ = npgpt(*command, "--max-iters", 2)
        tokens = make_tokenizer(pairs).encode(GREETINGS[:int(0.9 * len(GREETINGS))], special)
        assert code == 0 and f"data: {len(tokens):,} tokens to train on" in out
        assert f"120 {END} in the text, read as " + ("special" if special else "plain text") in out
        code, out, _ = npgpt(
            "train", "--resume", "--max-iters", 3, "--out-dir", out_dir
        )  # it is remembered
        assert code == 0 and f"data: {len(tokens):,} tokens to train on" in out
        assert npgpt("eval", out_dir)[0] == 0
    code, out, _ = npgpt(
        "train", "--corpus", "chat.txt", *TINY, "--out-dir", "char", "--max-iters", 1
    )
    assert (
        code == 0 and f"120 {END} in the text, read as plain text" in out and "vocabulary 14" in out
    )


def test_what_is_not_special(npgpt, pairs, tmp_path):
    """The default prompt stays the end of text, and separators of documents are no text."""
    (tmp_path / "chat.txt").write_text(f"hi\n{END}" * 60)
    command = ["train", "--corpus", "chat.txt", "--tokenizer", pairs, *TINY, *LEARN]
    assert npgpt(*command)[0] == 0
    sample = ["sample", "--max-new-tokens", 9, "--temperature", 0]
    assert npgpt(*sample, "--no-special")[1] == npgpt(*sample)[1] == f"{END}hi\n\n"
    prepare = ["data", "prepare", "chat.txt", "--tokenizer", pairs, "--documents"]
    out = npgpt(*prepare, "--no-special", "--out", "tokens", "--val-fraction", 0)[1]
    assert "documents: 60\n" in out and "in the text" not in out
    code, out, _ = npgpt("eval", "out", "--corpus", "tokens")       # which have no validation
    assert code == 0 and "all: " in out
    refused(
        npgpt("eval", "out", "--corpus", "tokens", "--split", "val"), "there is no validation split"
    )
    refused(
        npgpt("data", "prepare", "tokens", "--documents", "--out", "more"),
        "already consists of token files",
    )


def test_a_special_token_cannot_steer_a_terminal(npgpt, pairs, tmp_path):
    path = tmp_path / "pairs.json"
    path.write_text(path.read_text().replace(END, r"\u001b]0;title\u0007"))
    (tmp_path / "chat.txt").write_text("hi\x1b]0;title\x07" * 60)
    out = npgpt("train", "--corpus", "chat.txt", "--tokenizer", pairs, *TINY, "--max-iters", 1)[1]
    assert r"60 \x1b]0;title\x07 in the text" in out and "\x1b]0;title\x07 in the text" not in out


def test_answers_have_special_tokens_too(npgpt, pairs, tmp_path):
    rows = [{"prompt": f"{name}{END}", "completion": "hello"} for name in ("anna", "bert", "carl")]
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = [
        "train",
        "--corpus",
        "chat.jsonl",
        "--tokenizer",
        pairs,
        *TINY,
        "--val-fraction",
        0,
        "--max-iters",
        1,
    ]
    for flags, special in (([], True), (["--no-special"], False)):
        tokenizer = make_tokenizer(pairs)
        n = sum(
            len(tokenizer.encode(row["prompt"], special)) + len(tokenizer.encode("hello")) + 1
            for row in rows
        )
        code, out, err = npgpt(*command, "--block-size", 32, "--overwrite", *flags)
        assert (code, err) == (0, "") and f"data: {n} tokens to train on" in out


def test_fine_tuning_on_a_tiny_text(npgpt, train, tmp_path):
    """Of 26 lines, the validation split is shorter than a crop; of one, also the training split.

    A folder may have the name of what nanoGPT's init_from may be.
    """
    assert train("--max-iters", 1, "--block-size", 32, "--out-dir", "scratch")[0] == 0
    for text, says in (
        ("to be\n" * 26, ["validation split has 16 tokens, so its crops have 15 instead of 32"]),
        (
            "to be or not",
            [
                "train split has 10 tokens, so its crops have 9 instead of 32",
                "validation split has 2 tokens, so its crops have 1 instead of 32",
            ],
        ),
    ):
        (tmp_path / "tiny.txt").write_text(text)
        tune = "train --init-from scratch --corpus tiny.txt --overwrite --max-iters 2".split()
        code, out, err = npgpt(*tune)
        assert (code, err) == (0, "") and all(f"the {line}\n" in out for line in says)
        assert out.count("instead of") == len(says) and read_metrics("out")[-1]["step"] == 2
    assert npgpt("train", "--resume", "--max-iters", 3)[0] == 0
    refused(npgpt(*tune, "--crop-length", 33), "crop_length 33 is more than block_size 32")
    (tmp_path / "tiny.txt").write_text("to be")
    refused(
        npgpt(*tune),
        "the validation split has 1 tokens, none of which is to be predicted",
        "--val-fraction 0",
    )
    assert npgpt(*tune, "--val-fraction", 0)[0] == 0


def test_a_resumed_run_says_if_its_learning_rate_jumps_or_nothing_is_left(npgpt, text_file):
    decays = [*TINY[:TINY.index("--lr-decay-iters")], *TINY[TINY.index("--lr-decay-iters") + 2:]]
    assert (
        npgpt("train", "--corpus", text_file, *decays, "--max-iters", 20, "--min-lr", 1e-5)[0] == 0
    )
    code, out, _ = npgpt("train", "--resume")
    assert (
        code == 0
        and "nothing is left to train: max_iters is 20; to go on, raise --max-iters\n" in out
    )
    assert "jumps" not in out
    shutil.copytree("out", "kept")
    code, out, _ = npgpt("train", "--resume", "--max-iters", 40)
    record = next(
        record for record in read_metrics("out") if record["step"] == 21 and "lr" in record
    )
    assert (
        code == 0
        and (
            f"the learning rate jumps from 1e-05 to {record['lr']:.3g}, because its decay now ends "
            "at "
            "step 40 instead of 20: to keep it, add --lr-decay-iters 20\n"
        )
        in out
    )
    assert record["lr"] > 1e-3 and "nothing is left" not in out
    asked = {"--learning-rate": 0.1, "--min-lr": 1e-4, "--warmup-iters": 3, "--lr-decay-iters": 60}
    for step, flag in enumerate(asked, 40):
        code, out, _ = npgpt("train", "--resume", "--max-iters", step + 1, flag, asked[flag])
        assert code == 0 and f"at step {step}\n" in out and "jumps" not in out
    code, out, _ = npgpt(
        "train", "--resume", "--out-dir", "kept", "--max-iters", 40, "--lr-decay-iters", 20
    )
    assert code == 0 and "jumps" not in out
    assert all(
        record["lr"] == 1e-5
        for record in read_metrics("kept")
        if record["step"] > 20 and "lr" in record
    )


def test_a_run_is_not_resumed_on_another_text(npgpt, train, tmp_path):
    assert train("--max-iters", 1)[0] == 0
    (tmp_path / "other.txt").write_text("to be or not to be\n" * 50)
    refused(
        npgpt("train", "--resume", "--corpus", "other.txt"),
        "the corpus other.txt is not the one",
        "train on this one with --init-from out and another --out-dir",
    )
    (tmp_path / "other.txt").write_text("Quo vadis")
    refused(npgpt("train", "--resume", "--corpus", "other.txt"), "trained on (character 'Q'")


@pytest.mark.parametrize("partial", [False, True])
def test_a_run_with_partial_batches_of_an_earlier_version(npgpt, train, partial):
    """It can be read and trained on, but not resumed: its batches were others."""
    assert train("--max-iters", 1)[0] == 0
    path = find_checkpoint("out") / "state.json"
    state = json.loads(path.read_text())
    state["options"]["partial_batch"] = partial
    path.write_text(json.dumps(state))
    assert npgpt("sample", "--max-new-tokens", 2)[0] == 0 and npgpt("eval")[0] == 0
    tune = [
        "train",
        "--init-from",
        "out",
        "--corpus",
        "text.txt",
        "--out-dir",
        "tuned",
        "--max-iters",
        1,
    ]
    assert npgpt(*tune, "--val-fraction", 0.5)[0] == 0
    result = npgpt("train", "--resume", "--max-iters", 2)
    if partial:
        refused(
            result, "--partial-batch of an earlier version", "--init-from out and another --out-dir"
        )
    else:
        assert result[0] == 0


def test_a_text_of_windows_trains_as_any_other(npgpt, text_file, tmp_path):
    text = text_file.read_bytes()
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    for name, said in (("text", 0), ("windows", 1)):
        command = ["train", "--corpus", f"{name}.txt", *TINY, "--out-dir", name, "--max-iters", 2]
        code, out, err = npgpt(*command)
        assert (
            code == 0
            and err.count(r"windows.txt has the line ends of Windows, \r\n, which are read as \n")
            == said
        )
        assert err.count("\n") == said and "in the text, read as" not in out
        assert npgpt("train", "--resume", "--out-dir", name, "--max-iters", 3)[0] == 0
    assert bits("text") == bits("windows")
    assert (
        npgpt("score", "windows", "--file", "windows.txt")[1]
        == npgpt("score", "text", "--file", "text.txt")[1]
    )
    (tmp_path / "preset.toml").write_bytes(
        b"\xef\xbb\xbfn_layer = 1\r\nn_embd = 8\r\nn_head = 1\r\n"
    )
    assert npgpt("info", "--preset", "preset.toml")[0] == 0
    answers(9)
    data = (tmp_path / "answers.jsonl").read_bytes()
    (tmp_path / "answers.jsonl").write_bytes(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"))
    code, out, _ = npgpt(
        "train", "--corpus", "answers.jsonl", *TINY, "--out-dir", "answers", "--max-iters", 1
    )
    assert code == 0 and "vocabulary 11" in out


@pytest.mark.parametrize("kind", ["char", "pairs"])
def test_a_run_of_an_earlier_version_on_a_text_of_windows_is_resumed(
    npgpt, pairs, kind, tmp_path, monkeypatch
):
    """It has read the byte order mark, the carriage returns, and an end of text as plain text."""
    text = "\ufeff" + f"to be or {END}\r\n" * 20
    (tmp_path / "windows.txt").write_bytes(text.encode())
    name = pairs if kind == "pairs" else kind
    command = ["train", "--corpus", "windows.txt", "--tokenizer", name, "--no-special", *TINY]
    with monkeypatch.context() as earlier:
        earlier.setattr("npgpt.cli.train.open_corpus", lambda name, _: open_corpus(name, raw=True))
        assert npgpt(*command, "--max-iters", 1)[0] == 0
    tokenizer = load("out")[1]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    code, out, err = npgpt("train", "--resume", "--max-iters", 2)
    n = len(tokenizer.encode(text[:int(0.9 * len(text))]))
    assert (code, err) == (0, "") and f"data: {n} tokens to train on" in out
