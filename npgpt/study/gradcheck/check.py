"""The per-line gradient check: for each floating variable v of a forward, the backward's `dv` against the true one.

The true gradient is measured by central differences at the line that assigns v (measure.py), with 60 digits if mpmath
is installed and the lines can compute with its numbers, else in float64. So every line is verified separately. The
mistake is in the first wrong line, or in a line before it that has no gradient to compare.
"""

import dataclasses
import importlib.util
import math
import os
import re

import numpy as np

from npgpt.errors import describe
from npgpt.study.gradcheck.digits import rounded
from npgpt.study.gradcheck.measure import (
    COARSE,
    SMALL,
    Along,
    exact,
    input_gradient,
    intermediate_gradient,
    truth,
    upstream,
)
from npgpt.study.gradcheck.source import last_return, parsed, read_source
from npgpt.study.gradcheck.spelling import spelled
from npgpt.study.gradcheck.suspects import Checked, Suspects
from npgpt.study.gradcheck.trace import Assignment, Recorded, is_exact, is_floating
from npgpt.study.gradcheck.verdicts import (
    ARGUMENT,
    CONSTANT,
    FUSED,
    NO_GRADIENT,
    NOT_FOUND,
    OK,
    OTHER,
    ROUNDED,
    UNNAMED,
    WRONG,
)
from npgpt.study.lessons.lesson import as_tuple, map_arrays

TOLERANCE = 1e-7    # largest error relative to the gradient's largest value, in float64
IN_FLOAT32 = 2e-3   # the same in code that computes in float32
# With 60 digits: a rounded constant of the code, such as 3.0 * 0.044715, costs 1e-16.
EXACT = 1e-15
ZERO = 1e-30        # with 60 digits: a smaller gradient is zero
ROW = "  {:<24} {:<14} {:>5} {:>6} {:>9}  {}"       # of the table


@dataclasses.dataclass
class LineCheck:
    """The check of one variable v of a forward.

    forward_line, backward_line: the lines in `file` that assign v (the `def` for an argument) and
    dv (None if missing); since, until: of a wrong dv, the first and the last line with the mistake.
    relative: the largest error divided by the largest value of the gradient, or None. digits: how
    many are right, None if it was measured in float64. verdict: "ok" or "WRONG" for dv; "fused": dv
    is computed in one step with the gradient `through`; "no gradient": the block returns none of
    this parameter; "constant": no gradient flows through v; "other": what is called dv is not the
    gradient of v, but what is computed from it is right. In other people's code also "rounded":
    right to some digits; "no dv": no line is called so; "no gradient found" of an input.
    """

    layer: str
    file: str
    variable: str
    forward_line: int
    forward_text: str
    backward_line: int | None
    backward_text: str
    shape: list[int]
    relative: float | None
    digits: int | None
    verdict: str
    through: str | None = None
    since: int | None = None
    until: int | None = None


def check_lesson(lesson, known=None):
    """Verify the backward of a lesson: a `LineCheck` for each input and floating intermediate, in the forward's order.

    known: the lesson's `truth`, if already measured. Raises what the backward raises.
    """
    return checked(lesson, known)[0]


