"""Which line of the package's backward a learner's mistake is in, found by the values: the names may be others."""

import numpy as np

from npgpt.study.exercises.exercise import key_of, statements
from npgpt.study.exercises.walk import changed_names, package_walk, stored_names
from npgpt.study.gradcheck.check import gradient_names, tree_line
from npgpt.study.gradcheck.lessons import map_arrays
from npgpt.study.gradcheck.source import backward_tree, names_in, read_source
from npgpt.study.gradcheck.trace import Assignment, is_floating, recording
from npgpt.study.judge.names import parts_of
from npgpt.study.judge.shapes import CLOSE, close


def counterpart(judgement, walk, wrong):
    """The key of the package's line in which the gradients of the names in `wrong` go wrong, or "" if it is not clear.

    It is the only line whose arrays the learner has computed, under any name, but not its result; some of the lines
    before it, unless there are none, must have been computed too. A learner who goes another way than the package has
    no such line, or several. walk: of the learner's function, or None.
    """
    case, lesson = judgement.case, judgement.lesson
    given = [judgement.case.dy]
    map_arrays(given.append, judgement.case.cache)
    named = [each.value for each in judgement.record] + [*judgement.results.values()]
    # Parts of lines count too, but not as the wrong gradient itself: 2.0 * (dy @ weight.T) holds the right one.
    have = by_size(given + named + parts_of_lines(walk))
    given, named = by_size(given), by_size(named)
    record, lines = package_record(case)
    made = {each.name for each in record}
    if not made.intersection(wrong) and any(name in case.gradients for name in wrong):
        return ""                           # a gradient that the package's shortcut skips
    wanted = {other for name in wrong for other in gradient_names(name[1:])} | {*wrong}
    found, missing, is_alike = [], [], False
    in_tree = tree_line(read_source(lesson.backward), wrong[0][1:])     # of a parameter's gradient
    for i in reversed(range(len(record))):
        if record[i].name not in wanted and record[i].line != in_tree:
            continue
        inputs = names_in(lines[record[i].line].value) - {"np"}
        wanted |= inputs
        before = {each.name: each.value for each in record[:i] if each.line != record[i].line}
        if has(named if record[i].name in wrong else have, record[i].value):
            is_alike = is_alike or not has(given, record[i].value)
            continue
        missing.append(record[i].value)
        if all(has(have, before[name]) for name in inputs & before.keys()):
            found.append(record[i].line)
    is_alike = is_alike or all(has(by_size(missing[:1]), each) for each in missing)
    return key_of(lines[found[0]]) if len({*found}) == 1 and is_alike else ""


def package_record(case):
    """The `Assignment`s of the package's backward, also to parts of arrays; and its statements by their lines."""
    lesson, walk = case.lesson, package_walk(case)
    first = read_source(lesson.backward).first - 1
    lines = {each.lineno + first: each for each in statements(backward_tree(lesson))}
    with recording([lesson.backward]) as record:
        lesson.backward(*case.arguments())
    found = [each for each in record if each.line in lines]
    for statement, before, after in zip(walk.statements, walk.before, walk.before[1:], strict=False):
        is_simple = statement.lineno + first in lines
        for name in changed_names(statement) - stored_names(statement).keys() if is_simple else ():
            if is_floating(after.get(name)) and not np.array_equal(before.get(name), after[name]):
                found.append(Assignment("", statement.lineno + first, name, after[name]))
    found = [each for each in found if each.value.any()]        # not zeros that are filled later
    return (found if lesson.is_composite else sorted(found, key=lambda each: each.line)), lines


def parts_of_lines(walk):
    """The values that a learner's function computed without a name."""
    return [value for statement, names in (zip(walk.statements, walk.before, strict=False) if walk else ())
            for value in parts_of(statement, names).values()]


def by_size(values):
    """Size -> the floating arrays of that size, and the parts of those that are stacked."""
    found = {}
    arrays = [*map(np.asarray, filter(is_floating, values))]
    for each in [*arrays, *(part for whole in arrays if whole.ndim > 2 for part in whole)]:
        found.setdefault(each.size, []).append(each)
    return found


def has(values, true):
    """Whether an array is among the values, perhaps in another shape or order; a missing keepdims is another array."""
    true = np.asarray(true)
    return any(each.shape == true.shape and close(each, true) or each.squeeze().shape != true.squeeze().shape
               and np.abs(np.sort(each, axis=None) - np.sort(true, axis=None)).max() <= CLOSE * np.abs(true).max()
               for each in values.get(true.size, []))
