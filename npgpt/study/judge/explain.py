"""Explain the first mistake of a wrong backward: its numbers, and its name if there is proof.

The proof is an edit that repairs the function in all cases, a known mistake that gives the same results in all cases
(both in `names.py`), or the numbers alone.
"""

import contextlib
import dataclasses

import numpy as np

from npgpt.engine.watch import watched
from npgpt.errors import one_line
from npgpt.study.exercises.findings import Finding
from npgpt.study.exercises.walk import silent
from npgpt.study.gradcheck.check import gradient_names, relative_error
from npgpt.study.gradcheck.measure import input_gradient, intermediate_gradient, traced_forward
from npgpt.study.gradcheck.verdicts import WRONG
from npgpt.study.judge.names import UNKNOWN, NameSearch, counterpart
from npgpt.study.judge.outcome import contents
from npgpt.study.judge.report import Fault, Line
from npgpt.study.judge.shapes import clash, mistake_in_numbers, same_ratio

WEAK = "unknown", "follows", "zero", "another order"        # are replaced by a name


class Explanation:
    """The explanation of a wrong `Judgement`. cases: in which a name must hold; begun: the first NaN or infinity."""

    def __init__(self, judgement, cases):
        self.judgement, self.case, self.lesson, self.source = (
            judgement, judgement.case, judgement.lesson, judgement.source)
        self.begun = self.not_finite()
        self.search = NameSearch(judgement, cases, self.begun is not None)

    def explain(self, lines):
        """Return the faults and lines with mistakes and evidence, and the key of the package's line of the first."""
        faults = [self.explained_fault(fault) for fault in self.judgement.faults]
        explained, causes = [], [*faults]
        for line in lines:
            if line.verdict == WRONG:
                cause = next((each for each in causes if self.follows(line, each)), None)
                line = following(line, cause.line) if cause else self.with_evidence(line)
                causes += [] if cause else [line]
            explained.append(line)
        causes = [each for each in causes if isinstance(each, Line)]
        wrote = any(fault.what.kind.startswith("writes") for fault in faults)
        first = causes[0] if causes and not wrote else None
        raised = [self.source.statement_at(fault.line) for fault in self.judgement.faults
                  if self.source and fault.what.kind == "raised" and fault.line]
        wrong = [first.name] if first else raised[0].targets if any(raised) else ()
        key = counterpart(self.judgement, wrong) if wrong else ""
        if first:
            found = (
                self.rounded(first) or self.search.repaired(first) or self.search.recognised(first)
            )
            explained = self.named(explained, first, *found) if found else [
                self.with_possible_lines(each) if each is first else each for each in explained]
        return faults, explained, key

    def follows(self, line, cause):
        """Return whether a wrong line may follow from a cause, a `Fault` or `Line` that was found before it.

        A write to an argument may explain everything. A cause below the line may fill the line's array.
        """
        is_write = isinstance(cause, Fault) and cause.what.kind.startswith("writes")
        return cause.line is not None and (is_write or isinstance(cause, Line) and (line.line or 0) <= cause.line
                                           or self.search.depends(line.line, cause.line))

    def named(self, lines, first, number, finding):
        """Return the lines with a finding added to the wrong `Line` of a number, or to a new one.
        """
        there = (i for i, each in enumerate(lines) if each.line == number and each.verdict == WRONG)
        i = next(there, None)
        if i is None and number > (first.line or 0):
            i = lines.index(first)      # the line that was said to be the first can be right
        if i is None:
            statement = self.source.statement_at(number)
            name = statement.targets[0] if statement and statement.targets else ""
            lines = [Line(name, number, WRONG, [finding], first.evidence), *lines]
        else:
            mistakes = [finding, *(each for each in lines[i].mistakes if each.kind not in WEAK)]
            line = dataclasses.replace(lines[i], line=number, mistakes=mistakes)
            lines = [*lines[:i], line, *lines[i + 1:]]
        return [following(each, number) if each.mistakes == [UNKNOWN] else each for each in lines]

    def with_possible_lines(self, first):
        """Return the first wrong line; if its mistake has no name, with the lines that it may be in as evidence."""
        walk = self.search.walk
        if not walk or first.line is None or first.mistakes != [UNKNOWN]:
            return first
        window = self.search.window(walk.index(first.line) or 0)
        above = sorted(line for i in window if (line := walk.statements[i].lineno) < first.line)
        where = Finding("above", [], above) if above else Finding("here")
        return dataclasses.replace(first, evidence=[*first.evidence, where])

    # The numbers

    def with_evidence(self, line):
        """Return a wrong line with its shape or worst value as evidence, and the mistake that the numbers prove."""
        given, true = self.given(line)
        mistakes, found = [UNKNOWN] if self.source else [], []
        if given is not None:
            if np.shape(given) != np.shape(true):
                found = [Finding("shape", [f"{np.shape(given)}", f"{np.shape(true)}"])]
            elif np.isfinite(given).all():
                found = [
                    *filter(None, [self.worst(line.name, given, true), same_ratio(given, true)])
                ]
            elif self.begun:
                found = [self.begun]
            if mistake := mistake_in_numbers(given, true):
                mistakes = [mistake]
        return dataclasses.replace(line, evidence=found, mistakes=mistakes)

    def given(self, line):
        """Return (value, true value) of the gradient on a wrong line; each may be None."""
        it = self.judgement
        if line.name in it.results and line.name in it.case.results:
            return it.results[line.name], it.case.results[line.name]
        made = [each for each in it.record if each.line == line.line and each.name in gradient_names(line.name[1:])]
        true = it.case.gradients.get(line.name) or [it.case.results.get(line.name)]
        return (made[-1].value if made else None), true[-1]

    def worst(self, name, given, true):
        """Return a `Finding` of the worst value of a gradient, beside the central difference."""
        at = np.unravel_index(np.abs(given - true).argmax(), np.shape(true))
        difference, place = None, f"{name}[{', '.join(map(str, at))}]" if at else name
        found = [each for each in traced_forward(self.lesson)[2] if each.name == name[1:]]
        if name in self.case.results:
            difference = float(input_gradient(self.lesson, name[1:], self.case.dy, at))
        elif len(found) == 1:
            difference = float(intermediate_gradient(self.lesson, found[0], self.case.dy, at))
        else:                       # a variable that is assigned several times
            return Finding("worst of several", [place, *distinct(given[at], true[at])])
        ratio = f", ratio {distinct(given[at] / difference, 1.0)[0]}" if difference else ""
        return Finding("worst", [place, *distinct(given[at], difference), ratio])

    def not_finite(self):
        """Return a `Finding` on the first NaN, or infinity in a gradient (a mask may hold -inf); or None."""
        known = self.case.gradients | self.case.helpers
        for each in self.judgement.record:
            bad = np.isnan(each.value) if each.name not in known else ~np.isfinite(each.value)
            if bad.any() and each.line != self.source.first:
                at = [*map(int, np.argwhere(bad)[0])]
                return Finding("begins", [f"line {each.line}: {each.name}{at or ''}", f"{each.value[tuple(at)]}"])
        return None

    def first_write(self):
        """Return the `Fault` of the line that first changes an argument."""
        arguments, found = self.case.arguments(), []
        before, solution = contents(arguments), self.judgement.solution

        def watch(line, name, value):
            now = contents(arguments)
            if not found and now != before:
                changed = next(i for i, each in enumerate(now) if each != before[i])
                found[:] = line, solution.function.__code__.co_varnames[changed]
            return value

        if self.source:
            with silent(), contextlib.suppress(BaseException):      # reported elsewhere
                watched(solution.function, watch, solution.tree)(*arguments)
        if not found:
            return Fault(Finding("writes somewhere"), None)
        line, name = found
        statement = self.source.statement_at(line)
        return Fault(Finding("writes", [one_line(statement.text, 100), name]), line)

    def explained_fault(self, fault):
        """Return a fault with the line of a write, the shapes that do not fit, or the mistake behind it."""
        if fault.what.kind.startswith("writes"):
            return self.first_write()
        walk = self.search.walk
        if fault.line is None or walk is None or fault.what.kind == "no array":
            return fault
        i, what = len(walk.before) - 1, fault.what
        if walk.after is None:
            what = clash(walk.statements[i], walk.before[i]) or what
        found = self.search.smallest(min(i, len(walk.statements) - 1))
        if not found:
            return Fault(what, fault.line, fault.mistakes)
        line, finding = found
        if line != fault.line and walk.after is None:
            what = Finding("fails", [str(what)], [fault.line])
        return Fault(what, line, [finding])

    def rounded(self, first):
        """Return (line, finding) if only the rounding in a smaller dtype is wrong, or None."""
        given, true = self.given(first)
        low = next((each for each in self.judgement.record if each.value.dtype.itemsize < 8), None)
        if low is None or given is None or low.line > (first.line or low.line):
            return None
        if relative_error(given, true) > 0.05:
            return None
        return low.line, Finding("dtype", [f"{low.value.dtype}"])


def following(line, cause):
    """Return a wrong line that may follow from another, moved below it, so that the cause is the first."""
    return dataclasses.replace(line, mistakes=[Finding("follows", [], [cause])], line=max(line.line or 0, cause))


def distinct(a, b):
    """Return two different numbers as texts, with as many digits as it takes to tell them apart."""
    for digits in range(5, 18):
        texts = [f"{float(each):.{digits}g}" for each in (a, b)]
        if texts[0] != texts[1]:
            break
    return texts
