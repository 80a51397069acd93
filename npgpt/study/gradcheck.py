"""The per-line gradient check: for every floating variable of a forward, the `dv` of the backward against what it is.

What it is, is found by central differences in float64: the forward is run again with one value of v a little larger and
a little smaller at the very line that assigns v, and the change of sum(dy * y) is measured, dy a random upstream
gradient. So each line has its own proof: a wrong backward is wrong at a line, and the first line that is wrong is where
the mistake stands, or the line before it that has no gradient of its own.
"""

import copy
import dataclasses
import re

import numpy as np

from npgpt.study.lessons import Lesson
from npgpt.study.probe import with_probes
from npgpt.study.source import read_source
from npgpt.study.trace import is_floating, recording

STEP = 1e-3         # of the differences: their errors, of order STEP^4 and 1e-16 / STEP, are then both near 1e-12
TOLERANCE = 1e-7    # of the largest error relative to the largest value of the gradient

OK, WRONG, SHORT_CUT, PARTS, CONSTANT = "ok", "WRONG", "short cut", "in parts", "constant"


@dataclasses.dataclass
class LineCheck:
    """What was found out about one variable v of a forward.

    forward_line, backward_line: line numbers in `file`, of the statement that assigns v (of the `def` for an argument),
    and of that which assigns dv (None where it has none). norm: of the gradient. absolute, relative: the largest
    error, and that divided by the largest value of the gradient; None where there is nothing to compare.
    verdict: "ok" or "WRONG" by its own dv; "short cut": dv is skipped, and `through` names the gradient in which it
    is checked; "in parts": v is an array that is filled part by part, checked through the gradients named;
    "constant": it does not depend on anything that has a gradient. torch: the relative error against torch's autograd
    over the same forward lines, None where torch was not asked.
    """

    layer: str
    file: str
    variable: str
    forward_line: int
    forward_text: str
    backward_line: int | None
    backward_text: str
    shape: tuple[int, ...]
    norm: float
    absolute: float | None
    relative: float | None
    verdict: str
    through: str | None = None
    torch: float | None = None


@dataclasses.dataclass
class Variable:
    """One execution of a forward's statement that made v: `occurrence` counts v's statements of that call, from 0.

    constant: it is the same whatever the inputs are, as a mask is, or the targets' shares: nothing flows through it.
    """

    name: str
    line: int
    occurrence: int
    value: np.ndarray
    constant: bool


@dataclasses.dataclass
class Truth:
    """What a lesson's gradients are, by differences; made once, to judge any number of backwards by.

    variables: the forward's intermediates; gradients: theirs, in the same order, None for constants and for
    what is filled in parts; inputs: name -> gradient of each input; dy: the upstream gradient; y, cache: the forward's.
    """

    lesson: Lesson
    variables: list[Variable]
    gradients: list[np.ndarray | None]
    inputs: dict[str, np.ndarray]
    dy: np.ndarray
    y: np.ndarray
    cache: object


def truth(lesson):
    """The gradients of all inputs and floating intermediates of a lesson's forward, by central differences."""
    rng = np.random.default_rng(5)
    y, cache, record = traced(lesson, lesson.inputs)
    moved = {name: value + rng.standard_normal(value.shape) for name, value in lesson.inputs.items()}
    dy = np.asarray(rng.standard_normal(np.shape(y)))
    source = read_source(lesson.forward)
    variables, counts = [], {}
    for each, other in zip(record, traced(lesson, moved)[2], strict=True):
        occurrence = counts[each.name] = counts.get(each.name, -1) + 1
        constant = np.array_equal(each.value, other.value)
        variables.append(Variable(each.name, each.line, occurrence, each.value, constant))
    gradients = [None if each.constant or each.name in source.filled else intermediate_gradient(lesson, each, dy)
                 for each in variables]
    inputs = {name: input_gradient(lesson, name, dy) for name in lesson.inputs}
    return Truth(lesson, variables, gradients, inputs, dy, y, cache)


