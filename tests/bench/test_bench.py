"""tools/bench: all sides do the same work, and ratios are right."""

import sys

import measure
import pytest
from report import markdown
from shapes import ROWS, installed

pytestmark = pytest.mark.slow


def answers(*seconds, result=4.0):
    """Answers of a side whose rounds took so many seconds a step, after two slow turns that do not
    count.
    """
    return [{"seconds": s, "result": result, "memory": 10**6} for s in (99.0, 98.0, *seconds)]


def test_the_figures_and_ratios_of_training():
    shape = ROWS["tiny"]
    sides = {
        "npgpt": answers(2.0, 4.0, 3.0),
        "fast": answers(1.0, 2.0, 1.0),
        "torch": answers(3.0, 4.0, 30.0, result=4.002),
    }
    row = measure.figures(shape, sides, {"compile": "Traceback\nno compiler"})
    ours, torch = row["sides"]["npgpt"], row["sides"]["torch"]
    assert ours["seconds"] == {"median": 3.0, "low": pytest.approx(2.2), "high": pytest.approx(3.8)}
    assert torch["ratio"]["median"] == 1.5  # of 1.5, 1 and 10; not 4 / 3
    speedups = [row["sides"][side]["speedup"]["median"] for side in sides]
    assert speedups == [1.5, 3.0, 1.0]
    assert ours["tokens_per_second"] == 8 * 3 / 3.0
    assert ours["same"] and not torch["same"]  # a loss that differs by 0.002
    text = markdown({"machine": {"CPU": "Some CPU", "GPU": None}, "rows": {"A": row}})
    assert "| npgpt | 3.00 s (2.20 to 3.80) |  | 1.50 (1.10 to 8.30) | 8.00 | " in text
    assert "PyTorch, **other result**" in text
    assert "| torch.compile | **failed**, see below |" in text


@pytest.mark.skipif(sys.platform != "linux", reason="the program reads /proc")
def test_all_sides_do_the_same_work(tmp_path, monkeypatch):
    """The same weights and batches: all sides have equal losses, each in its process."""
    monkeypatch.setattr(measure, "CHUNK_SECONDS", 1e-3)
    sides = [*filter(installed, ("npgpt", "fast", "xla", "torch"))]
    setup = {"threads": 1, "old": None, "out_dir": tmp_path, "instructions": None}
    found, failed = measure.measure("tiny", sides, 3, setup)
    assert failed == {} and [len(of_side) for of_side in found.values()] == [5] * len(sides)
    losses = []
    for first, second, *_ in found.values():
        losses.append([first["result"], second["result"]])
    assert losses == [pytest.approx(losses[0], rel=1e-5)] * len(sides)
    assert losses[0][0] != losses[0][1]
