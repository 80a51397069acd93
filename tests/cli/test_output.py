"""--json, for programs, and -q: what is printed then, and what is not."""

import json
import math

import numpy as np
import pytest

from npgpt import load
from tests.helpers.runs import bits, refused


@pytest.fixture
def run(train):
    """A finished tiny run in out."""
    assert train("--max-iters", 3)[0] == 0


def answer(result):
    code, out, err = result
    assert code == 0 and err == "" and out.count("\n") == 1
    return json.loads(out, parse_constant=pytest.fail)


@pytest.mark.usefixtures("run")
def test_eval_and_score_as_json(npgpt, tmp_path, text_file):
    found = answer(npgpt("eval", "--json"))
    text = text_file.read_text()
    model, tokenizer = load("out")
    val = tokenizer.encode(text[int(0.9 * len(text)):])
    nats = 0.0
    for begin in range(0, len(val) - 1, 8):
        window = val[None, begin:begin + 9]
        nats += model.evaluate(window[:, :-1], window[:, 1:]) * (window.size - 1)
    loss = nats / (len(val) - 1)
    assert list(found) == ["model", "split", "tokens", "loss", "perplexity", "bits_per_byte"]
    assert (found["model"], found["split"]) == ("out/step-00000003", "val")
    assert found["tokens"] == len(val) - 1
    values = [found[name] for name in ("loss", "perplexity", "bits_per_byte")]
    assert values == pytest.approx([loss, math.exp(loss), loss / math.log(2)], rel=1e-6)

    found = answer(npgpt("score", "--json", "--text", "To be:\n"))
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
    model.save_pretrained(tmp_path / "sure")
    (tmp_path / "sure/npgpt_tokenizer.json").write_text(json.dumps(tokenizer.to_dict()))
    found = answer(npgpt("eval", "sure", "--corpus", "text.txt", "--json"))
    assert found["loss"] > 709 and found["perplexity"] is None and found["bits_per_byte"] > 1000
    found = answer(npgpt("score", "sure", "--file", "text.txt", "--json"))
    assert found["loss"] > 709 and found["perplexity"] is None
    result = npgpt("eval", "nowhere", "--json")
    refused(result, "nowhere")
    assert result[1] == ""


@pytest.mark.usefixtures("run")
def test_info_as_json(npgpt):
    model, _ = load("out")
    found = answer(npgpt("info", "out", "--json"))
    assert found["parameters"] == model.params.size
    assert found["shapes"] == {name: list(array.shape) for name, array in model.params.items()}
    assert found["memory"]["parameters"] == model.params.flat.nbytes
    assert found["memory"].keys() == {"parameters", "gradients", "moments", "activations"}
    names = "step", "best_step", "batch_size", "block_size"
    assert [found[name] for name in names] == [3, 3, 2, 8]
    assert f"best loss {found['best_loss']:.4f} at step 3" in npgpt("info", "out")[1]
    assert "step" not in answer(npgpt("info", "--json"))


def test_a_quiet_training_prints_its_result_and_saves_the_same(train, npgpt, tmp_path, monkeypatch):
    for module in ("training.trainer", "training.evaluation"):
        monkeypatch.setattr(f"npgpt.{module}.HIDE_BARS", False)         # as on a terminal
    text = (tmp_path / "text.txt").read_text().replace("\n", "\r\n")
    (tmp_path / "text.txt").write_bytes(f"{text}<|endoftext|>".encode())
    code, out, err = train("--max-iters", 3, "--out-dir", "loud")
    assert code == 0 and "3/3" in err and "line ends" in err
    assert "corpus:" in out and "read as plain text" in out and "step     3:" in out
    code, quiet, err = train("-q", "--max-iters", 3, "--out-dir", "calm")
    assert (code, quiet.count("\n"), err) == (0, 1, "")
    assert quiet.startswith("best validation loss ") and quiet.replace("calm", "loud") in out
    assert bits(tmp_path / "calm") == bits(tmp_path / "loud")
    code, quiet, err = npgpt("train", "--resume", "--quiet", "--out-dir", "calm", "--max-iters", 4)
    assert (code, quiet.count("\n"), err) == (0, 1, "")
    command = ["eval", "loud", "--corpus", "text.txt", "--split", "all"]
    loud, quiet = npgpt(*command), npgpt(*command, "-q")
    assert "evaluate" in loud[2] and "line ends" in loud[2] and quiet == (0, loud[1], "")
    refused(npgpt("eval", "-q", "nowhere"), "nowhere")


def test_what_is_written_to_files_quietly_is_the_same(npgpt, tmp_path):
    for flags in ([], ["--quiet"]):
        for command in (["data", "prepare", "text.txt", "--tokenizer", "byte"], ["export", "tiny"]):
            code, out, err = npgpt(*command, "--out", f"{command[0]}{len(flags)}", *flags)
            assert code == 0 and bool(out) == (not flags) and err == ""
    for name in ("data", "export"):
        loud, calm = sorted((tmp_path / f"{name}0").iterdir()), (tmp_path / f"{name}1")
        assert [path.name for path in loud] == sorted(path.name for path in calm.iterdir())
        assert all(path.read_bytes() == (calm / path.name).read_bytes() for path in loud)
