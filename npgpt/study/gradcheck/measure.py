"""The true gradients of a lesson's forward, by central differences.

The forward runs again with v perturbed at the line that assigns v, and the change of sum(dy * y) is
measured for a random upstream gradient dy. In float64 each entry is perturbed. Numbers of 60 digits
are slow: there all entries are perturbed at once, along one random direction. A wrong entry of a
gradient also changes its derivative along a direction.
"""

import dataclasses
import re
from collections import Counter

import numpy as np

from npgpt import layers
from npgpt.engine.ops import table
from npgpt.engine.watch import watched
from npgpt.study.gradcheck.digits import exact_object, exactly, mp_context, wide
from npgpt.study.gradcheck.source import read_source
from npgpt.study.gradcheck.spelling import spelled
from npgpt.study.gradcheck.trace import LINES, Recorded, is_exact, is_floating
from npgpt.study.lessons.lesson import as_tuple

STEP = 2e-4  # of the differences: errors of order STEP^4 and 1e-16 / STEP, below 1e-10
ROUNDING = 1e-10  # of the differences: a smaller gradient is zero
TURNS = 3  # of a loop in users' code whose variables are measured
SMALL = 1e-6  # another one, for a check where a step of that size meets a kink
COARSE = 2e-2  # for code that computes in float32
TINY = 1e-2
SMALL_STEP = "1e-20"  # with 60 digits: errors of order 1e-40


@dataclasses.dataclass
class Along:
    """The derivative along a direction, in place of a gradient of that shape."""

    direction: np.ndarray
    value: object


@dataclasses.dataclass
class Variable:
    """An assignment of v in a forward.

    number: among all its assignments of floating arrays.
    constant: whether it does not depend on the inputs.
    true: its gradient, None for a constant, and if none was measured.
    is_kept: whether it is an attribute; is_input: whether its value is that of the input of its
    name.
    """

    name: str
    line: int
    number: int
    value: np.ndarray
    constant: bool
    true: np.ndarray | Along | None = None
    is_kept: bool = False
    is_input: bool = False


@dataclasses.dataclass
class Truth:
    """A lesson's true gradients: of the forward's variables in order, and of the inputs by name."""

    variables: list[Variable]
    inputs: dict[str, np.ndarray | Along]
    dy: np.ndarray | tuple[np.ndarray, ...]
    cache: object


def exact(lesson):
    """Return a lesson with its arrays that computes with 60 digits. Raises what NumPy cannot do
    with them.
    """
    known = {}
    functions = {
        name: exactly(value, known) for name, value in lesson.constants.items() if callable(value)
    }
    if lesson.is_composite:
        ops = {name: exactly(getattr(layers, name), known) for name in layers.__all__}
        functions["ops"] = table(**ops)
    # mpmath is imported here: within a ufunc of `wide` that would be a floating-point warning
    forward = exactly(lesson.forward, known)
    backward = exactly(lesson.backward, known)
    widened = lesson.mapped(wide)
    if lesson.is_pair and lesson.layer is not None:
        widened = dataclasses.replace(widened, layer=exact_object(lesson.layer, known))
    return dataclasses.replace(
        widened, forward=forward, backward=backward, constants=widened.constants | functions
    )


def truth(lesson, step=STEP):
    """Measure the gradients of all inputs and floating intermediates of a lesson's forward by
    central differences.

    step: of the differences in float64.
    """
    y, cache, variables = traced_forward(lesson)
    dy = upstream(lesson, y)
    for each in variables:
        if not each.constant:
            each.true = intermediate_gradient(lesson, each, dy, step=step)
    inputs = {name: input_gradient(lesson, name, dy, step=step) for name in lesson.inputs}
    return Truth(variables, inputs, dy, cache)


def upstream(lesson, y, seed=0):
    """Draw the upstream gradient of each result of a forward; 1 for a loss whose backward takes
    none.
    """
    rng = np.random.default_rng(5 + seed)

    def random_like(each):
        shape = np.shape(each)
        drawn = rng.standard_normal(shape) if lesson.has_upstream else np.ones(shape)
        # For a number it is positive in the plain case, as in training: a negative one would flip
        # all signs.
        drawn = np.asarray(abs(drawn) if np.ndim(drawn) == seed == 0 else drawn)
        return wide(drawn) if is_exact(each) else drawn

    return tuple(map(random_like, y)) if isinstance(y, tuple) else random_like(y)


