"""Planting one small bug in a backward, for the learner to find."""

import ast
import dataclasses
import difflib
import inspect
import itertools
import random
import re
import tempfile
from pathlib import Path

import numpy as np

from npgpt.errors import UserError
from npgpt.study.exercise import BLANKS, file_text, statements
from npgpt.study.gradcheck import WRONG
from npgpt.study.judge import LearnerError, judge, load_function
from npgpt.study.source import read_source

LAYERS = [name for name in BLANKS if name not in ("cross_entropy", "dropout")]      # one line each: nothing to look for
SEEN = 1e-3     # the least relative error of a bug, far above any rounding


@dataclasses.dataclass(frozen=True)
class Edit:
    """Another text for the characters start to end of a line (from 0) of a backward. kind: of what stands there."""

    kind: str
    line: int
    start: int
    end: int
    text: str


def bug_text(lesson, seed, path):
    """The text of an exercise file with a bug in the lesson's backward; the same seed plants the same bug."""
    if lesson.name not in LAYERS:
        raise UserError(f"the backward of {lesson.name} is one line: there is nothing to look for; choose one of "
                        f"{', '.join(LAYERS)}")
    task = [f"One line of {lesson.backward.__name__} has a bug. Find it: answer with the number of the line (in this "
            "file), or mend it and have all lines checked."]
    commands = {" --line N": "is line N the wrong one?", "": "is it mended?", " --hint": "a hint, and the next one"}
    return file_text(lesson, f"bug {seed}", task, commands, path, with_bug(lesson, seed))


def with_bug(lesson, seed):
    """The lines of a lesson's backward with one bug that gives wrong gradients of the right shapes."""
    lines = list(read_source(lesson.backward).lines)
    rng = random.Random(f"{lesson.name} {seed}")
    left = list(edits(lesson))
    while left:
        # A line first, then a kind of bug in it: else most bugs would be of one kind, in the lines with most names.
        line = rng.choice(sorted({edit.line for edit in left}))
        kind = rng.choice(sorted({edit.kind for edit in left if edit.line == line}))
        edit = rng.choice([edit for edit in left if (edit.line, edit.kind) == (line, kind)])
        changed = edited(lines, edit)
        if is_bug(lesson, changed):
            return changed
        left.remove(edit)
    raise UserError(f"no bug can be planted in {lesson.backward.__name__}")


def is_bug(lesson, lines):
    """Whether these lines, in place of the backward's, run and return arrays of the right shapes with wrong numbers."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bug.py"
        file.write_text(file_text(lesson, "", [], {}, file, lines), encoding="utf-8")
        try:
            with np.errstate(all="ignore"):
                report = judge(lesson.name, load_function(file, lesson.backward.__name__), file)
        except LearnerError:            # it does not even run: too easy to find
            return False
    results = [line for line in report.lines if line.variable in report.results]
    return not report.notes and all(line.relative is not None for line in results) \
        and any(line.verdict == WRONG and line.relative > SEEN for line in results)


def edits(lesson):
    """The bugs that could be planted in a backward: `Edit`s, of which some change nothing or do not run."""
    lines = read_source(lesson.backward).lines
    function = ast.parse("\n".join(lines)).body[0]
    body = statements(function)
    for statement in body:
        known = names_before(function, body, statement)
        for node in ast.walk(statement):
            # Not the first statement: it takes the cache apart.
            if statement is body[0] or not isinstance(node, ast.expr) or node.lineno != node.end_lineno:
                continue
            for text in replacements(node, statement, known):
                edit = Edit(type(node).__name__, node.lineno - 1, node.col_offset, node.end_col_offset, text)
                if parsed_as_meant(lines, edit):
                    yield edit
    if "add_rows_by_index" in inspect.unwrap(lesson.backward).__code__.co_names:
        for statement in body:
            if "add_rows_by_index" in ast.unparse(statement):
                yield Edit("scatter", statement.lineno - 1, statement.col_offset, statement.end_col_offset,
                           "dwte[idx] += dtoken")


def replacements(node, statement, known):
    """The texts that could be written in an expression's place by mistake."""
    def source(tree):
        return ast.unparse(tree)

    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            yield f"{source(left)} {'-' if isinstance(op, ast.Add) else '+'} {operand(right)}"
            yield source(left)
        case ast.BinOp(left, ast.Mult() as op, right):
            yield operand(left)
            yield operand(right)
        case ast.BinOp(left, ast.MatMult(), right):
            yield f"{operand(left)} @ {operand(right)} / len({source(left)})"
        case ast.Attribute(value, "T"):
            yield source(value)
        case ast.Call(ast.Attribute(value, "swapaxes")):
            yield source(value)
        case ast.Call(ast.Attribute(value, "transpose"), axes):
            for i, j in itertools.combinations(range(len(axes)), 2):
                order = list(axes)
                order[i], order[j] = order[j], order[i]
                yield f"{source(value)}.transpose({', '.join(map(source, order))})"
        case ast.Call(ast.Attribute(value, "sum"), [], [ast.keyword("axis")]):
            yield source(node).replace(".sum(", ".mean(")
        case ast.Call(ast.Name("column_sum" | "row_sum" | "column_dot" | "row_dot"), [first, *_]):
            yield f"{source(node)} / len({source(first)})"
        case ast.Call(ast.Attribute(ast.Name("np"), "matmul"), [_, second, *_]):
            yield f"-{source(node)}"
            yield f"{source(node)} / len({source(second)})"
        case ast.Name(name, ast.Load()) if name in known and not isinstance(statement, ast.Return):
            # A gradient for a gradient, or a value for a value; the lengths are capital letters.
            yield from (other for other in known if other != name and not other.isupper() and not name.isupper()
                        and other.startswith("d") == name.startswith("d"))
        case ast.Constant(float(number)):
            yield repr(number / 2.0)
            yield repr(number + 1.0)
        case ast.Tuple(items) if isinstance(statement, ast.Return):
            for i, j in itertools.combinations(range(len(items)), 2):
                order = list(items)
                order[i], order[j] = order[j], order[i]
                yield ", ".join(map(source, order))


