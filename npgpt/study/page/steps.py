"""A forward and a backward in steps: the line, its arrays, and the partner of each array in the other function."""

import ast
import dataclasses
import functools
import textwrap

import numpy as np

from npgpt.study.exercises.exercise import statements
from npgpt.study.gradcheck.check import gradient_names, matched
from npgpt.study.gradcheck.measure import truth
from npgpt.study.gradcheck.source import parsed, read_source
from npgpt.study.gradcheck.trace import Assignment, Recorded, is_floating
from npgpt.study.lessons.lesson import map_arrays
from npgpt.study.lessons.table import lesson_named


@functools.cache
def known_truth(key):
    """Return the `Truth` of a lesson, measured once: about two seconds for all lessons."""
    return truth(lesson_named(key))


def gradients_of(lesson, dy, cache, backward=None):
    """Return {"dx": …} of a lesson's backward, which may write to its arguments if it is one's own."""
    return lesson.run_backward(*map_arrays(np.copy, (dy, cache)), backward)


def ways(lesson):
    """Return a lesson with each backward that the page shows: the package's, and the long way of layernorm."""
    if lesson.key != "layernorm":       # with the others' long ways, the page is larger than 1 MB
        return [lesson]
    return [lesson, dataclasses.replace(lesson, backward=lesson.long_way)]


def traced_pass(lesson, known, lines):
    """Return the `Assignment`s of a forward and backward, also of inputs and results that no statement assigns."""
    def is_shown(value):        # an array or a number, but no switch
        return isinstance(value, np.ndarray | np.number) or type(value) in (int, float)

    forward, backward = (Recorded(each, is_shown) for each in (lesson.forward, lesson.backward))
    _, cache = lesson.run_forward(lesson.inputs, forward.function)
    result = gradients_of(lesson, known.dy, cache, backward.function)
    record = forward.record + backward.record

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
    """A forward and a backward in steps: each runs one line.

    lines: variable -> the backward's line of its gradient. steps: {"line": "f24" of the forward or "b57" of the
    backward, "arrays": [[name, i], …] that it makes, "at": {name: i} that it reads, "partners": {v: the step of dv}},
    in order. arrays: the `summary` of array i, each once; parts: line -> see `parts_of`.
    """

    def __init__(self, lesson, known, lines):
        self.sources = {"f": read_source(lesson.forward), "b": read_source(lesson.backward)}
        self.parts = {f"{side}{line}": parts for side, function in (("f", lesson.forward), ("b", lesson.backward))
                      for line, parts in parts_of(function).items()}
        forward = self.sources["f"]
        self.steps, self.arrays = [], []
        seen = {}                       # type, shape and bytes of an array -> its index
        now = {"f": {}, "b": {}}        # name -> the index of its array
        made = {"f": [], "b": []}       # (assignment, index of its step)
        for each in traced_pass(lesson, known, lines):
            side = "f" if each.function == forward.name else "b"
            line = self.key(side, each.line)
            # The names of one execution of a line are one step; the next execution of a loop's line is another.
            if not self.steps or line != self.steps[-1]["line"] or each.name in dict(self.steps[-1]["arrays"]):
                read = {part[0] for part in self.parts.get(line, ()) if not isinstance(part, str) and not part[1]}
                self.steps.append({"line": line, "arrays": [], "partners": {},
                                   "at": {name: i for name, i in now[side].items() if name in read}})
            index = seen.setdefault((each.value.dtype.char, each.value.shape, each.value.tobytes()), len(self.arrays))
            if index == len(self.arrays):
                self.arrays.append(summary(each.value))
            self.steps[-1]["arrays"].append([each.name, index])
            now[side][each.name] = index
            if is_floating(each.value) and (side == "b" or each.line != forward.first):
                made[side].append((each, len(self.steps) - 1))
        step_of = {id(each): step for each, step in made["b"]}
        for i, gradient in matched(*([each for each, _ in made[side]] for side in "fb")).items():
            (variable, here), there = made["f"][i], step_of[id(gradient)]
            self.steps[here]["partners"].setdefault(variable.name, there)

    @property
    def data(self):
        """The data for the page's script."""
        return {"steps": self.steps, "arrays": self.arrays, "parts": self.parts}

    def key(self, side, line):
        """Return the page's name for a line: its side, and the first line of its statement."""
        statement = self.sources[side].statement_at(line)
        return f"{side}{statement.first if statement else line}"


def parts_of(function):
    """Map the first line of each statement, and of the `def`, to its code in parts, for an equation of pictures.

    A part is a text, or [name, whether the line assigns it], or ["kept", False, "kept.T"] for `kept.swapaxes(-1, -2)`.
    """
    source, tree = read_source(function), parsed(function)
    lines = [line.encode() for line in textwrap.dedent("\n".join(source.lines)).split("\n")]
    found = {}
    for node in [tree, *statements(tree)]:
        end = (node.body[0].lineno - 1, None) if node is tree else (node.end_lineno, node.end_col_offset)
        names, at, parts = {}, (node.lineno, node.col_offset), []
        for each in ast.walk(node.args if node is tree else node):
            match each:
                case ast.Attribute(ast.Name() as read, "shape" | "dtype") | ast.keyword("like", ast.Name() as read):
                    names[read.lineno, read.col_offset] = (read, read.id)       # not its values
                case ast.Attribute(ast.Name(name), "T") | ast.Call(ast.Attribute(ast.Name(name), "swapaxes")):
                    names[each.lineno, each.col_offset] = (each, [name, False, f"{name}.T"])
                case ast.Name(name) | ast.arg(name):
                    made = isinstance(each, ast.arg) or isinstance(each.ctx, ast.Store)
                    names.setdefault((each.lineno, each.col_offset), (each, [name, made]))

        def text(start, stop):
            rows = lines[start[0] - source.first:stop[0] - source.first + 1]
            rows[-1] = rows[-1][:stop[1]]
            rows[0] = rows[0][start[1]:]
            return " ".join(row.decode().strip() if i else row.decode() for i, row in enumerate(rows))

        for start, (each, part) in sorted(names.items(), key=lambda item: item[0]):
            parts += [text(at, start), part]
            at = each.end_lineno, each.end_col_offset if not isinstance(each, ast.arg) else start[1] + len(each.arg)
        found[node.lineno] = [part for part in [*parts, text(at, end)] if part]
    return found


def summary(value):
    """Return the shape and the values of an array, with four digits."""
    return {"shape": list(np.shape(value)), "values": short(np.ravel(value))}


def short(values):
    """Round numbers to four digits for JSON; those that are not finite become strings."""
    return [float(f"{value:.4g}") if np.isfinite(value) else str(value) for value in np.asarray(values, np.float64)]
