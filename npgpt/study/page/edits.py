"""The statements of a backward that the page edits: their texts, and an exercise file made from edited ones."""

import ast
import textwrap

from npgpt.study.exercises.exercise import (
    is_given,
    left_out,
    level_text,
    levels_of,
    statements,
)
from npgpt.study.gradcheck.source import backward_tree, read_source


def edited(lesson, edits, path):
    """Return the text of an exercise file with edited lines, and {its line: the package's}. path: as in `level_text`.

    edits: line of the package's -> new text.
    """
    source = read_source(lesson.backward)
    rows = level_text(lesson, 3, path, list(source.lines)).split("\n")
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


def levels_on_path(lesson):
    """Return the levels of a lesson, in order."""
    return [int(what[-1]) for what in levels_of(lesson.key) if what.startswith("level")]


def typed_statements(lesson):
    """Return {"b57": {…}} for each statement of a backward: its text, its left side, the lowest level that asks it."""
    source = read_source(lesson.backward)
    found = {}
    asked = {level: [each.lineno for each in left_out(lesson, level) if not is_given(each)]
             for level in levels_on_path(lesson)}
    for node in left_out(lesson, 3):        # all statements
        line = source.first + node.lineno - 1
        text = ast.get_source_segment("\n".join(source.lines), node, padded=True)
        found[f"b{line}"] = {
            "text": textwrap.dedent(text),
            "stub": source.lines[node.lineno - 1][node.col_offset : node.value.col_offset],
            "level": next((level for level, lines in asked.items() if node.lineno in lines), None),
        }
    return found
