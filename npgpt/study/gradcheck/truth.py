"""The expected results of a learner's backward: a lesson in one case, with the true value of every
gradient.

The true values come from the package's own backward, which the tests verify by central differences
on every branch.
Fused gradients, which the package does not compute, are measured by differences: a learner may
write the long way.
"""

import copy
import dataclasses
import functools

import numpy as np

from npgpt.study.gradcheck.check import gradient_names, relative_error
from npgpt.study.gradcheck.measure import intermediate_gradient, traced_forward, upstream
from npgpt.study.gradcheck.pictures import Arrays
from npgpt.study.gradcheck.spelling import spelled
from npgpt.study.gradcheck.trace import Recorded
from npgpt.study.lessons.lesson import as_tuple, map_arrays
from npgpt.study.lessons.random_settings import random_settings
from npgpt.study.lessons.setting import PLAIN
from npgpt.study.lessons.table import lesson_named

EXACT = 1e-9  # relative error of a right result: any order of the operations is far below it
SINGLE = 1e-4  # the same in float32, or this many times the package's own:
MORE = 100
NOISE = 1000  # times the rounding of the largest result
MOST = 10**7  # numbers that are computed to measure the gradient of one intermediate


class Case:
    """The arguments of a backward in one case, and the true gradients.

    Attributes
    ----------
    inputs : dict
        Name -> array.
    dy, cache
        The arguments of the backward.
    results : dict
        The true gradients of the inputs, {"dx": array, …}.
    gradients : dict
        Those of all variables, {"dv": [array, …], …}, measured on first use: several if v is
        assigned several times, in the backward's order.
    helpers : dict
        The same for the package's other intermediates.
    """

    def __init__(self, name, setting):
        self.name = name
        self.setting = setting
        self.lesson = lesson_named(name, setting)
        self.forward = self.lesson.forward
        self.backward = self.lesson.backward
        self.inputs = self.lesson.inputs
        y, self.cache = self.lesson.run_forward(self.inputs)
        self.dy = self.upstream_gradient(y)
        self.results = self.lesson.named(self.lesson.apply(self.backward, self.arguments()))

    def upstream_gradient(self, y):
        """Return that of the results: arrays, of a loss also a number, as in training."""
        drawn = upstream(self.lesson, y, self.setting.seed)
        if np.ndim(drawn) == 0 and not self.setting.views and self.setting != PLAIN:
            return self.setting.upstream * float(drawn)
        arrays = as_tuple(drawn)
        for array in arrays:
            array *= self.setting.upstream
            if self.setting.zeros == "rows":
                self.setting.with_zeros([array])
        return map_arrays(self.setting.arranged, drawn)

    def tolerance(self, name):
        """Return the relative error that a result may have.

        In float32 it is some more than the package's own. If the result is small beside the others,
        it is mostly rounding.
        """
        result = self.results[name]
        largest = max(
            np.abs(each).max(initial=0.0) for each in self.results.values() if each is not None
        )
        noise = np.finfo(result.dtype).eps * largest / (np.abs(result).max(initial=0.0) or 1.0)
        if not self.setting.single:
            return max(EXACT, NOISE * noise)
        true = Case(self.name, dataclasses.replace(self.setting, single=False)).results[name]
        return max(SINGLE, NOISE * noise, MORE * relative_error(result, true))

    def arguments(self):
        """Return the arguments of the backward, as new arrays."""
        dy, cache = copy.deepcopy((self.dy, self.cache))
        if self.setting.seed % 3 != 1:  # else only what the forward has kept
            dy = map_arrays(self.setting.laid_out, dy)
        return self.lesson.arguments(dy, map_arrays(self.setting.laid_out, cache))

    @property
    def spelling(self):
        """Name -> "dv" of the gradients in the backward: users may have other names for them."""
        return spelled(self.forward, self.backward, tuple(self.inputs))

    @functools.cached_property
    def intermediates(self):
        """Return (gradients, helpers)."""
        if self.setting.single:  # only the results are exact enough
            return {}, {}
        variables = traced_forward(self.lesson)[2]
        backward = Recorded(self.backward, spelling=self.spelling)
        self.lesson.apply(backward.function, self.arguments())
        numbers = sum(each.value.size for each in variables)
        names = {f"d{each.name}" for each in variables if not each.constant}
        names = names.union(*map(gradient_names, self.inputs))
        gradients, helpers = {}, {}
        for each in backward.record:
            if each.name != self.lesson.upstream or self.name == "gpt":
                kind = gradients if each.name in names else helpers
                kind.setdefault(each.name, []).append(each.value)
        for each in variables:
            if each.name in self.lesson.skipped and each.value.size * numbers < MOST:
                # The variance of one channel is 0, and a step below is NaN.
                with np.errstate(invalid="ignore"):
                    measured = intermediate_gradient(self.lesson, each, self.dy)
                if np.isfinite(measured).all():
                    gradients[f"d{each.name}"] = [measured]
        return gradients, helpers

    gradients = property(lambda self: self.intermediates[0])
    helpers = property(lambda self: self.intermediates[1])

    def show(self):
        """Return the inputs, dy and their gradients, which a notebook shows as pictures."""
        known = {**self.inputs, self.lesson.upstream: self.dy, **self.results}
        arrays = {name: array for name, array in known.items() if isinstance(array, np.ndarray)}
        return Arrays({name: array for name, array in arrays.items() if "." not in name})

    @functools.cached_property
    def known(self):
        """Return name -> value of the forward's arguments and variables, number -> value of its
        cache.
        """
        forward = Recorded(self.forward)
        self.lesson.run_forward(self.inputs, forward.function)
        cache = enumerate(self.cache) if isinstance(self.cache, tuple) else ()
        return dict(cache) | self.inputs | self.lesson.constants | forward.last


@functools.lru_cache(8)
def cases(name, seed=0):
    """Return all `Case`s of a check of the lesson `name`, the plain one first."""
    return [Case(name, setting) for setting in random_settings(lesson_named(name), seed)]