def traced(lesson, inputs):
    """y, cache and the assignments of the forward on some inputs, its arguments left out."""
    with recording([lesson.forward]) as record:
        y, cache = lesson.run_forward(inputs)
    return y, cache, [each for each in record if each.line != read_source(lesson.forward).first]


def intermediate_gradient(lesson, variable, dy):
    """d(sum(dy * y)) / d(variable), an array of its shape."""
    change, seen = None, 0

    def probe(line, name, value):
        nonlocal seen
        if name != variable.name or not hasattr(value, "dtype") or value.dtype.kind != "f":
            return value
        seen += 1
        return value + change if seen == variable.occurrence + 1 else value

    forward = with_probes(lesson.forward, probe)

    def output(changed_by):
        nonlocal change, seen
        change, seen = changed_by, 0
        return (dy * lesson.run_forward(lesson.inputs, forward)[0]).sum()

    return differences(output, variable.value)


def input_gradient(lesson, name, dy):
    """d(sum(dy * y)) / d(input), an array of its shape."""
    def output(changed_by):
        return (dy * lesson.run_forward(lesson.inputs | {name: lesson.inputs[name] + changed_by})[0]).sum()

    return differences(output, lesson.inputs[name])


def differences(output, value):
    """The gradient at 0 of output(change), a number, in each element of a change of the value's shape.

    Central differences of fourth order: the terms of order STEP^2 of two pairs of points cancel.
    """
    gradient = np.empty(np.shape(value))
    for index in np.ndindex(np.shape(value)):
        step = np.zeros(np.shape(value))
        step[index] = STEP
        near, far = output(step) - output(-step), output(2.0 * step) - output(-2.0 * step)
        gradient[index] = (8.0 * near - far) / (12.0 * STEP)
    return gradient


def check(lesson, backward=None, known=None, torch=False):
    """A `LineCheck` for each input and floating intermediate of a lesson, in the order of the forward's lines.

    backward: another function to be judged in the lesson's place (a learner's, or one with a planted bug). known: the
    lesson's `truth`, if it has been made already. torch: compare with torch too; ImportError where it is missing.
    An exception of the backward is let through; its attribute `checks` has what could be checked before it.
    """
    known = known or truth(lesson)
    backward = backward or lesson.backward
    dy, cache = copy.deepcopy((known.dy, known.cache))      # a wrong backward may write to them
    raised = None
    with recording([backward]) as record:
        try:
            result = lesson.run_backward(dy, cache, backward)
        except Exception as error:
            result, raised = {}, error
    forward_source, backward_source = read_source(lesson.forward), read_source(backward)
    made = [each for each in record if each.name not in backward_source.filled]
    found = matched(known.variables, made)
    skipped = read_source(lesson.backward).short_cut        # the original's: a learner's docstring may say anything
    by_torch = torch_gradients(lesson, known) if torch else {}

    checks = []
    last = {each.name: each for each in record}

    def add(name, line, value, true, gradient, backward_line, verdict=None, through=None, torch_gradient=None):
        absolute, relative = (None, None) if gradient is None or true is None else errors(gradient, true)
        if verdict is None:
            verdict = OK if relative is not None and relative <= TOLERANCE else WRONG
        statement = forward_source.statement_at(line)
        back = backward_source.statement_at(backward_line) if backward_line else None
        shown = gradient if is_floating(gradient) else true
        checks.append(LineCheck(
            lesson.name, forward_source.file, name, line, statement.text if statement else "(argument)", backward_line,
            back.text if back else "", np.shape(value), float(np.linalg.norm(shown)) if shown is not None else 0.0,
            absolute, relative, verdict, through,
            None if torch_gradient is None or shown is None else errors(torch_gradient, shown)[1]))

    for name, value in lesson.inputs.items():
        if raised is not None:
            break                                           # nothing was returned
        gradient = result.get(f"d{name}")
        line = gradient_line(backward_source, last.get(f"d{name}"), name, known.inputs[name], gradient)
        add(name, forward_source.first, value, known.inputs[name], gradient, line, torch_gradient=by_torch.get(name))
    previous = next(iter(lesson.inputs))
    for i, (variable, true) in enumerate(zip(known.variables, known.gradients, strict=True)):
        torch_gradient = by_torch.get((variable.name, variable.occurrence))
        if variable.name in skipped:
            add(variable.name, variable.line, variable.value, true, None, None, SHORT_CUT, f"d{previous}",
                torch_gradient)
            continue
        if variable.constant:
            add(variable.name, variable.line, variable.value, None, None, None, CONSTANT)
            continue
        previous = variable.name
        if true is None:
            add(variable.name, variable.line, variable.value, None, None, None, PARTS,
                " ".join(f"d{name}" for name in lesson.inputs))
        elif i in found:
            add(variable.name, variable.line, variable.value, true, found[i].value, found[i].line,
                torch_gradient=torch_gradient)
        elif raised is None:
            add(variable.name, variable.line, variable.value, true, None, bound_line(backward_source, variable.name),
                WRONG)
    if raised is not None:
        raised.checks = checks
        raise raised
    return checks


