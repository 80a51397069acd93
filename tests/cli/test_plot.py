"""The picture of the loss curve: a name is no formula, and a picture that fails is no run that
fails.
"""

import sys

import pytest

from npgpt.cli import train as cli_train
from npgpt.cli.train import draw_if_possible  # the fixture npgpt replaces it
from tests.helpers.runs import refused, succeeded

matplotlib = pytest.importorskip("matplotlib", reason="draws the curve")
figure = pytest.importorskip("matplotlib.figure", reason="draws the curve")


@pytest.fixture(autouse=True)
def drawn(npgpt, monkeypatch):
    monkeypatch.setattr(cli_train, "draw_if_possible", draw_if_possible)


def test_a_run_may_have_any_name(train, npgpt, tmp_path):
    name = r"$\frac$"
    succeeded(train("--out-dir", name, "--max-iters", 1))
    assert (tmp_path / name / "loss.png").read_bytes().startswith(b"\x89PNG")
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text as text
        succeeded(npgpt("plot", name, "--out", "x.svg"))
    assert f"{name}</text>" in (tmp_path / "x.svg").read_text(encoding="utf-8")
    (tmp_path / "metrics.jsonl").write_text("")
    refused(npgpt("plot ."), "no measurements")


def test_without_matplotlib_a_run_draws_nothing_and_plot_names_the_extra(train, npgpt, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    code, out, err = train("--max-iters 1")
    assert code == 0 and err == "" and "checkpoints in out\n" in out
    refused(npgpt("plot"), "npgpt[plot]")
