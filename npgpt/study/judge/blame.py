"""Where the first mistake of a wrong backward is: its line or a range, and what shows it."""

import ast
import dataclasses

import numpy as np

from npgpt.study.exercises.exercise import key_of, notes_of, statements
from npgpt.study.exercises.findings import Finding
from npgpt.study.gradcheck.check import compared, gradient_names
from npgpt.study.gradcheck.measure import input_gradient, intermediate_gradient, traced_forward
from npgpt.study.gradcheck.source import backward_tree
from npgpt.study.gradcheck.suspects import Checked, Suspects, is_unpacked
from npgpt.study.gradcheck.verdicts import FOLLOWS, OK, WRONG
from npgpt.study.judge.causes import why_raised
from npgpt.study.judge.names import NameSearch
from npgpt.study.judge.report import Line
from npgpt.study.judge.shapes import CLOSE, clash, mistake_in_numbers

UNKNOWN = Finding("unknown")
NEAR = 1e-8         # relative error of a gradient that is verified: float32 is seen


class Blame:
    """The explanation of a wrong `Judgement`.

    given: the lines that are the package's
    others: line of a loop or condition that the package does not have -> all its lines
    own: line of a wrong gradient -> the lines that its mistake can be in
    """

    def __init__(self, judgement):
        self.judgement, self.case = judgement, judgement.case
        self.lesson = judgement.solution.lesson
        self.given, self.suspects, self.statements = {*judgement.to_do}, None, []
        self.others = {}
        if judgement.source:
            package = {*map(ast.unparse, statements(backward_tree(self.lesson)))}
            self.statements = statements(judgement.solution.tree)
            self.given |= {each.lineno for each in self.statements if ast.unparse(each) in package}
            theirs = {*map(header, ast.walk(backward_tree(self.lesson)))}
            for node in ast.walk(judgement.solution.tree):
                if header(node) not in theirs:
                    self.others[node.lineno] = {*range(node.lineno, node.end_lineno + 1)}
                    self.given -= self.others[node.lineno]
            made = [*map(self.checked, judgement.lines), *self.helpers()]
            returned = zip(judgement.lesson.results, judgement.source.returned, strict=False)
            self.suspects = Suspects(
                judgement.solution.tree,
                judgement.spelling,
                made,
                self.case.known,
                judgement.outcome.last,
                {f"d{name}": code for name, code in returned},
            )

    def checked(self, line):
        is_input = not line.name or any(
            line.name in gradient_names(each) for each in self.case.inputs
        )
        is_right = (
            line.verdict == OK
            and compared(*self.judgement.values[line.name, line.line], NEAR) == OK
        )
        return Checked(line.name, line.line, OK if is_right else WRONG, is_input)

    def helpers(self):
        """Return the lines that make right values of the package's names which have no gradient."""
        unpacked = {each.lineno for each in self.statements if is_unpacked(each.value)}
        right, wrong = set(), unpacked | {self.judgement.source.first}
        for each in self.judgement.record:
            if true := self.case.helpers.get(each.name):
                is_right = any(compared(each.value, value, NEAR) == OK for value in true)
                (right if is_right else wrong).add(each.line)
        return [Checked("", line, OK) for line in right - wrong]

    def explained(self, others):
        """Return all lines, and the key of the package's line of the first mistake, or "".

        others: the cases in which its name must hold.
        """
        lines = self.blamed([])
        wrong = [each for each in lines if each.verdict == WRONG and each.line]
        first = min(wrong, key=lambda each: each.line, default=None)
        if first is None or not self.suspects:
            return lines, ""
        if first.since and (found := NameSearch(self.judgement, others).found(first, self.given)):
            if found[0] in (None, first.line) and first.name:
                first.mistakes = [found[2]]
                if found[2].operands[:1] == ["return"]:
                    first.until = self.judgement.last_return
            else:
                first = self.placed(Line(found[1], found[0], WRONG, [found[2]]), [])
                lines = self.blamed([first])
        for each in lines:          # what is said of one gradient in a line is enough
            if each is not first and each.line == first.line and each.mistakes == [UNKNOWN]:
                each.mistakes = []
        key = self.key_at(first)
        note = notes_of(self.lesson).get(key)
        if note and first.mistakes == [UNKNOWN]:
            first.mistakes = [Finding("rule", [note.hint])]
        return lines, key

    def blamed(self, causes):
        """Return all lines; a wrong one follows from a cause, or is another one.

        A line of the package's is not to blame if it reads what another line has made.
        causes: wrong lines that are known.
        """
        self.own = {each.line: {each.line} for each in causes}
        causes, lines = [*causes], [each for each in self.judgement.lines if each.verdict == OK]
        wrong = [each for each in self.judgement.lines if each.verdict == WRONG]
        for line in [*self.judgement.faults, *sorted(wrong, key=lambda each: each.line or 0)]:
            if (line.name, line.line) not in [(each.name, each.line) for each in causes]:
                found = self.placed(line, causes)
                if found.verdict == WRONG:
                    causes.append(self.shown(found, line))
                else:
                    lines.append(found)
        places = [(each.name, each.line) for each in causes]
        return [*causes, *(each for each in lines if (each.name, each.line) not in places)]

    def placed(self, each, causes):
        """Return a wrong line with the lines of its mistake, or with what it follows from."""
        is_raised = not each.name and each.evidence[0].kind == "raised"
        if not self.suspects or each.line is None or not each.name and not is_raised:
            return each
        found = self.suspects.of(self.checked(each))
        own = {line for line in found if line not in self.given} or found
        own |= {line for line, inner in self.others.items() if inner & own}
        for cause in causes if each.name else ():
            # a write to an argument may explain everything
            is_write = bool(cause.evidence) and cause.evidence[0].kind == "writes"
            shares = not (own - {each.line}).isdisjoint(self.own.get(cause.line, ()))
            if (
                cause.line
                and cause.line != each.line
                and (is_write or shares or cause.line in found)
            ):
                kind = "follows" if is_write or cause.line in found else "shares"
                follows = Finding(kind, [cause.name or "the mistake"], [cause.line])
                return Line(each.name, each.line, FOLLOWS, [follows])
        at = each.line if each.line in own else max(own)
        name = each.name
        if at != each.line:
            statement = self.judgement.source.statement_at(at)
            name = statement.targets[0] if statement and statement.targets else ""
        self.own[at] = own
        last = self.judgement.source.statement_at(max(own))
        until = last.last if last else max(own)
        return dataclasses.replace(each, name=name, line=at, since=min(own), until=until)

    def key_at(self, first):
        """Return the key of the package's line that a wrong line stands for, or ""."""
        keys = [key_of(each) for each in statements(backward_tree(self.lesson))]
        mine = [key_of(each) for each in self.statements if each.lineno == first.line]
        same = [
            key
            for key in keys
            if {first.name, *gradient_names(first.name[1:])} & {*key.split(", ")}
        ]
        return next((key for key in [*mine, *same] if key in keys), "")

    def shown(self, line, judged):
        """Return a wrong line with what shows its mistake, and what the numbers prove.

        judged: as it was at first.
        """
        value, true = self.judgement.values.get((judged.name, judged.line), (None, None))
        if not judged.name:
            return self.with_clash(line, judged)
        if value is None or true is None:
            return dataclasses.replace(line, mistakes=[UNKNOWN])
        found = []
        if np.shape(value) != np.shape(true):
            found = [Finding("shape", [f"{np.shape(value)}", f"{np.shape(true)}"])]
        elif np.isfinite(value).all():
            found = [self.worst(judged.name, value, true)]
        elif begun := self.not_finite():
            found = [begun]
        mistake = mistake_in_numbers(value, true) or UNKNOWN
        return dataclasses.replace(line, evidence=found, mistakes=[mistake] * bool(self.suspects))

    def with_clash(self, line, judged):
        """Return an error with the shapes that do not fit, its cause, and the line that fails."""
        names, what, why = self.judgement.outcome.names, judged.evidence, None
        raising = [
            each for each in self.statements if each.lineno <= (judged.line or 0) <= each.end_lineno
        ]
        if names and raising:
            why = why_raised(str(what[0]), raising[0], names, self.statements, self.lesson)
            what = [found] if (found := clash(raising[0], names, str(what[0]))) else what
        if line.line != judged.line:
            return dataclasses.replace(
                line, evidence=[Finding("fails", [str(what[0])], [judged.line])])
        return dataclasses.replace(line, evidence=what, mistakes=[why] if why else [])

    def worst(self, name, given, true):
        """Return a `Finding` of the worst value of a gradient, beside the central difference."""
        at = np.unravel_index(np.abs(given - true).argmax(), np.shape(true))
        place = f"{name}[{', '.join(map(str, at))}]" if at else name
        found = [each for each in traced_forward(self.case.lesson)[2] if each.name == name[1:]]
        if self.case.setting.single or name not in self.case.results and len(found) != 1:
            return Finding("worst of several", [place, *distinct(given[at], true[at])])
        if name in self.case.results:
            difference = float(input_gradient(self.case.lesson, name[1:], self.case.dy, at))
        else:
            difference = float(intermediate_gradient(self.case.lesson, found[0], self.case.dy, at))
        is_seen = abs(difference) > CLOSE * np.abs(true).max()
        ratio = f", ratio {distinct(given[at] / difference, 1.0)[0]}" if is_seen else ""
        return Finding("worst", [place, *distinct(given[at], difference), ratio])

    def not_finite(self):
        """Return a `Finding` on the first NaN, or None.

        In a gradient an infinity is one, too; a mask may hold -inf.
        """
        known = self.case.gradients | self.case.helpers
        for each in self.judgement.record:
            bad = np.isnan(each.value) if each.name not in known else ~np.isfinite(each.value)
            if bad.any() and each.line != self.judgement.source.first:
                return Finding(
                    "begins", [f"line {each.line}: {each.name}", f"{each.value[bad].flat[0]}"]
                )
        return None


def header(node):
    """Return what a loop runs over or tests, as code; "" for another node."""
    if isinstance(node, ast.For | ast.While | ast.If):
        return ast.unparse(node.iter if isinstance(node, ast.For) else node.test)
    return ""


def distinct(a, b):
    """Return two different numbers as texts, with as many digits as it takes to tell them apart."""
    for digits in range(5, 18):
        texts = [f"{float(each):.{digits}g}" for each in (a, b)]
        if texts[0] != texts[1]:
            break
    return texts