def checked(lesson, known=None, tolerance=TOLERANCE):
    """Return the checks of a lesson, and the `Recorded` backward. tolerance: in float64."""
    known = known or truth(lesson)
    forward, backward = Recorded(lesson.forward), Recorded(lesson.backward)
    # once more: what it keeps elsewhere is of this run
    _, cache = lesson.run_forward(lesson.inputs, forward.function)
    result = lesson.run_backward(map_arrays(np.copy, known.dy), cache, backward.function)
    forward_source = read_source(lesson.forward)
    spelling = spelled(lesson.forward, lesson.backward, tuple(lesson.inputs))
    source = read_source(lesson.backward).only({*backward.ran}).respelled(spelling)
    record = backward.record + filled(backward, source)
    record = [dataclasses.replace(each, name=spelling.get(each.name, each.name)) for each in record]
    named_by_results(record, known, lesson, source)
    checks = []
    tolerance = EXACT if any(map(is_exact, lesson.inputs.values())) else tolerance

    def add(name, line, value, true, gradient=None, backward_line=None, verdict=None, through=None):
        relative = None if gradient is None else relative_error(gradient, true)
        if verdict is None:
            verdict = OK if relative is not None and relative <= tolerance else WRONG
            if (
                verdict == WRONG
                and lesson.is_pair
                and relative is not None
                and relative <= TOLERANCE
            ):
                verdict = ROUNDED
        statement = forward_source.statement_at(line)
        back = source.statement_at(backward_line) if backward_line else None
        checks.append(
            LineCheck(
                lesson.name,
                forward_source.file,
                name,
                line,
                statement.text if statement else ARGUMENT,
                backward_line,
                back.text if back else "",
                [*np.shape(value)],
                relative,
                None if relative is None or tolerance != EXACT else digits(relative),
                verdict,
                through,
            )
        )

    results = {
        name: spelling.get(label, label)
        for name, label in zip(lesson.results, source.returned, strict=False)
    }
    for name, value in lesson.inputs.items():
        true = known.inputs[name]
        gradient = result.get(f"d{name}")
        if gradient is None and (lesson.is_pair or name in lesson.may_be_frozen):
            add(
                name,
                forward_source.first,
                value,
                true,
                verdict=NO_GRADIENT
                if name in lesson.may_be_frozen
                else CONSTANT
                if is_zero(true)
                else NOT_FOUND,
            )
            continue
        kept = lesson.is_pair and lesson.kept_at(name)
        line = (
            part_line(source, kept)
            if kept and not assigning(source, gradient_names(name)[:1])
            else gradient_line(source, record, name, true, gradient, results)
        )
        add(name, forward_source.first, value, true, gradient, line)
    right = not first_wrong(checks)
    previous = next(iter(lesson.inputs), "")
    for variable in known.variables:
        name = variable.name
        true = variable.true
        made = best_value(record, name, true, tolerance)
        if made and made.line == source.first and relative_error(made.value, true) > tolerance:
            made = None                 # an argument, that of another assignment of v
        assigned = name, variable.line, variable.value
        if (
            variable.is_kept
            and (true is None or is_zero(true))
            or name in lesson.inputs
            and variable.is_input
        ):
            continue                    # `self.x = x` is the cache
        if true is None or made is None and name not in lesson.skipped and is_zero(true):
            add(*assigned, None, verdict=CONSTANT)
        elif made is None:
            add(*assigned, true, verdict=UNNAMED if lesson.is_pair else FUSED,
                through=None if lesson.is_pair else f"d{previous}")
        else:
            previous = name
            add(*assigned, true, made.value, made.line)
            in_turns = sum((each.name, each.line) == (made.name, made.line) for each in record) > 1
            if checks[-1].verdict == WRONG and (right or in_turns):
                checks[-1].verdict = OTHER if right else UNNAMED
    verified = {
        each.variable for each in checks if each.verdict == OK and each.forward_text != ARGUMENT
    }
    for each in checks:
        if each.verdict == WRONG and each.forward_text != ARGUMENT and (
                each.variable in verified or is_reshaped(each, record)):
            each.verdict = UNNAMED  # the gradient of another value of v, as after `v /= n`
    made = [
        Checked(
            f"d{each.variable}", each.backward_line, each.verdict, each.forward_text == ARGUMENT
        )
        for each in checks
    ]
    there = lesson.inputs | forward.last
    returned = {f"d{name}": code for name, code in results.items()}
    suspects = Suspects(parsed(lesson.backward), spelling, made, there, backward.last, returned)
    for each, one in zip(checks, made, strict=True):
        if each.verdict == WRONG and not one.is_input and suspects.is_other(one):
            each.verdict = OTHER        # what is computed from it is right
    for each, one in zip(checks, made, strict=True):
        if each.verdict == WRONG and each.backward_line:
            lines = suspects.of(one)
            each.since, each.until = min(lines), max(lines)
            if each.forward_text == ARGUMENT and lesson.is_pair and results.get(
                    each.variable, f"d{each.variable}") != f"d{each.variable}":
                each.until = max(each.until, last_return(source))       # it has another name there
    return checks, backward


