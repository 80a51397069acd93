"""The per-line gradient check: for each floating variable v of a forward, the backward's `dv` against the true one.

The true gradient is measured by central differences in float64: the forward runs again with one entry of v perturbed at
the line that assigns v, and the change of sum(dy * y) is measured for a random upstream gradient dy. So every line is
verified separately. The mistake is in the first wrong line, or in a line before it that has no gradient to compare.
"""

import copy
import dataclasses
import re

import numpy as np

from npgpt.study.gradcheck.probe import with_probes
from npgpt.study.gradcheck.source import read_source
from npgpt.study.gradcheck.trace import is_floating, recording
from npgpt.study.lessons.lesson import Lesson

STEP = 2e-4         # of the differences: errors of order STEP^4 and 1e-16 / STEP, below 1e-10
ROUNDING = 1e-10    # of the differences: a smaller gradient is zero
TOLERANCE = 1e-7    # largest error relative to the gradient's largest value

OK, WRONG, SHORTCUT, CONSTANT = "ok", "WRONG", "shortcut", "constant"


@dataclasses.dataclass
class LineCheck:
    """The check of one variable v of a forward.

    forward_line, backward_line: the lines in `file` that assign v (the `def` for an argument) and dv (None if missing).
    relative: the largest error divided by the largest value of the gradient, or None. verdict: "ok" or "WRONG" for dv;
    "shortcut": dv is skipped, and the gradient `through` covers it; "constant": v depends on no input. torch: the
    relative error of torch's autograd over the same forward lines, or None.
    """

    layer: str
    file: str
    variable: str
    forward_line: int
    forward_text: str
    backward_line: int | None
    backward_text: str
    shape: tuple[int, ...]
    relative: float | None
    verdict: str
    through: str | None = None
    torch: float | None = None


@dataclasses.dataclass
class Variable:
    """One execution of a forward's statement that assigned v: `occurrence` counts v's assignments, from 0.

    constant: its value does not depend on the inputs, as that of a mask, so no gradient flows through it.
    """

    name: str
    line: int
    occurrence: int
    value: np.ndarray
    constant: bool


@dataclasses.dataclass
class Truth:
    """A lesson's true gradients, measured once to judge any number of backwards.

    variables: the forward's intermediates; gradients: in the same order, None for constants; inputs: name -> gradient
    of each input; dy: the upstream gradient; y, cache: the forward's results.
    """

    lesson: Lesson
    variables: list[Variable]
    gradients: list[np.ndarray | None]
    inputs: dict[str, np.ndarray]
    dy: np.ndarray
    y: np.ndarray
    cache: object


def truth(lesson):
    """Measure the gradients of all inputs and floating intermediates of a lesson's forward by central differences."""
    y, cache, _, variables = traced_forward(lesson)
    dy = np.asarray(np.random.default_rng(5).standard_normal(np.shape(y)))
    gradients = [None if each.constant else intermediate_gradient(lesson, each, dy) for each in variables]
    inputs = {name: input_gradient(lesson, name, dy) for name in lesson.inputs}
    return Truth(lesson, variables, gradients, inputs, dy, y, cache)


def traced_forward(lesson):
    """Return y, cache, the assignments of a lesson's forward, and its `Variable`s."""
    rng = np.random.default_rng(6)
    y, cache, record = traced(lesson, lesson.inputs)
    moved = {name: value + rng.standard_normal(value.shape) for name, value in lesson.inputs.items()}
    variables, counts = [], {}
    for each, other in zip(record, traced(lesson, moved)[2], strict=True):
        occurrence = counts[each.name] = counts.get(each.name, -1) + 1
        constant = np.array_equal(each.value, other.value)
        variables.append(Variable(each.name, each.line, occurrence, each.value, constant))
    return y, cache, record, variables


def traced(lesson, inputs):
    """Return y, cache and the assignments of the forward on some inputs, without its arguments."""
    with recording([lesson.forward]) as record:
        y, cache = lesson.run_forward(inputs)
    return y, cache, [each for each in record if each.line != read_source(lesson.forward).first]


def intermediate_gradient(lesson, variable, dy, at=None):
    """Measure d(sum(dy * y)) / d(variable): an array of its shape, or the entry at one index."""
    change, left = None, 0          # left: assignments of v before the perturbed one

    def probe(name, value):
        nonlocal left
        if name != variable.name or not is_floating(value):
            return value
        left -= 1
        return value + change if left == -1 else value

    forward = with_probes(lesson.forward, probe)

    def output(moved_by):
        nonlocal change, left
        change, left = moved_by, variable.occurrence
        return (dy * lesson.run_forward(lesson.inputs, forward)[0]).sum()

    return differences(output, variable.value, at)


def input_gradient(lesson, name, dy, at=None):
    """Measure d(sum(dy * y)) / d(input): an array of its shape, or the entry at one index."""
    def output(changed_by):
        return (dy * lesson.run_forward(lesson.inputs | {name: lesson.inputs[name] + changed_by})[0]).sum()

    return differences(output, lesson.inputs[name], at)


def differences(output, value, at=None):
    """Measure the gradient of output(change) at change = 0, in each entry or in one.

    Central differences of fourth order: the terms of order STEP^2 of two pairs of points cancel.
    """
    gradient = np.empty(np.shape(value))
    for index in np.ndindex(np.shape(value)) if at is None else [at]:
        step = np.zeros(np.shape(value))
        step[index] = STEP
        near, far = output(step) - output(-step), output(2.0 * step) - output(-2.0 * step)
        gradient[index] = (8.0 * near - far) / (12.0 * STEP)
    if at is not None:
        return gradient[at]
    return gradient if np.abs(gradient).max() > ROUNDING else np.zeros_like(gradient)


