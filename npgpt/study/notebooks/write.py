"""Notebooks: a lesson as text, formulas, pictures, and cells to fill and to check.

A notebook holds no outputs and no copy of the forward, and its bytes depend on the lesson alone.
"""

import importlib.util
import itertools
import json
import os
import shlex

from npgpt.errors import UserError
from npgpt.study.exercises.exercise import (
    Step,
    blanked,
    key_of,
    levels_of,
    preamble,
    without_explanations,
)
from npgpt.study.exercises.mathematics import FIELD, blocks, read_text
from npgpt.study.exercises.worked import worked
from npgpt.study.gradcheck.source import read_source
from npgpt.study.judge.own_backward import TRAINED
from npgpt.study.lessons.table import LESSONS

MARKDOWN, CODE = "markdown", "code"
INSTALL = """\
WHERE = "npgpt"         # or the folder of a clone, if your package index does not have npgpt
import importlib.util

if not importlib.util.find_spec("npgpt"):
    %pip install -q "{WHERE}[gelu,plot]"
"""
# The style: a page that nbconvert makes shows what a cell returns in the font of prose, code too.
SETUP = (
    CODE,
    INSTALL
    + '''
import inspect

from IPython.display import HTML, Code

from npgpt.study import case, check, train

display(HTML("""
<style>.highlight pre {font: 13px/1.3 var(--jp-code-font-family, monospace)}</style>
"""))''',
)
EXAMPLE = "## A small example\n\nAll axes but the last are rows; red is positive, blue negative."
TRAIN = (
    "## Train GPT-2 with your function\n\nThe last function that you ran, and npgpt's own: equal "
    "gradients give equal losses."
)
SOURCE = """\
print(inspect.getsourcefile(example.backward), inspect.getsourcelines(example.backward)[1])
Code(inspect.getsource(example.backward), language="python")"""
STUCK = 'checked             # stuck? checked.hint(); in pictures: checked.show("dx")'
LEVELS = {1: "one line", 2: "each gradient", 3: "the whole function"}
START = """\
# npgpt: every gradient of GPT-2, by hand

First read [one training step, every number in it](00-one-step.ipynb), in 15 minutes.

Each of the others is about one pair of functions: a forward that GPT-2 runs, and the backward that
you write. Replace each `...` with code, run the cell, then run the check below it: it names the
first wrong line. Write it as you like; only the returned gradients count. The cell grows: first one
line is missing, then each gradient, then the whole function. Stuck? `checked.hint()` says a little
more at each call, `checked.show("dx")` draws your gradient beside the true one, and the solution is
folded below.

What you have solved is noted in `progress.json`, where `npgpt learn`, with the same exercises in a
terminal, notes it too.

"""
FIRST = """\
def twice_backward(dy, cache):
    x, u, v = cache
    dx = dy * v * u             # x is used twice: this is only one of the two
    return dx

checked = check("twice", twice_backward)
checked"""


def file_of(lesson):
    """Return the name of a lesson's notebook, with its number in the order of the lessons."""
    number = "" if lesson.is_own else f"{[*LESSONS].index(lesson.name) + 1:02}-"
    return f"{number}{lesson.name}.ipynb"


