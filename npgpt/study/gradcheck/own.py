"""The check of other people's forward and backward: several draws of the inputs, and what else a
reader should know.
"""

import ast
import dataclasses
import time

import numpy as np

from npgpt.errors import UserError
from npgpt.study.gradcheck.check import (
    NOT_FOUND,
    OTHER,
    ROUNDED,
    WRONG,
    LineCheck,
    best_checked,
    first_wrong,
    table_text,
)
from npgpt.study.gradcheck.constants import rounded_constants
from npgpt.study.gradcheck.measure import input_gradient, upstream
from npgpt.study.gradcheck.source import parsed, read_source
from npgpt.study.gradcheck.spelling import variable_of
from npgpt.study.judge.shapes import mistake_in_numbers, same_ratio
from npgpt.study.lessons.lesson import as_tuple
from npgpt.study.lessons.own_state import same
from npgpt.study.lessons.setting import PLAIN

WIDE = 3.0  # standard deviation of the second draw, at least
MOST_WIDE = 30.0
ROUGH = 1e-3  # relative error that a rounded constant may cause
PATIENCE = 5.0  # seconds after which no other draw begins


@dataclasses.dataclass(repr=False)
class Verified:
    """What a check of one layer found: `right`, and a table.

    lines: a `LineCheck` for each variable; remarks: what else was found; measured: why the true
    gradients are not known to 30 digits, or ""; key: what finds the layer again.
    """

    lines: list[LineCheck]
    remarks: list[str] = dataclasses.field(default_factory=list)
    measured: str = ""
    key: str = ""

    @property
    def right(self) -> bool:
        return not first_wrong(self.lines)

    def __repr__(self) -> str:
        return "\n".join([table_text(self.lines), *(f"  {each}" for each in self.remarks)])


def check_own(pair):
    """Check a `Pair`; return a `Verified`. Raises what its functions raise, and UserError if equal
    runs differ.
    """
    lesson = pair.at()
    notes = behaviour(lesson)
    started = time.monotonic()
    found, backward, remark = best_checked(lesson)
    ran = {*backward.ran}
    for setting in wide_settings(pair):
        other = pair.at(setting)
        if time.monotonic() - started < PATIENCE and is_finite(other):
            checks, backward, _ = best_checked(other)
            ran |= {*backward.ran}
            allow_rounded(checks, found)
            if first_wrong(checks) and not first_wrong(found):
                lesson, found = other, checks
                notes.append(f"in the draw with a standard deviation of {setting.spread:g}")
    notes += small_errors(lesson, found)
    if first_wrong(found):
        notes += evidence(lesson, found)
    notes += left_out(lesson, found, ran)
    return Verified(found, notes, remark, pair.key)


def allow_rounded(checks, found):
    """Let what was rounded in a first draw be so in a wider one, where the error is larger."""
    rounded = {(each.variable, each.forward_line) for each in found if each.verdict == ROUNDED}
    for each in checks:
        if (each.variable, each.forward_line) in rounded and (each.relative or 0) < ROUGH:
            each.verdict = ROUNDED


def small_errors(lesson, checks):
    """Return what makes gradients right to a few digits only; if it is a rounded constant, they are
    not wrong.
    """
    small = [each for each in checks if each.verdict in (WRONG, ROUNDED)]
    inputs = dict.fromkeys(each.variable for each in small if each.variable in lesson.inputs)
    if not inputs or any(each.relative is None or each.relative > ROUGH for each in small):
        return []
    digits = f"rounded: right to {min(each.digits or int(-np.log10(each.relative)) for each in small)} digits"
    if constants := rounded_constants(lesson, inputs):
        for each in small:
            each.verdict = ROUNDED
        return [f"{digits}, because of {', '.join(constants)}"]
    return (
        []
        if first_wrong(checks)
        else [f"{digits}: does the backward leave a small number out, such as an eps?"]
    )


def behaviour(lesson):
    """Run a lesson twice; return remarks on what it does besides its results. Raises UserError if
    the runs differ.
    """
    runs = [run(lesson), run(lesson)]
    if not same(runs[0][1], runs[1][1]):
        raise UserError(
            f"{lesson.name}: two runs on equal inputs differ, although NumPy's and Python's generators were "
            "seeded alike: no verdict. Does it draw numbers from a generator of its own?"
        )
    (given, dy), (_, gradients), again = runs[0]
    notes = []
    if not same(given, dy):
        notes.append(
            f"{lesson.backward.__name__} writes to {lesson.upstream}, which the caller may need"
        )
    doubled = [
        name
        for name, value in gradients.items()
        if again.get(name) is not None
        and np.any(value)
        and np.allclose(again[name], 2 * np.asarray(value), rtol=1e-9, atol=0.0)
    ]
    if doubled:
        notes.append(f"{', '.join(doubled)}: adds to what an earlier call left")
    return notes


