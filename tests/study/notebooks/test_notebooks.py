"""The notebooks, run in a kernel: with their blanks, with the solutions, and with a mistake in each
function.
"""

import json
import re
import sys
from pathlib import Path

import pytest

from npgpt.cli.main import main
from npgpt.study.exercises.exercise import Step, levels_of
from npgpt.study.lessons.table import LESSONS
from npgpt.study.notebooks.one_step import step_cells
from npgpt.study.notebooks.write import as_bytes, lesson_cells
from tests.helpers.runs import refused
from tests.study.judge.corpus import SOLUTIONS, source

nbformat = pytest.importorskip("nbformat", reason="writes notebooks")
SWISH = Path(__file__).parents[3] / "tools/examples/swish.py"
GPU = SWISH.parents[1] / "gpu.ipynb"
SOLUTION = re.compile(r"<summary>Solution</summary>\n\n```python\n(.*?)\n```", re.DOTALL)


def run(sources, folder):
    """Run cells in one kernel; fails if one raises. Return what each showed as text."""
    from nbclient import NotebookClient

    book = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, sources)])
    NotebookClient(book, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    shown = []
    for cell in book.cells:
        texts = [out.get("text") or out["data"]["text/plain"] for out in cell.outputs]
        shown.append("\n".join(texts))
    return shown


def sources(book, text_of=None):
    """The code of a notebook, bytes; text_of(solution): a text for each function that is to be
    written.
    """
    cells = nbformat.reads(book, 4).cells
    solutions = re.findall(SOLUTION, "\n".join(cell.source for cell in cells))
    found = []
    for cell in cells:
        if cell.cell_type == "code":
            blank = text_of and cell.source.startswith("def ")
            found.append(text_of(solutions.pop(0)) if blank else cell.source)
    return found


def checks(cells, levels):
    """The cells of the functions and their checks, the growing function's check at each level."""
    *others, last = [each for each in cells if each.startswith(("def ", "checked = check"))]
    return others + [last.replace("level=1", f"level={level}") for level in levels]


def verdicts(cells, folder):
    """What the checks among cells show."""
    shown = zip(cells, run(cells, folder), strict=True)
    return [text for cell, text in shown if cell.startswith("checked = ")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["linear", "layernorm", "gpt"]
)  # trained with, with a long way, composite
def test_a_notebook_with_blanks_with_solutions_and_with_a_mistake(name, tmp_path):
    book = as_bytes(lesson_cells(LESSONS[name], tmp_path))
    mistake = next(each for each in SOLUTIONS[name] if not each.is_right)
    wrong = checks(sources(book, lambda _: source(name, mistake)), [1])
    solved = checks(sources(book, str), [1, 2, 3])
    steps = [Step(name, each) for each in levels_of(name) if not each.startswith("step")]
    blanks = 1 + (name == "layernorm")  # the growing cell, and the long way
    said = ["still to be written"] * blanks + ["right: every gradient"] * len(steps) + ["\nwrong"]
    shown = verdicts([*sources(book), *solved, *wrong[-2:]], tmp_path)
    for text, part in zip(shown, said, strict=True):
        assert part in text
    progress = json.loads((tmp_path / "exercises/progress.json").read_text())["exercises"]
    assert [each for each in steps if "solved" not in progress[each.name]] == []


def test_one_cell_grows_through_the_levels(tmp_path):
    """Each level is asked for once, by the lines that it leaves out; the solution comes once."""
    found = {}
    for name, lesson in LESSONS.items():
        found[name] = "\n".join(text for _, text in lesson_cells(lesson, tmp_path))
        count = found[name].count("<summary>Solution")
        assert count == len(re.findall("(?m)^def ", found[name])) / 2 == 1 + bool(lesson.long_way)
    _, task = found["embedding"].split("That was level 1, one line.")
    assert "beginning: `dposition`, `dwpe[:T]`, `np.add.at`. Write" in task and "`level=3`" in task
    assert "Go on" not in found["dropout"] and "# then 2\n" in found["chain"]


@pytest.mark.slow
def test_one_training_step(tmp_path):
    """Each gradient is the measured one, the loss falls, and all is what the model computes."""
    seen = (
        "print(len(errors), max(errors.values()) < 1e-7, loss_after < loss, "
        "{*model.params} < {*grads})"
    )
    shown = run([*sources(as_bytes(step_cells())), seen], tmp_path)
    assert shown[-1] == "28 True True True\n"
    assert re.findall("equal .*(True|False)", shown[-2]) == ["True"] * 3
    assert all(len(line) <= 110 for text in shown for line in text.splitlines())


@pytest.mark.slow
def test_the_first_notebook(tmp_path):
    assert main(["notebook", "--out", str(tmp_path / "exercises")]) == 0
    assert len([*(tmp_path / "exercises").iterdir()]) == 2 + len(LESSONS)
    book = (tmp_path / "exercises/00-start-here.ipynb").read_bytes()
    said = "\n".join(run(sources(book), tmp_path / "exercises"))
    assert "the term dx_through_v is missing" in said and "layernorm       -" in said


def test_the_notebook_for_a_gpu_compiles_and_uses_what_there_is():
    """It has no outputs. Magics, `%pip`, are no Python."""
    book = nbformat.read(GPU, 4)
    nbformat.validate(book)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert len(cells) > 5 and not any(cell.outputs or cell.execution_count for cell in cells)
    text = "\n".join(cell.source for cell in cells)
    compile(re.sub(r"(?m)^( *)%pip.*", r"\1pass", text), "cells", "exec")
    imports = re.findall("(?m)^from npgpt.*", text)
    assert len(imports) == 3
    exec("\n".join(imports), {})


@pytest.mark.slow
def test_a_lesson_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my swish.py").write_text(SWISH.read_text())
    monkeypatch.chdir(tmp_path)
    assert main(["notebook", "my swish.py", "--out", "books"]) == 0
    book = (tmp_path / "books/swish.ipynb").read_bytes()
    cells = [*sources(book), *checks(sources(book, str), [1, 2, 3])]
    found = ["right: every gradient" in text for text in verdicts(cells, tmp_path / "books")]
    assert found == [False, True, True, True]
    assert "swish level 3" in (tmp_path / "books/exercises/progress.json").read_text()


def test_notebooks_are_stable_and_never_overwrite_what_was_written_in_them(npgpt, monkeypatch):
    command = ["notebook", "linear", "--out", "books"]
    assert npgpt(*command)[0] == npgpt(*command)[0] == 0
    path = Path("books/05-linear.ipynb")
    book = path.read_bytes()
    assert not any(cell.get("outputs") for cell in nbformat.reads(book, 4).cells)
    path.write_bytes(book + b" ")
    refused(npgpt(*command), "exists and has changed")
    assert path.read_bytes() == book + b" "
    monkeypatch.setitem(sys.modules, "nbformat", None)
    refused(npgpt(*command[:-1], "new"), "npgpt[notebook]")
