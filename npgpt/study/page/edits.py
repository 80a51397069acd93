"""The statements of a backward that the page edits: their texts, and an exercise file made from edited ones."""

import ast
import textwrap

from npgpt.study.exercises.exercise import left_out, level_text, placeholder, statements
from npgpt.study.exercises.path import path_of
from npgpt.study.gradcheck.source import backward_tree, read_source


def edited(lesson, level, edits, path, shown=()):
    """Return the text of an exercise file at a level, and its lines -> the package's; path: its name in the header.

    edits: first line of a statement of the package's backward -> its new text. Lines that the level leaves out are
    `...` until they are typed, except the lines in `shown`; level 0 leaves out nothing.
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
        rows = old[mine.lineno - 1:done]
        if first in edits:
            dedented = textwrap.dedent(edits[first].strip("\n"))
            rows = textwrap.indent(dedented, " " * mine.col_offset).split("\n")
        elif first in asked and first not in shown:
            rows = placeholder(old, mine)
        lines |= dict.fromkeys(range(len(new) + 1, len(new) + len(rows) + 1), first)
        new += rows
    return "\n".join([*new, *old[done:], ""]), lines


def asked_lines(lesson, level):
    """Return the first lines of the statements that a learner writes at a level, in the package's file.

    The page shows the line that reads the cache, and the `return`.
    """
    first = read_source(lesson.backward).first
    return [each.lineno + first - 1 for each in left_out(lesson, level) if not is_given(each)]


def is_given(statement):
    """Whether a statement of a backward reads the cache, or returns the results."""
    return isinstance(statement, ast.Return) or ast.unparse(statement.value) == "cache"


def levels_on_path(lesson):
    """Return the levels of a lesson that `npgpt learn` has, in order."""
    return [step.level for step in path_of(lesson.key) if step.what.startswith("level")]


def typed_statements(lesson):
    """Return first line, "b57" -> a dict for each statement of a lesson's backward.

    text: without comment and indentation; stub: the part before its right side, the start of a blank; level: the lowest
    level that asks for it, or None.
    """
    source, found = read_source(lesson.backward), {}
    asked = {level: asked_lines(lesson, level) for level in levels_on_path(lesson)}
    for node in left_out(lesson, 3):        # all statements
        line = source.first + node.lineno - 1
        text = ast.get_source_segment("\n".join(source.lines), node, padded=True)
        found[f"b{line}"] = {"text": textwrap.dedent(text),
                             "stub": source.lines[node.lineno - 1][node.col_offset:node.value.col_offset],
                             "level": next((level for level, lines in asked.items() if line in lines), None)}
    return found
