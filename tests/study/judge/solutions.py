"""Solved exercises, made of the package's own source; the judge on a file; sessions of commands."""

import re
import shlex
from pathlib import Path

import pytest

from npgpt.study.exercises.exercise import Exercise, Step, step_text
from npgpt.study.gradcheck.source import read_source
from npgpt.study.judge.judge import judge
from npgpt.study.judge.outcome import load_solution
from tests.helpers.runs import refused


def level_text(lesson, level, path, backward=None):
    """The text of an exercise file; backward: lines without blanks."""
    step = Step(lesson.key, f"level {level}" if level else "long way")
    return step_text(step, path, backward=backward)


def solved(lesson, level, path="file.py"):
    """The text of an exercise with the package's own backward."""
    return level_text(lesson, level, path, [*read_source(lesson.backward).lines])


def judge_file(name, file, seed=0):
    """The `Report` on the backward of the lesson `name` in a file."""
    text = file.read_text(encoding="utf-8")
    return judge(name, load_solution(Exercise(name, "level 3", file, text)), seed)


def changed(layer, edits="", path="file.py"):
    """The text of an exercise with changes in its backward, and the line of the last change.

    layer: "linear", "linear 2", "linear long" or, with its blanks, "linear blank2".
    edits: "old => new", separated by " @@ "; a `\n` in them is a new line.
    """
    layer, _, what = layer.partition(" ")
    lesson = Step(layer, "long way" * (what == "long")).lesson
    level = int("0" if what == "long" else what[-1:] or 3)
    text = level_text(lesson, level, path) if "blank" in what else solved(lesson, level, path)
    head, name, text = text.partition(f"def {lesson.backward.__name__}")
    text, at = name + text, 0
    for edit in edits.replace(r"\n", "\n").split(" @@ ") * bool(edits):
        old, new = re.split(" => ?", edit)
        assert text.count(old) == 1, (old, text)
        at, text = text.index(old) + len(new), text.replace(old, new)
    return head + text, (head + text[:at]).count("\n") + 1


def each_of(sessions):
    """Parametrize a test with sessions, each below its "# fact"."""
    found = re.findall("(?m)^# (.*)\n((?:.+\n)+)", sessions)
    return pytest.mark.parametrize("session", [pytest.param(text, id=fact) for fact, text in found])


def play(session, npgpt, train):
    """Do what a session says. Its lines:

    "$ exercise linear" runs a command, "2$ …" one with this exit code, "$ show FILE" shows a
    file; the indented lines below it are said, but those after "not "
    "mine.py = linear 2 | old => new" writes an exercise (see `changed`): {line} is its changed line
    "mine.py : text" writes a text
    "mine.py ~ old => new" changes a text that a regular expression matches once
    """
    line = 0
    for part in re.split(r"\n(?=\S)", session.replace("\\\n", "").strip()):
        head, *says = part.split("\n")
        what, _, rest = head.partition(" ")
        operator, _, spec = rest.partition(" ")
        path = Path(what)
        if what.endswith("$"):
            command, *arguments = shlex.split(rest)
            if command == "show":
                result = 0, Path(*arguments).read_text(), ""
            else:
                result = train(*arguments) if command == "train" else npgpt(command, *arguments)
            assert result[0] == int(what[:-1] or 0), (head, result)
            if result[0] == 2:
                refused(result)
            for words in says:
                words = words[2:].replace("{line}", str(line)).replace(r"\n", "\n")
                is_said = words.removeprefix("not ") in result[1] + result[2]
                assert is_said != words.startswith("not "), (head, words, *result[1:])
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        text = spec.replace(r"\n", "\n")
        if operator == "=":
            text, line = changed(*spec.split(" | "), path=path)
        elif operator == "~":
            text, count = re.subn(*text.split(" => "), path.read_text())
            assert count == 1, (head, path.read_text())
        path.write_text(text)
