"""The statements of a backward that the page edits: their texts, and an exercise file made from edited ones."""

import ast
import dataclasses
import textwrap

from npgpt.study.exercises.exercise import level_text, statements
from npgpt.study.exercises.mathematics import is_long
from npgpt.study.gradcheck.source import backward_tree, read_source


def edited(lesson, edits, path):
    """Return the text of an exercise file with edited lines, and {its line: the package's}. path: as in `level_text`.

    edits: line of the package's -> new text.
    """
    source = read_source(lesson.backward)
    level = 0 if is_long(lesson) else 3         # all lines
    rows = level_text(lesson, level, path, list(source.lines)).split("\n")
    function = ast.parse("\n".join(rows)).body[-1]
    origins = [None] * len(rows)
    origins[function.lineno - 1] = source.first
    pairs = zip(statements(function), statements(backward_tree(lesson)), strict=True)
    for mine, own in reversed([*pairs]):        # the last first, so that the line numbers above it stay
        first = own.lineno + source.first - 1
        its_rows = slice(mine.lineno - 1, mine.end_lineno)
        new = rows[its_rows]
        if first in edits:
            new = textwrap.indent(textwrap.dedent(edits[first].strip("\n")), " " * mine.col_offset).split("\n")
        rows[its_rows] = new
        origins[its_rows] = [first] * len(new)
    return "\n".join(rows), {i: line for i, line in enumerate(origins, 1) if line}


def views_of(lesson):
    """Return a lesson as the page shows it: step by step, if it has a long way; and as it is."""
    steps = [dataclasses.replace(lesson, backward=lesson.long_way)] if lesson.long_way else []
    return [*steps, lesson]


def view_name(lesson):
    """Return the name of a view on the page."""
    return f"{lesson.name}_long_way" if is_long(lesson) else lesson.name
