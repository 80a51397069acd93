"""The expected results of a learner's backward: a lesson in one case, with the true value of every gradient.

The true values come from the package's own backward, which the tests verify by central differences on every branch.
Fused gradients, which the package does not compute, are measured by differences: a learner may write the long way.
"""

import copy
import functools

import numpy as np

from npgpt.study.gradcheck.check import gradient_names
from npgpt.study.gradcheck.measure import intermediate_gradient, traced_forward, upstream
from npgpt.study.gradcheck.pictures import Arrays
from npgpt.study.gradcheck.spelling import spelled
from npgpt.study.gradcheck.trace import Recorded
from npgpt.study.lessons.random_settings import random_settings
from npgpt.study.lessons.table import lesson_named


class Case:
    """The arguments of a backward in one case, and the true gradients of all inputs, `results` {"dx": array}.

    dy, cache: the arguments. On first use: `gradients` {"dv": [array, …]}, several if v is assigned several times, in
    the backward's order; `helpers`: the same for the package's other intermediates.
    """

    def __init__(self, name, setting):
        self.name = name
        self.setting = setting
        self.lesson = lesson_named(name, setting)
        self.forward = self.lesson.forward
        self.backward = self.lesson.backward
        self.inputs = self.lesson.inputs
        y, self.cache = self.lesson.run_forward(self.inputs)
        self.dy = upstream(self.lesson, y, setting.seed)
        self.results = self.lesson.named(self.lesson.apply(self.backward, self.arguments()))

    def arguments(self):
        """Return the arguments of the backward, as new arrays."""
        return self.lesson.arguments(*copy.deepcopy((self.dy, self.cache)))

    @property
    def spelling(self):
        """Name -> "dv" of the gradients in the backward of a layer of one's own, which may have
        other names.
        """
        return spelled(self.forward, self.backward, tuple(self.inputs))

    @functools.cached_property
    def intermediates(self):
        """Return (gradients, helpers)."""
        variables = traced_forward(self.lesson)[2]
        backward = Recorded(self.backward)
        self.lesson.apply(backward.function, self.arguments())
        of_variables = {f"d{each.name}" for each in variables if not each.constant}
        of_inputs = {each for name in self.inputs for each in gradient_names(name)}
        gradients = {}
        helpers = {}
        for each in backward.record:
            each.name = self.spelling.get(each.name, each.name)
            if each.name != self.lesson.upstream or self.name == "gpt":
                kind = gradients if each.name in of_variables | of_inputs else helpers
                kind.setdefault(each.name, []).append(each.value)
        for each in variables:
            if each.name in self.lesson.skipped:
                with np.errstate(invalid="ignore"):         # the variance of one channel is 0, and a step below is NaN
                    measured = intermediate_gradient(self.lesson, each, self.dy)
                if np.isfinite(measured).all():
                    gradients[f"d{each.name}"] = [measured]
        return gradients, helpers

    gradients = property(lambda self: self.intermediates[0])
    helpers = property(lambda self: self.intermediates[1])

    def show(self):
        """Return the inputs, dy and their gradients, which a notebook shows as pictures."""
        known = {**self.inputs, self.lesson.upstream: self.dy, **self.results}
        return Arrays({name: array for name, array in known.items()
                       if "." not in name and isinstance(array, np.ndarray)})

    @functools.cached_property
    def factors(self):
        """Return name -> value of the forward's finite arrays."""
        named = {each.name: each.value for each in traced_forward(self.lesson)[2]} | {
            name: value for name, value in self.lesson.constants.items() if isinstance(value, np.ndarray)}
        return {name: value for name, value in named.items() if np.isfinite(value).all()}


@functools.lru_cache(8)
def cases(name, seed=0):
    """Return all `Case`s of a check of the lesson `name`, the plain one first."""
    return [Case(name, setting) for setting in random_settings(lesson_named(name), seed)]