def operand(tree):
    """The text of an expression as a factor of a product."""
    text = ast.unparse(tree)
    return f"({text})" if isinstance(tree, ast.BinOp | ast.UnaryOp | ast.IfExp) else text


def names_before(function, body, statement):
    """The variables that a statement could use, arguments with a default left out."""
    arguments = function.args.args[:len(function.args.args) - len(function.args.defaults)]
    names = [argument.arg for argument in arguments]
    for earlier in body:
        if earlier is statement:
            return list(dict.fromkeys(names))
        names += [node.id for node in ast.walk(earlier)
                  if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


def edited(lines, edit):
    """The lines after an edit; the comment behind it stays in its column, which would else tell the line."""
    old = lines[edit.line]
    code, mark, comment = old.partition("  # ")
    after = code[edit.end:].rstrip()
    new = code[:edit.start] + edit.text + after
    if mark:
        new = new.ljust(len(code)) + mark + comment
    return [*lines[:edit.line], new, *lines[edit.line + 1:]]


def parsed_as_meant(lines, edit):
    """Whether the text is in its new place the expression that it is alone; without brackets it may fall apart."""
    changed = edited(lines, edit)
    old, new = (text[edit.line].partition("  # ") for text in (lines, changed))
    # A comment that is pushed aside, or brackets around nothing, would tell the line.
    if old[1] and len(new[0]) > len(old[0]) or re.search(r"(?<!\w)\(\w+\)", new[0]) or len(changed[edit.line]) > 120:
        return False
    try:
        tree = ast.parse("\n".join(changed))
        meant = ast.dump(ast.parse(edit.text).body[0].value)
    except SyntaxError:
        return False
    end = edit.start + len(edit.text)
    return any(isinstance(node, ast.expr) and node.lineno == node.end_lineno == edit.line + 1
               and (node.col_offset, node.end_col_offset) == (edit.start, end) and ast.dump(node) == meant
               for node in ast.walk(tree))


def bug_statement(exercise):
    """(first line, last line, its text, the package's text) of the bug in an exercise, or None where it is mended."""
    ours = [ast.unparse(each) for each in statements(ast.parse("\n".join(read_source(exercise.lesson.backward).lines)))]
    theirs = statements(exercise.function)
    matcher = difflib.SequenceMatcher(None, [ast.unparse(each) for each in theirs], ours, autojunk=False)
    for kind, i, _, j, _ in matcher.get_opcodes():
        if kind == "replace":
            return theirs[i].lineno, theirs[i].end_lineno, ast.unparse(theirs[i]), ours[j]
    return None
