"""Lesson lines that a compiler takes: their arguments in random layouts, and what they return."""

import inspect
import itertools
import linecache

import numpy as np
import pytest

from npgpt import layers
from npgpt.study.gradcheck.measure import upstream
from tests.cases import LAYOUTS, arrays_in, unchanged

DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])
PAIRS = sorted(
    name.removesuffix("_forward") for name in layers.__all__ if name.endswith("_forward")
)
count = itertools.count()


def defined(source):
    """Return the function `f` of a source, which inspect finds."""
    file, names = f"<program {next(count)}>", {"np": np}
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    exec(compile(source, file, "exec"), names)
    return names["f"]


def outcome(function, *arguments):
    """Return what a call returns, or the type of the error that it raises."""
    try:
        with np.errstate(all="ignore"):
            return function(*arguments)
    except Exception as error:
        return type(error)


def assert_alike(ours, theirs, tolerance, least=1.0):
    """Numbers to rounding of the array's largest, or of `least`; shapes, dtypes and the rest are
    the same.
    """
    if isinstance(theirs, tuple):
        assert isinstance(ours, tuple) and len(ours) == len(theirs), (ours, theirs)
        for pair in zip(ours, theirs, strict=True):
            assert_alike(*pair, tolerance, least)
    elif isinstance(theirs, np.ndarray | np.floating | float):
        assert (np.shape(ours), np.result_type(ours)) == (np.shape(theirs), np.result_type(theirs))
        if np.asarray(theirs).dtype == object:
            np.testing.assert_array_equal(ours, theirs)
            return
        largest = np.abs(theirs).max(initial=least, where=np.isfinite(theirs))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * largest)
    else:
        assert ours is theirs or type(ours) is type(theirs) and ours == theirs, (ours, theirs)


def arguments_of(lesson, seed, dtype):
    """Return the arguments of a lesson's forward in random layouts, and the first one of its
    backward.
    """
    rng = np.random.default_rng(seed)

    def laid_out(array):
        return LAYOUTS[rng.integers(len(LAYOUTS))](
            array.astype(dtype) if array.dtype.kind == "f" else array
        )

    values = lesson.mapped(laid_out)
    values = [
        (values.inputs | values.constants)[name]
        for name in inspect.signature(lesson.forward).parameters
    ]
    return values, np.asarray(upstream(lesson, lesson.forward(*values)[0]), dtype)


def results_of(pair, arguments, dy, given_up=()):
    """Return y, cache and the gradients. No argument is written to, but for the places that are
    `given_up`.
    """
    forward, backward = pair
    with unchanged((dy, [each for i, each in enumerate(arguments) if i not in given_up])):
        made = outcome(forward, *arguments)
        if isinstance(made, type):
            return made
        gone = made[1][0] if given_up else None
        with unchanged([each for each in arrays_in(made[1]) if each is not gone]):
            copied = (
                tuple(np.copy(each) if each is gone else each for each in made[1])
                if given_up
                else made[1]
            )
            return made[0], copied, outcome(backward, dy, made[1])
