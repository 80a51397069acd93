"""An interrupted run resumes to the last bit. Kills are in test_stopped_runs.py."""

import json
import sys
from operator import itemgetter

import pytest

from npgpt.checkpoints.run import find_checkpoint, read_checkpoint
from npgpt.engine.cpu import cpu_kernels
from npgpt.training.metrics import read_metrics
from tests.helpers.runs import answers, bits, nothing_left, refused, succeeded


@pytest.mark.parametrize(
    "options",
    [
        "--dropout 0.2 --gradient-accumulation-steps 3 --threads 2",
        "--corpus lines --sampling sequential --dtype float64 --no-tie-word-embeddings",
        "--corpus answers.jsonl --val-fraction 0 --kernels numpy",
    ],
)
def test_ten_and_ten_are_twenty(npgpt, train, options):
    answers(10)
    prepare = r"data prepare text.txt --tokenizer byte --documents \n --out lines"
    succeeded(npgpt(prepare))
    flags = options.split()
    succeeded(train("--out-dir whole --max-iters 20", *flags))
    succeeded(train("--out-dir parts --max-iters 10", *flags))
    # All else is remembered.
    succeeded(
        npgpt("train --out-dir parts --max-iters 20 --resume"),
        "resuming parts/step-00000010 at step 10",
    )
    assert bits("whole") == bits("parts")
    whole, parts = (read_checkpoint(find_checkpoint(run)).state for run in ("whole", "parts"))
    assert whole["options"] == parts["options"] and whole["step"] == 20

    def measured(run):
        names = "step", "loss", "lr", "grad_norm"
        return [itemgetter(*names)(r) for r in read_metrics(run) if "loss" in r]

    assert measured("whole") == measured("parts")
    assert [r[0] for r in measured("whole")] == list(range(1, 21))


def test_a_run_goes_on_with_its_own_kernels(npgpt, train, monkeypatch):
    """Others would give other bits. Older runs do not store them."""
    pytest.importorskip("numba", reason="compiles loops; it is in the extras fast and test")

    def resumed(threads, stored, *more):
        succeeded(train("--max-iters 1", "--threads", threads, "--overwrite"))
        path = find_checkpoint("out") / "state.json"
        state = json.loads(path.read_text())
        del state["kernels"]
        path.write_text(json.dumps(state | stored))
        result = npgpt("train --resume --max-iters 2", *more)
        return result, read_checkpoint(find_checkpoint("out")).state.get("kernels")

    for threads, stored, more, expected in (
        (2, {}, [], "numpy"),
        (1, {}, [], "reference"),
        (1, {"kernels": "numba"}, [], "numba"),
        (1, {}, ["--threads", 2], cpu_kernels()),  # one thread had the reference lines
    ):
        (code, _, err), kernels = resumed(threads, stored, *more)
        assert (kernels, code, err) == (expected, 0, "")
    monkeypatch.setitem(sys.modules, "numba", None)
    result, _ = resumed(2, {"kernels": "numba"})
    refused(result, "--kernels numba needs Numba", 'pip install "npgpt[fast]"')
    assert find_checkpoint("out").name == "step-00000001"
    succeeded(npgpt("train --resume --max-iters 2 --kernels numpy"))


def test_two_epochs_and_one_are_three(npgpt, train):
    """The 918 characters to train on are 57 batches of 2 x 8."""
    flags = "--sampling sequential --gradient-accumulation-steps 2 --eval-interval 100".split()
    succeeded(train("--out-dir whole --epochs 3", *flags))
    succeeded(train("--out-dir parts --epochs 2", *flags))
    assert find_checkpoint("parts").name == "step-00000057"
    resume = "train --out-dir parts --resume"
    succeeded(npgpt(resume, "--epochs", 3))
    assert bits("whole") == bits("parts") and find_checkpoint("parts").name == "step-00000086"
    succeeded(npgpt(resume, "--max-iters", 88))
    state = read_checkpoint(find_checkpoint("parts")).state
    assert (state["step"], state["options"]["epochs"]) == (88, 0)


def test_a_full_disk_in_mid_save_loses_nothing(train, npgpt, tmp_path):
    """Simulated by a limit on file sizes; the run prints one line and can be resumed."""
    resource = pytest.importorskip("resource", reason="limits on file sizes are Unix's")
    succeeded(train("--max-iters 3 --eval-interval 1"))
    before, limits = bits("out"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before["optimizer.safetensors"]) - 1, limits[1]))
    try:
        result = npgpt("train --resume --max-iters 5")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    refused(result, "step 4 could not be saved", "step-00000003 is still there")
    assert bits("out") == before and nothing_left(tmp_path / "out")
    succeeded(npgpt("train --resume --max-iters 5"))
    assert find_checkpoint("out").name == "step-00000005"
