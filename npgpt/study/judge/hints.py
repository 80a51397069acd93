"""Hints: what the mistake is, then the forward line to look at, then the rule in words, then the package's own line."""

import ast

from npgpt.study.exercises.exercise import key_of, notes_of, statements
from npgpt.study.gradcheck.flow import undone
from npgpt.study.gradcheck.source import backward_tree, read_source
from npgpt.study.judge.child import run_child
from npgpt.study.judge.report import Fault

PREPARATION = "It only prepares what the next lines need: the same numbers in another shape, or what the cache holds."


def next_hint(exercise, progress, seconds, report=None, seed=None):
    """Return the next hint on the first line that is wrong, or missing, in one line; note its number.

    report: the verdict on the file. Without it the file is judged; raises UserError as `run_child` does.
    """
    report = report or run_child(exercise, seconds, seed)
    if report.right:
        return f"{exercise.path}: every gradient is right, no hint is needed"
    key, first = key_in_question(exercise, report), report.wrong[0] if report.wrong else None
    mistakes = [str(each) for each in first.mistakes if each.kind not in ("unknown", "follows")] if first else []
    found = [*mistakes, *(hints(exercise.lesson, key) if key else shown(exercise, first))]
    # A mistake of another kind on the same line begins again.
    number = progress.next_hint(exercise.name, ": ".join([key, *mistakes]), len(found) - 1)
    return f"hint {number + 1} of {len(found)}: {found[number]}"


def shown(exercise, first):
    """Return the hints on a mistake that is in no line of the package: its evidence, and the rule for its gradient."""
    if isinstance(first, Fault):
        return [str(first.what)]
    note = notes_of(exercise.lesson).get(first.name)
    return [
        f"{first.name}: {'; '.join(map(str, first.evidence)) or 'it is wrong'}",
        *([note.hint] if note else []),
    ]


def key_in_question(exercise, report):
    """Return the key of the package's line that is wrong or missing, or ""; report: None if it was not judged."""
    if report is None or report.sound:
        return unfinished_key(exercise)
    if exercise.what != "long way":
        return report.key
    name = report.wrong[0].name         # of the long way each gradient has a line of its name
    return name if name in dict(package_statements(exercise.lesson)) else ""


def package_statements(lesson):
    """Return (key, statement) of each line of the package's backward but the one that unpacks the cache."""
    return [(key_of(each), each) for each in statements(backward_tree(lesson)) if ast.unparse(each.value) != "cache"]


def unfinished_key(exercise):
    """Return the key of the first line of the package's backward that the learner has still to write, or ""."""
    left = exercise.blanks
    if not left:
        return ""
    notes = notes_of(exercise.lesson)
    wanted = [key for key, _ in package_statements(exercise.lesson) if key in notes]
    first = key_of(left[0])
    if first in wanted:
        return first
    if exercise.what != "level 3":      # a bare `...`: the line of this level that assigns nothing
        return next((each for each in wanted if each.startswith("np.") and notes[each].level <= exercise.level), "")
    written = {key_of(each) for each in exercise.statements if each not in left}
    return next((key for key in wanted if key not in written), [*wanted, ""][-1])


def hints(lesson, key):
    """Return the three hints on a line of the lesson's backward: the forward's line, the rule, the line itself."""
    statement = dict(package_statements(lesson))[key]
    line = read_source(lesson.backward).first + statement.lineno - 1
    quoted = undone(lesson, line).values()
    where = f"the forward's line{'s' * (len(quoted) > 1)}: {'; '.join(quoted)}" if quoted else "what the cache holds"
    notes, writer = notes_of(lesson), lesson.file.name if lesson.is_own else "the package"
    return [f"look at {where}", notes[key].hint if key in notes else PREPARATION,
            f"{writer} writes: {' '.join(ast.unparse(statement).split())}"]
