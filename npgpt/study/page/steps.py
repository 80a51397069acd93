"""A forward and a backward in steps: the line, its arrays, and their partners in the other."""

import functools
import re

import numpy as np

from npgpt.study.exercises.exercise import statements
from npgpt.study.exercises.lines import terms_of
from npgpt.study.gradcheck.check import gradient_names, matched
from npgpt.study.gradcheck.measure import truth
from npgpt.study.gradcheck.source import parsed, read_source
from npgpt.study.gradcheck.spelling import spelled
from npgpt.study.gradcheck.trace import Assignment, Recorded, is_floating
from npgpt.study.lessons.lesson import map_arrays
from npgpt.study.lessons.table import lesson_named
from npgpt.study.page.origins import origin

# A name in a line whose values it uses: no attribute, text or `x.shape`; perhaps transposed.
NAME = re.compile(
    r"""(?<![\w."'])(?<!like=)(?:self\.)?([a-zA-Z_]\w*)(?![\w"']|\.shape|\.dtype)"""
    r"(\.T\b|\.swapaxes\(-1, -2\))?"
)


@functools.cache
def known_truth(key):
    """Return the `Truth` of a lesson, measured once: about two seconds for all lessons."""
    return truth(lesson_named(key))


def traced_pass(lesson, known, lines):
    """Return the `Assignment`s of a forward and backward.

    They include inputs and results that no statement assigns.
    lines: variable -> the backward's line of its gradient.
    """

    def is_shown(value):  # an array or a number, but no switch
        return isinstance(value, np.ndarray | np.number) or type(value) in (int, float)

    spelling = spelled(lesson.forward, lesson.backward, tuple(lesson.inputs))
    forward = Recorded(lesson.forward, is_shown)
    backward = Recorded(lesson.backward, is_shown, spelling=spelling)
    _, cache = lesson.run_forward(lesson.inputs, forward.function)
    dy = map_arrays(np.copy, known.dy)  # one's own backward may write to it
    results = lesson.run_backward(dy, cache, backward.function)

    def add(recorded, line, name, value):
        before = [i for i, each in enumerate(recorded.record) if each.line <= line]
        assignment = Assignment(recorded.name, line, name, value)
        recorded.record.insert(max(before, default=-1) + 1, assignment)

    assigned = {each.name for each in forward.record + backward.record}
    for name, value in lesson.inputs.items():
        if name not in assigned:
            add(forward, read_source(lesson.forward).first, name, value)
        gradient, names = f"d{name}", gradient_names(name)
        made = [each for each in backward.record if each.name in names][-1:]
        for each in made:
            each.name = gradient
        # the result may have been changed in place, or be wrong
        is_made = made and np.array_equal(made[0].value, results.get(gradient))
        if gradient in results and not is_made:
            add(backward, lines[name], gradient, results[gradient])
    return forward.record + backward.record


class Steps:
    """A forward and a backward in steps: each runs one line.

    steps: dicts in order
        "line": "f24" of the forward or "b57" of the backward
        "arrays": [[name, i], …] that it makes; "at": {name: i} that it reads
        "partners": {v: the step of dv}; "from": {name: `origin`}
    arrays: their `summary`
    parts: line -> `parts_of`
    """

    def __init__(self, lesson, known, lines):
        """lines: variable -> the backward's line of its gradient."""
        self.sources = {"f": read_source(lesson.forward), "b": read_source(lesson.backward)}
        forward = self.sources["f"]
        record = traced_pass(lesson, known, lines)
        names = {each.name for each in record}
        self.parts = parts_of("f", lesson.forward, names) | parts_of("b", lesson.backward, names)
        self.steps = []
        self.arrays = []
        seen = {}  # type, shape and bytes of an array -> its index
        now = {"f": {}, "b": {}}  # name -> the index of its array
        made = {"f": [], "b": []}  # assignments
        step_of = {}  # their ids -> the indexes of their steps
        terms = terms_of(lesson, known.dy, names)
        step = {"line": None}
        for each in record:
            side = "f" if each.function == forward.name else "b"
            line, value = self.key(side, each.line), each.value
            # The names of one execution of a line are one step; the next execution of a loop's line
            # is another.
            if line != step["line"] or each.name in dict(step["arrays"]):
                parts = [part for part in self.parts.get(line, ()) if not isinstance(part, str)]
                read = {name for name, is_made, *_ in parts if not is_made}
                # `self.x` of the forward is there in the backward, too
                before = now["f"] | now["b"] if lesson.is_own else dict(now[side])
                at = {name: i for name, i in before.items() if name in read}
                step = {"line": line, "arrays": [], "partners": {}, "from": {}, "at": at}
                self.steps.append(step)
                shapes = {name: self.arrays[i]["shape"] for name, i in before.items()}
                runs = terms[each.function, each.line]
                made_by = runs.pop(0) if runs else {}
            content = value.dtype.char, value.shape, value.tobytes()
            index = seen.setdefault(content, len(self.arrays))
            if index == len(self.arrays):
                self.arrays.append(summary(value))
            step["arrays"].append([each.name, index])
            called = [each.name, *gradient_names(each.name[1:])]
            named = [made_by[name] for name in called if name in made_by]
            found = origin(named[0], value, shapes) if named else None
            if found:
                step["from"][each.name] = found
                step["at"] |= {name: before[name] for name in found["names"]}
            now[side][each.name] = index
            if is_floating(value) and (side == "b" or each.line != forward.first):
                made[side].append(each)
                step_of[id(each)] = len(self.steps) - 1
        for i, gradient in matched(made["f"], made["b"]).items():
            variable = made["f"][i]
            partners = self.steps[step_of[id(variable)]]["partners"]
            partners.setdefault(variable.name, step_of[id(gradient)])

    def key(self, side, line):
        """Return the page's name for a line: its side, and the first line of its statement."""
        statement = self.sources[side].statement_at(line)
        return f"{side}{statement.first if statement else line}"


def parts_of(side, function, names):
    """Map each line of a function to its code in parts, for an equation of pictures.

    The lines are the page's names for statements and the `def`. A part is a text, or one of the
    names: [name, whether the line assigns it], or ["kept", False, "kept.T"] for
    `kept.swapaxes(-1, -2)`.
    """
    source = read_source(function)
    tree = parsed(function)
    found = {}
    for node in [tree, *statements(tree)]:
        last = node.body[0].lineno - 1 if node is tree else node.end_lineno
        lines = source.lines[node.lineno - source.first : last - source.first + 1]
        code = " ".join(re.sub("#.*", "", line).strip() for line in lines).strip()
        right = len(code) if node is tree else code.find("= ")  # where what is assigned ends
        parts = []
        end = 0
        for match in NAME.finditer(code):
            name, flipped = match.groups()
            is_keyword = node is not tree and code.startswith("=", match.end())  # `eps=eps`
            if name in names and not is_keyword:
                part = [name, match.start() < right] + [f"{name}.T"] * bool(flipped)
                parts += [code[end : match.start()], part]
                end = match.end()
        found[f"{side}{node.lineno}"] = [part for part in [*parts, code[end:]] if part]
    return found


def summary(value):
    """Return the shape and the values of an array, with four digits."""
    return {"shape": list(np.shape(value)), "values": short(np.ravel(value))}


def short(values):
    """Round numbers to four digits for JSON; those that are not finite become strings."""
    return [
        float(f"{value:.4g}") if np.isfinite(value) else str(value)
        for value in np.asarray(values, np.float64)
    ]
