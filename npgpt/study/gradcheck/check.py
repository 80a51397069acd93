"""The per-line gradient check: for each floating variable v of a forward, the backward's `dv`
against the true one.

The true gradient is measured by central differences at the line that assigns v (measure.py), with
60 digits if mpmath is installed and the lines can compute with its numbers, else in float64. So
every line is verified separately. The mistake is in the first wrong line, or in a line before it
that has no gradient to compare.
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

TOLERANCE = 1e-7  # largest error relative to the gradient's largest value, in float64
IN_FLOAT32 = 2e-3  # the same in code that computes in float32
# With 60 digits: a rounded constant of the code, such as 3.0 * 0.044715, costs 1e-16.
EXACT = 1e-15
ZERO = 1e-30  # with 60 digits: a smaller gradient is zero
ROW = "  {:<24} {:<14} {:>5} {:>6} {:>9}  {}"  # of the table


@dataclasses.dataclass
class LineCheck:
    """The check of one variable v of a forward.

    forward_line, backward_line: the lines in `file` that assign v (the `def` for an argument) and
        dv (None if missing)
    relative: the largest error divided by the largest value of the gradient, or None
    digits: how many are right; None if the gradient was measured in float64
    verdict: "ok" or "WRONG" for dv
        "fused": dv is computed in one step with the gradient `through`
        "no gradient": the block returns none of this parameter
        "constant": no gradient flows through v
        "other": dv is not the gradient of v, but all gradients computed from it are right
        in users' code also "rounded": right to some digits; "no dv": no line is called so;
        "no gradient found" of an input
    since, until: of a wrong dv, the first and the last line that can hold the mistake
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

    @property
    def is_input(self):
        return self.forward_text == ARGUMENT


def check_lesson(lesson, known=None):
    """Verify the backward of a lesson: a `LineCheck` for each input and floating intermediate, in
    the forward's order.

    known: the lesson's `truth`, if already measured. Raises what the backward raises.
    """
    return checked(lesson, known)[0]


def checked(lesson, known=None, tolerance=TOLERANCE):
    """Return the checks of a lesson, and the `Recorded` backward. tolerance: in float64."""
    found = Comparison(lesson, known or truth(lesson), tolerance)
    found.compare_inputs()
    found.compare_variables()
    found.withdraw_false_alarms()
    found.find_lines()
    return found.checks, found.backward


