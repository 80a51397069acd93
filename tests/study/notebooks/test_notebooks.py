"""The notebooks, run in a kernel: with their blanks, with the solutions, and with a mistake in each function."""

import ast
import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from npgpt.cli.main import main
from npgpt.study.exercises.path import path_of
from npgpt.study.lessons.table import LESSONS
from npgpt.study.notebooks.one_step import step_cells
from npgpt.study.notebooks.write import as_bytes, lesson_cells
from tests.study.judge.corpus import SOLUTIONS, source

nbformat = pytest.importorskip("nbformat", reason="writes notebooks")
SWISH = Path(__file__).parents[3] / "tools/examples/swish.py"
GPU = SWISH.parents[1] / "gpu.ipynb"
SOLUTION = re.compile(r"<summary>Solution</summary>\n\n```python\n(.*?)\n```", re.DOTALL)


def run(sources, folder):
    """Run cells in one kernel; fails if one raises. Return [(source, what it showed as text)]."""
    from nbclient import NotebookClient
    book = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, sources)])
    NotebookClient(book, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return [(cell.source, "\n".join(out.get("text") or out["data"]["text/plain"] for out in cell.outputs))
            for cell in book.cells]


def sources(book, text_of=None):
    """The code of a notebook, bytes; text_of(solution): a text for each function that is to be written."""
    cells = nbformat.reads(book, 4).cells
    solutions = iter([match[1] for cell in cells if (match := SOLUTION.search(cell.source))])
    return [text_of(next(solutions)) if text_of and cell.source.startswith("def ") else cell.source
            for cell in cells if cell.cell_type == "code"]


def checks(cells, levels):
    """The cells of the functions and their checks, the growing function's check at each level."""
    *others, last = [each for each in cells if each.startswith(("def ", "checked = check"))]
    return others + [last.replace("level=1", f"level={level}") for level in levels]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["linear", "layernorm", "gpt"]
)  # trained with, with a long way, composite
def test_a_notebook_with_blanks_with_solutions_and_with_a_mistake(name, tmp_path):
    book = as_bytes(lesson_cells(LESSONS[name], tmp_path))
    mistake = next(each for each in SOLUTIONS[name] if not each.is_right)
    wrong = checks(sources(book, lambda _: source(name, mistake)), [1])
    solved = checks(sources(book, str), [1, 2, 3])
    shown = run([*sources(book), *solved, *wrong[-2:]], tmp_path)
    steps = [step for step in path_of(name) if step.what.startswith(("long", "level"))]
    blanks = 1 + (name == "layernorm")      # the growing cell, and the long way
    said = ["still to be written"] * blanks + ["right: every gradient"] * len(steps) + ["\nwrong"]
    for text, part in zip([text for code, text in shown if code.startswith("checked = ")], said, strict=True):
        assert part in text
    progress = json.loads((tmp_path / "exercises/progress.json").read_text())["exercises"]
    assert [each for each in steps if "solved" not in progress[each.name]] == []


def test_one_cell_grows_through_the_levels(tmp_path):
    """Each level is asked for once, by the lines that it leaves out; the solution comes once."""
    def texts_of(name):
        return [text for _, text in lesson_cells(LESSONS[name], tmp_path)]

    texts = texts_of("embedding")
    assert sum(text.startswith("def ") for text in texts) == 1
    task = next(text for text in texts if text.startswith("That was level 1, one line."))
    assert "beginning: `dposition`, `dwpe[:T]`, `np.add.at`. Write" in task and "`level=3`" in task
    found = {name: "\n".join(texts_of(name)) for name in LESSONS}
    assert {name: text.count("<summary>Solution") for name, text in found.items()} == {
        name: 1 + bool(lesson.long_way) for name, lesson in LESSONS.items()}
    assert "Go on" not in found["dropout"] and "# then 2\n" in found["chain"]


@pytest.mark.slow
def test_one_training_step(tmp_path):
    """Each gradient is the measured one, the loss falls, and all is what the model computes."""
    seen = ("print(len(errors), max(errors.values()) < 1e-7, loss_after < loss, "
            "{*model.params} < {*grads})")
    shown = run([*sources(as_bytes(step_cells())), seen], tmp_path)
    assert shown[-1][1] == "28 True True True\n"
    assert re.findall("equal .*(True|False)", shown[-2][1]) == ["True"] * 3
    assert all(len(line) <= 110 for _, text in shown for line in text.splitlines())


@pytest.mark.slow
def test_the_first_notebook(tmp_path):
    assert main(["notebook", "--out", str(tmp_path / "exercises")]) == 0
    assert len([*(tmp_path / "exercises").iterdir()]) == 2 + len(LESSONS)
    shown = run(
        sources((tmp_path / "exercises/00-start-here.ipynb").read_bytes()), tmp_path / "exercises"
    )
    said = "\n".join(text for _, text in shown)
    assert "the term dx_through_v is missing" in said and "layernorm       -" in said


def test_the_notebook_for_a_gpu_compiles_and_uses_what_there_is():
    """It has no outputs. Magics, `%pip`, are no Python."""
    book = nbformat.read(GPU, 4)
    nbformat.validate(book)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert len(cells) > 5 and not any(cell.outputs or cell.execution_count for cell in cells)
    tree = ast.parse(
        "\n".join(
            re.sub(r"^( *)%pip.*", r"\1pass", cell.source, flags=re.MULTILINE) for cell in cells
        )
    )
    imports = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("npgpt")
    ]
    assert len(imports) == 3
    for node in imports:
        assert all(
            hasattr(importlib.import_module(node.module), each.name) for each in node.names
        ), node.module


@pytest.mark.slow
def test_a_lesson_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my swish.py").write_text(SWISH.read_text())
    monkeypatch.chdir(tmp_path)
    assert main(["notebook", "my swish.py", "--out", "books"]) == 0
    book = (tmp_path / "books/swish.ipynb").read_bytes()
    shown = run([*sources(book), *checks(sources(book, str), [1, 2, 3])], tmp_path / "books")
    found = [text for code, text in shown if code.startswith("checked = check")]
    assert ["right: every gradient" in text for text in found] == [False, True, True, True]
    assert "swish level 3" in (tmp_path / "books/exercises/progress.json").read_text()


def test_notebooks_are_stable_and_never_overwrite_what_was_written_in_them(tmp_path, capsys, monkeypatch):
    command = ["notebook", "linear", "--out", str(tmp_path)]
    assert main(command) == main(command) == 0
    path = tmp_path / "05-linear.ipynb"
    book = path.read_bytes()
    assert all(not cell.outputs for cell in nbformat.reads(book, 4).cells if cell.cell_type == "code")
    path.write_bytes(book + b" ")
    assert main(command) == 2 and "exists and has changed" in capsys.readouterr().err
    assert path.read_bytes() == book + b" "
    monkeypatch.setitem(sys.modules, "nbformat", None)
    assert main([*command[:-1], str(tmp_path / "new")]) == 2 and 'npgpt[notebook]' in capsys.readouterr().err
