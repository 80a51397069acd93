"""The picture of the loss curve: a name is no formula, and a picture that fails is no run that fails."""

import sys

import pytest

from npgpt.cli import train as cli_train
from npgpt.cli.train import draw_if_possible  # the fixture npgpt replaces it
from tests.helpers.runs import refused

matplotlib = pytest.importorskip("matplotlib", reason="draws the curve")
figure = pytest.importorskip("matplotlib.figure", reason="draws the curve")


@pytest.fixture(autouse=True)
def drawn(npgpt, monkeypatch):
    monkeypatch.setattr(cli_train, "draw_if_possible", draw_if_possible)


def test_the_norms_of_each_layer(train, npgpt, tmp_path):
    assert train("--max-iters", 3)[0] == 0
    with matplotlib.rc_context({"svg.fonttype": "none"}):       # text as text
        assert npgpt("plot", "--norms", "--out", "norms.svg")[0] == 0
    text = (tmp_path / "norms.svg").read_text(encoding="utf-8")
    for shown in ("wte", "wpe", "h.0", "ln_f", "norm of the update", "norm of the parameters", "norm of the gradient"):
        assert shown in text
    assert npgpt("plot", "--norms")[1] == "out/norms.png\n" and (tmp_path / "out/norms.png").exists()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0, "grad_norm": 1.0}\n')
    refused(npgpt("plot", ".", "--norms"), "no norms of layers")
    (tmp_path / "metrics.jsonl").write_text("")
    refused(npgpt("plot", "."), "no measurements")


def test_without_matplotlib_a_run_draws_nothing_and_plot_names_the_extra(train, npgpt, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    code, out, err = train("--max-iters", 1)
    assert code == 0 and err == "" and "checkpoints in out\n" in out
    refused(npgpt("plot"), "npgpt[plot]")
