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
from npgpt.study.exercises.findings import Finding
from npgpt.study.exercises.walk import silent
from npgpt.study.gradcheck.check import (
    WRONG,
    gradient_names,
    input_gradient,
    intermediate_gradient,
    relative_error,
    traced_forward,
)
from npgpt.study.gradcheck.lessons import map_arrays
from npgpt.study.judge.counterpart import counterpart
from npgpt.study.judge.names import NameSearch
from npgpt.study.judge.report import Fault, Line
from npgpt.study.judge.shapes import EXACT, clash, close, missing_step, pattern

UNKNOWN = Finding("unknown")


class Explanation:
    """The explanation of a `Judgement` that found something wrong: `explain(lines)`.

    judge(case) -> the `Judgement` on another case; cases: the judged one and all others, in which a name must hold;
    begun: a `Line` for the first NaN or infinity.
    """

    def __init__(self, judgement, solution, cases, judge):
        self.judgement, self.case, self.record = judgement, judgement.case, judgement.record
        self.source, self.lesson, self.solution, self.judge, self.cases = (
            judgement.source, judgement.lesson, solution, judge, cases)
        self.begun = self.not_finite() if self.record else None
        self.search = NameSearch(judgement, solution, cases, self.begun is not None)

    def explain(self, lines):
        """Return the faults, the lines with what the mistakes are and the evidence, and the package's key of the first.

        Of the wrong lines, one that may follow from another says only that.
        """
        faults = [self.explained_fault(fault) for fault in self.judgement.faults]
        if self.source is None:
            lines = [self.with_evidence(line) if line.verdict == WRONG else line for line in lines]
            return faults, lines, self.key(lines)
        explained, causes = [], [*faults]
        for line in self.with_begin(lines):
            if line.verdict == WRONG:
                cause = self.cause_of(line, causes)
                if cause is None:
                    line = dataclasses.replace(self.with_evidence(line), mistakes=[UNKNOWN])
                    causes.append(line)
                else:
                    line = following(line, cause.line)
            explained.append(line)
        first = next((each for each in causes if isinstance(each, Line)), None)
        if first is None or any(fault.what.kind.startswith("writes") for fault in faults):
            return faults, explained, self.key([])
        search = self.search
        told = self.told(first)
        names = self.told_by_dtype(first) or search.repaired(first) or search.recognised(first, known=True)
        # A wrong shape is told by the numbers as well.
        names = [*names, *(each for each in told if not names or first.evidence[:1] and
                           first.evidence[0].kind == "shape" and each[0] == names[0][0])]
        if not names and (names := search.recognised(first, known=False)) and names[0][0] == first.line:
            placed = self.with_place(first)
            explained, first = [placed if each is first else each for each in explained], placed
        key = self.key([first])
        if names:
            return faults, self.named(explained, first, names), key
        return faults, [self.with_place(each) if each is first else each for each in explained], key

    def key(self, lines):
        """The key of the package's line that the first wrong line, or the exception, has its mistake in, or ""."""
        wrong = [line.name for line in lines if line.verdict == WRONG][:1]
        raised = [fault for fault in self.judgement.faults if fault.what.kind == "raised" and fault.line]
        if raised and self.source and not wrong:
            statement = self.source.statement_at(raised[0].line)
            wrong = statement and statement.targets
        return counterpart(self.judgement, self.search.walk, wrong) if wrong else ""

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
        where = Finding("above", [], above) if 0 < len(above) < 4 else Finding("far above" if above else "here")
        return dataclasses.replace(first, evidence=[*first.evidence, where])

    def named(self, lines, first, names):
        """The lines with each name at its line: at the wrong `Line` there, or at a new one above the first."""
        for number, finding in names:
            i = next((i for i, each in enumerate(lines) if each.line == number and each.verdict == WRONG), None)
            if i is None and first in lines and number > (first.line or 0):
                i = lines.index(first)      # the line that was said to be the first can be right
            if i is None:
                lines = [Line(self.assigned_at(number), number, WRONG, [finding], first.evidence), *lines]
            else:
                mistakes = [*(each for each in lines[i].mistakes if each.kind not in ("unknown", "follows")), finding]
                lines = [*lines[:i], dataclasses.replace(lines[i], line=number, mistakes=mistakes), *lines[i + 1:]]
        return [following(each, names[0][0]) if each.mistakes == [UNKNOWN] else each for each in lines]

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
            is_write = isinstance(cause, Fault) and cause.what.kind.startswith("writes")
            if cause.line is not None and (above or is_write or line.line in self.search.lines_after(cause.line)):
                return cause
        return None

    # The numbers

    def with_evidence(self, line):
        """A wrong line with its numbers: the shape, or the worst value beside the central difference."""
        given, true = self.given(line)
        if given is None or line.evidence:
            return line
        sizes, found = self.case.setting.sizes, []
        if np.shape(given) != np.shape(true):
            found = [Finding("shape", [f"{np.shape(given)}", f"{np.shape(true)}"])]
            if self.source is None:
                found.append(missing_step(given, true, sizes))
        elif np.isfinite(given).all():
            found = [self.worst(line.name, given, true), pattern(given, true)]
            if given.dtype != np.float64 and relative_error(given, true) < 1e-3:
                found.append(Finding("rounded", [f"{given.dtype}"]))
        return dataclasses.replace(line, evidence=[*filter(None, found)])

    def given(self, line, judgement=None):
        """(value, true value) of the gradient on a wrong line; None for a line that no gradient is known of."""
        it = judgement or self.judgement
        if line.name in it.results and line.name in it.case.results:
            return it.results[line.name], it.case.results[line.name]
        made = [each for each in it.record if each.line == line.line and each.name in gradient_names(line.name[1:])]
        true = it.case.gradients.get(line.name) or [it.case.results.get(line.name)]
        return (made[-1].value if made else None), true[-1]

    def worst(self, name, given, true):
        """A `Finding` of the worst value of a gradient, beside the central difference."""
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
            return Finding("worst of several", [place, *distinct(given[at], true[at])])
        ratio = f", ratio {distinct(given[at] / difference, 1.0)[0]}" if difference else ""
        return Finding("worst", [place, *distinct(given[at], difference), ratio])

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
                return Line(each.name, each.line, WRONG, [UNKNOWN],
                            [Finding("begins", [place, f"{each.value[tuple(at)]}"])])
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
        line, name = found or (None, "")
        statement = self.source.statement_at(line) if line and self.source else None
        what = Finding("writes", [one_line(statement.text, 100), name]) if statement else Finding("writes somewhere")
        return Fault(what, line)

    def explained_fault(self, fault):
        """A fault with what is known of it: the line of a write, the shapes that do not fit, the mistake."""
        if fault.what.kind.startswith("writes"):
            return self.first_write()
        walk = self.search.walk
        if fault.line is None or walk is None:
            return fault
        i, what = len(walk.before) - 1, fault.what
        if walk.after is None:
            if walk.index(fault.line) != i:
                return fault
            what = clash(walk.statements[i], walk.before[i]) or what
        found = self.search.smallest(min(i, len(walk.statements) - 1), self.search.all_right)
        if not found:
            return Fault(what, fault.line, fault.mistakes)
        line, finding, _ = found
        if line != fault.line and walk.after is None:
            what = Finding("fails", [str(what)], [fault.line])
        return Fault(what, line, [finding])

    def told(self, first):
        """[(line, finding)] of what the numbers alone say for sure, in all cases; else []."""
        told = self.told_in(first, self.judgement)
        for case in self.cases if told else ():
            if (others := self.told_in(first, self.judge(case))) is not None:
                told = [each for each in told if each.kind in [other.kind for other in others]
                        and (each.kind != "still" or each in others)]
        return [(first.line, told[0])] if told else []

    def told_in(self, first, judgement):
        """The `Finding`s on the numbers of a gradient in a case; None if it is right there, or was not computed."""
        given, true = self.given(first, judgement)
        if given is None or first.line is None or relative_error(given, true) <= EXACT:
            return None
        if np.shape(given) != np.shape(true):
            return [*filter(None, [missing_step(given, true, judgement.case.setting.sizes)])]
        found = [Finding("still", [other, "before its last step" if other == first.name else
                                   "the gradient of another variable"])
                 for other, values in judgement.case.gradients.items() if any(close(given, value) for value in values)]
        if not found and np.size(true) > 1 and close(np.sort(given, axis=None), np.sort(true, axis=None)):
            found = [Finding("another order")]
        if not found and not np.any(given):
            found = [Finding("zero")]
        return found

    def told_by_dtype(self, first):
        """[(line, finding)] if the numbers are only rounded, by a line in a smaller dtype; else []."""
        given, true = self.given(first)
        low = next((each for each in self.record if each.value.dtype.itemsize < 8), None)
        if low is None or given is None or low.line > (first.line or math.inf) or relative_error(given, true) > 0.05:
            return []
        return [(low.line, Finding("dtype", [f"{low.value.dtype}"]))]


def following(line, cause):
    """A wrong line that may follow from the mistake in another; not above it, so that the cause is the first."""
    return dataclasses.replace(line, mistakes=[Finding("follows", [], [cause])], line=max(line.line or 0, cause))


def distinct(a, b):
    """Two different numbers as texts, with as many digits as it takes to tell them apart."""
    for digits in range(5, 18):
        texts = [f"{float(each):.{digits}g}" for each in (a, b)]
        if texts[0] != texts[1]:
            break
    return texts
