"""`npgpt train`: the whole way, and every bad input in one line, with exit code 2 and nothing lost."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from npgpt.checkpoints.run import find_checkpoint, read_checkpoint, step_folders
from npgpt.training.metrics import read_metrics
from npgpt.training.options import options_of
from tests.conftest import TINY
from tests.helpers.runs import answers, refused


def test_train_sample_eval_info_and_plot(train, npgpt, text_file, tmp_path):
    code, out, err = train("--max-iters", 4, "--eval-interval", 2)
    assert code == 0 and err == ""
    assert f"corpus: the text file {text_file}" in out and "step     4: train loss" in out
    assert len(out) - out.index("checkpoints in out") > 300     # a sample follows
    code, out, _ = npgpt("sample", "out", "--prompt", "To be", "--max-new-tokens", 20)
    assert code == 0 and out.startswith("To be") and len(out) == len("To be") + 20 + 1
    assert npgpt("sample", "--prompt", "To be", "--max-new-tokens", 20)[1] == out
    code, out, _ = npgpt("eval")
    assert code == 0 and "perplexity" in out and "bits per byte  " in out
    code, out, _ = npgpt("info", "out")
    assert code == 0 and "h.0.attn.c_attn.weight" in out and "step 4" in out
    code, out, _ = npgpt("plot")
    assert code == 0 and (tmp_path / "out/loss.png").read_bytes().startswith(b"\x89PNG")


def test_an_encoder_would_see_its_targets(train, tmp_path):
    result = train("--no-causal")
    refused(result, "causal=False sees the next token", "with loss_and_grads")
    assert result[1] == ""      # before a corpus is opened, which could download it
    assert not (tmp_path / "out").exists()


def test_the_decay_ends_with_the_epochs_unless_the_user_says_otherwise(npgpt, text_file):
    """The preset leaves lr_decay_iters out; TINY's own flag would end the decay at step 20."""
    tiny, steps = [*TINY[:TINY.index("--lr-decay-iters")], *TINY[TINY.index("--lr-decay-iters") + 2:]], 57
    for given, expected in (([], steps), (["--lr-decay-iters", 2000], 2000), (["--lr-decay-iters", 0], 0)):
        command = ["train", "--corpus", text_file, *tiny, "--overwrite", "--eval-interval", 100, "--epochs", 1, *given]
        assert npgpt(*command)[0] == 0
        options = options_of(read_checkpoint(find_checkpoint("out")))
        assert (options.max_iters, options.last_decay_step) == (steps, expected)


def test_documents_are_packed(npgpt, text_file, tmp_path):
    """Each line is a document; every token of each is trained on."""
    assert npgpt("data", "prepare", text_file, "--tokenizer", "byte", "--out", "lines", "--documents", r"\n")[0] == 0
    code, out, _ = npgpt("train", "--corpus", "lines", *TINY, "--epochs", 2)
    assert (
        code == 0
        and "data: 893 tokens to train on, 127 tokens to validate" in out
        and "vocabulary 256" in out
    )
    assert find_checkpoint("out").name == "step-00000110"  # 2 epochs of 55 batches of 2 x 8 tokens
    code, out, _ = npgpt("eval")
    assert code == 0 and "val: 126 tokens predicted" in out and "bits per byte  " in out
    loss, bits = (float(line.split()[column]) for line, column in ((out.splitlines()[1], 1), (out.splitlines()[3], 3)))
    assert bits == pytest.approx(loss / math.log(2), rel=1e-3)
    assert "1,019 tokens predicted" in npgpt("eval", "--corpus", "lines", "--split", "all")[1]
    with open(tmp_path / "lines/train.bin", "ab") as file:
        file.write(bytes(2))
    refused(npgpt("train", "--resume", "--epochs", 3), "not the one that this run was trained on",
            "--init-from out and another --out-dir")


def test_token_files_without_validation(npgpt, text_file):
    prepare = ["data", "prepare", text_file, "--tokenizer", "byte", "--val-fraction", 0, "--out", "lines"]
    assert npgpt(*prepare, "--documents", r"\n")[0] == 0
    code, out, _ = npgpt("train", "--corpus", "lines", *TINY, "--epochs", 1)
    assert code == 0 and "data: 1,020 tokens to train on, none to validate" in out
    assert (
        find_checkpoint("out").name == "step-00000063"
        and "train loss" in out
        and "validation loss" not in out
    )
    code, out, _ = npgpt("eval")
    assert code == 0 and "all: 1,019 tokens predicted" in out and "bits per byte  " in out
    refused(npgpt("eval", "--split", "val"), "there is no validation split")
    refused(npgpt("train", "--corpus", "lines", *TINY, "--val-fraction", 0, "--overwrite"), "npgpt data prepare")


