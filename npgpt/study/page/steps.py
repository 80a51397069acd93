"""A forward and a backward in steps: the line, its arrays, and the partner of each array in the other function."""

import ast
import dataclasses
import functools

import numpy as np

from npgpt.study.gradcheck.check import gradient_names, matched
from npgpt.study.gradcheck.measure import truth
from npgpt.study.gradcheck.source import parsed, read_source
from npgpt.study.gradcheck.trace import Assignment, recording
from npgpt.study.lessons.lesson import map_arrays
from npgpt.study.lessons.table import lesson_named


@functools.cache
def known_truth(key):
    """Return the `Truth` of a lesson, measured once: about two seconds for all lessons."""
    return truth(lesson_named(key))


def gradients_of(lesson, *arguments):
    """Return {"dx": …} of a lesson's backward, which may write to its arguments if it is one's own."""
    return lesson.run_backward(*map_arrays(np.copy, arguments))


def ways(lesson):
    """Return a lesson with each backward that the page shows: the package's, and the long way of layernorm."""
    if lesson.key != "layernorm":       # with the others' long ways, the page is larger than 1 MB
        return [lesson]
    return [lesson, dataclasses.replace(lesson, backward=lesson.long_way)]


def traced_pass(lesson, known, lines):
    """Return the `Assignment`s of a forward and backward, including inputs and results that no statement assigns.

    dln_1_weight of a backward is named after its parameter, "dln_1.weight".
    """
    with recording([lesson.forward, lesson.backward]) as record:
        _, cache = lesson.run_forward(lesson.inputs)
        result = gradients_of(lesson, known.dy, cache)

    def add(function, line, name, value):
        at = max((i for i, each in enumerate(record) if each.function == function.__name__ and each.line <= line),
                 default=-1)
        record.insert(at + 1, Assignment(function.__name__, line, name, value))

    for name, value in lesson.inputs.items():
        if all(each.name != name for each in record):
            add(lesson.forward, read_source(lesson.forward).first, name, value)
        made = next((each for each in reversed(record) if each.name in gradient_names(name)), None)
        if made is not None:
            made.name = f"d{name}"
        if made is None or not np.array_equal(made.value, result[f"d{name}"]):      # changed in place later, or wrong
            add(lesson.backward, lines[name], f"d{name}", result[f"d{name}"])
    return record


class Steps:
    """A pass of a lesson in steps: a line each, with the arrays that it made.

    lines: variable -> the backward's line of its gradient. steps: {"line": "f24", "arrays": [[name, i], …],
    "partners": {name: step}} in the order of the pass, the line with an f for the forward or a b for the backward;
    arrays: what `summary` says of array i, each once; partners: the index of v's step for dv and the reverse. A step
    whose line is a matmul has "factors" as well, two of [name, i, whether it is transposed].
    """

    def __init__(self, lesson, known, lines):
        self.sources = {"f": read_source(lesson.forward), "b": read_source(lesson.backward)}
        products = {"f": matmuls(lesson.forward), "b": matmuls(lesson.backward)}
        forward = self.sources["f"]
        self.steps, self.arrays = [], []
        seen = {}                       # shape and bytes of an array -> its index
        now = {"f": {}, "b": {}}        # name -> the index of its array
        made = {"f": [], "b": []}       # (assignment, index of its step)
        for each in traced_pass(lesson, known, lines):
            side = "f" if each.function == forward.name else "b"
            line = self.key(side, each.line)
            # The names of one execution of a line are one step; the next execution of a loop's line is another.
            if not self.steps or line != self.steps[-1]["line"] or each.name in dict(self.steps[-1]["arrays"]):
                self.steps.append({"line": line, "arrays": [], "partners": {}})
            index = seen.setdefault((each.value.shape, each.value.tobytes()), len(self.arrays))
            if index == len(self.arrays):
                self.arrays.append(summary(each.value))
            self.steps[-1]["arrays"].append([each.name, index])
            now[side][each.name] = index
            if each.line in products[side]:
                self.steps[-1]["factors"] = [[name, now[side][name], flipped]
                                             for name, flipped in products[side][each.line]]
            if side == "b" or each.line != forward.first:
                made[side].append((each, len(self.steps) - 1))
        step_of = {id(each): step for each, step in made["b"]}
        for i, gradient in matched(*([each for each, _ in made[side]] for side in "fb")).items():
            (variable, here), there = made["f"][i], step_of[id(gradient)]
            self.steps[here]["partners"].setdefault(variable.name, there)
            self.steps[there]["partners"].setdefault(gradient.name, here)

    @property
    def data(self):
        """The data for the page's script."""
        return {"steps": self.steps, "arrays": self.arrays}

    @property
    def shapes(self):
        """The shape of the first array of each line."""
        return {step["line"]: self.arrays[step["arrays"][0][1]]["shape"] for step in reversed(self.steps)}

    def key(self, side, line):
        """Return the page's name for a line: its side, and the first line of its statement."""
        statement = self.sources[side].statement_at(line)
        return f"{side}{statement.first if statement else line}"


def matmuls(function):
    """Map the line of each assignment of `a @ b` to its factors, [(name, whether it is transposed), …]."""
    found = {}
    for node in ast.walk(parsed(function)):
        match node:
            case ast.Assign(value=ast.BinOp(left, ast.MatMult(), right)) if factor(left) and factor(right):
                found[node.lineno] = [factor(left), factor(right)]
    return found


def factor(node):
    """Return (name, whether it is transposed) of `a`, `a.T` or `a.swapaxes(-1, -2)`, else None."""
    match node:
        case ast.Name(name):
            return name, False
        case ast.Attribute(ast.Name(name), "T") | ast.Call(ast.Attribute(ast.Name(name), "swapaxes")):
            return name, True
    return None


def summary(value):
    """Return the shape, range and values of an array, with four digits."""
    value = np.asarray(value, np.float64)
    finite = value[np.isfinite(value)]
    low, high = short([finite.min(), finite.max()] if finite.size else [0.0, 0.0])
    return {"shape": list(value.shape), "low": low, "high": high, "values": short(value.ravel())}


def compared(name, given, true):
    """Return what the page shows of an array: its summary, that of the true one and of their difference, or None."""
    comparable = given is not None and true is not None and np.shape(given) == np.shape(true)
    arrays = {"given": given, "true": true, "difference": given - true if comparable else None}
    return {"name": name} | {which: None if array is None else summary(array) for which, array in arrays.items()}


def short(values):
    """Round numbers to four digits for JSON; those that are not finite become strings."""
    return [float(f"{value:.4g}") if np.isfinite(value) else str(value) for value in np.asarray(values, np.float64)]