class Comparison:
    """A run of a lesson's backward, whose gradients are compared with the true ones.

    checks: the `LineCheck`s so far; record: the backward's assignments, each gradient called "dv";
    results: input -> the name of its gradient in the last `return`.
    """

    def __init__(self, lesson, known, tolerance):
        self.lesson = lesson
        self.known = known
        self.is_exact = any(map(is_exact, lesson.inputs.values()))
        self.tolerance = EXACT if self.is_exact else tolerance
        self.checks = []
        self.forward = Recorded(lesson.forward)
        self.spelling = spelled(lesson.forward, lesson.backward, tuple(lesson.inputs))
        self.backward = Recorded(lesson.backward, spelling=self.spelling)
        # The forward runs again: what it keeps elsewhere must be of this run.
        _, cache = lesson.run_forward(lesson.inputs, self.forward.function)
        dy = map_arrays(np.copy, known.dy)
        self.gradients = lesson.run_backward(dy, cache, self.backward.function)
        self.forward_source = read_source(lesson.forward)
        source = read_source(lesson.backward).only({*self.backward.ran})
        self.source = source.respelled(self.spelling)
        self.record = self.backward.record + [
            dataclasses.replace(each, name=self.spelled(each.name))
            for each in filled(self.backward, source)
        ]
        self.name_by_results()
        returned = map(self.spelled, self.source.returned)
        self.results = dict(zip(lesson.results, returned, strict=False))

    def spelled(self, name):
        """Return "dv" for the name of a gradient in the backward."""
        return self.spelling.get(name, name)

    def name_by_results(self):
        """Rename the backward's arguments in the record after the forward's results: `dout` to
        `dy` if it returns y.
        """
        if self.lesson.is_one_function:
            return
        returned = self.forward_source.returned[: len(as_tuple(self.known.dy))]
        for i, name in enumerate(returned[: len(self.record)]):
            if name.isidentifier() and self.record[i].line == self.source.first:
                self.record[i] = dataclasses.replace(self.record[i], name=f"d{name}")

    def add(self, name, line, value, verdict, backward_line=None, relative=None, through=None):
        """Add the check of a variable: line, value: of the forward."""
        is_argument = line == self.forward_source.first  # a `return` may stand on the same line
        statement = None if is_argument else self.forward_source.statement_at(line)
        back = self.source.statement_at(backward_line or 0)
        self.checks.append(
            LineCheck(
                self.lesson.name,
                self.forward_source.file,
                name,
                line,
                statement.text if statement else ARGUMENT,
                backward_line,
                back.text if back else "",
                [*np.shape(value)],
                relative,
                digits(relative) if self.is_exact and relative is not None else None,
                verdict,
                through,
            )
        )

    def compare(self, name, line, value, true, gradient, backward_line):
        """Add the check of a gradient against the true one; None is wrong."""
        relative = None if gradient is None else relative_error(gradient, true)
        if relative is None:
            verdict = WRONG
        elif relative <= self.tolerance:
            verdict = OK
        else:
            verdict = ROUNDED if self.lesson.is_pair and relative <= TOLERANCE else WRONG
        self.add(name, line, value, verdict, backward_line, relative)

    def compare_inputs(self):
        """Compare the gradients that the backward returns."""
        first = self.forward_source.first
        for name, value in self.lesson.inputs.items():
            true = self.known.inputs[name]
            gradient = self.gradients.get(f"d{name}")
            may_be_frozen = name in self.lesson.may_be_frozen
            if gradient is None and may_be_frozen:
                self.add(name, first, value, NO_GRADIENT)
            elif gradient is None and self.lesson.is_pair:
                self.add(name, first, value, CONSTANT if is_zero(true) else NOT_FOUND)
            else:
                line = self.input_line(name, true, gradient)
                self.compare(name, first, value, true, gradient, line)

    def input_line(self, name, true, gradient):
        """Return the line of the backward that computes the gradient of an input."""
        kept = self.lesson.is_pair and self.lesson.kept_at(name)
        if kept and not assigning(self.source, gradient_names(name)[:1]):
            return part_line(self.source, kept)
        return gradient_line(self.source, self.record, name, true, gradient, self.results)

    def compare_variables(self):
        """Compare the gradients of the intermediates that lines of the backward assign."""
        inputs_are_right = not first_wrong(self.checks)
        previous = next(iter(self.lesson.inputs), "")
        for variable in self.known.variables:
            name, line, value, true = variable.name, variable.line, variable.value, variable.true
            no_gradient = true is None or is_zero(true)
            is_input = variable.is_input and name in self.lesson.inputs
            if is_input or variable.is_kept and no_gradient:
                continue  # `self.x = x` is the cache
            made = self.best_value(name, true)
            if true is None or not made and no_gradient and name not in self.lesson.skipped:
                self.add(name, line, value, CONSTANT)
            elif not made and self.lesson.is_pair:
                self.add(name, line, value, UNNAMED)
            elif not made:
                self.add(name, line, value, FUSED, through=f"d{previous}")
            else:
                previous = name
                self.compare(name, line, value, true, made.value, made.line)
                check = self.checks[-1]
                if check.verdict == WRONG and inputs_are_right:
                    check.verdict = OTHER
                elif check.verdict == WRONG and (
                    len(self.made_by(check)) > 1  # in a loop
                    or self.is_before_activation(variable, made.value)
                ):
                    check.verdict = UNNAMED

    def is_before_activation(self, variable, gradient):
        """Return whether "di" is the gradient of the argument of i = sigmoid(…) or tanh(…), as in
        `di = dc * g * i * (1 - i)`.
        """
        v = variable.value
        for slope in (v * (1 - v), 1 - v * v):
            true = intermediate_gradient(self.lesson, variable, self.known.dy, scale=slope)
            if relative_error(gradient, true) <= self.tolerance:
                return True
        return False

    def best_value(self, name, true):
        """Return the assignment of the last right value of a gradient; if none is right, the last;
        None if there is none.
        """
        made = [each for each in self.record if each.name == f"d{name}"]
        right = [each for each in made if relative_error(each.value, true) <= self.tolerance]
        if made and not right and made[-1].line == self.source.first:
            return None  # an argument: the gradient of another assignment of v
        return (right or made or [None])[-1]

    def made_by(self, check):
        """Return the assignments of a variable's gradient in the backward's line of a check."""
        place = f"d{check.variable}", check.backward_line
        return [each for each in self.record if (each.name, each.line) == place]

    def wrong_variables(self):
        return [each for each in self.checks if each.verdict == WRONG and not each.is_input]

    def withdraw_false_alarms(self):
        """Let dv of an intermediate not be wrong if it is another value than the gradient of v."""
        verified = {
            each.variable for each in self.checks if each.verdict == OK and not each.is_input
        }
        for each in self.checks:
            if each.verdict == OTHER and each.variable in verified:
                each.verdict = UNNAMED
        for each in self.wrong_variables():
            made = self.made_by(each)
            if each.variable in verified or any(is_reshaped(each, one.value) for one in made):
                each.verdict = UNNAMED  # the gradient of another value of v, as after `v /= n`
        self.suspects = Suspects(
            parsed(self.lesson.backward),
            self.spelling,
            [as_suspect(each) for each in self.checks],
            self.lesson.inputs | self.forward.last,
            self.backward.last,
            {f"d{name}": code for name, code in self.results.items()},
        )
        for each in self.wrong_variables():
            if self.suspects.is_other(as_suspect(each)):
                each.verdict = OTHER

    def find_lines(self):
        """Find the lines that can hold the mistake of each wrong gradient."""
        for each in self.checks:
            if each.verdict == WRONG and each.backward_line:
                lines = self.suspects.of(as_suspect(each))
                each.since, each.until = min(lines), max(lines)
                name = f"d{each.variable}"
                is_renamed = self.results.get(each.variable, name) != name
                if each.is_input and self.lesson.is_pair and is_renamed:
                    each.until = max(each.until, last_return(self.source))


