"""Hints: the mistake, the forward's line to look at, the rule in words, the package's own line."""

import ast

from npgpt.study.exercises.exercise import key_of, notes_of, statements
from npgpt.study.gradcheck.flow import undone
from npgpt.study.gradcheck.source import backward_tree, read_source
from npgpt.study.judge.child import run_child

PREPARATION = (
    "It only prepares what the next lines need: the same numbers in another shape, or what the "
    "cache holds."
)


def next_hint(exercise, progress, seconds, report=None, seed=None):
    """Return the next hint on the first line that is wrong or missing; note its number.

    report: the verdict on the file. Without it the file is judged; raises UserError as `run_child`.
    """
    report = report or run_child(exercise, seconds, seed)
    if report.right:
        return f"{exercise.path}: every gradient is right, no hint is needed"
    key = key_in_question(exercise, report)
    mistakes = [
        str(each)
        for wrong in report.wrong[:1]
        for each in wrong.mistakes
        if each.kind not in ("unknown", "rule")
    ]
    found = mistakes + (hints(exercise.lesson, key) if key else shown(exercise, report.wrong[0]))
    # A mistake of another kind on the same line begins again.
    number = progress.next_hint(exercise.name, ": ".join([key, *mistakes]), len(found) - 1)
    return f"hint {number + 1} of {len(found)}: {found[number]}"


def shown(exercise, wrong):
    """Return the hints on a mistake that is in no line of the package: its evidence, the rule."""
    evidence = "; ".join(map(str, wrong.evidence)) or "it is wrong"
    note = notes_of(exercise.lesson).get(wrong.name)
    return [f"{wrong.name}: {evidence}".removeprefix(": "), *([note.hint] if note else [])]


def key_in_question(exercise, report):
    """Return the key of the package's line that is wrong or missing, or ""; report: or None."""
    if report and report.wrong:
        return report.key
    if not exercise.blanks:
        return ""
    notes, keys = notes_of(exercise.lesson), [*package_statements(exercise.lesson)]
    keys = [key for key in keys if key in notes] or keys
    first = key_of(exercise.blanks[0])
    written = {key_of(each) for each in exercise.statements}
    left = [key for key in keys if key not in written]
    return first if first in keys else [*left, keys[-1]][0]


def package_statements(lesson):
    """Return key -> statement of the lines of the package's backward."""
    return {key_of(each): each for each in statements(backward_tree(lesson))}


def hints(lesson, key):
    """Return the three hints on a line: the forward's line, the rule, the line itself."""
    statement = package_statements(lesson)[key]
    quoted = undone(lesson, read_source(lesson.backward).first + statement.lineno - 1).values()
    lines = f"the forward's line{'s' * (len(quoted) > 1)}: {'; '.join(quoted)}"
    notes = notes_of(lesson)
    writer = lesson.file.name if lesson.is_own else "the package"
    return [
        f"look at {lines if quoted else 'what the cache holds'}",
        notes[key].hint if key in notes else PREPARATION,
        f"{writer} writes: {' '.join(ast.unparse(statement).split())}",
    ]
