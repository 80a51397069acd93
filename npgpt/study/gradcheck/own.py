"""Check a user's forward and backward: in several draws of the inputs, with remarks.

The remarks say what is wrong, what was not checked, and what a caller should know.
"""

import ast
import dataclasses
import time
from types import FunctionType, ModuleType

import numpy as np

from npgpt.engine.sources import tree_of
from npgpt.errors import UserError
from npgpt.study.gradcheck.check import LineCheck, best_check, first_wrong, table_text
from npgpt.study.gradcheck.constants import all_digits, rounded_constants
from npgpt.study.gradcheck.measure import input_gradient, run_once, upstream
from npgpt.study.gradcheck.source import assigned_anywhere, is_name, parsed, read_source
from npgpt.study.gradcheck.spelling import variable_of
from npgpt.study.gradcheck.verdicts import NOT_FOUND, OK, OTHER, ROUNDED, WRONG
from npgpt.study.judge.shapes import factor_of, mistake_in_numbers
from npgpt.study.lessons.inputs import is_computed
from npgpt.study.lessons.lesson import as_tuple, map_arrays
from npgpt.study.lessons.own_state import holders, parts_of, same
from npgpt.study.lessons.random_settings import runs
from npgpt.study.lessons.setting import PLAIN

WIDE = 3.0  # standard deviation of the second draw, at least
MOST_WIDE = 30.0
ROUGH = 1e-3  # relative error that a rounded constant may cause
PATIENCE = 5.0  # seconds after which no other draw begins