def as_suspect(check):
    """Return a `LineCheck` as `Suspects` takes it."""
    name = f"d{check.variable}"
    return Checked(name, check.backward_line, check.verdict, check.is_input)


def is_reshaped(check, gradient):
    """Return whether a gradient has as many numbers as the variable, but other axes."""
    size = np.prod(check.shape, dtype=int)
    return np.size(gradient) == size and np.ndim(gradient) != len(check.shape)


def is_zero(true):
    """Return whether a true gradient is 0."""
    return abs(true.value) < ZERO if isinstance(true, Along) else not true.any()


def best_check(lesson):
    """Check a lesson with 60 digits if possible; return the checks, the `Recorded` backward and a
    remark.

    The remark says why the gradients were measured in float64; otherwise it is "". Raises what the
    functions raise.
    """
    y, cache = lesson.run_forward(lesson.inputs)
    lesson.run_backward(upstream(lesson, y), cache)  # its own mistakes are raised as they are
    kinds = dtypes_of(lesson) if lesson.is_pair else set()
    remark = 'measured in float64: pip install "npgpt[study]" for 30 digits'
    if "complex128" in kinds:  # mpmath's arrays have no `.real`
        remark = f"{lesson.name} computes with complex numbers: measured in float64"
    elif importlib.util.find_spec("mpmath"):
        try:
            return *checked(exact(lesson)), ""
        except Exception as error:
            why = describe(error)
            remark = f"{lesson.name} cannot compute with 60 digits ({why}): measured in float64"
    if "float32" in kinds:
        found = checked(lesson, truth(lesson, COARSE), IN_FLOAT32)
        return *found, f"{lesson.name} computes in float32: to three digits"
    found, backward = checked(lesson)
    if lesson.is_pair and first_wrong(found):
        closer = check_lesson(lesson, truth(lesson, SMALL))  # a kink, as ReLU's, is no mistake
        pairs = zip(found, closer, strict=True)
        found = [small if check.verdict == WRONG else check for check, small in pairs]
    return found, backward, remark


def dtypes_of(lesson):
    """Return the dtypes of all arrays that a forward and a backward compute from float64."""
    forward, backward = (Recorded(each, is_array) for each in (lesson.forward, lesson.backward))
    y, cache = lesson.run_forward(lesson.inputs, forward.function)
    gradients = lesson.run_backward(upstream(lesson, y), cache, backward.function)
    assigned = [each.value for each in forward.record + backward.record]
    made = [*as_tuple(y), *gradients.values(), *assigned]
    return {each.dtype.name for each in made if is_array(each)}


def is_array(value):
    return isinstance(value, np.ndarray)


def filled(recorded, source):
    """Return the `Assignment`s of arrays that are filled part by part.

    All lines that assign their names come before those that fill them, by their name or through a
    view: `row = dx[i]`, then `row += …`.
    """
    added = [each for each in source.statements if re.match(r"\w+ [-+*/]= ", each.text)]
    fills = {each.targets[0]: each.first for each in added} | source.filled
    found = []
    for name, value in recorded.last.items():
        assigned = max(assigning(source, [name]), default=0)
        lines = [source.filled.get(name, 0)]
        for other, line in fills.items():
            if assigned and other != name and is_view(value, recorded.last.get(other)):
                lines.append(line)
        if is_floating(value) and max(lines) > assigned:
            found.append(Assignment(source.name, max(lines), name, np.array(value)))
    return found


