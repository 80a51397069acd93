"""Solved exercises, made of the package's own source; and the judge on a file, in this process."""

import ast

from npgpt.study.exercises.exercise import (
    Exercise,
    beginning,
    find_function,
    is_blank,
    key_of,
    level_text,
    statements,
)
from npgpt.study.gradcheck.source import read_source
from npgpt.study.judge.judge import judge
from npgpt.study.judge.outcome import load_solution


def solved(lesson, level):
    """The text of an exercise with the package's own statements in its blanks."""
    lines = read_source(lesson.backward).lines
    own = ast.parse("\n".join(lines)).body[0]
    text = level_text(lesson, level, "file.py").split("\n")
    function = find_function(ast.parse("\n".join(text)), lesson.backward)
    for blank in reversed([each for each in statements(function) if is_blank(each)]):
        answer = lines[beginning(lines)[-1]:]
        if level < 3:       # a bare `...` stands for the call of a function, which assigns nothing
            key = key_of(blank)
            [statement] = [each for each in statements(own)
                           if key_of(each) == key or key == "..." and isinstance(each, ast.Expr)]
            answer = lines[statement.lineno - 1:statement.end_lineno]
        text[blank.lineno - 1:blank.end_lineno] = answer
    return "\n".join(text)


def judge_file(name, file, seed=0):
    """The `Report` on the backward of the lesson `name` in a file."""
    return judge(
        name, load_solution(Exercise(name, "level 3", file, file.read_text(encoding="utf-8"))), seed
    )