def test_a_text_without_validation(train, npgpt, tmp_path):
    code, out, _ = train("--val-fraction", 0, "--max-iters", 4, "--eval-interval", 2)
    assert code == 0 and "data: 1,020 tokens to train on, none to validate" in out and "best" not in out
    assert "at step 4" in npgpt("train", "--resume", "--max-iters", 5)[1]      # the fraction is remembered
    refused(npgpt("train", "--resume", "--val-fraction", 0.1), "val_fraction is 0.0 in")
    assert "all: 1,019 tokens predicted" in npgpt("eval")[1]
    assert npgpt("plot")[0] == 0
    out = train("--val-fraction", 0.5, "--out-dir", "b", "--max-iters", 1)[1]
    assert "data: 510 tokens to train on, 510 tokens" in out
    assert "val: 509 tokens predicted" in npgpt("eval", "b")[1]


def test_it_learns_to_answer(npgpt):
    answers(20)
    Path("answers.jsonl").write_text(f"\ufeff{Path('answers.jsonl').read_text()}", encoding="utf-8")   # a BOM
    flags = ["--n-embd", 32, "--learning-rate", 1e-2, "--batch-size", 10, "--max-iters", 150,
             "--lr-decay-iters", 0, "--val-fraction", 0]
    code, out, _ = npgpt("train", "--corpus", "answers.jsonl", *TINY, *flags)
    assert (
        code == 0
        and "corpus: 20 prompts in answers.jsonl" in out
        and "data: 100 tokens to train on" in out
    )
    code, out, _ = npgpt("eval", "--stride", 1)  # each window has a whole prompt
    assert (
        code == 0
        and "60 tokens predicted" in out
        and float(re.search("loss +(.*) nats", out)[1]) < 0.1
    )
    for letter in "aht":
        shown = npgpt("sample", "--prompt", f"{letter}=", "--max-new-tokens", 2, "--temperature", 0)[1]
        assert shown == f"{letter}={letter}{letter}\n"
    more = ["--init-from", "out", "--out-dir", "more", "--crop-length", 8, "--max-iters", 1]
    assert npgpt("train", "--corpus", "answers.jsonl", *more)[0] == 0
    assert "all: 60 tokens predicted" in npgpt("eval", "more", "--split", "all")[1]


@pytest.mark.parametrize(("line", "says"), [
    ("a=aa", "JSONDecodeError"), ('{"prompt": "a"}', "KeyError: 'completion'"),
    ('{"prompt": 1, "completion": "aa"}', "TypeError: both must be strings that are not empty")])
def test_an_invalid_line_of_answers_is_named(npgpt, line, says):
    answers(2)
    Path("answers.jsonl").write_text(Path("answers.jsonl").read_text() + line)
    refused(npgpt("train", "--corpus", "answers.jsonl", *TINY), "answers.jsonl, line 4 is not", says)


def test_invalid_answers(npgpt):
    answers(1)
    refused(npgpt("train", "--corpus", "answers.jsonl", *TINY),
            "the train split has 0 tokens, none", "--val-fraction 0")
    refused(npgpt("data", "prepare", "answers.jsonl", "--out", "tokens"), "train on the file itself")
    Path("answers.jsonl").write_text(json.dumps({"prompt": "a" * 20, "completion": "b"}))
    long = ["--corpus", "answers.jsonl", *TINY, "--val-fraction", 0, "--max-iters", 3]
    assert (
        npgpt("train", "--out-dir", "long", *long)[0] == 0
    )  # each crop has a part of the completion
    assert "2 tokens predicted" in npgpt("eval", "long")[1]
    Path("answers.jsonl").write_text("\n")
    refused(npgpt("train", "--corpus", "answers.jsonl", *TINY), "has no prompts")


def test_token_ids_outside_the_vocabulary_are_one_line(npgpt, text_file, tmp_path):
    assert npgpt("data", "prepare", text_file, "--tokenizer", "byte", "--out", "tokens")[0] == 0
    ids = np.fromfile(tmp_path / "tokens/train.bin", "<u2")
    ids[::3] = 999
    ids.tofile(tmp_path / "tokens/train.bin")
    refused(npgpt("train", "--corpus", "tokens", *TINY), "from 0 to 255", "999")


