"""Planting one small bug in a backward, for the learner to find."""

import ast
import copy
import difflib
import functools
import random
import re

import numpy as np

from npgpt.errors import UserError
from npgpt.study.exercises.exercise import file_text, key_of, statements
from npgpt.study.exercises.mathematics import read_notes
from npgpt.study.exercises.repairs import mistakes
from npgpt.study.exercises.walk import RESULT, made_at, package_walk
from npgpt.study.gradcheck.check import relative_error
from npgpt.study.gradcheck.source import backward_tree, read_source
from npgpt.study.gradcheck.truth import cases
from npgpt.study.lessons.table import LESSONS

# The kinds of small mistakes (see findings.py) that are not seen at once.
PLANTED = {"sign", "term sign", "transposed", "not transposed", "matmul order", "reduction", "factor", "division",
           "term", "swapped", "axis", "uses", "overwrites"}
SEEN = 1e-3             # the smallest relative error of a bug, far above any rounding


@functools.cache
def bug_layers():
    """Return the layers that have exercises with bugs. In a backward of one line there is nothing to look for.

    A layer without a derivation has none, so that a new layer can be checked before it is derived.
    """
    return [name for name, lesson in LESSONS.items() if len(read_notes(lesson)) > 1]


def bug_text(lesson, seed, path):
    """Return the text of an exercise file with a bug in the lesson's backward; the same seed plants the same bug."""
    task = (f"One line of {lesson.backward.__name__} has a bug. Find it: answer with the number of the line (in this "
            "file), or fix it and check the file.")
    commands = {" --line N": "is line N the wrong one?", "": "is it fixed?", " --hint": "a hint, and the next one"}
    return file_text(lesson, f"bug {seed}", task, commands, path, with_bug(lesson, seed))


def with_bug(lesson, seed):
    """Return the lines of a lesson's backward with one bug that gives wrong gradients of the right shapes."""
    rng = random.Random(f"{lesson.name} {seed}")
    left = list(planted(lesson))
    while left:
        # A line first, then a kind of bug in it: otherwise most bugs would be of one kind, in the longest lines.
        line = rng.choice(sorted({line for line, _, _ in left}))
        kind = rng.choice(sorted({kind for at, kind, _ in left if at == line}))
        bug = rng.choice([bug for bug in left if bug[:2] == (line, kind)])
        if is_bug(lesson, bug[2]):
            return bug[2]
        left.remove(bug)
    raise UserError(f"no bug can be planted in {lesson.backward.__name__}")


def planted(lesson):
    """Yield (line, kind, all lines of the backward with the bug in that line) for each possible bug.

    The bugs are the common mistakes of the derivation, and the small ones that the judge knows by name.
    """
    source = read_source(lesson.backward)
    notes = read_notes(lesson)
    body = statements(backward_tree(lesson))
    wrong = [(each.lineno - 1, "common mistake", notes[key_of(each)].mistake) for each in body
             if key_of(each) in notes and notes[key_of(each)].mistake]
    for _, line, finding, new in mistakes(package_walk(cases(lesson.name)[0])):
        # A neighbouring variable: a gradient for another one, or another array for an array.
        alike = finding.kind != "uses" or len({name.startswith("d") for name in finding.operands}) == 1 and all(
            map(str.isidentifier, finding.operands))
        text = ast.unparse(made_at(new, line)).replace(f"{RESULT} = ", "return ")
        if finding.kind in PLANTED and alike and (finding.kind == "swapped" or not text.startswith("return")):
            wrong.append((line - 1, finding.kind, text))
    for i, kind, text in wrong:
        # The first statement, which unpacks the cache, stays. Statements over several lines do, too.
        if any(each.lineno == each.end_lineno == i + 1 for each in body[1:]):
            line = replaced(source.lines[i], re.sub(r"^return \((.*)\)$", r"return \1", text))
            if line is not None:
                yield i, kind, [*source.lines[:i], line, *source.lines[i + 1:]]


def replaced(line, text):
    """Return a line with another statement, and its comment in the same column; None if the form reveals the bug."""
    code, mark, comment = line.partition("  # ")
    new = code[:len(code) - len(code.lstrip())] + text.replace("'", '"')
    if mark and len(new) > len(code) or len(new) > 120 or re.search(r"(?<!\w)\(\w+\)|= -|^ *\w+$|\* 1\.0\b", new):
        return None
    return new.ljust(len(code)) + mark + comment if mark else new


def is_bug(lesson, lines):
    """Return whether the backward with these lines runs and returns arrays of the right shapes with wrong numbers."""
    case = cases(lesson.name)[0]
    names = {}
    try:
        exec(file_text(lesson, "", "", {}, "bug.py", lines), names)
        with np.errstate(all="ignore"):
            results = lesson.run_backward(*copy.deepcopy((case.dy, case.cache)), names[lesson.backward.__name__])
        found = [relative_error(results[name], true) for name, true in case.results.items()]
    except Exception:               # it does not even run: too easy to find
        return False
    return max(found) > SEEN and np.isfinite(found).all()


def bug_statement(exercise):
    """Return (first line, last line, its text, the package's text) of an exercise's bug; None if it is fixed."""
    ours = [ast.unparse(each) for each in statements(backward_tree(exercise.lesson))]
    theirs = exercise.statements
    matcher = difflib.SequenceMatcher(None, [ast.unparse(each) for each in theirs], ours, autojunk=False)
    for kind, i, _, j, _ in matcher.get_opcodes():
        if kind == "replace":
            return theirs[i].lineno, theirs[i].end_lineno, ast.unparse(theirs[i]), ours[j]
    return None
