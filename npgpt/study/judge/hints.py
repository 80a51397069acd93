"""Hints, one at a time: what is wrong, the rule, the formula, the answer; and why it is right."""

import ast

from npgpt.study.exercises.exercise import key_of, notes_of, package_statements, place_of
from npgpt.study.exercises.mathematics import formula_of
from npgpt.study.judge.child import run_child

PREPARATION = (
    "It only prepares what the next lines need: the same numbers in another shape, or what the "
    "cache holds."
)
BESIDE = 5  # lines that are shown beside the learner's


def next_hint(exercise, progress, seconds, report=None, seed=None):
    """Return the next hint on the first line that is wrong or missing; note its number.

    report: the verdict on the file. Without it the file is judged; raises UserError as `run_child`.
    """
    report = report or run_child(exercise, seconds, seed)
    if report.right:
        return f"{exercise.path}: every gradient is right, no hint is needed"
    key = key_in_question(exercise, report)
    wrong = what_is_wrong(report)
    found = wrong + hints(exercise.lesson, key)
    # A mistake of another kind on the same line begins again.
    number = progress.next_hint(exercise.name, ": ".join([key, *wrong]), len(found) - 1)
    return f"hint {number + 1} of {len(found)}: {found[number]}"


def what_is_wrong(report):
    """Return what is wrong in the first wrong line: each mistake with a name, or its evidence."""
    if report.sound:
        return []
    wrong = report.wrong[0]
    named = [str(each) for each in wrong.mistakes if each.kind not in ("unknown", "rule")]
    evidence = "; ".join(map(str, wrong.evidence)) or "it is wrong"
    name = "" if evidence.startswith(wrong.name) else f"{wrong.name}: "
    return named or [name + evidence]


def key_in_question(exercise, report):
    """Return the key of the package's line that is wrong or missing, or ""; report: or None."""
    if report and report.wrong:
        left = [key_of(each) for each in exercise.left_out]
        mine = {key_of(each): ast.unparse(each) for each in exercise.statements}
        is_given = mine.get(report.key, "") == answer(exercise.lesson, report.key)
        # a line as the package's, or none of its lines: then the only one to write, in another form
        return left[0] if is_given and len(left) == 1 and left[0] not in mine else report.key
    if not exercise.blanks:
        return ""
    notes, keys = notes_of(exercise.lesson), [*package_statements(exercise.lesson)]
    keys = [key for key in keys if key in notes] or keys
    first = key_of(exercise.blanks[0])
    written = {key_of(each) for each in exercise.statements}
    left = [key for key in keys if key not in written]
    return first if first in keys else [*left, keys[-1]][0]


def hints(lesson, key):
    """Return the hints on a line: the rule, its formula if the derivation has one, the line itself.

    Without a key there are none: the learner's line is none of the package's.
    """
    if not key:
        return []
    notes, formula = notes_of(lesson), formula_of(lesson, key)
    found = [notes[key].hint if key in notes else PREPARATION]
    found += [f"as a formula: {formula}"] if formula else []
    return [*found, f"The answer: {answer(lesson, key)}"]


def answer(lesson, key):
    """Return the package's line, or "" if it has none of that key."""
    found = package_statements(lesson).get(key)
    return ast.unparse(found) if found else ""


def asked(exercise):
    """Return the package's statements that a learner writes or mends."""
    if exercise.is_bug:
        return [place_of(exercise.lesson, exercise.level)]
    return exercise.left_out


def main_key(exercise):
    """Return the key of the line that an exercise is about: the lowest level's."""
    notes = notes_of(exercise.lesson)
    keys = [key for each in asked(exercise) if (key := key_of(each)) in notes] or [*notes]
    return min(keys, key=lambda key: notes[key].level, default="")


def why(exercise):
    """Return what is said of a solved exercise: why, and the package's lines beside the others."""
    note = notes_of(exercise.lesson).get(main_key(exercise))
    said = [f"Why: {note.why}"] if note else []
    mine = {key_of(each): ast.unparse(each) for each in exercise.statements}
    for each in asked(exercise):
        yours, ours = mine.get(key_of(each)), ast.unparse(each)
        if yours != ours and len(said) < BESIDE:
            said.append(f"yours: {yours}\nours:  {ours}" if yours else f"ours:  {ours}")
    return "\n".join(said)