def is_reshaped(check, record):
    """Return whether what is called the gradient of a variable has as many numbers in another
    shape.
    """
    made = [
        each.value
        for each in record
        if (each.name, each.line) == (f"d{check.variable}", check.backward_line)
    ]
    return any(
        np.shape(each) != tuple(check.shape)
        and np.size(each) == np.prod(check.shape, dtype=int)
        and np.ndim(each) != len(check.shape)
        for each in made
    )


def is_zero(true):
    """Return whether a true gradient is 0."""
    return abs(true.value) < ZERO if isinstance(true, Along) else not true.any()


def best_check(lesson):
    """Check a lesson as `best_checked` does; return the checks and the remark."""
    checks, _, remark = best_checked(lesson)
    return checks, remark


def best_checked(lesson):
    """Check a lesson with 60 digits if possible; return the checks, the `Recorded` backward and a
    remark.

    The remark says why the gradients were measured in float64; otherwise it is "". Raises what the
    functions raise.
    """
    y, cache = lesson.run_forward(lesson.inputs)
    lesson.run_backward(upstream(lesson, y), cache)         # its own mistakes are raised as they are
    kinds = dtypes_of(lesson) if lesson.is_pair else set()
    said = 'measured in float64: pip install "npgpt[study]" for 30 digits'
    if "complex128" in kinds:       # mpmath's arrays have no `.real`
        said = f"{lesson.name} computes with complex numbers: measured in float64"
    elif importlib.util.find_spec("mpmath"):
        try:
            return *checked(exact(lesson)), ""
        except Exception as error:
            why = describe(error)
            said = f"{lesson.name} cannot compute with 60 digits ({why}): measured in float64"
    if "float32" in kinds:
        return *checked(
            lesson, truth(lesson, COARSE), IN_FLOAT32
        ), f"{lesson.name} computes in float32: to three digits"
    known = truth(lesson)
    found, backward = checked(lesson, known)
    wrong = {(each.variable, each.forward_line) for each in found if each.verdict == WRONG}
    if lesson.is_pair and wrong:         # a step across a kink, as ReLU's, is no mistake
        for each in known.variables:
            if (each.name, each.line) in wrong and each.true is not None:
                each.true = intermediate_gradient(lesson, each, known.dy, step=SMALL)
        first = read_source(lesson.forward).first
        known.inputs |= {
            name: input_gradient(lesson, name, known.dy, step=SMALL)
            for name in known.inputs
            if (name, first) in wrong
        }
        closer = check_lesson(lesson, known)
        found = [
            one if one.verdict != WRONG else other for one, other in zip(found, closer, strict=True)
        ]
    return found, backward, said


def dtypes_of(lesson):
    """Return the dtypes of all arrays that a forward and a backward compute from float64."""
    forward, backward = (Recorded(each, is_array) for each in (lesson.forward, lesson.backward))
    y, cache = lesson.run_forward(lesson.inputs, forward.function)
    gradients = lesson.run_backward(upstream(lesson, y), cache, backward.function)
    made = [
        *as_tuple(y),
        *gradients.values(),
        *(each.value for each in forward.record + backward.record),
    ]
    return {each.dtype.name for each in made if is_array(each)}


def is_array(value):
    return isinstance(value, np.ndarray)


def filled(recorded, source):
    """Return the `Assignment`s of arrays that are filled part by part.

    All lines that assign their names come before those that fill them.
    """
    return [
        Assignment(source.name, line, name, np.array(recorded.last[name]))
        for name, line in source.filled.items()
        if is_floating(recorded.last.get(name)) and max(assigning(source, [name]), default=0) < line
    ]


