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
from npgpt.study.gradcheck.measure import Along, exact, truth, upstream
from npgpt.study.gradcheck.source import last_return, read_source
from npgpt.study.gradcheck.trace import Assignment, Recorded, is_exact, is_floating
from npgpt.study.lessons.lesson import as_tuple, map_arrays

TOLERANCE = 1e-7    # largest error relative to the gradient's largest value, in float64
ROUNDED = 1e-15     # the same with 60 digits: a rounded constant of the code, such as 3.0 * 0.044715, costs 1e-16
ZERO = 1e-30        # with 60 digits: a smaller gradient is zero
OK, WRONG, FUSED, CONSTANT, OTHER = "ok", "WRONG", "fused", "constant", "other"
NO_GRADIENT = "no gradient: must be frozen"
ROW = "  {:<24} {:<14} {:>5} {:>6} {:>9}  {}"       # of the table


@dataclasses.dataclass
class LineCheck:
    """The check of one variable v of a forward.

    forward_line, backward_line: the lines in `file` that assign v (the `def` for an argument) and
    dv (None if missing).
    relative: the largest error divided by the largest value of the gradient, or None. digits: how
    many are right, None if it was measured in float64. verdict: "ok" or "WRONG" for dv; "fused": dv
    is computed in one step with the gradient `through`; "no gradient": the block returns none of
    this parameter; "constant": no gradient flows through v; "other": what is called dv is not the
    gradient of v, but all results are right.
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


def check_lesson(lesson, known=None):
    """Verify the backward of a lesson: a `LineCheck` for each input and floating intermediate, in the forward's order.

    known: the lesson's `truth`, if already measured. Raises what the backward raises.
    """
    known = known or truth(lesson)
    dy, cache = map_arrays(np.copy, (known.dy, known.cache))        # a wrong backward may write to them
    backward = Recorded(lesson.backward)
    result = lesson.run_backward(dy, cache, backward.function)
    forward_source = read_source(lesson.forward)
    source = read_source(lesson.backward)
    record = backward.record + filled(backward, source)
    named_by_results(record, known, lesson, source)
    checks = []
    tolerance = ROUNDED if any(map(is_exact, lesson.inputs.values())) else TOLERANCE

    def add(name, line, value, true, gradient=None, backward_line=None, verdict=None, through=None):
        relative = None if gradient is None else relative_error(gradient, true)
        verdict = verdict or (OK if relative is not None and relative <= tolerance else WRONG)
        statement = forward_source.statement_at(line)
        back = source.statement_at(backward_line) if backward_line else None
        checks.append(LineCheck(
            lesson.name, forward_source.file, name, line, statement.text if statement else "(argument)", backward_line,
            back.text if back else "", [*np.shape(value)], relative,
            None if relative is None or tolerance != ROUNDED else digits(relative), verdict,
            through))

    for name, value in lesson.inputs.items():
        true = known.inputs[name]
        gradient = result.get(f"d{name}")
        if gradient is None and name in lesson.may_be_frozen:
            add(name, forward_source.first, value, true, verdict=NO_GRADIENT)
            continue
        add(name, forward_source.first, value, true, gradient,
            gradient_line(source, record, name, true, gradient, lesson.results))
    right = all(each.verdict in (OK, NO_GRADIENT) for each in checks)
    previous = next(iter(lesson.inputs))
    for variable in known.variables:
        name = variable.name
        true = variable.true
        made = best_value(record, name, true, tolerance)
        assigned = name, variable.line, variable.value
        if true is None or made is None and name not in lesson.skipped and is_zero(true):
            add(*assigned, None, verdict=CONSTANT)
        elif made is None:
            add(*assigned, true, verdict=FUSED, through=f"d{previous}")
        else:
            previous = name
            add(*assigned, true, made.value, made.line)
            in_turns = sum((each.name, each.line) == (made.name, made.line) for each in record) > 1
            if checks[-1].verdict == WRONG and (right or in_turns):
                checks[-1].verdict = OTHER
    return checks


def is_zero(true):
    """Return whether a true gradient is 0."""
    return abs(true.value) < ZERO if isinstance(true, Along) else not true.any()


def best_check(lesson):
    """Check a lesson with 60 digits if possible; return the checks and a remark.

    The remark says why the gradients were measured in float64; otherwise it is "". Raises what the functions raise.
    """
    y, cache = lesson.run_forward(lesson.inputs)
    lesson.run_backward(upstream(lesson, y), cache)         # its own mistakes are raised as they are
    if not importlib.util.find_spec("mpmath"):
        return check_lesson(lesson), 'measured in float64: pip install "npgpt[study]" for 30 digits'
    try:
        return check_lesson(exact(lesson)), ""
    except Exception as error:
        said = f"{lesson.name} cannot compute with 60 digits ({describe(error)}): measured in float64"
        return check_lesson(lesson), said


def filled(recorded, source):
    """Return the `Assignment`s of arrays that are filled part by part.

    All lines that assign their names come before those that fill them.
    """
    return [Assignment(source.name, line, name, np.array(recorded.last[name]))
            for name, line in source.filled.items()
            if name in recorded.last and max(assigning(source, [name]), default=0) < line]


def named_by_results(record, known, lesson, source):
    """Rename the backward's arguments in a record after the forward's results: `dout` to `dy` if it returns y."""
    names = [f"d{name}" for name in returned(read_source(lesson.forward))]
    given = names[:len(as_tuple(known.dy))]
    for i, name in enumerate(given[:len(record)]):
        if name.isidentifier() and not lesson.is_one_function and record[i].line == source.first:
            record[i] = dataclasses.replace(record[i], name=name)


def returned(source):
    """Return the expressions in the last `return` of a function, texts."""
    statement = source.statement_at(last_return(source))
    text = statement.text.removeprefix("return ") if statement else ""
    return re.sub(r"^\((.*)\)$", r"\1", text).split(", ")


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
    """Return the line of a backward that computes the gradient of an input: the last one that assigns or fills it.

    If the array was right there, but is wrong in the result, return the line that puts it into the tree, or the last
    `return`. results: of the lesson, in the order of the `return`, because there a gradient may have any name or none.
    """
    names = gradient_names(name)
    if not assigning(source, names) and source.filled.keys().isdisjoint(names):
        names += [dict(zip(results, returned(source), strict=False)).get(name)]
    filled = [line for each, line in source.filled.items() if each in names]
    filled = filled and max(filled + assigning(source, names))  # perhaps scaled later, `dx /= n`
    made = next((each for each in reversed(record) if each.name in names), None)
    if filled or made is None:
        line = filled or named_line(source, name, names)
        return last_return(source) if results and line == source.first else line
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
    return next((each.first for each in source.statements
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
    return min(wrong, key=lambda each: each.backward_line or 0, default=None)


def table_text(checks):
    """Return the checks of a layer as a table, one line a variable, and the first wrong line."""
    text = [f"{checks[0].layer} ({os.path.basename(checks[0].file)})",
            ROW.format("variable", "shape", "line", "dv at", "right to", "verdict")]
    text += [ROW.format(each.variable, "x".join(map(str, each.shape)) or "number", each.forward_line,
                        each.backward_line or "", right_to(each),
                        each.verdict + (f", {each.through}" if each.through else "")) for each in checks]
    if wrong := first_wrong(checks):
        said = wrong.backward_text or f"there is no d{wrong.variable}"
        text.append(f"  the first wrong line is {wrong.backward_line}: {said}")
    return "\n".join(text)


def right_to(check):
    """Return how exact a gradient is: "40 digits", or in float64 its relative error."""
    if check.digits is not None:
        return f"{check.digits} digits"
    return "" if check.relative is None else f"{check.relative:.1e}"
