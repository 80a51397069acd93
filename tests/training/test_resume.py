"""An interrupted run resumes to the last bit. Kills are in test_stopped_runs.py."""

import json
import sys

import pytest

from npgpt.checkpoints.run import find_checkpoint
from npgpt.engine.cpu import cpu_kernels
from npgpt.training.metrics import read_metrics
from tests.helpers.runs import answers, bits, nothing_left, refused


@pytest.mark.parametrize(
    "options",
    [
        ["--dropout", "0.2", "--gradient-accumulation-steps", "3", "--threads", "2"],
        ["--dtype", "float64", "--no-tie-word-embeddings", "--tokenizer", "byte"],
        ["--corpus", "lines", "--sampling", "sequential"],
        ["--corpus", "answers.jsonl", "--val-fraction", "0.2"],
        ["--val-fraction", "0", "--kernels", "numpy", "--threads", "2"],
    ],
    ids=[
        "dropout and accumulation",
        "float64 untied",
        "documents in order",
        "answers",
        "no validation",
    ],
)
def test_ten_and_ten_are_twenty(npgpt, train, text_file, options):
    if "answers.jsonl" in options:
        answers(10)
    if "lines" in options:
        prepare = ["data", "prepare", text_file, "--tokenizer", "byte", "--documents", r"\n", "--out", "lines"]
        assert npgpt(*prepare)[0] == 0
    assert train("--out-dir", "whole", "--max-iters", 20, *options)[0] == 0
    assert train("--out-dir", "parts", "--max-iters", 10, *options)[0] == 0
    code, out, _ = npgpt("train", "--out-dir", "parts", "--max-iters", 20, "--resume")     # all else is remembered
    assert code == 0 and "resuming parts/step-00000010 at step 10" in out
    assert bits("whole") == bits("parts")
    states = [json.loads((find_checkpoint(run) / "state.json").read_text()) for run in ("whole", "parts")]
    assert states[0]["options"] == states[1]["options"] and states[0]["step"] == 20
    measured = [[(r["step"], r["loss"], r["lr"], r["grad_norm"]) for r in read_metrics(run) if "loss" in r]
                for run in ("whole", "parts")]
    assert measured[0] == measured[1] and [r[0] for r in measured[0]] == list(range(1, 21))


def test_a_run_goes_on_with_its_own_kernels(npgpt, train, monkeypatch):
    """Others would give other bits. Older runs do not store them."""
    pytest.importorskip("numba", reason="compiles loops; it is in the extras fast and test")

    def resumed(threads, named, *more):
        assert train("--max-iters", 1, "--threads", threads, "--kernels", "numpy", "--overwrite")[0] == 0
        path = find_checkpoint("out") / "state.json"
        state = json.loads(path.read_text())
        assert state.pop("kernels") == "numpy"
        path.write_text(json.dumps(state | named))
        result = npgpt("train", "--resume", "--max-iters", 2, *more)
        return json.loads((find_checkpoint("out") / "state.json").read_text()).get("kernels"), result

    for threads, named, expected in ((2, {}, "numpy"), (1, {}, "reference"), (1, {"kernels": "numba"}, "numba"),
                                     (2, {"kernels": "reference"}, "reference")):
        kernels, (code, _, err) = resumed(threads, named)
        assert (kernels, code, err) == (expected, 0, "")
    assert resumed(1, {}, "--threads", 2)[0] == cpu_kernels()       # one thread had the reference lines
    refused(resumed(2, {"kernels": ["numba"]})[1], "kernels must be one of auto, numpy")
    monkeypatch.setitem(sys.modules, "numba", None)
    there, result = resumed(2, {"kernels": "numba"})
    refused(
        result, "--kernels numba needs Numba", 'pip install "npgpt[fast]"', "or use --kernels numpy"
    )
    assert there == "numba" and find_checkpoint("out").name == "step-00000001"
    assert npgpt("train", "--resume", "--max-iters", 2, "--kernels", "numpy")[0] == 0


def test_two_epochs_and_one_are_three(npgpt, train):
    """The 918 characters to train on are 57 batches of 2 x 8."""
    options = ["--sampling", "sequential", "--gradient-accumulation-steps", 2, "--eval-interval", 100]
    assert train("--out-dir", "whole", "--epochs", 3, *options)[0] == 0
    assert train("--out-dir", "parts", "--epochs", 2, *options)[0] == 0
    assert [find_checkpoint(run).name for run in ("whole", "parts")] == ["step-00000086", "step-00000057"]
    assert "at step 57" in npgpt("train", "--out-dir", "parts", "--resume")[1]      # which changes nothing
    assert npgpt("train", "--out-dir", "parts", "--resume", "--epochs", 3)[0] == 0
    assert bits("whole") == bits("parts")
    assert npgpt("train", "--out-dir", "parts", "--resume", "--max-iters", 88)[0] == 0
    state = json.loads((find_checkpoint("parts") / "state.json").read_text())
    assert (state["step"], state["options"]["epochs"], state["options"]["lr_decay_iters"]) == (88, 0, 20)


def test_a_full_disk_in_mid_save_loses_nothing(train, npgpt, tmp_path):
    """Simulated by a limit on file sizes; the run prints one line and can be resumed."""
    resource = pytest.importorskip("resource", reason="limits on file sizes are Unix's")
    assert train("--max-iters", 3, "--eval-interval", 1)[0] == 0
    before, limits = bits("out"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before["optimizer.safetensors"]) - 1, limits[1]))
    try:
        result = npgpt("train", "--resume", "--max-iters", 5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    refused(result, "step 4 could not be saved", "step-00000003 is still there")
    assert bits("out") == before and nothing_left(tmp_path / "out")
    assert npgpt("train", "--resume", "--max-iters", 5)[0] == 0
    assert find_checkpoint("out").name == "step-00000005"
