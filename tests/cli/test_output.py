"""--json, for programs, and -q: what is printed then, and what is not."""

import json
import math
import os
import sys

import numpy as np
import pytest

from npgpt import load
from npgpt.cli.keys import unix_keys
from npgpt.training.evaluation import evaluate_split
from tests.conftest import TEXT
from tests.helpers.runs import bits, refused, succeeded


@pytest.fixture
def run(train):
    """A finished tiny run in out."""
    succeeded(train("--max-iters 3"))


def answer(result):
    code, out, err = result
    assert code == 0 and err == "" and out.count("\n") == 1
    return json.loads(out, parse_constant=pytest.fail)


@pytest.mark.usefixtures("run")
def test_eval_and_score_as_json(npgpt):
    model, tokenizer = load("out")
    ids = tokenizer.encode(TEXT[int(0.9 * len(TEXT)) :])
    loss, n = evaluate_split(model, ids)
    found = answer(npgpt("eval --json"))
    assert (found["model"], found["split"], found["tokens"]) == ("out/step-00000003", "val", n)
    figures = [found[name] for name in ("loss", "perplexity", "bits_per_byte")]
    assert figures == pytest.approx([loss, math.exp(loss), loss / math.log(2)], rel=1e-6)

    found = answer(npgpt("score --json", "--text", "To be:\n"))
    ids = tokenizer.encode("To be:\n")
    assert [each["id"] for each in found["scores"]] == ids.tolist()
    assert [each["text"] for each in found["scores"]] == [*"To be:\n"]
    first, *nats = (each["nats"] for each in found["scores"])
    assert first is None and nats == pytest.approx((-model.score(ids[None])[0]).tolist(), rel=1e-6)
    assert (found["tokens"], found["loss"]) == (6, pytest.approx(np.mean(nats)))
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))


def test_json_has_null_for_what_is_no_number(npgpt, tmp_path):
    model, tokenizer = load("tiny")
    model.params["wte.weight"] = 1e4 * model.params["wte.weight"]
    model.save_pretrained("sure", tokenizer)
    (tmp_path / "be.txt").write_text("To be, or not to be")
    found = answer(npgpt("eval sure --corpus be.txt --json"))
    assert found["loss"] > 709 and found["perplexity"] is None and found["bits_per_byte"] > 1000
    found = answer(npgpt("score sure --file be.txt --json"))
    assert found["loss"] > 709 and found["perplexity"] is None
    result = npgpt("eval nowhere --json")
    refused(result, "nowhere")
    assert result[1] == ""


@pytest.mark.usefixtures("run")
def test_info_as_json(npgpt):
    model, _ = load("out")
    found = answer(npgpt("info out --json"))
    assert found["parameters"] == model.params.size
    assert found["shapes"] == {name: list(array.shape) for name, array in model.params.items()}
    assert found["memory"]["parameters"] == model.params.flat.nbytes
    assert found["memory"].keys() == {"parameters", "gradients", "moments", "activations"}
    names = "step", "best_step", "batch_size", "block_size"
    assert [found[name] for name in names] == [3, 3, 2, 8]
    succeeded(npgpt("info out"), f"best loss {found['best_loss']:.4f} at step 3")
    assert "step" not in answer(npgpt("info --json"))


def test_quiet_commands_print_their_result_and_save_the_same(train, npgpt, tmp_path, monkeypatch):
    for module in ("training.trainer", "training.evaluation"):
        monkeypatch.setattr(f"npgpt.{module}.HIDE_BARS", False)  # as on a terminal
    text = (tmp_path / "text.txt").read_text().replace("\n", "\r\n")
    (tmp_path / "text.txt").write_bytes(f"{text}<|endoftext|>".encode())
    code, out, err = train("--max-iters 3 --out-dir loud")
    assert code == 0 and "3/3" in err and "line ends" in err
    assert "corpus:" in out and "read as plain text" in out and "step     3:" in out
    code, quiet, err = train("-q --max-iters 3 --out-dir calm")
    assert (code, quiet.count("\n"), err) == (0, 1, "")
    assert quiet.startswith("best validation loss ") and quiet.replace("calm", "loud") in out
    assert bits("calm") == bits("loud")
    command = "eval loud --corpus text.txt --split all".split()
    loud, quiet = npgpt(*command), npgpt(*command, "-q")
    assert "evaluate" in loud[2] and quiet == (0, loud[1], "")
    assert npgpt("export tiny --out exported -q") == (0, "", "")
    refused(npgpt("eval -q nowhere"), "nowhere")


def test_the_end_of_the_input_is_the_key_q(monkeypatch):
    pty = pytest.importorskip("pty", reason="Windows has other terminals")
    terminal, its = pty.openpty()
    with open(its) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with unix_keys() as read_key:
            os.write(terminal, b"N")
            assert [read_key(1.0), read_key(0.0)] == ["n", None]
            monkeypatch.setattr(os, "read", lambda *_: b"")
            os.write(terminal, b"x")
            assert read_key(1.0) == "q"
    os.close(terminal)