def as_bytes(cells):
    """Return a notebook of (kind, text) pairs in Jupyter's format 4, UTF-8.

    Raises UserError without nbformat.
    """
    if not importlib.util.find_spec("nbformat"):
        raise UserError('npgpt notebook needs nbformat: pip install "npgpt[notebook]"')
    from nbformat import v4, writes

    make = {MARKDOWN: v4.new_markdown_cell, CODE: v4.new_code_cell}
    made = [make[kind](text, id=f"cell-{i}") for i, (kind, text) in enumerate(cells)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = v4.new_notebook(cells=made, metadata={"kernelspec": kernel})
    return f"{writes(book)}\n".encode()


def start_cells():
    """Yield the cells of the first notebook."""
    links = [f"[{each.title}]({file_of(each)})" for each in LESSONS.values()]
    yield MARKDOWN, START + "\n".join(f"{i}. {link}" for i, link in enumerate(links, 1))
    yield SETUP
    yield MARKDOWN, "A first check, of a backward with a mistake:"
    yield CODE, FIRST
    yield CODE, 'checked.show("dx")'
    yield MARKDOWN, "What you have solved so far:"
    yield CODE, 'import sys\n\n!"{sys.executable}" -m npgpt exercise'


def lesson_cells(lesson, out):
    """Yield the cells of a lesson's notebook in the folder `out`."""
    forward, backward = lesson.forward.__name__, lesson.backward.__name__
    key, found = lesson.name, f"from {lesson.forward.__module__} import {forward}"
    if lesson.is_own:
        key = lesson.key.replace(str(lesson.file), os.path.relpath(lesson.file, out), 1)
        found = f"{forward} = case({json.dumps(key)}).forward"
    name = json.dumps(key)
    wanted = [f"`d{each}`" for each in lesson.results]
    wanted += ["the gradient of each parameter"] * lesson.is_composite
    question = (
        f"Given `{lesson.upstream}`, the gradient of the loss with respect to the result of "
        f"`{forward}`: what are {', '.join(wanted)}?"
    )
    yield MARKDOWN, f"# {lesson.title}\n\n{question}"
    yield SETUP
    yield MARKDOWN, "## The forward"
    shown = f'Code(inspect.getsource({forward}), language="python")'
    yield CODE, f"{preamble(lesson)}\n{found}\n{shown}"
    if lesson.derivation.is_file():
        yield MARKDOWN, "\n\n".join(["## The mathematics", *mathematics_of(lesson)])
    yield MARKDOWN, EXAMPLE
    yield CODE, f"example = case({name})\nexample.show()"
    levels = levels_of(lesson.key)
    for kind in ("long", "level"):
        if steps := [Step(lesson.key, what) for what in levels if what.startswith(kind)]:
            yield from backward_cells(name, *steps)
    if lesson.key in TRAINED:
        yield MARKDOWN, TRAIN
        yield CODE, f"train({backward})"
    command = f"npgpt gradcheck {shlex.quote(key.partition(':')[0])}"
    real = f"These run, and are checked: edit one, and `{command}` says whether it still is the"
    yield MARKDOWN, f"## The lines in the real file\n\n{real} gradient."
    yield CODE, SOURCE


def backward_cells(name, first, *others):
    """Yield a backward to write, its check, what to write next in the same cell, and its solution.

    name: of the lesson, as code; first, others: the steps, levels in their order, or the long way.
    """
    lesson = first.lesson
    which = "backward" if first.level else "long way: a gradient for each line of the forward"
    yield MARKDOWN, f"## The {which}\n\nReplace each `...`, run the cell, and then the check below."
    key = key_of(first.left_out[0])
    if lines := worked(first, key):
        text = "\n".join(lines)
        yield MARKDOWN, folded(f"{key} in numbers, with small arrays", f"```text\n{text}\n```")
    yield CODE, "\n".join(without_explanations(lesson, blanked(lesson, first.left_out)))
    later = f"      # then {', '.join(str(step.level) for step in others)}" if others else ""
    call = f"{name}, {lesson.backward.__name__}, level={json.dumps(first.level or 'long')}"
    yield CODE, f"checked = check({call}){later}\n{STUCK}"
    if others:
        done = f"That was level {first.level}, {LEVELS[first.level]}. Go on in the same two cells:"
        yield MARKDOWN, "\n\n".join([done, *map(task, others)])
    solution = "\n".join(without_explanations(lesson, read_source(lesson.backward).lines))
    yield MARKDOWN, folded("Solution", f"```python\n{solution}\n```")


def task(step):
    """Return what a level asks for, in the cell of the level before."""
    keys = dict.fromkeys(map(key_of, step.left_out))
    shown = ", ".join(f"`{key}`" for key in keys)
    what = f"Of these lines delete all but the beginning: {shown}"
    if step.level == 3:
        what = "Delete all lines below the `def`"
    return (
        f"**Level {step.level}, {LEVELS[step.level]}.** {what}. Write them again, and check "
        f"with `level={step.level}`."
    )


def mathematics_of(lesson):
    """Yield the parts of a derivation in Markdown.

    All but the introduction are folded: they give the lines away.
    """
    for heading, group in itertools.groupby(blocks(read_text(lesson)), lambda each: each[0]):
        parts = [block for _, block in group if not FIELD.match(block)]
        text = "\n\n".join(part for part in parts if not part.startswith("## "))
        yield folded(f"The gradient of {heading}", text) if heading else text


def folded(summary, text):
    """Return a part of a Markdown cell that opens at a click."""
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"
