"""The statements of a backward that the page edits: an exercise made of them, and its verdict."""

import ast
import dataclasses
import re
import textwrap
from pathlib import Path

from npgpt.study.exercises.exercise import Exercise, Step, statements, step_text
from npgpt.study.exercises.mathematics import is_long
from npgpt.study.gradcheck.source import backward_tree, read_source
from npgpt.study.judge.report import summary as verdict_of
from npgpt.study.page.steps import summary


def edited(lesson, edits):
    """Return an `Exercise` with edited lines, and {its line: the package's}.

    edits: line of the package's -> new text. There is no file of the exercise.
    """
    source = read_source(lesson.backward)
    path = Path(f"{lesson.name}.py").absolute()
    step = Step(lesson.key, "long way" if is_long(lesson) else "level 3")
    rows = step_text(step, path, backward=list(source.lines)).split("\n")
    function = ast.parse("\n".join(rows)).body[-1]
    origins = [None] * len(rows)
    origins[function.lineno - 1] = source.first
    pairs = zip(statements(function), statements(backward_tree(lesson)), strict=True)
    for mine, own in reversed([*pairs]):  # the last first, so that the line numbers above it stay
        first = own.lineno + source.first - 1
        its_rows = slice(mine.lineno - 1, mine.end_lineno)
        new = rows[its_rows]
        if first in edits:
            text = textwrap.dedent(edits[first].strip("\n"))
            new = textwrap.indent(text, " " * mine.col_offset).split("\n")
        rows[its_rows] = new
        origins[its_rows] = [first] * len(new)
    text = "\n".join(rows).encode("utf-8", "replace").decode()
    return Exercise(step.layer, step.what, path, text), dict(enumerate(origins, 1))


def answer_of(report, own_lines, edits):
    """Return what the page shows of a `Report`. own_lines: as from `edited`; edits: lines."""
    report = renumbered(report, own_lines)
    given = {(each.line, each.name): each.value for each in report.record}
    arrays = {key(line): [] for line in edits}
    for (line, name), value in given.items():
        if line in edits:
            arrays[key(line)].append({"name": name, "given": summary(value)})
    lines, text = [], [verdict_of(report)]
    for each in report.lines:
        said = [*map(str, [*each.mistakes, *each.evidence])]
        if each.name:
            line = {"line": key(each.line), "name": each.name, "verdict": each.verdict}
            lines.append(line | {"said": said})
        else:
            text += said
    return {
        "verdict": "right" if report.right else "unfinished" if report.sound else "wrong",
        "text": re.sub(r" \(--seed \d+\)", "", "\n".join([*text, *report.notes])),
        "first": key(report.first),
        "lines": lines,
        "arrays": arrays,
    }


def renumbered(value, lines, field=None):
    """Replace line numbers by the package's in a text of the judge or in all parts of a `Report`.

    lines: line -> the package's or None.
    """
    if isinstance(value, str):
        return re.sub(
            r"\bline (\d+)", lambda found: f"line {lines.get(int(found[1])) or found[1]}", value
        )
    if isinstance(value, list):
        return [renumbered(each, lines, field) for each in value]
    if dataclasses.is_dataclass(value):
        fields = {name: renumbered(each, lines, name) for name, each in vars(value).items()}
        return dataclasses.replace(value, **fields)
    if field in ("line", "lines", "since", "until", "to_do") and value:
        # of an `if`: its first statement
        return next((own for line, own in lines.items() if line >= value and own), None)
    return value


def key(line):
    """Return the page's name for a line of the backward."""
    return None if line is None else f"b{line}"


def views_of(lesson):
    """Return a lesson as the page shows it: step by step, if it has a long way; and as it is."""
    steps = [dataclasses.replace(lesson, backward=lesson.long_way)] if lesson.long_way else []
    return [*steps, lesson]


def view_name(lesson):
    """Return the name of a view on the page."""
    return f"{lesson.name}_long_way" if is_long(lesson) else lesson.name
