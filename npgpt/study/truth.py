"""What a learner's backward should give: a lesson on each of its branches, with the true value of every gradient.

The true values are those of the package's own backward, which the tests verify by central differences on every branch.
A variable whose gradient the package skips by a shortcut has one here as well, measured by differences: a learner may
write the long way.
"""

import copy
import dataclasses
import functools
import inspect

import numpy as np

from npgpt.study.gradcheck import gradient_names, intermediate_gradient, traced_forward
from npgpt.study.lessons import OTHER_SIZES, SIZES, Lesson, Sizes, basics_and_lessons
from npgpt.study.source import read_source
from npgpt.study.trace import recording


@dataclasses.dataclass
class Case:
    """A lesson on one branch.

    name: of the branch, "" for the lesson's own; dy, cache: what the backward gets; y: the forward's result;
    results: {"dx": array} as `Lesson.run_backward` returns them; gradients: dv -> its values in the order in which a
    backward computes them (several if v is assigned several times); helpers: the same for what the package's backward
    computes beside gradients; factors: the forward's finite arrays by name; numbers: the constants by name.
    """

    name: str
    lesson: Lesson
    sizes: Sizes
    dy: np.ndarray
    cache: object
    results: dict[str, np.ndarray]
    gradients: dict[str, list[np.ndarray]]
    helpers: dict[str, list[np.ndarray]]
    factors: dict[str, np.ndarray]
    numbers: dict[str, float]


@functools.cache
def cases(name):
    """All `Case`s of a lesson: its own first, then those of its branches, and last that of other sizes."""
    lesson = basics_and_lessons()[name]
    found = [case(lesson, "", SIZES)]
    found += [case(each, where, SIZES) for where, each in lesson.cases.items()]
    return [*found, case(basics_and_lessons(OTHER_SIZES)[name], "with other sizes", OTHER_SIZES)]


def case(lesson, name, sizes):
    """The `Case` of a lesson under a name."""
    y, cache, forward_record, variables = traced_forward(lesson)
    dy = np.asarray(np.random.default_rng(5).standard_normal(np.shape(y)))
    with recording([lesson.backward]) as record:
        results = lesson.run_backward(dy, copy.deepcopy(cache))
    of_variables = {f"d{each.name}" for each in variables if not each.constant}
    of_inputs = {each for name in lesson.inputs for each in gradient_names(name)}
    gradients, helpers = {}, {}
    for each in record:
        if each.name != lesson.upstream or lesson.name == "gpt":
            kind = gradients if each.name in of_variables | of_inputs else helpers
            kind.setdefault(each.name, []).append(each.value)
    if not name:
        for each in variables:
            if each.name in read_source(lesson.backward).shortcut:
                gradients[f"d{each.name}"] = [intermediate_gradient(lesson, each, dy)]
    factors = {each.name: each.value for each in forward_record} | {
        name: value for name, value in lesson.constants.items() if isinstance(value, np.ndarray)}
    numbers = {name: value for name, value in {**vars(inspect.getmodule(lesson.forward)), **lesson.constants}.items()
               if isinstance(value, float)}
    return Case(name, lesson, sizes, dy, cache, results, gradients, helpers,
                {name: value for name, value in factors.items() if np.isfinite(value).all()}, numbers)
