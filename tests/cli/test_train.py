"""`npgpt train`: the whole way; bad input gives one line and exit code 2, and nothing is lost."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from npgpt.checkpoints.run import find_checkpoint, read_checkpoint, step_folders
from npgpt.training.metrics import read_metrics
from tests.conftest import TINY
from tests.helpers.runs import answers, bits, refused, succeeded


def test_train_sample_eval_info_and_plot(train, npgpt, text_file, tmp_path):
    code, out, err = train("--max-iters 4 --eval-interval 2")
    assert code == 0 and err == ""
    assert f"corpus: the text file {text_file}" in out and "step     4: train loss" in out
    assert len(out) - out.index("checkpoints in out") > 300  # a sample follows
    out = succeeded(npgpt("sample out", "--prompt", "To be", "--max-new-tokens", 20))
    assert out.startswith("To be") and len(out) == len("To be") + 20 + 1
    assert npgpt("sample", "--prompt", "To be", "--max-new-tokens", 20)[1] == out
    succeeded(npgpt("eval"), "perplexity", "bits per byte  ")
    succeeded(npgpt("info out"), "h.0.attn.c_attn.weight", "step 4")
    out = succeeded(npgpt("plot"))
    assert (tmp_path / "out/loss.png").read_bytes().startswith(b"\x89PNG")


def test_an_encoder_would_see_its_targets(train, tmp_path):
    result = train("--no-causal")
    refused(result, "causal=False sees the next token", "with loss_and_grads")
    assert result[1] == ""  # before a corpus is opened, which could download it
    assert not (tmp_path / "out").exists()


PREPARE = r"data prepare text.txt --tokenizer byte --out lines --documents \n"


def test_documents_are_packed(train, npgpt, tmp_path):
    """Each line is a document; every token of each is trained on."""
    succeeded(npgpt(PREPARE))
    succeeded(
        train("--corpus lines --epochs 2"),
        "vocabulary 256",
        "data: 893 tokens to train on, 127 tokens to validate",
    )
    assert find_checkpoint("out").name == "step-00000110"  # 2 epochs of 55 batches of 2 x 8 tokens
    succeeded(npgpt("eval"), "val: 126 tokens predicted")
    succeeded(npgpt("eval --corpus lines --split all"), "1,019 tokens predicted")
    with open(tmp_path / "lines/train.bin", "ab") as file:
        file.write(bytes(2))
    again = npgpt("train --resume --epochs 3")
    refused(again, "not the one that this run was trained on", "--init-from out and another")


def test_a_text_without_validation(train, npgpt):
    out = succeeded(train("--val-fraction 0 --max-iters 4 --eval-interval 2"))
    assert "best" not in out
    assert "data: 1,020 tokens to train on, none to validate" in out
    best = read_checkpoint(find_checkpoint("out", "best")).state
    assert best["best_step"] == 4 and [*read_metrics("out")[-1]] == ["step", "train_loss"]
    # The fraction is remembered.
    succeeded(npgpt("train --resume --max-iters 5"), "at step 4")
    refused(npgpt("train --resume --val-fraction 0.1"), "val_fraction is 0.0 in")
    succeeded(npgpt("eval"), "all: 1,019 tokens predicted")
    succeeded(npgpt("plot"))


def test_it_learns_to_answer(train, npgpt):
    answers(20)
    text = Path("answers.jsonl").read_text()
    Path("answers.jsonl").write_text(f"\ufeff{text}", encoding="utf-8")  # a BOM
    flags = "--n-embd 32 --learning-rate 1e-2 --batch-size 10 --max-iters 150 --lr-decay-iters 0"
    succeeded(
        train(flags, "--corpus", "answers.jsonl", "--val-fraction", 0),
        "corpus: 20 prompts in answers.jsonl",
        "data: 100 tokens to train on",
    )
    out = npgpt("eval --stride 1")[1]  # each window has a whole prompt
    assert "60 tokens predicted" in out and float(re.search("loss +(.*) nats", out)[1]) < 0.1
    for letter in "ah":
        sample = f"sample --prompt {letter}= --max-new-tokens 2 --temperature 0"
        assert npgpt(sample)[1] == f"{letter}={letter}{letter}\n"
    more = "train --corpus answers.jsonl --init-from out --out-dir more --crop-length 8"
    succeeded(npgpt(more, "--max-iters", 1))
    succeeded(npgpt("eval more --split all"), "all: 60 tokens predicted")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a=aa", "JSONDecodeError"),
        ('{"prompt": "a"}', "KeyError: 'completion'"),
        ('{"prompt": 1, "completion": "aa"}', "TypeError: both must be strings that are not empty"),
    ],
)
def test_an_invalid_line_of_answers_is_named(train, line, says):
    answers(2)
    Path("answers.jsonl").write_text(Path("answers.jsonl").read_text() + line)
    refused(train("--corpus answers.jsonl"), "answers.jsonl, line 4 is not", says)


def test_invalid_answers(train, npgpt):
    answers(1)
    corpus = "--corpus answers.jsonl"
    refused(train(corpus), "the train split has 0 tokens, none", "--val-fraction 0")
    prepare = npgpt("data prepare answers.jsonl --out tokens")
    refused(prepare, "train on the file itself")
    Path("answers.jsonl").write_text(json.dumps({"prompt": "a" * 20, "completion": "b"}))
    # Each crop has a part of the completion.
    succeeded(train(f"{corpus} --out-dir long --val-fraction 0 --max-iters 3"))
    succeeded(npgpt("eval long"), "2 tokens predicted")
    Path("answers.jsonl").write_text("\n")
    refused(train(corpus), "has no prompts")


def test_token_ids_outside_the_vocabulary_are_one_line(train, npgpt, tmp_path):
    succeeded(npgpt("data prepare text.txt --tokenizer byte --out tokens"))
    ids = np.fromfile(tmp_path / "tokens/train.bin", "<u2")
    ids[::3] = 999
    ids.tofile(tmp_path / "tokens/train.bin")
    refused(train("--corpus tokens"), "from 0 to 255", "999")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--max-iters many", ["--max-iters", "many"]),
        ("--corpus nowhere.txt", ["nowhere.txt", "tinyshakespeare"]),
        ("--tokenizer words", ["words", "char, byte or gpt2"]),
        ("--epochs 1", ["--epochs", "--max-iters", "give one of them"]),
        ("--crop-length 9", ["crop_length 9 is more than block_size 8"]),
        ("--device gpu", ["npgpt[cuda12]", "--device cpu"]),
        ("--kernels numba", ["--kernels numba", "npgpt[fast]", "or use --kernels numpy"]),
        ("--resume", ["no checkpoint in out"]),
        ("--resume --overwrite", ["not allowed with"]),
        ("--out-dir text.txt", ["text.txt: File exists"]),
    ],
)
def test_a_bad_argument_is_one_line(train, tmp_path, monkeypatch, arguments, says):
    for name in ("cupy", "numba"):
        monkeypatch.setitem(sys.modules, name, None)
    refused(train("--max-iters 2", *arguments.split()), *says)
    assert not (tmp_path / "out").exists()


def test_an_out_dir_with_a_run_is_only_replaced_when_asked(train):
    succeeded(train("--max-iters 2"))
    refused(train("--max-iters 1"), "--resume", "--overwrite")
    refused(train("--max-iters 1 --overwrite --corpus nowhere"), "nowhere")
    assert find_checkpoint("out").name == "step-00000002"
    succeeded(train("--max-iters 1 --overwrite"))
    assert [folder.name for folder in step_folders("out")] == ["step-00000001"]
    assert [record["step"] for record in read_metrics("out")] == [0, 1, 1]


def test_resume_with_something_else_names_it(train, npgpt, tmp_path):
    succeeded(train("--max-iters 2"))
    (tmp_path / "other.txt").write_text("To be, or not to be, that is the question:\n" * 20)
    before = bits("out"), read_metrics("out")
    for flags, says in (
        ("--n-embd 16", "n_embd is 8"),
        ("--no-bias", "bias is True"),
        ("--preset char-cpu", "is 8"),
        ("--seed 5", "seed is 1337"),
        ("--tokenizer byte", "tokenizer is char"),
        ("--init-from nowhere", "leave --init-from"),
        ("--corpus other.txt", "not the one that this run was trained on"),
    ):
        refused(npgpt("train --resume --max-iters 4", *flags.split()), says)
    assert (bits("out"), read_metrics("out")) == before


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[: len(data) // 2], lambda data: data.replace(b":", b";", 1), None],
    ids=["truncated", "edited", "missing"],
)
def test_a_damaged_checkpoint_is_one_line(train, npgpt, tmp_path, damage):
    succeeded(train("--max-iters 2"))
    for path in sorted(find_checkpoint(tmp_path / "out").iterdir()):
        data = path.read_bytes()
        path.write_bytes(damage(data)) if damage else path.unlink()
        for command in (["train", "--resume", "--max-iters", 4], ["sample"]):
            refused(npgpt(*command), "out")
        path.write_bytes(data)
    succeeded(npgpt("sample"))


def test_a_run_that_diverges_says_one_line_and_keeps_its_checkpoint(train, npgpt):
    flags = "--max-iters 300 --eval-interval 2 --learning-rate 1e30 --grad-clip 0 --warmup-iters 0"
    refused(train(flags), "at step", "--learning-rate")
    succeeded(npgpt("eval"))


@pytest.mark.slow
def test_no_torch_is_imported_and_no_warning_printed(text_file, tmp_path):
    """In a process of its own: no warning is seen, and torch is not imported."""
    program = (
        "import sys; from npgpt.cli.main import main; code = main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules; sys.exit(code)"
    )
    command = [sys.executable, "-W", "error", "-c", program, "train", "--corpus", text_file, *TINY]
    result = subprocess.run([*command, "--max-iters", "2"], capture_output=True, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, b"")