def named_by_results(record, known, lesson, source):
    """Rename the backward's arguments in a record after the forward's results: `dout` to `dy` if it returns y."""
    names = [f"d{name}" for name in read_source(lesson.forward).returned]
    given = names[:len(as_tuple(known.dy))]
    for i, name in enumerate(given[:len(record)]):
        if name.isidentifier() and not lesson.is_one_function and record[i].line == source.first:
            record[i] = dataclasses.replace(record[i], name=name)


def matched(variables, record):
    """Map the index of a variable to the assignment of its gradient in the backward.

    The backward undoes the lines in reverse: the last v of the forward matches the first dv of the backward. If there
    is only one dv, it is the gradient of every v, because `y = y + bias` passes it on unchanged.
    """
    found = {}
    for name in {variable.name for variable in variables}:
        indexes = [i for i, variable in enumerate(variables) if variable.name == name]
        gradients = [each for each in record if each.name == f"d{name}"]
        if len(gradients) == 1:
            gradients *= len(indexes)
        found |= dict(zip(reversed(indexes), gradients, strict=False))
    return found


def best_value(record, name, true, tolerance):
    """Return the assignment of the last right value of a gradient; if none is right, the last.

    None if the backward assigns none.
    """
    made = [each for each in record if each.name == f"d{name}"]
    right = [each for each in made if relative_error(each.value, true) <= tolerance]
    return (right or made or [None])[-1]


def gradient_line(source, record, name, true, gradient, results):
    """Return the line of a backward that computes the gradient of an input: the last one that
    assigns or fills it.

    If the array was right there, but is wrong in the result, return the line that puts it into the
    tree, or the last `return`. results: of the lesson, each with its name in the `return`, because
    there a gradient may have any or none.
    """
    names = gradient_names(name)
    if not assigning(source, names) and source.filled.keys().isdisjoint(names):
        names += [results.get(name)]
    filled = [line for each, line in source.filled.items() if each in names]
    filled = filled and max(filled + assigning(source, names))  # perhaps scaled later, `dx /= n`
    made = next((each for each in reversed(record) if each.name in names), None)
    if filled or made is None:
        line = filled or named_line(source, name, names)
        if line == source.first and results:
            line = last_return(source)
        return source.statements[-1].first if line == source.first and source.statements else line
    if made.line == source.first:       # an argument, passed on
        return last_return(source)
    if relative_error(made.value, true) <= TOLERANCE < relative_error(gradient, true):
        return tree_line(source, name) or source.statements[-1].first
    if relative_error(made.value, gradient) > 0.0:
        return next((each.first for each in source.statements if each.first > made.line and not each.targets
                     and re.search(rf"\b{re.escape(made.name)}\b", each.text)), made.line)
    return made.line


def part_line(source, path):
    """Return the line of a backward that assigns what is at a path of an object, or calls the part
    that does; or None.
    """
    steps = [rf"(\.{key}|\[{re.escape(repr(key))}\])" for key in path]
    begin = {
        each.first: re.split(r" \W?= ", each.text)[0]
        for each in source.statements
        if "= " in each.text
    }
    adds = [each.first for each in source.statements
            if re.search(steps[0] + r"\.(append|insert|extend)\(", each.text)]
    if adds:
        return adds[-1]
    for wanted in "".join(steps), steps[-1] + "$", "self" + steps[0] + "$":
        if assigns := [line for line, text in begin.items() if re.search(wanted, text)]:
            return assigns[-1]
    calls = [each.first for n in range(len(path) - 1, 0, -1) for each in source.statements
             if re.search("self" + "".join(steps[:n]) + r"(\.\w+)?\(", each.text)]
    return next(iter(calls), None)


