"""`npgpt bench`: a whole tiny run, what it refuses, and what is left when something goes wrong on the way."""

import json
import os

import numpy as np
import pytest

from npgpt.bench import measure, shapes
from npgpt.cli import bench as npgpt_bench
from npgpt.data.corpora import Corpus
from tests.cli.test_train import refused
from tests.conftest import TEXT

RECIPE = """
tokenizer = "char"
block_size = 16
n_layer = 1
n_head = 2
n_embd = 16
batch_size = 8
learning_rate = 1e-2
min_lr = 1e-3
warmup_iters = 5
max_iters = 60
lr_decay_iters = 60
eval_interval = 30
eval_iters = 4
"""


def read(path="bench/bench.json"):
    with open(path) as file:
        return json.load(file)


@pytest.mark.usefixtures("tiny")
def test_a_whole_run(npgpt, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="the peer")
    (tmp_path / "tiny.toml").write_text(RECIPE)
    monkeypatch.setitem(shapes.SHAPES, "E", shapes.Recipe("tiny.toml"))
    monkeypatch.setattr(measure, "open_corpus", lambda progress: Corpus("text", TEXT, None, "a text"))
    monkeypatch.setattr(measure, "FEWER_ROUNDS", 1)
    code, out, err = npgpt("bench", "A", "gen1", "E", "--rounds", 2, "--threads", 1, "--peers", "eager")
    assert (code, err) == (0, "")
    results = read()
    assert list(results["shapes"]) == ["A", "gen1", "E"] and (results["rounds"], results["threads"]) == (2, 1)
    for name, sides in (("A", ["npgpt", "eager"]), ("gen1", ["npgpt"]), ("E", ["npgpt", "eager"])):
        shape = results["shapes"][name]
        assert list(shape["sides"]) == sides
        ours = shape["sides"]["npgpt"]
        for side in shape["sides"].values():
            assert len(side["rounds"]) == (1 if name == "E" else 2) and min(side["rounds"]) > 0
            assert side["seconds"]["median"] == np.median(side["rounds"])
            assert side["tokens_per_second"] == shape["tokens"] / side["seconds"]["median"]
            assert side["ratio"]["median"] == np.median(np.divide(side["rounds"], ours["rounds"]))
            assert side["peak_memory"] > 10**7
        assert (shape["floor_seconds"] is None) == (name == "E")
        assert name == "E" or 0 < ours["floor_share"] < 1
    losses = [side["validation_loss"] for side in results["shapes"]["E"]["sides"].values()]
    assert losses[0] == pytest.approx(losses[1], abs=0.15) and max(losses) < 2.5     # the same recipe; from 3.2
    assert results["shapes"]["A"]["sides"]["eager"]["first_loss"] == pytest.approx(
        results["shapes"]["A"]["sides"]["npgpt"]["first_loss"], abs=1e-5)
    with open("bench/bench.md") as file:
        assert out.startswith(file.read())
    assert str(tmp_path) not in out and os.path.getsize("bench/bench.png") > 1000


@pytest.mark.usefixtures("tiny")
def test_a_peer_that_fails_is_reported_and_the_rest_goes_on(npgpt, fake_torch, monkeypatch):
    """And what a library prints does not disturb the answers."""
    fake_torch("import os; os.write(1, b'noise'); print('noise'); raise RuntimeError('no\\ncompiler')")
    monkeypatch.setattr(npgpt_bench, "installed", lambda peer: True)
    assert npgpt("bench", "A", "--rounds", 1, "--threads", 1, "--peers", "compile")[0] == 0
    sides = read()["shapes"]["A"]["sides"]
    assert sides["compile"] == {"failed": "RuntimeError: no compiler"} and sides["npgpt"]["rounds"]
    with open("bench/bench.md") as file:
        assert "failed: RuntimeError: no compiler" in file.read()


@pytest.mark.usefixtures("tiny")
def test_where_npgpt_fails_it_is_one_line_and_what_was_measured_stays(npgpt, monkeypatch):
    monkeypatch.setattr(npgpt_bench, "installed", lambda peer: False)
    refused(npgpt("bench", "A", "C", "B", "--rounds", 1, "--threads", 1), "C could not be measured",
            "the model would take", "leave C out")
    assert list(read()["shapes"]) == ["A"]


def test_ctrl_c_leaves_what_was_measured(npgpt, monkeypatch):
    def interrupted_in_B(name, *arguments):
        if name == "B":
            raise KeyboardInterrupt
        return {"description": "a shape", "sides": {}, "floor_seconds": None}

    monkeypatch.setattr(npgpt_bench, "measure", interrupted_in_B)
    monkeypatch.setattr(npgpt_bench, "markdown", lambda results: "")
    monkeypatch.setattr("npgpt.bench.report.png", lambda results: None)
    code, _, err = npgpt("bench", "A", "B", "C", "--threads", 1)
    assert (code, err) == (130, "interrupted\n") and list(read()["shapes"]) == ["A"]


def test_without_torch_and_matplotlib_it_says_what_to_install(npgpt, monkeypatch):
    peers = []
    monkeypatch.setattr(npgpt_bench, "installed", lambda peer: False)
    monkeypatch.setattr("npgpt.bench.report.png", lambda results: None)
    monkeypatch.setattr(npgpt_bench, "measure", lambda name, shape, present, threads, rounds: (
        peers.append(present), {"description": "a shape", "sides": {}, "floor_seconds": None})[1])
    code, out, _ = npgpt("bench", "--threads", 1)
    assert code == 0 and 'pip install "npgpt[test]"' in out and 'pip install "npgpt[plot]"' in out
    assert list(read()["shapes"]) == ["A", "B", "C", "D", "gen1", "gen5"] and not any(peers)


@pytest.mark.parametrize(("arguments", "says"), [
    (["F"], ["shape 'F'", "A, B, C, D, E, gen1, gen5, scaling"]),
    (["A", "--peers", "eager,jax"], ["peer 'jax'", "eager, compile, transformers"]),
    (["A", "--rounds", "0"], ["--rounds", "at least 1"]),
    (["A", "--threads", "0"], ["--threads", "at least 1"]),
    (["A", "--out-dir", "text.txt"], ["text.txt"]),
])
def test_a_bad_argument_is_one_line(npgpt, monkeypatch, arguments, says):
    monkeypatch.setattr(npgpt_bench, "machine", None)       # nothing is started
    refused(npgpt("bench", *arguments), *says)
    assert not os.path.exists("bench")