@dataclasses.dataclass(repr=False)
class Verified:
    """What a check of one layer found; printed as a table.

    Attributes
    ----------
    right : bool
        Whether no gradient is wrong.
    lines : list of LineCheck
        One for each variable.
    remarks : list of str
        What else was found.
    measured : str
        Why the true gradients are not known to 30 digits, or "".
    key : str
        The layer's file, name and inputs, as commands take them.
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
    if not is_finite(lesson):
        raise UserError(
            f"{lesson.name} returns no finite numbers for inputs from a normal distribution: "
            "give it others, as in --input x=4,6:0.1..2.0"
        )
    notes = side_effects(lesson)
    draw = ""
    started = time.monotonic()
    found, backward, measured = best_check(lesson)
    other = beside(pair)
    if first_wrong(found) and pair.fixed and runs(other.at()):
        checks, beside_kinks, said = best_check(other.at())
        if not first_wrong(checks):
            pair, lesson, found, backward, measured = other, other.at(), checks, beside_kinks, said
            names = ", ".join(pair.fixed)
            notes.append(f"{names}: no gradient at a kink, as relu's at 0: checked beside it")
    ran = {*backward.ran}
    for spread in spreads(pair):
        other = pair.at(dataclasses.replace(PLAIN, seed=1, spread=spread))
        if time.monotonic() - started < PATIENCE and runs(other) and is_finite(other):
            checks, backward, _ = best_check(other)
            ran |= {*backward.ran}
            allow_rounded(checks, found)
            if first_wrong(checks) and not first_wrong(found):
                lesson, found = other, checks
                draw = f"in the draw with a standard deviation of {spread:g}"
    notes += small_errors(lesson, found)
    if first_wrong(found):
        notes += [draw, *evidence(lesson, found)]
    notes += left_out(lesson, found, ran)
    pair.world.reset()
    return Verified(found, [*filter(None, notes)], measured, pair.key)


def beside(pair):
    """Return a `Pair` whose given arrays are a little others."""
    rng = np.random.default_rng(1)
    fixed = {
        name: each + 1e-3 * rng.standard_normal(each.shape) for name, each in pair.fixed.items()
    }
    return dataclasses.replace(pair, fixed=fixed)


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
    inputs = [each.variable for each in small if each.is_input]
    if not inputs or any(each.relative is None or each.relative > ROUGH for each in small):
        return []
    for each in small:  # small entries may be wrong beside large ones
        is_rounded = each.verdict == ROUNDED and each.is_input
        if is_rounded and not all_digits(lesson, each.variable):
            each.verdict = WRONG
            each.since = each.until = each.backward_line
    few = min(each.digits or int(-np.log10(each.relative)) for each in small)
    remark = f"rounded: right to {few} digits"
    question = "does the backward leave a small number out, such as an eps?"
    if constants := rounded_constants(lesson, inputs):
        for each in small:
            each.verdict = ROUNDED
        return [f"{remark}, because of {', '.join(constants)}"]
    return [question if first_wrong(checks) else f"{remark}: {question}"]


def side_effects(lesson):
    """Return remarks on what a lesson does besides its results.

    Raises UserError if two runs on equal inputs differ.
    """
    runs = [run_twice(lesson), run_twice(lesson)]
    if not same(runs[0][1], runs[1][1]):
        raise UserError(
            f"{lesson.name}: two runs on equal inputs differ, although NumPy's and Python's "
            "generators were seeded alike: no verdict. Does it draw numbers without a seed, or "
            "count its calls?"
        )
    (given, dy), (_, gradients), again = runs[0]
    notes = []
    pairs = zip(lesson.gradients, lesson.for_each(given), lesson.for_each(dy), strict=False)
    if written := [name for name, one, other in pairs if not same(one, other)]:
        names = ", ".join(written)
        notes.append(f"{lesson.backward.__name__} writes to {names}, which the caller may need")
    doubled = [name for name, value in gradients.items() if is_double(again.get(name), value)]
    if doubled:
        notes.append(f"{', '.join(doubled)}: adds to what an earlier call left")
    return notes


def is_double(second, first):
    """Return whether an array is twice another one, which is not 0."""
    is_alike = np.any(first) and np.shape(second) == np.shape(first)
    return is_alike and np.allclose(second, 2 * first, rtol=1e-9, atol=0.0)


def run_twice(lesson):
    """Run the forward once, and the backward twice on the same state.

    Return (dy after, before) the first backward, (y, gradients), and the second gradients.
    """
    y, cache = lesson.run_forward(lesson.inputs)
    dy, given = upstream(lesson, y), upstream(lesson, y)
    gradients = map_arrays(np.array, lesson.run_backward(given, cache))
    try:
        again = lesson.run_backward(upstream(lesson, y), cache)
    except Exception:  # a cache can be used once
        again = {}
    return (given, dy), (y, gradients), again


def spreads(pair):
    """Return standard deviations of other draws, so wide that inputs exceed each number in the
    forward, or in what it reads: a threshold, for example.
    """
    others = [each for each in pair.world.names.values() if isinstance(each, FunctionType)]
    trees = [tree_of(each.__code__) for each in (pair.forward, *others)]
    nodes = [node for tree in filter(None, trees) for node in ast.walk(tree)]
    numbers = [node.value for node in nodes if isinstance(node, ast.Constant)]
    numbers += [*pair.values.values(), *pair.world.names.values()]
    numbers += [each for *_, parts in holders(pair.layer) for each in parts.values()]
    sizes = [abs(each) for each in numbers if type(each) in (int, float) and abs(each) <= MOST_WIDE]
    return sorted({WIDE, max(1.5 * max(sizes, default=0), WIDE)})


def is_finite(lesson):
    """Return whether a forward returns finite numbers."""
    with np.errstate(all="ignore"):
        y = lesson.run_forward(lesson.inputs)[0]
    return all(np.isfinite(np.asarray(each, np.float64)).all() for each in as_tuple(y))


def evidence(lesson, checks):
    """Return what explains wrong gradients of inputs: a factor, a transpose, a missing sum, another
    order of the results.
    """
    y, dy, gradients = run_once(lesson)
    said = []
    for each in checks:
        if each.verdict == WRONG and each.is_input and (each.relative or 1) > ROUGH:
            name = f"d{each.variable}"
            true = input_gradient(lesson, each.variable, dy)
            given = np.asarray(gradients[name])
            if factor := factor_of(given, true):
                said.append(f"{name} is {factor:.5g} times the true gradient everywhere")
            elif finding := mistake_in_numbers(given, true):
                said.append(f"{name}: {finding}")
            elif given.shape != true.shape:
                said.append(f"{name} has the shape {given.shape}, not {true.shape}")
    if not lesson.has_upstream and not lesson.is_one_function and np.size(as_tuple(y)[0]) > 1:
        name = lesson.backward.__name__
        said.append(f"{name} takes no gradient of the result: that of its sum is meant")
    labels = [variable_of(label, lesson.inputs) for label in read_source(lesson.backward).returned]
    order = [f"d{name}" for name in lesson.order if name in labels]
    returned = [f"d{name}" for name in labels if f"d{name}" in order]
    if order != returned:
        said.append(
            "the order of the results is WRONG: every caller unpacks "
            f"{', '.join(order)}, but it returns {', '.join(returned)}"
        )
    return said


def left_out(lesson, checks, ran):
    """Return what was not checked, and what else the verdicts do not say."""
    said = []
    source = read_source(lesson.backward)
    wrong = first_wrong(checks)
    missed = [str(each.first) for each in source.statements if each.first not in ran]
    if missed:
        what = "not all of it ran" if wrong else "right where it ran"
        lines = "lines" if len(missed) > 1 else "line"
        said.append(f"{what}: {lines} {', '.join(missed)} did not run")
    unread = [each.variable for each in checks if each.verdict == NOT_FOUND] + [*lesson.buffers]
    if unread:
        said.append(f"no gradient was found of {', '.join(unread)}, which the result depends on")
    code = parsed(lesson.backward)
    stored = {node.id for node in ast.walk(code) if is_name(node, ast.Store)}
    if local := [name for name in unread if is_computed(name, stored)]:
        said.append(f"{', '.join(local)}: is it a local variable? Nothing reads it: write self.…")
    words = assigned_anywhere(code)
    parts = parts_of(lesson.layer) or {}
    floats = [key for key, value in parts.items() if isinstance(value, float)]
    if numbers := [key for key in floats if is_computed(key, words)]:
        said.append(f"not checked: {', '.join(numbers)}: numbers of the object; make them arrays")
    labels = [each for each in source.returned if each != "None"]
    found = [each for each in checks if each.is_input and each.verdict != NOT_FOUND]
    if lesson.layer is None and len(labels) > len(found):
        said.append(
            f"{len(found)} of {len(labels)} results are checked; numbers and globals, such as a "
            "returned loss, are not"
        )
    for each in lesson.weights:
        number = each.gradient[-1] if isinstance(each.gradient, tuple) else None
        weight = each.path[-1]
        if isinstance(number, int) and isinstance(weight, int) and number != weight:
            said.append(
                f"the gradient of {each.name} is number {number} of its list, the weight is number "
                f"{weight}"
            )
    gradients = run_once(lesson)[2]
    right = [each.variable for each in found if each.verdict == OK]
    if zero := [name for name in right if not np.any(gradients[f"d{name}"])]:
        said.append(
            f"the gradient of {', '.join(zero)} is 0 everywhere for these inputs, which shows "
            "little"
        )
    others = [each for each in checks if each.verdict == OTHER]
    others = dict.fromkeys(f"d{each.variable} (line {each.backward_line})" for each in others)
    if others:
        said.append(
            f"other: what is called {', '.join(others)} is not that gradient, but "
            "what is computed from it is right"
        )
    if wrong and wrong.since:
        if called := called_in(lesson, range(wrong.since, wrong.until + 1)):
            said.append(f"or it is in {', '.join(called)}, which these lines call")
    return said


def called_in(lesson, lines):
    """Return the names of the file's own functions, and of methods, that lines of the backward
    call.
    """

    def is_own(name):
        owner, _, last = name.rpartition(".")
        is_module = isinstance(lesson.world.names.get(owner.partition(".")[0]), ModuleType)
        is_usual = any(hasattr(each, last) for each in (np.ndarray, dict, list, str))
        is_method = owner and not is_module and not is_usual
        return is_method or isinstance(lesson.world.names.get(name), FunctionType)

    calls = [node for node in ast.walk(parsed(lesson.backward)) if isinstance(node, ast.Call)]
    names = [ast.unparse(node.func) for node in calls if node.lineno in lines]
    return [*filter(is_own, dict.fromkeys(names))]
