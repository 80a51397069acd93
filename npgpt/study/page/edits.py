"""Make an exercise file from a backward with some edited statements, as the page sends it."""

import ast
import dataclasses
import textwrap

from npgpt.study.exercises.exercise import left_out, level_text, placeholder, statements
from npgpt.study.gradcheck.source import backward_tree, read_source


@dataclasses.dataclass(frozen=True)
class Edited:
    """An exercise file. lines: its line -> the package's; complete: every line of the level was typed."""

    text: str
    lines: dict[int, int]
    complete: bool


def edited(lesson, level, edits, path):
    """Return the `Edited` exercise of a lesson at a level; path: its name in the header.

    edits: first line of a statement of the package's backward -> its new text. Lines that the level leaves out are
    `...` until they are typed; level 0 leaves out nothing.
    """
    source, asked = read_source(lesson.backward), asked_lines(lesson, level) if level else []
    text = level_text(lesson, level or 3, path, list(source.lines))
    old, new, done = text.removesuffix("\n").split("\n"), [], 0
    function = ast.parse(text).body[-1]
    lines = {function.lineno: source.first}
    for mine, own in zip(statements(function), statements(backward_tree(lesson)), strict=True):
        first = own.lineno + source.first - 1
        new += old[done:mine.lineno - 1]
        done = mine.end_lineno
        if first in edits:
            rows = indented(edits[first], mine.col_offset)
        else:
            rows = placeholder(old, mine) if first in asked else old[mine.lineno - 1:done]
        lines |= dict.fromkeys(range(len(new) + 1, len(new) + len(rows) + 1), first)
        new += rows
    return Edited("\n".join([*new, *old[done:], ""]), lines, edits.keys() >= {*asked})


def asked_lines(lesson, level):
    """Return the first lines of the statements that a learner writes at a level, in the package's file.

    The page shows the line that reads the cache, and the `return`.
    """
    first = read_source(lesson.backward).first
    return [each.lineno + first - 1 for each in left_out(lesson, level) if not is_given(each)]


def is_given(statement):
    """Whether a statement of a backward reads the cache, or returns the results."""
    return isinstance(statement, ast.Return) or ast.unparse(statement.value) == "cache"


def indented(text, columns):
    """Return the lines of a text with the indentation of the statement that it replaces."""
    return textwrap.indent(textwrap.dedent(text.strip("\n")), " " * columns).split("\n")