def run(lesson):
    """Return (dy after, before) the backward, (y, gradients), and the gradients of a second call on
    the same state.
    """
    y, cache = lesson.run_forward(lesson.inputs)
    dy, given = upstream(lesson, y), upstream(lesson, y)
    gradients = lesson.run_backward(given, cache)
    kept = {name: np.array(value) for name, value in gradients.items()}
    try:
        again = lesson.run_backward(upstream(lesson, y), cache)
    except Exception:  # a cache can be used once
        again = {}
    return (given, dy), (y, kept), again


def wide_settings(pair):
    """Return settings of other draws: wider ones, so that what a number in the forward cuts off is
    reached.
    """
    constants = [
        abs(node.value)
        for node in ast.walk(parsed(pair.forward))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and abs(node.value) <= MOST_WIDE
    ]
    return [
        dataclasses.replace(PLAIN, seed=1, spread=spread)
        for spread in {WIDE, max(constants, default=0) * 1.5}
        if spread >= WIDE
    ]


def is_finite(lesson):
    """Return whether a forward runs on these inputs and returns finite numbers."""
    try:
        with np.errstate(all="ignore"):
            y = lesson.run_forward(lesson.inputs)[0]
            return all(np.isfinite(np.asarray(each, np.float64)).all() for each in as_tuple(y))
    except Exception:
        return False


def evidence(lesson, checks):
    """Return what the numbers of wrong gradients of inputs prove: a factor, a transpose, a missing
    sum.
    """
    y, cache = lesson.run_forward(lesson.inputs)
    dy = upstream(lesson, y)
    gradients = lesson.run_backward(dy, cache)
    said = []
    for each in checks:
        if (
            each.verdict == WRONG
            and each.variable in lesson.inputs
            and each.forward_text == "(argument)"
            and (each.relative is None or each.relative > ROUGH)
        ):
            true = input_gradient(lesson, each.variable, upstream(lesson, y))
            given = np.asarray(gradients[f"d{each.variable}"])
            finding = mistake_in_numbers(given, true)
            factor = same_ratio(given, true) if given.shape == true.shape and true.any() else None
            if factor:
                said.append(
                    f"d{each.variable} is {factor.operands[0]} times the true gradient everywhere"
                )
            elif finding:
                said.append(f"d{each.variable}: {finding}")
            elif given.shape != true.shape:
                said.append(f"d{each.variable} has the shape {given.shape}, not {true.shape}")
    labels = [variable_of(label, lesson.inputs) for label in read_source(lesson.backward).returned]
    order = [name for name in lesson.order if name in labels]
    if order != (named := [name for name in labels if name in order]):
        said.append(
            f"the order of the results is WRONG: every caller unpacks {', '.join(f'd{each}' for each in order)}, "
            f"but it returns {', '.join(f'd{each}' for each in named)}"
        )
    return said


def left_out(lesson, checks, ran):
    """Return what the verdict does not say: lines that never ran, arrays without a gradient, names
    that differ.
    """
    said = []
    source = read_source(lesson.backward)
    missed = [
        each.first
        for each in source.statements
        if each.first not in ran and not each.text.startswith("return") and each.targets
    ]
    if missed:
        numbers = (
            f"line {missed[0]}" if len(missed) == 1 else f"lines {', '.join(map(str, missed))}"
        )
        said.append(
            f"{'right where it ran' if not first_wrong(checks) else 'not all of it ran'}: {numbers} did not run"
        )
    unread = [each.variable for each in checks if each.verdict == NOT_FOUND]
    unread += [name for identity, name in lesson.buffers if depends(lesson, identity)]
    if unread:
        said.append(f"no gradient was found of {', '.join(unread)}, which the result depends on")
    others = [
        f"d{each.variable} (line {each.backward_line})" for each in checks if each.verdict == OTHER
    ]
    if others:
        said.append(
            f"other: what is called {', '.join(dict.fromkeys(others))} is another value than that gradient, "
            "but all results are right"
        )
    return said


def depends(lesson, identity):
    """Return whether the forward's result depends on an array of the object."""

    def moved(array):
        return array.astype(np.float64) * 1.25 + 0.5

    results = [lesson.run_forward(lesson.inputs)[0]]
    try:
        results.append(
            dataclasses.replace(lesson, moved=(identity, moved)).run_forward(lesson.inputs)[0]
        )
    except Exception:
        return False
    return not same(*results)