def run_once(lesson):
    """Run a lesson; return the result, the upstream gradient and the gradients."""
    y, cache = lesson.run_forward(lesson.inputs)
    return y, upstream(lesson, y), lesson.run_backward(upstream(lesson, y), cache)


def weighted_sum(dy, y):
    """Return sum(dy * y), over all results."""
    pairs = zip(as_tuple(dy), as_tuple(y), strict=True)
    return sum((each * result).sum() for each, result in pairs)


def traced_forward(lesson):
    """Return y, cache, and the `Variable`s of a lesson's forward.

    Arrays that are filled in parts are left out.
    """
    rng = np.random.default_rng(6)
    source = read_source(lesson.forward)
    far = 1e-3 if lesson.is_pair else 1.0  # users' code may need numbers in a range
    moved = {
        name: value + far * rng.standard_normal(value.shape)
        for name, value in lesson.inputs.items()
    }
    forward, other = Recorded(lesson.forward), Recorded(lesson.forward)
    y, cache = lesson.run_forward(lesson.inputs, forward.function)
    lesson.run_forward(moved, other.function)
    left_out = {*source.filled}
    if lesson.is_one_function:  # it computes the gradients, too
        left_out |= spelled(lesson.forward, lesson.backward).keys()
    variables = []
    alike = len(forward.record) == len(other.record)  # a branch or a loop may depend on the numbers
    left = Counter((each.line, each.name) for each in forward.record)
    for number, each in enumerate(forward.record):
        place = each.line, each.name
        left[place] -= 1
        is_measured = each.line != source.first and each.name not in left_out
        if is_measured and (not lesson.is_pair or left[place] < TURNS):
            constant = alike and np.array_equal(each.value, other.record[number].value)
            statement = source.statement_at(each.line)
            assigned = statement.text.partition("=")[0] if statement else ""
            variables.append(
                Variable(
                    *(each.name, each.line, number, each.value, constant),
                    is_kept=bool(re.search(rf"\.{each.name}\b", assigned)),
                    is_input=np.array_equal(each.value, lesson.inputs.get(each.name)),
                )
            )
    return y, cache, variables


def intermediate_gradient(lesson, variable, dy, at=None, step=STEP, scale=1.0):
    """Measure d(sum(dy * y)) / d(variable), times `scale`: an array of its shape, or the entry at
    one index.
    """
    change = None
    left = 0  # how many assignments come before the perturbed one

    def probe(line, name, value):
        nonlocal left
        if not name or not is_floating(value):
            return value
        left -= 1
        return value + change if left == -1 else value

    forward = watched(lesson.forward, probe, visitor=LINES)

    def output(moved_by):
        nonlocal change, left
        change = scale * moved_by
        left = variable.number
        return weighted_sum(dy, lesson.run_forward(lesson.inputs, forward)[0])

    return differences(output, variable.value, at, step)


def input_gradient(lesson, name, dy, at=None, step=STEP):
    """Measure d(sum(dy * y)) / d(input): an array of its shape, or the entry at one index."""
    return differences(output_of(lesson, name, dy), lesson.inputs[name], at, step)


def output_of(lesson, name, dy):
    """Return the function: change of an input -> sum(dy * y)."""

    def output(change):
        changed = lesson.inputs | {name: lesson.inputs[name] + change}
        return weighted_sum(dy, lesson.run_forward(changed)[0])

    return output


def differences(output, value, at, size):
    """Measure the gradient of output(change) at 0: all entries, or that at an index; in float64 to
    fourth order.
    """
    shape = np.shape(value)
    if is_exact(value):
        direction = wide(np.random.default_rng(8).standard_normal(shape))
        step = mp_context().mpf(SMALL_STEP)
        return Along(direction, (output(step * direction) - output(-step * direction)) / (2 * step))
    gradient = np.empty(shape)
    most = np.abs(value).max(initial=0.0)
    size *= most if 0.0 < most < TINY else 1.0  # a step within small values
    for index in np.ndindex(shape) if at is None else [at]:
        direction = np.zeros(shape)
        direction[index] = 1.0
        gradient[index] = derivative(output, direction, size)
    if at is not None:
        return gradient[at]
    return gradient if np.abs(gradient).max(initial=0.0) > ROUNDING else np.zeros_like(gradient)


def derivative(output, direction, step):
    """Measure the derivative of output(change) at 0 along a direction, to fourth order."""
    near = step * direction
    far = 2.0 * step * direction
    change = 8.0 * (output(near) - output(-near)) - (output(far) - output(-far))
    return change / (12.0 * step)
