"""Which line of the package's backward a learner's mistake is in, found by the values: the names may be others."""

import numpy as np

from npgpt.study.exercises.exercise import key_of, statements
from npgpt.study.exercises.walk import RESULT, changed_names, package_walk
from npgpt.study.gradcheck.check import gradient_names, tree_line
from npgpt.study.gradcheck.source import names_in, read_source
from npgpt.study.gradcheck.trace import is_floating
from npgpt.study.judge.shapes import CLOSE, close
from npgpt.study.lessons.lesson import map_arrays


def counterpart(judgement, wrong):
    """Return the key of the package's line in which the gradients in `wrong` go wrong, or "" if it is not clear.

    It is the only line whose arrays the learner has computed, under any name, but not its result.
    """
    case, source = judgement.case, read_source(judgement.lesson.backward)
    have = [case.dy, *(each.value for each in judgement.record), *judgement.results.values()]
    map_arrays(have.append, case.cache)
    have = [*map(np.asarray, filter(is_floating, have))]
    have += [part for whole in have if whole.ndim > 2 for part in whole]        # the learner may stack arrays
    wanted = {other for name in wrong for other in gradient_names(name[1:])} | {*wrong}
    in_tree = (tree_line(source, wrong[0][1:]) or 0) - source.first + 1         # of a parameter's gradient
    walk, found = package_walk(case), set()
    for outer, before, after in reversed([*zip(walk.statements, walk.before, walk.before[1:], strict=False)]):
        for name in changed_names(outer) - {RESULT}:
            value = after.get(name)
            if not is_floating(value) or not value.any() or has(have, value):
                continue
            statement = [each for each in statements(outer) if name in changed_names(each)][-1]
            if name in wanted or statement.lineno == in_tree:
                wanted |= names_in(statement.value)
                if all(has(have, before[each]) for each in names_in(statement.value) if is_floating(before.get(each))):
                    found.add(key_of(statement))
    return found.pop() if len(found) == 1 else ""


def has(values, true):
    """Return whether an array is among the values, perhaps in another shape or order, but not without keepdims."""
    true = np.asarray(true)
    return any(each.shape == true.shape and close(each, true) or each.squeeze().shape != true.squeeze().shape
               and np.abs(np.sort(each, axis=None) - np.sort(true, axis=None)).max() <= CLOSE * np.abs(true).max()
               for each in values if each.size == true.size)
