"""Which line of the package's backward a learner's mistake is in, found by the values: the names may be others."""

import numpy as np

from npgpt.study.exercises.exercise import key_of, statements
from npgpt.study.exercises.walk import RESULT, changed_names, package_walk
from npgpt.study.gradcheck.check import gradient_names, tree_line
from npgpt.study.gradcheck.source import names_in, read_source
from npgpt.study.gradcheck.trace import is_floating
from npgpt.study.judge.names import parts_of
from npgpt.study.judge.shapes import CLOSE, close
from npgpt.study.lessons.lesson import map_arrays


def counterpart(judgement, walk, wrong):
    """The key of the package's line in which the gradients of the names in `wrong` go wrong, or "" if it is not clear.

    It is the only line whose arrays the learner has computed, under any name, but not its result; some of the lines
    before it, unless there are none, must have been computed too. A learner who goes another way than the package has
    no such line, or several. walk: of the learner's function, or None.
    """
    case, source = judgement.case, read_source(judgement.lesson.backward)
    given = [case.dy]
    map_arrays(given.append, case.cache)
    named = [each.value for each in judgement.record] + [*judgement.results.values()]
    # Parts of lines count too, but not as the wrong gradient itself: 2.0 * (dy @ weight.T) holds the right one.
    parts = [value for statement, names in (zip(walk.statements, walk.before, strict=False) if walk else ())
             for value in parts_of(statement, names).values()]
    have, given, named = map(with_parts, (given + named + parts, given, named))
    made = package_assignments(case)
    if any(name in case.gradients for name in wrong) and not {name for _, name, *_ in made}.intersection(wrong):
        return ""                           # a gradient that the package's shortcut skips
    wanted = {other for name in wrong for other in gradient_names(name[1:])} | {*wrong}
    found, missing, is_alike = set(), [], False
    in_tree = (tree_line(source, wrong[0][1:]) or 0) - source.first + 1         # of a parameter's gradient
    for statement, name, value, before in reversed(made):
        if name not in wanted and statement.lineno != in_tree:
            continue
        inputs = names_in(statement.value)
        wanted |= inputs
        if has(named if name in wrong else have, value):
            is_alike = is_alike or not has(given, value)
            continue
        missing.append(value)
        if all(has(have, before[each]) for each in inputs if is_floating(before.get(each))):
            found.add(key_of(statement))
    is_alike = is_alike or all(has(with_parts(missing[:1]), each) for each in missing)
    return found.pop() if len(found) == 1 and is_alike else ""


def package_assignments(case):
    """[(statement, name, value, the names before it)] of the arrays that the package's backward makes or changes."""
    walk = package_walk(case)
    return [([each for each in statements(outer) if name in changed_names(each)][-1], name, after[name], before)
            for outer, before, after in zip(walk.statements, walk.before, walk.before[1:], strict=False)
            for name in changed_names(outer) - {RESULT} if is_floating(after.get(name)) and after[name].any()
            and not np.array_equal(before.get(name), after[name])]


def with_parts(values):
    """The floating arrays among values, and the parts of those that are stacked."""
    arrays = [*map(np.asarray, filter(is_floating, values))]
    return [*arrays, *(part for whole in arrays if whole.ndim > 2 for part in whole)]


def has(values, true):
    """Whether an array is among the values, perhaps in another shape or order; a missing keepdims is another array."""
    true = np.asarray(true)
    return any(each.shape == true.shape and close(each, true) or each.squeeze().shape != true.squeeze().shape
               and np.abs(np.sort(each, axis=None) - np.sort(true, axis=None)).max() <= CLOSE * np.abs(true).max()
               for each in values if each.size == true.size)