def gradient_names(name):
    """Return the names a backward may use for an input's gradient: dwte_weight or dwte for "wte.weight"."""
    parts = name.split(".")
    return ["_".join(["d" + parts[0], *parts[1:i]]) for i in range(len(parts), 0, -1)]


def named_line(source, name, names=None):
    """Return the line of a backward that assigns the gradient of `name`, called one of `names`; else the `def`."""
    names = names or gradient_names(name)
    return next(iter(assigning(source, names)), tree_line(source, name) or source.first)


def assigning(source, names):
    """Return the lines of the statements that assign one of these names."""
    return [each.first for each in source.statements if not {*names}.isdisjoint(each.targets)]


def tree_line(source, name):
    """Return the line that puts a parameter's gradient, or a subtree with it, into the tree dp; or None."""
    part = name.split(".")[0]
    return next((each.first for each in reversed(source.statements)
                 if f"dp_{part}" in each.targets or f"[{part!r}]" in each.text.partition(" = ")[0]), None)


def relative_error(gradient, true):
    """Return the largest error relative to the largest true value; infinite if the arrays are not comparable."""
    if isinstance(true, Along):
        return error_along(gradient, true)
    gradient, true = (rounded(each) if is_exact(each) else each for each in (gradient, true))
    if (true is None or not is_floating(gradient) or np.shape(gradient) != np.shape(true)
            or not np.isfinite(gradient).all()):
        return np.inf
    if np.size(true) == 0:
        return 0.0
    return float(np.abs(gradient - true).max()) / (float(np.abs(true).max()) or 1.0)


def compared(gradient, true, tolerance=TOLERANCE):
    """Return OK or WRONG; by default within the tolerance of central differences, which measure some intermediates."""
    return OK if relative_error(gradient, true) <= tolerance else WRONG


def error_along(gradient, true):
    """Return the error of sum(gradient * direction), relative to the sum of the terms' sizes."""
    if not is_exact(gradient) or np.shape(gradient) != np.shape(true.direction):
        return np.inf
    terms = gradient * true.direction
    scale = max(abs(terms).sum(), abs(true.value))
    error = float(rounded(abs(terms.sum() - true.value) / (scale if scale > ZERO else 1)))
    return error if math.isfinite(error) else np.inf


def digits(relative):
    """Return how many digits are right, at most 40."""
    return math.floor(-math.log10(max(relative, 1e-40))) if relative < 1.0 else 0


def first_wrong(checks):
    """Return the wrong check at the earliest line of the backward, or None."""
    wrong = [each for each in checks if each.verdict == WRONG]
    return min(wrong, key=lambda each: each.backward_line or math.inf, default=None)


def table_text(checks):
    """Return the checks of a layer as a table, one line a variable, and the first wrong line."""
    text = [f"{checks[0].layer} ({os.path.basename(checks[0].file)})",
            ROW.format("variable", "shape", "line", "dv at", "right to", "verdict")]
    text += [ROW.format(each.variable, "x".join(map(str, each.shape)) or "number", each.forward_line,
                        each.backward_line or "", right_to(each),
                        each.verdict + (f", {each.through}" if each.through else "")) for each in checks]
    if wrong := first_wrong(checks):
        said = wrong.backward_text or f"there is no d{wrong.variable}"
        if not wrong.backward_line:
            text.append(f"  d{wrong.variable} is wrong, which no line of this backward assigns")
        elif wrong.since == wrong.until:
            text.append(f"  the first wrong line is {wrong.backward_line}: {said}")
        else:
            text.append(
                f"  the mistake is in lines {wrong.since} to {wrong.until}: the first wrong "
                f"gradient is d{wrong.variable}, line {wrong.backward_line}: {said}"
            )
    return "\n".join(text)


def right_to(check):
    """Return how exact a gradient is: "40 digits", or in float64 its relative error."""
    if check.digits is not None:
        return f"{check.digits} digits"
    return "" if check.relative is None else f"{check.relative:.1e}"
