"""What learners write: right solutions in other forms, and the mistakes that people make.

A module's text has a line "layer linear" and solutions. One begins with a line
"right | changes | name" or "wrong | changes | at text | of name"; without changes all its
statements follow. A change is a new statement, for the package's that assigns the same names, or
"old => new"; several are separated by "@@". `of`: they change the right solution of this name;
`at`: a text in the first wrong line, by default the first change, or
"nowhere"; `\n` is a new line, and a line
that ends with a backslash goes on.
"""

import ast
import inspect
import re
from typing import NamedTuple

from npgpt.study.exercises.exercise import key_of, statements
from npgpt.study.lessons.table import lesson_named
from tests.study.judge.corpus import (
    attention,
    basics,
    composites,
    embedding,
    gelu,
    layernorm,
    linear,
    lora,
    loss,
)

MODULES = basics, linear, gelu, layernorm, loss, embedding, attention, composites, lora


class Solution(NamedTuple):
    is_right: bool
    name: str
    changes: list
    body: str
    at: str


def read_solution(text):
    """Return the `Solution` of its text."""
    head, _, body = text.replace("\\\n  ", "").partition("\n")
    kind, *fields = head.split(" | ")
    changes = [] if body else fields.pop(0).replace(r"\n", "\n").split(" @@ ")
    at = re.split(" => ?", changes[0])[-1] if changes else ""
    name = ""
    for field in fields:
        if field.startswith("at "):
            at = field[3:]
        else:
            name = field
    return Solution(kind == "right", name, changes, body, at)


SOLUTIONS = {}
for module in MODULES:
    for section in module.SOLUTIONS.split("\nlayer ")[1:]:
        layer, *texts = re.split(r"\n(?=right|wrong)", section.rstrip("\n"))
        SOLUTIONS[layer] = [*map(read_solution, texts)]


def source(layer, solution):
    """The source of a solution's function, without docstring and comments, which quote code."""
    text = inspect.getsource(lesson_named(layer).backward)
    first, *lines = text.splitlines(keepends=True)
    del lines[: ast.parse(text).body[0].body[0].end_lineno - 1]  # the docstring
    body = "".join(line for line in lines if not line.strip().startswith("#"))
    for each in SOLUTIONS[layer]:
        if each.body and solution.name == f"of {each.name}":
            body = each.body + "\n"
    text = first + (solution.body + "\n" if solution.body else body)
    for change in solution.changes:
        old, *new = re.split(" => ?", change)
        if not new:
            old, new = statement_of(text, change), [change]
        assert text.count(old) == 1, (layer, old)
        text = text.replace(old, *new)
    return text


def statement_of(text, change):
    """The statement of a function's text that assigns the same names as another."""
    key = key_of(ast.parse(change).body[0])
    found = [each for each in statements(ast.parse(text)) if key_of(each) == key]
    assert len(found) == 1, (change, key)
    return ast.get_source_segment(text, found[0])