def matched(variables, record):
    """index of a variable -> the assignment in the backward that is its gradient.

    The backward undoes the lines in reverse: the last v of the forward has the first dv of the backward. `v += …` hands
    its gradient on unchanged: the v before it has the same dv.
    """
    found = {}
    for name in {variable.name for variable in variables}:
        indexes = [i for i, variable in enumerate(variables) if variable.name == name]
        gradients = [each for each in record if each.name == f"d{name}" and not each.in_place]
        for i, gradient in zip(reversed(indexes), gradients, strict=False):
            found[i] = gradient
        if len(gradients) == 1:
            for i in indexes:
                found[i] = gradients[0]
    return found


def gradient_line(source, made, name, true, gradient):
    """The line of a backward that the gradient of an input comes from.

    made: the last assignment of d<name>, or None. That is the line, but for an array that is filled or changed later
    (the last line that does it), and for a gradient that was right there and is wrong as it is returned: then the line
    of the `return`.
    """
    if f"d{name}" in source.filled:
        return source.filled[f"d{name}"]
    if made is None:
        return bound_line(source, name)
    if errors(made.value, true)[1] <= TOLERANCE < errors(gradient, true)[1]:
        return source.statements[-1].first
    if errors(made.value, gradient)[1] > 0.0:
        changing = [each.first for each in source.statements if each.first > made.line and not each.targets
                    and re.search(rf"\bd{re.escape(name)}\b", each.text)]
        return changing[0] if changing else made.line
    return made.line


def bound_line(source, name):
    """The line of the statement that should make d<name>, or writes the gradient of a parameter of that name.

    The parameters of a block inside the whole model are written by `block_backward`: the line that calls it. Where
    there is none of these, the line of the `def`.
    """
    for statement in source.statements:
        if f"d{name}" in statement.targets:
            return statement.first
    for text in (repr(name), repr(re.sub(r"^h\.\d+\.", "", name)), "block_backward("):
        for statement in source.statements:
            if text in statement.text and (text != "block_backward(" or name.startswith("h.")):
                return statement.first
    return source.first


def errors(gradient, true):
    """The largest absolute error, and it relative to the largest value; infinite for what is no array of the shape."""
    if not is_floating(gradient) or np.shape(gradient) != np.shape(true) or not np.isfinite(gradient).all():
        return np.inf, np.inf
    if np.size(true) == 0:
        return 0.0, 0.0
    absolute = float(np.abs(gradient - true).max())
    scale = float(np.abs(true).max())
    return absolute, absolute / scale if scale > 0.0 else absolute


def first_wrong(checks):
    """The check that is wrong at the earliest line of the backward, where a mistake shows; None if all is well."""
    wrong = [each for each in checks if each.verdict == WRONG]
    return min(wrong, key=lambda each: each.backward_line or 0, default=None)


def torch_gradients(lesson, known):
    """What torch's autograd says of the same quantities: name of an input, or (name, occurrence) -> gradient."""
    from npgpt.study.torch_oracle import gradients
    return gradients(lesson, known.dy)