def check(lesson, backward=None, known=None, torch=False):
    """Return a `LineCheck` for each input and floating intermediate of a lesson, in the order of the forward's lines.

    backward: a function to judge instead of the lesson's own. known: the lesson's `truth`, if already measured. torch:
    compare with torch too. Raises what the backward raises; its `checks` are those of the gradients computed before.
    """
    known = known or truth(lesson)
    backward = backward or lesson.backward
    dy, cache = copy.deepcopy((known.dy, known.cache))      # a wrong backward may write to them
    result, error = {}, None
    with recording([backward]) as record:
        try:
            result = lesson.run_backward(dy, cache, backward)
        except Exception as raised:
            error = raised
    forward_source, backward_source = read_source(lesson.forward), read_source(backward)
    found = matched(known.variables, [each for each in record if each.name not in backward_source.filled])
    checks, by_torch = [], {}
    if torch:
        from npgpt.study.gradcheck.torch_oracle import gradients
        by_torch = gradients(lesson, known.dy)

    def add(key, line, value, true, gradient=None, backward_line=None, verdict=None, through=None):
        """key: an input's name, or (name, occurrence) of an intermediate."""
        relative = None if gradient is None or true is None else relative_error(gradient, true)
        if verdict is None:
            verdict = OK if relative is not None and relative <= TOLERANCE else WRONG
        statement = forward_source.statement_at(line)
        back = backward_source.statement_at(backward_line) if backward_line else None
        theirs, ours = by_torch.get(key), gradient if is_floating(gradient) else true
        checks.append(LineCheck(
            lesson.name, forward_source.file, key if isinstance(key, str) else key[0], line,
            statement.text if statement else "(argument)", backward_line, back.text if back else "", np.shape(value),
            relative, verdict, through, None if theirs is None or ours is None else relative_error(theirs, ours)))

    for name, value in lesson.inputs.items() if error is None else ():
        true, gradient = known.inputs[name], result.get(f"d{name}")
        line = gradient_line(backward_source, record, name, true, gradient)
        add(name, forward_source.first, value, true, gradient, line)
    previous = next(iter(lesson.inputs))
    for i, (variable, true) in enumerate(zip(known.variables, known.gradients, strict=True)):
        name, place = variable.name, ((variable.name, variable.occurrence), variable.line, variable.value)
        if name in lesson.skipped and i not in found:
            add(*place, true, verdict=SHORTCUT, through=f"d{previous}")
        elif variable.constant:
            add(*place, None, verdict=CONSTANT)
        else:
            previous = name
            if i in found:
                add(*place, true, found[i].value, found[i].line)
            elif error is None:
                add(*place, true, None, named_line(backward_source, name))
    if error is not None:
        error.checks = checks
        raise error
    return checks


def matched(variables, record):
    """Map the index of a variable to the assignment of its gradient in the backward.

    The backward undoes the lines in reverse: the last v of the forward matches the first dv of the backward. A single
    dv matches every v: `y = y + bias` passes its gradient on unchanged.
    """
    found = {}
    for name in {variable.name for variable in variables}:
        indexes = [i for i, variable in enumerate(variables) if variable.name == name]
        gradients = [each for each in record if each.name == f"d{name}"]
        if len(gradients) == 1:
            gradients *= len(indexes)
        found |= dict(zip(reversed(indexes), gradients, strict=False))
    return found


def gradient_line(source, record, name, true, gradient):
    """Return the line of a backward that computes the gradient of an input: the last that assigns it.

    If the array is filled or changed in place later, it is the last such line. If it was right there but is wrong in
    the result, it is the line that puts it into the tree, or the `return`.
    """
    names = gradient_names(name)
    filled = max([source.filled[each] for each in names if each in source.filled], default=None)
    if filled:              # and perhaps scaled later, `dx /= count`
        filled = max([filled, *(each.first for each in source.statements if not {*names}.isdisjoint(each.targets))])
    made = next((each for each in reversed(record) if each.name in names), None)
    if filled or made is None:
        return filled or named_line(source, name)
    if relative_error(made.value, true) <= TOLERANCE < relative_error(gradient, true):
        return tree_line(source, name) or source.statements[-1].first
    if relative_error(made.value, gradient) > 0.0:
        return next((each.first for each in source.statements if each.first > made.line and not each.targets
                     and re.search(rf"\b{re.escape(made.name)}\b", each.text)), made.line)
    return made.line


def gradient_names(name):
    """Return the names a backward may use for an input's gradient: dwte_weight or dwte for "wte.weight"."""
    parts = name.split(".")
    return ["_".join(["d" + parts[0], *parts[1:i]]) for i in range(len(parts), 0, -1)]


def named_line(source, name):
    """Return the line of a backward that should assign the gradient of `name`, else its `def`."""
    names = gradient_names(name)
    return next((each.first for each in source.statements if not {*names}.isdisjoint(each.targets)),
                tree_line(source, name) or source.first)


def tree_line(source, name):
    """Return the line that puts a parameter's gradient, or a subtree with it, into the tree dp; or None."""
    part = name.split(".")[0]
    return next((each.first for each in source.statements
                 if f"dp_{part}" in each.targets or f"dp[{part!r}]" in each.text), None)


def relative_error(gradient, true):
    """Return the largest error relative to the largest true value; infinite if the arrays are not comparable."""
    if not is_floating(gradient) or np.shape(gradient) != np.shape(true) or not np.isfinite(gradient).all():
        return np.inf
    if np.size(true) == 0:
        return 0.0
    return float(np.abs(gradient - true).max()) / (float(np.abs(true).max()) or 1.0)


def first_wrong(checks):
    """Return the wrong check at the earliest line of the backward, or None."""
    wrong = [each for each in checks if each.verdict == WRONG]
    return min(wrong, key=lambda each: each.backward_line or 0, default=None)
