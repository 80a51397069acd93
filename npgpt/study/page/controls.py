"""Data for the page's controls: the editable statements of a backward, and the line on the first screen."""

import ast
import textwrap

from npgpt.study.exercises.exercise import left_out
from npgpt.study.exercises.path import path_of
from npgpt.study.gradcheck.source import read_source
from npgpt.study.page.steps import summary


def typed_statements(lesson):
    """Return line of the file, "57" -> a statement of the lesson's backward, a dict for the script.

    text: without comment and indentation; stub: the part before its right side, the start of a blank; indent: in
    columns; level: the lowest level that leaves it out, or None.
    """
    source, found = read_source(lesson.backward), {}
    levels_of_line = {}
    for level in reversed([int(step.what[-1]) for step in path_of(lesson.name) if not step.is_bug]):
        levels_of_line |= {node.lineno: level for node in left_out(lesson, level)}
    for node in left_out(lesson, 3):        # all statements
        lines = list(source.lines[node.lineno - 1:node.end_lineno])
        lines[-1] = lines[-1][:node.end_col_offset]
        start = node.col_offset if isinstance(node, ast.Expr) else node.value.col_offset
        found[str(source.first + node.lineno - 1)] = {
            "text": textwrap.dedent("\n".join(lines)), "stub": lines[0][node.col_offset:start],
            "indent": node.col_offset, "level": levels_of_line.get(node.lineno)}
    return found


def first_screen(lesson, known, checks):
    """Return the line of the first input's gradient, with its arrays in the form of an answer to an edit.

    known: the lesson's `Truth`; checks: the `LineCheck`s of its backward.
    """
    variable = next(iter(lesson.inputs))
    line = next(each.backward_line for each in checks if each.variable == variable)
    given, true = lesson.run_backward(known.dy, known.cache)[f"d{variable}"], known.inputs[variable]
    return {"layer": lesson.name, "line": f"b{line}", "arrays": [
        {"name": f"d{variable}", "given": summary(given), "true": summary(true), "difference": summary(given - true)}]}