def is_view(value, other):
    """Return whether two values are arrays that share memory."""
    return is_array(value) and is_array(other) and np.shares_memory(value, other)


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
    assigned = assigning(source, names)
    filled = [line for each, line in source.filled.items() if each in names]
    made = next((each for each in reversed(record) if each.name in names), None)
    if filled:
        return max(filled + assigned)  # perhaps scaled later, `dx /= n`
    last = source.statements[-1].first if source.statements else source.first
    if made is None:
        line = next(iter(assigned), tree_line(source, name) or last_return(source))
        return last if line == source.first else line
    if made.line == source.first:  # an argument, passed on
        return last_return(source)
    if relative_error(made.value, true) <= TOLERANCE < relative_error(gradient, true):
        return tree_line(source, name) or last
    if relative_error(made.value, gradient) > 0.0:  # a line without a target changes it
        later = [each for each in source.statements if each.first > made.line and not each.targets]
        word = rf"\b{re.escape(made.name)}\b"
        return next((each.first for each in later if re.search(word, each.text)), made.line)
    return made.line


def part_line(source, path):
    """Return the line of a backward that assigns what is at a path of an object, or calls the part
    that does; or None.
    """
    steps = [rf"(\.{key}|\[{re.escape(repr(key))}\])" for key in path]
    if adds := lines_with(source, steps[0] + r"\.(append|insert|extend)\("):
        return adds[-1]
    assigned = {
        each.first: re.split(r" \W?= ", each.text)[0]
        for each in source.statements
        if "= " in each.text
    }
    for wanted in "".join(steps), steps[-1] + "$", "self" + steps[0] + "$":
        if lines := [line for line, text in assigned.items() if re.search(wanted, text)]:
            return lines[-1]
    for n in range(len(path) - 1, 0, -1):
        if calls := lines_with(source, "self" + "".join(steps[:n]) + r"(\.\w+)?\("):
            return calls[0]
    return None


def lines_with(source, pattern):
    """Return the lines of the statements that match a regular expression."""
    return [each.first for each in source.statements if re.search(pattern, each.text)]


def matched(variables, record):
    """Map the index of a variable to the assignment of its gradient in the backward.

    The backward undoes the lines in reverse: the last v of the forward matches the first dv of the
    backward. If there is only one dv, it is the gradient of every v, because `y = y + bias` passes
    it on unchanged.
    """
    found = {}
    for name in {variable.name for variable in variables}:
        indexes = [i for i, variable in enumerate(variables) if variable.name == name]
        gradients = [each for each in record if each.name == f"d{name}"]
        if len(gradients) == 1:
            gradients *= len(indexes)
        found |= dict(zip(reversed(indexes), gradients, strict=False))
    return found


def gradient_names(name):
    """Return the names a backward may use for an input's gradient: dwte_weight or dwte for
    "wte.weight".
    """
    parts = name.split(".")
    return ["_".join(["d" + parts[0], *parts[1:i]]) for i in range(len(parts), 0, -1)]


def assigning(source, names):
    """Return the lines of the statements that assign one of these names."""
    return [each.first for each in source.statements if not {*names}.isdisjoint(each.targets)]


def tree_line(source, name):
    """Return the line that puts a parameter's gradient, or a subtree with it, into the tree dp; or
    None.
    """
    part = name.split(".")[0]
    for each in reversed(source.statements):
        if f"dp_{part}" in each.targets or f"[{part!r}]" in each.text.partition(" = ")[0]:
            return each.first
    return None


def relative_error(gradient, true):
    """Return the largest error relative to the largest true value; infinite if the arrays are not
    comparable.
    """
    if isinstance(true, Along):
        return error_along(gradient, true)
    gradient, true = (rounded(each) if is_exact(each) else each for each in (gradient, true))
    is_alike = is_floating(gradient) and np.shape(gradient) == np.shape(true)
    if true is None or not is_alike or not np.isfinite(gradient).all():
        return np.inf
    if np.size(true) == 0:
        return 0.0
    return float(np.abs(gradient - true).max()) / (float(np.abs(true).max()) or 1.0)


def compared(gradient, true, tolerance=TOLERANCE):
    """Return OK or WRONG; by default within the tolerance of central differences, which measure
    some intermediates.
    """
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
    text = [
        f"{checks[0].layer} ({os.path.basename(checks[0].file)})",
        ROW.format("variable", "shape", "line", "dv at", "right to", "verdict"),
    ]
    for each in checks:
        shape = "x".join(map(str, each.shape)) or "number"
        verdict = f"{each.verdict}, {each.through}" if each.through else each.verdict
        lines = each.forward_line, each.backward_line or ""
        text.append(ROW.format(each.variable, shape, *lines, right_to(each), verdict))
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
