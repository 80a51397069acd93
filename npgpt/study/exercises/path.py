"""The path of `npgpt learn`: the core, in order, then more practice; and their files."""

import os
import re

from npgpt.files import read_bytes, write_atomically
from npgpt.study.exercises.exercise import READING, Step, step_text

# layer | its core | more practice
PATH = """
chain          | level 2                   |
twice          | level 2                   |
broadcast      | level 2                   |
difference     | level 2                   |
linear         | level 1, level 3, bug 1   |
gelu_tanh      | level 1, level 3          | bug 1
cross_entropy  | long way, level 1         | level 2, bug 1
embedding      | level 1                   | level 2, bug 1
attention      | long way, level 1, bug 1  | level 3
layernorm      | step 1, step 2, step 3, step 4, step 5, level 1, level 3 | bug 1
mlp            | level 2                   | bug 1
self_attention | level 1                   | level 2, bug 1
block          | level 2                   | bug 1
gpt            | reading                   | level 2, bug 1
gelu_exact     |                           | level 1, bug 1
head           |                           | level 1, bug 1
dropout        |                           | level 1
lora           |                           | level 2, bug 1
"""


def steps_in(column):
    """Return the steps in a column of the table, in order."""
    steps = []
    for row in PATH.strip().split("\n"):
        cells = re.split(r" *\| *", row.strip())
        steps += [Step(cells[0], what) for what in cells[column].split(", ") if what]
    return steps


CORE, MORE = steps_in(1), steps_in(2)
WHOLE = CORE + MORE


def unsolved(progress, steps=WHOLE):
    """Return the steps that are not solved yet, in order."""

    def is_solved(step):
        same = [step, *(Step(step.layer, what) for what in containing(step))]
        return any("solved" in progress.entry(each.name) for each in same)

    return [step for step in steps if not is_solved(step)]


def containing(step):
    """Return what contains the same lines and more: it counts too."""
    kind, _, number = step.what.partition(" ")
    if kind == "step":
        return ["long way"]
    if step.what == READING:
        return ["level 1", "level 2", "level 3"]
    return [f"level {level}" for level in range(int(number) + 1, 4)] if kind == "level" else []


def initial(step, path):
    """Return the initial bytes of a step's file."""
    return step_text(step, path).encode("utf-8", "replace")


def write_step(step, path):
    """Write a step's file with its initial text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, initial(step, path))


def is_untouched(step, path):
    """Return whether a step's file still has its initial text."""
    return read_bytes(path) == initial(step, path)


def reset(step, path):
    """Reset a step's file. Return the path of a copy of the learner's text, or None."""
    text = read_bytes(path) if os.path.lexists(path) else b""
    copy = None
    if text.strip() and not is_untouched(step, path):
        copy = path.with_name(path.name + ".bak")
        write_atomically(copy, text)
    write_step(step, path)
    return copy
