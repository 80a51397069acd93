"""The Markdown table, the picture, and the table's place in the README."""

import json
import sys

import pytest

from npgpt.bench import report
from npgpt.bench.measure import figures
from npgpt.bench.report import replace_between_markers
from npgpt.bench.shapes import SHAPES, Recipe
from npgpt.errors import UserError
from tests.bench.conftest import GENERATION, TRAINING
from tests.bench.test_measure import answers

MACHINE = {"cpu": "Some CPU", "memory": 8 * 2**30, "os": "Linux", "python": "3.11", "numpy": "2.4", "torch": "2.13",
           "transformers": None, "blas": "openblas", "blas_version": "0.3", "blas_architecture": "Zen", "date": "2026"}


@pytest.fixture
def results():
    gemm = answers([[1.0]], [TRAINING.flops / 0.01])
    training = figures(TRAINING, {"npgpt": answers([[0.02]]), "eager": answers([[0.03]]), "gemm": gemm},
                       {"compile": "no | compiler"})
    generation = figures(GENERATION, {"npgpt": answers([[1.0]], [[[1]]]), "transformers": answers([[20.0]], [[[1]]]),
                                      "gemm": answers([[1.0]], [0.05])}, {})
    run = figures(Recipe("char-cpu"), {"npgpt": answers([[1234.0]], [1.9], 0)}, {})
    axes = {"T": {"values": [1, 2], "seconds": {"npgpt": [1.0, 2.0]}, "exponents": {"npgpt": 1.0}},
            "n_embd": {"values": [8, 16], "seconds": {"npgpt": [1.0, 4.0]}, "exponents": {"npgpt": 2.0}}}
    return {"machine": MACHINE, "threads": 2, "rounds": 1,
            "shapes": {"A": training, "gen1": generation, "E": run,
                       "scaling": {"description": "a base", "axes": axes}}}


def test_the_table(results):
    lines = report.markdown(results).splitlines()
    assert lines[0] == ("Some CPU, 2 cores used, 8 GiB, Linux, Python 3.11, NumPy 2.4 with openblas 0.3 (Zen), "
                        "PyTorch 2.13; float32, 1 round, 2026.")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    assert {len(row) for row in cells} == {8}
    assert cells[2] == ["A", TRAINING.description, "npgpt", "20.0 ms (20.0 to 20.0)", "", "1,200", "50%", "1 MB"]
    assert cells[3] == ["", "", "PyTorch", "30.0 ms (30.0 to 30.0)", "1.50 (1.50 to 1.50)", "800", "33%", "1 MB"]
    assert cells[4][2:] == ["torch.compile", "failed: no / compiler", "", "", "", ""]
    assert cells[5][2:] == ["npgpt", "100 ms (100 to 100)", "", "20.0", "50%", "1 MB"]
    assert cells[6][2:4] == ["transformers, all tokens equal", "2.00 s (2.00 to 2.00)"]
    assert cells[7][2:4] == ["npgpt, validation loss 1.9000", "1,234 s (1,234 to 1,234)"]
    assert lines[-1] == "Time grows as npgpt T^1.00, C^2.00 (T 1 to 2, C 8 to 16; base: a base)."


def test_other_tokens_are_not_called_equal(results):
    results["shapes"]["gen1"]["sides"]["transformers"]["tokens_equal"] = False
    assert "other tokens" in report.markdown(results) and "all tokens equal" not in report.markdown(results)


def test_the_files(results, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="draws")
    assert report.write_report(results, tmp_path) == ["bench.json", "bench.md", "bench.png"]
    assert json.loads((tmp_path / "bench.json").read_bytes()) == results
    assert (tmp_path / "bench.md").read_text() == report.markdown(results)
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "bench.png").unlink()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert report.write_report(results, tmp_path) == ["bench.json", "bench.md"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.json", "bench.md"]


def test_every_label_lies_inside_the_picture(results):
    matplotlib = pytest.importorskip("matplotlib.figure", reason="draws")
    results["shapes"]["A"]["sides"]["eager"]["seconds"]["high"] = 0.3
    figure = matplotlib.Figure(figsize=(4, 4), layout="constrained")
    panel = figure.subplots()
    report.draw_bars(panel, "A", results["shapes"]["A"])
    figure.draw_without_rendering()
    boxes = {text.get_text(): text.get_window_extent() for text in panel.texts}
    assert {"20.0 ms", "30.0 ms", "failed", "floor"} == boxes.keys()
    for box in boxes.values():
        assert panel.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1 and panel.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1


def test_the_default_shapes_exist_and_have_colours():
    for shape in SHAPES.values():
        assert set(shape.peers) < report.LABELS.keys() == report.COLORS.keys()


def test_the_tables_place_in_the_readme():
    text = "# npgpt\n<!-- bench -->\nold\n<!-- /bench -->\nmore\n"
    new = replace_between_markers(text, "bench", "| new |\n")
    assert new == "# npgpt\n<!-- bench -->\n| new |\n<!-- /bench -->\nmore\n"
    assert replace_between_markers(new, "bench", "| new |\n") == new
    for wrong in ("no markers", "<!-- bench -->", "<!-- /bench --> <!-- bench -->", text + text):
        with pytest.raises(UserError, match="<!-- bench -->"):
            replace_between_markers(wrong, "bench", "")
