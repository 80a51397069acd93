"""What the first mistake of a wrong backward is: its numbers, and its name if there is proof.

A mistake has a name if an edit of the learner's line repairs the function in all cases, if the results are in all cases
those of a mistake that the derivation lists (`names.py`), or if the numbers alone prove it.
"""

import contextlib
import copy
import dataclasses
import math
import sys

import numpy as np

from npgpt.errors import one_line
from npgpt.study.gradcheck.check import (
    WRONG,
    gradient_names,
    input_gradient,
    intermediate_gradient,
    relative_error,
    traced_forward,
)
from npgpt.study.gradcheck.lessons import map_arrays
from npgpt.study.judge.names import NameSearch
from npgpt.study.judge.outcome import silent
from npgpt.study.judge.report import Fault, Line
from npgpt.study.judge.shapes import by_shape, clash, close

UNKNOWN = "I don't recognise this mistake"


class Explanation:
    """The explanation of a `Judgement` that found something wrong: `explain(lines)`.

    cases: the judged one and all others, in which a name must hold; begun: a `Line` for the first NaN or infinity.
    """

    def __init__(self, judgement, solution, cases):
        self.case, self.record, self.results = judgement.case, judgement.record, judgement.results
        self.faults, self.source, self.lesson = judgement.faults, judgement.source, judgement.lesson
        self.solution = solution
        self.begun = self.not_finite() if self.record else None
        self.search = NameSearch(judgement, solution, cases, self.begun is not None)

    def explain(self, lines):
        """Return the faults, and the lines with diagnosis and evidence.

        Of the wrong lines, one that may follow from another says only that.
        """
        faults = [self.explained_fault(fault) for fault in self.faults]
        if self.source is None:
            return faults, [self.with_evidence(line) if line.verdict == WRONG else line for line in lines]
        explained, causes = [], [*faults]
        for line in self.with_begin(lines):
            if line.verdict == WRONG:
                cause = self.cause_of(line, causes)
                if cause is None:
                    line = dataclasses.replace(self.with_evidence(line), diagnosis=UNKNOWN)
                    causes.append(line)
                else:
                    line = following(line, cause.line)
            explained.append(line)
        first = next((each for each in causes if isinstance(each, Line)), None)
        if first is None or any(fault.is_write for fault in faults):
            return faults, explained
        search = self.search
        names = self.told_by_dtype(first) or search.repaired(first) or search.recognised(first) or self.told(first)
        if names:
            return faults, self.named(explained, first, names)
        return faults, [self.with_place(each) if each is first else each for each in explained]

    def with_begin(self, lines):
        """The lines, with the line at which NaN or infinity begins, if that is above the first wrong one."""
        i = next((i for i, line in enumerate(lines) if line.verdict == WRONG), None)
        if i is None or not self.begun or self.begun.line > (lines[i].line or math.inf):
            return lines
        if self.begun.line != lines[i].line:
            return [*lines[:i], self.begun, *lines[i:]]
        return [*lines[:i], dataclasses.replace(lines[i], evidence=self.begun.evidence), *lines[i + 1:]]

    def with_place(self, first):
        """The first wrong line, whose mistake has no name, with the lines that the mistake may be in as evidence."""
        if not self.search.walk or first.line is None:
            return first
        above = sorted(line for line in self.search.lines_before(first.line) if line < first.line)
        if not above:
            return first
        lines_above = f"in line {' or '.join(map(str, above))}" if len(above) < 4 else "above it"
        where = f"the mistake is in this line, or {lines_above}"
        return dataclasses.replace(first, evidence=f"{first.evidence}; {where}" if first.evidence else where)

    def named(self, lines, first, names):
        """The lines with each name at its line: at the wrong `Line` there, or at a new one above the first."""
        for number, message in names:
            i = next((i for i, each in enumerate(lines) if each.line == number and each.verdict == WRONG), None)
            if i is None and first in lines and number > (first.line or 0):
                i = lines.index(first)      # the line that was said to be the first can be right
            if i is None:
                lines = [Line(self.assigned_at(number), number, WRONG, message, first.evidence), *lines]
            else:
                lines = [*lines[:i], dataclasses.replace(lines[i], line=number, diagnosis=message), *lines[i + 1:]]
        return [following(each, names[0][0]) if each.diagnosis == UNKNOWN else each for each in lines]

    def assigned_at(self, line):
        """The name that a line assigns, for the report."""
        statement = self.source.statement_at(line)
        return next(iter(statement.targets), "") if statement else ""

    def cause_of(self, line, causes):
        """The cause that a wrong line may follow from, or None.

        A write to an argument may explain everything. A cause may stand below a line if it fills that line's array.
        """
        for cause in causes:
            above = isinstance(cause, Line) and cause.line is not None and (line.line or 0) <= cause.line
            is_write = isinstance(cause, Fault) and cause.is_write
            if cause.line is not None and (above or is_write or line.line in self.search.lines_after(cause.line)):
                return cause
        return None

    # The numbers

    def with_evidence(self, line):
        """A wrong line with its numbers: the shape, or the worst value beside the central difference."""
        given, true = self.given(line)
        evidence = line.evidence
        if given is None or evidence:
            return line
        if np.shape(given) != np.shape(true):
            evidence = by_shape(given, true, self.case.setting.sizes)
        elif np.isfinite(given).all():
            evidence = self.worst(line.name, given, true)
            if given.dtype != np.float64 and relative_error(given, true) < 1e-3:
                evidence += f"; it is {given.dtype}, and so not exact: keep the dtype of the arguments"
        return dataclasses.replace(line, evidence=evidence)

    def given(self, line):
        """(value, true value) of the gradient on a wrong line; None for a line that no gradient is known of."""
        if line.name in self.results and line.name in self.case.results:
            return self.results[line.name], self.case.results[line.name]
        made = [each for each in self.record if each.line == line.line and each.name in gradient_names(line.name[1:])]
        true = self.case.gradients.get(line.name) or [self.case.results.get(line.name)]
        return (made[-1].value if made else None), true[-1]

    def worst(self, name, given, true):
        """The worst value of a gradient beside the central difference, in words."""
        at = np.unravel_index(np.abs(given - true).argmax(), np.shape(true))
        difference = None
        if name in self.case.results:
            difference = float(input_gradient(self.lesson, name[1:], self.case.dy, at))
        else:
            found = [each for each in traced_forward(self.lesson)[3] if each.name == name[1:]]
            if len(found) == 1:
                difference = float(intermediate_gradient(self.lesson, found[0], self.case.dy, at))
        place = f"{name}[{', '.join(map(str, at))}]" if at else name
        if difference is None:      # a variable that is assigned several times
            return f"{place} is {float(given[at]):.5g}, the true value {float(true[at]):.5g}"
        ratio = f", ratio {float(given[at]) / difference:.4g}" if difference else ""
        return f"{place} is {float(given[at]):.5g}, the central difference {difference:.5g}{ratio}"

    def not_finite(self):
        """A `Line` for the assignment with which NaN or infinity begins; or None.

        A mask may hold -inf, so infinity counts only in a gradient.
        """
        known = self.case.gradients | self.case.helpers
        for each in self.record:
            bad = np.isnan(each.value) if each.name not in known else ~np.isfinite(each.value)
            if bad.any() and each.line != self.source.first:
                at = np.argwhere(bad)[0]
                place = f"{each.name}[{', '.join(map(str, at))}]" if at.size else each.name
                return Line(each.name, each.line, WRONG, UNKNOWN, f"{place} is {each.value[tuple(at)]}: it begins here")
        return None

    def first_write(self):
        """The `Fault` of the line that first changes an argument in place."""
        arguments, arrays = self.case.arguments(), []
        map_arrays(arrays.append, arguments)
        before, found, last = copy.deepcopy(arrays), None, None
        code = getattr(self.solution.function, "__code__", None)

        def trace(frame, event, _):
            nonlocal found, last
            if frame.f_code is not code:
                return None
            if found is None and event in ("line", "return"):
                changed = [a for a, b in zip(arrays, before, strict=True) if not np.array_equal(a, b, equal_nan=True)]
                if changed:
                    names = [name for name, value in frame.f_locals.items() if value is changed[0]]
                    found = last, names[0] if names else "the cache"
                last = frame.f_lineno
            return trace

        outer = sys.gettrace()
        sys.settrace(trace)
        try:
            with silent(), contextlib.suppress(BaseException):      # reported elsewhere
                self.solution.function(*arguments)
        finally:
            sys.settrace(outer)
        line, name = found or (None, "an argument")
        statement = self.source.statement_at(line) if line and self.source else None
        text = f"`{one_line(statement.text, 100)}` changes" if statement else "it changes"
        return Fault(f"{text} {name}, which belongs to the caller: make a new array", line, is_write=True)

    def explained_fault(self, fault):
        """A fault with what is known of it: the line of a write, the shapes that do not fit, the mistake."""
        if fault.is_write:
            return self.first_write()
        walk = self.search.walk
        if fault.line is None or walk is None:
            return fault
        i, message = len(walk.before) - 1, fault.message
        if walk.after is None:
            if walk.index(fault.line) != i:
                return fault
            message = clash(walk.statements[i], walk.before[i]) or message
        found = self.search.smallest(min(i, len(walk.statements) - 1), self.search.all_right)
        line, diagnosis, _ = found or (fault.line, fault.diagnosis, None)
        if line != fault.line and walk.after is None:
            message = f"line {fault.line} fails: {message}"
        return Fault(message, line, diagnosis=diagnosis)

    def told(self, first):
        """[(line, message)] of what the numbers alone say for sure; else []."""
        given, true = self.given(first)
        if given is None or first.line is None:
            return []
        if np.shape(given) != np.shape(true):
            _, _, what = (first.evidence or "").partition(": ")
            return [(first.line, what)] if what else []
        if np.size(true) > 1 and close(np.sort(given, axis=None), np.sort(true, axis=None)):
            return [(first.line, "the right numbers in another order: look at the reshape, the transpose or the index")]
        for other, values in self.case.gradients.items():
            if any(close(given, value) for value in values):
                what = "before its last step" if other == first.name else "the gradient of another variable"
                return [(first.line, f"it is still {other}, {what}")]
        return []

    def told_by_dtype(self, first):
        """[(line, message)] if the numbers are only rounded, by a line in a smaller dtype; else []."""
        given, true = self.given(first)
        low = next((each for each in self.record if each.value.dtype.itemsize < 8), None)
        if low is None or given is None or low.line > (first.line or math.inf) or relative_error(given, true) > 0.05:
            return []
        return [(low.line, f"computed in {low.value.dtype}, whose rounding is seen: keep the dtype of the arguments")]


def following(line, cause):
    """A wrong line that may follow from the mistake in another; not above it, so that the cause is the first."""
    return dataclasses.replace(line, diagnosis=f"may follow from line {cause}", line=max(line.line or 0, cause))