@pytest.mark.parametrize(("arguments", "says"), [
    (["--max-iters", "many"], ["--max-iters", "many"]),
    (["--preset", "char-tpu"], ["char-tpu", "char-cpu"]),
    (["--corpus", "nowhere.txt"], ["nowhere.txt", "tinyshakespeare"]),
    (["--tokenizer", "words"], ["words", "char, byte or gpt2"]),
    (["--epochs", "1"], ["--epochs", "--max-iters", "give one of them"]),
    (["--crop-length", "9"], ["crop_length 9 is more than block_size 8"]),
    (["--device", "gpu"], ["npgpt[cuda12]", "--device cpu"]),
    (["--kernels", "numba"], ["--kernels numba", "npgpt[fast]", "or use --kernels numpy"]),
    (["--resume"], ["no checkpoint in out"]),
    (["--resume", "--overwrite"], ["not allowed with"]),
    (["--out-dir", "text.txt"], ["text.txt: File exists"]),
])
def test_a_bad_argument_is_one_line(train, tmp_path, monkeypatch, arguments, says):
    for name in ("cupy", "numba"):
        monkeypatch.setitem(sys.modules, name, None)
    refused(train("--max-iters", 2, *arguments), *says)
    assert not (tmp_path / "out").exists()


def test_an_out_dir_with_a_run_is_only_replaced_when_asked(train):
    assert train("--max-iters", 2)[0] == 0
    refused(train("--max-iters", 1), "--resume", "--overwrite")
    refused(train("--max-iters", 1, "--overwrite", "--corpus", "nowhere"), "nowhere")
    assert find_checkpoint("out").name == "step-00000002"
    assert train("--max-iters", 1, "--overwrite")[0] == 0
    assert [folder.name for folder in step_folders("out")] == ["step-00000001"]
    assert [record["step"] for record in read_metrics("out")] == [0, 1, 1]


def test_resume_with_something_else_names_it(train, npgpt, tmp_path):
    assert train("--max-iters", 2)[0] == 0
    (tmp_path / "other.txt").write_text("To be, or not to be, that is the question:\n" * 20)
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    for arguments, *says in (
            (["--n-embd", "16"], "n_embd is 8", "16 was asked for"),
            (["--no-bias"], "bias is True", "False was asked for"),
            (["--preset", "char-cpu"], "is 8", "was asked for"),
            (["--dtype", "float64"], "dtype is float32"), (["--seed", "5"], "seed is 1337"),
            (["--tokenizer", "byte"], "tokenizer is char"), (["--init-from", "nowhere"], "leave --init-from"),
            (["--corpus", "other.txt"], "not the one that this run was trained on")):
        refused(npgpt("train", "--resume", "--max-iters", 4, *arguments), *says)
        assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("damage", [lambda data: data[:len(data) // 2], lambda data: data.replace(b":", b";", 1), None],
                         ids=["truncated", "edited", "missing"])
def test_a_damaged_checkpoint_is_one_line(train, npgpt, tmp_path, damage):
    assert train("--max-iters", 2)[0] == 0
    for path in sorted(find_checkpoint(tmp_path / "out").iterdir()):
        data = path.read_bytes()
        path.write_bytes(damage(data)) if damage else path.unlink()
        for command in (["train", "--resume", "--max-iters", 4], ["sample"]):
            refused(npgpt(*command), "out")
        path.write_bytes(data)
    assert npgpt("sample")[0] == 0


def test_a_run_that_diverges_says_one_line_and_keeps_its_checkpoint(train, npgpt):
    refused(train("--max-iters", 300, "--eval-interval", 2, "--learning-rate", "1e30", "--grad-clip", 0,
                  "--warmup-iters", 0), "at step", "--learning-rate")
    assert npgpt("eval")[0] == 0


@pytest.mark.slow
def test_no_torch_is_imported_and_no_warning_printed(text_file, tmp_path):
    """In a process of its own: what a user sees on a run is free of warnings, and torch stays out."""
    program = ("import sys; from npgpt.cli.main import main; code = main(sys.argv[1:]); "
               "assert 'torch' not in sys.modules and 'transformers' not in sys.modules; sys.exit(code)")
    result = subprocess.run([sys.executable, "-W", "error", "-c", program, "train", "--corpus", text_file, *TINY,
                             "--max-iters", "2"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0 and result.stderr == ""
