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
from npgpt.study.gradcheck.verdicts import FOLLOWS, OK, OTHER, WRONG
from npgpt.study.judge.causes import why_raised
from npgpt.study.judge.names import NameSearch
from npgpt.study.judge.report import Line
from npgpt.study.judge.shapes import CLOSE, clash, close, mistake_in_numbers, same

UNKNOWN = Finding("unknown")
NEAR = 1e-8  # relative error of a gradient that is verified: float32 is seen


class Blame:
    """The explanation of a wrong `Judgement`.

    suspects: None if the lines of the backward cannot be followed
    given: the lines that are the package's
    others: line of a loop or condition that the package does not have -> all its lines
    own: line of a wrong gradient -> the lines that can hold its mistake
    """

    def __init__(self, judgement):
        self.judgement, self.case = judgement, judgement.case
        self.source, self.values = judgement.source, judgement.values
        self.lesson, tree = judgement.solution.lesson, judgement.solution.tree
        self.package = statements(backward_tree(self.lesson))
        self.given, self.suspects, self.statements = {*judgement.to_do}, None, []
        self.others, self.own, self.renamed = {}, {}, set()
        if not self.source:
            return
        self.statements = statements(tree)
        package = {*map(ast.unparse, self.package)}
        self.given |= {each.lineno for each in self.statements if ast.unparse(each) in package}
        headers = {*map(header, ast.walk(backward_tree(self.lesson)))}
        for node in ast.walk(tree):
            if header(node) not in headers:
                self.others[node.lineno] = {*range(node.lineno, node.end_lineno + 1)}
                self.given -= self.others[node.lineno]
        results = [f"d{name}" for name in judgement.lesson.results]
        self.suspects = Suspects(
            tree,
            judgement.spelling,
            [*map(self.checked, judgement.lines), *self.right_helpers()],
            self.case.known,
            judgement.outcome.last,
            dict(zip(results, self.source.returned, strict=False)),
        )

    def with_another_meaning(self):
        """Return the places of wrong gradients whose names mean other values."""
        results = self.case.results if self.judgement.finished else ()
        places = [(each.name, each.line) for each in self.judgement.record]
        return {
            each.place
            for each in self.judgement.lines
            if each.verdict == WRONG
            and each.name not in results
            and places.count(each.place) == 1
            and self.means_another(each.place, *self.values[each.place])
        }

    def means_another(self, place, value, true):
        """Return whether a name means another value: a local derivative, or one term of a sum.

        With the true gradient in its place nothing that was wrong becomes right, or what was right
        becomes wrong. place: (name, line).
        """
        if not np.isfinite(value).all():
            return False
        beside = {  # q, k, v = … has three
            each.place: self.values[each.place][1]
            for each in self.judgement.lines
            if each.line == place[1] and each.verdict == WRONG and np.shape(value) == np.shape(true)
        }
        forms = [true]
        if np.size(value) == np.size(true):
            forms.append(np.reshape(true, np.shape(value)))
        return not any(
            self.is_better_with(place, others | {place: each})
            for each in forms
            for others in ({}, beside)
        )

    def is_better_with(self, place, true):
        """Return whether other values make right what was wrong, and nothing wrong.

        true: (name, line) -> the value there.
        """
        old = self.judgement
        new = type(old)(old.solution, self.case, instead=true)
        raised = old.outcome.raised
        is_better = bool(raised) and new.outcome.raised != raised
        for each in old.lines:
            if each.place != place and each.place in new.values:
                given, wanted = new.values[each.place]
                is_right = same(given, wanted) or close(given, wanted)  # some are measured
                if each.verdict == OK and not is_right:
                    return False
                is_better |= each.verdict == WRONG and is_right
        return is_better

    def checked(self, line):
        """Return a `Line` as the suspects need it: right only if it is not merely near."""
        inputs = ["", *sum(map(gradient_names, self.case.inputs), [])]
        is_right = line.verdict == OK
        is_right = is_right and compared(*self.values[line.name, line.line], NEAR) == OK
        return Checked(line.name, line.line, OK if is_right else WRONG, line.name in inputs)

    def right_helpers(self):
        """Return the lines that make right values of the package's names without a gradient."""
        wrong = {each.lineno for each in self.statements if is_unpacked(each.value)}
        right, wrong = set(), wrong | {self.source.first}
        for each in self.judgement.record:
            if true := self.case.helpers.get(each.name):
                verdicts = [compared(each.value, value, NEAR) for value in true]
                (right if OK in verdicts else wrong).add(each.line)
        return [Checked("", line, OK) for line in right - wrong]

    def explained(self, others):
        """Return all lines, and the key of the package's line of the first mistake, or "".

        others: the cases in which its name must hold.
        """
        self.renamed = self.with_another_meaning()
        lines = self.blamed([])
        wrong = [each for each in lines if each.verdict == WRONG and each.line]
        first = min(wrong, key=lambda each: each.line, default=None)
        if first is None or not self.suspects:
            return lines, ""
        search = NameSearch(self.judgement, others)
        named = search.found(first, self.given, self.means_another) if first.since else None
        if named:
            line, name, mistake = named
            if line not in (None, first.line) or not first.name:
                first = self.placed(Line(name, line, WRONG, [mistake]), [])
                lines = self.blamed([first])
            else:
                first.mistakes = [mistake]
                if mistake.operands[:1] == ["return"]:
                    first.until = self.judgement.last_return
        for each in lines:  # what is said of one gradient in a line is enough
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
        judged = [each for each in self.judgement.lines if each.place not in self.renamed]
        causes, lines = [*causes], [each for each in judged if each.verdict == OK]
        wrong = [each for each in judged if each.verdict == WRONG]
        for line in [*self.judgement.faults, *sorted(wrong, key=lambda each: each.line or 0)]:
            if line.place not in [each.place for each in causes]:
                found = self.placed(line, causes)
                if found.verdict == WRONG:
                    causes.append(self.shown(found, line))
                else:
                    lines.append(found)
        places = [each.place for each in causes]
        return [*causes, *(each for each in lines if each.place not in places)]

    def placed(self, each, causes):
        """Return a wrong line with the lines of its mistake, or with what it follows from."""
        if not self.suspects or each.line is None or not each.name and not each.is_fault("raised"):
            return each
        found = self.suspects.of(self.checked(each))
        own = found - self.given or found
        others = {line for _, line in self.renamed}
        others |= {other.line for other in self.judgement.lines if other.verdict == OTHER}
        if own & others:  # the package's line, but it reads another value
            own |= {each.line}
        own = own.union(line for line, inner in self.others.items() if inner & own)
        for cause in causes if each.name else ():
            if cause.line in (None, each.line):
                continue
            # a write to an argument may explain everything
            follows = cause.is_fault("writes") or cause.line in found
            if follows or (own - {each.line}) & self.own.get(cause.line, set()):
                kind, name = "follows" if follows else "shares", cause.name or "the mistake"
                return Line(each.name, each.line, FOLLOWS, [Finding(kind, [name], [cause.line])])
        at = each.line if each.line in own else max(own)
        self.own[at] = own
        made, last = (self.source.statement_at(line) for line in (at, max(own)))
        name = each.name
        if at != each.line:
            name = made.targets[0] if made and made.targets else ""
        until = last.last if last else max(own)
        return dataclasses.replace(each, name=name, line=at, since=min(own), until=until)

    def key_at(self, first):
        """Return the key of the package's line that a wrong line stands for, or ""."""
        keys = [*map(key_of, self.package)]
        found = [key_of(each) for each in self.statements if each.lineno == first.line]
        names = {first.name, *gradient_names(first.name[1:])}
        found += [key for key in keys if names & {*key.split(", ")}]
        return next((key for key in found if key in keys), "")

    def shown(self, line, judged):
        """Return a wrong line with what shows its mistake, and what the numbers prove.

        judged: the line as it was at first.
        """
        if not judged.name:
            return self.with_clash(line, judged)
        value, true = self.values.get(judged.place, (None, None))
        if value is None or true is None:
            return dataclasses.replace(line, mistakes=[UNKNOWN])
        if np.shape(value) != np.shape(true):
            found = Finding("shape", [f"{np.shape(value)}", f"{np.shape(true)}"])
        elif np.isfinite(value).all():
            found = self.worst(judged.name, value, true)
        else:
            found = self.not_finite()
        mistakes = [mistake_in_numbers(value, true) or UNKNOWN] * bool(self.suspects)
        return dataclasses.replace(line, evidence=[found] * bool(found), mistakes=mistakes)

    def with_clash(self, line, judged):
        """Return an error with the shapes that do not fit, its cause, and the line that fails."""
        at, evidence, mistakes = judged.line, judged.evidence, []
        said, names = str(evidence[0]), self.judgement.outcome.names
        raising = [each for each in self.statements if each.lineno <= (at or 0) <= each.end_lineno]
        if names and raising:
            why = why_raised(said, raising[0], names, self.statements, self.lesson)
            found = clash(raising[0], names, said)
            evidence, mistakes = [found] if found else evidence, [why] if why else []
        if line.line != at:
            return dataclasses.replace(line, evidence=[Finding("fails", [str(evidence[0])], [at])])
        return dataclasses.replace(line, evidence=evidence, mistakes=mistakes)

    def worst(self, name, given, true):
        """Return a `Finding` of the worst value of a gradient, beside the central difference."""
        lesson, dy, is_input = self.case.lesson, self.case.dy, name in self.case.results
        at = np.unravel_index(np.abs(given - true).argmax(), np.shape(true))
        place = f"{name}[{', '.join(map(str, at))}]" if at else name
        found = [each for each in traced_forward(lesson)[2] if each.name == name[1:]]
        if self.case.setting.single or not is_input and len(found) != 1:
            return Finding("worst of several", [place, *distinct(given[at], true[at])])
        if is_input:
            difference = float(input_gradient(lesson, name[1:], dy, at))
        else:
            difference = float(intermediate_gradient(lesson, found[0], dy, at))
        ratio = ""
        if abs(difference) > CLOSE * max(np.abs(true).max(), abs(given[at])):
            ratio = f", ratio {distinct(given[at] / difference + 0.0, 1.0)[0]}"
        return Finding("worst", [place, *distinct(given[at], difference), ratio])

    def not_finite(self):
        """Return a `Finding` on the first NaN, or None.

        In a gradient an infinity is one, too; a mask may hold -inf.
        """
        known = self.case.gradients | self.case.helpers
        for each in self.judgement.record:
            bad = ~np.isfinite(each.value) if each.name in known else np.isnan(each.value)
            if bad.any() and each.line != self.source.first:
                begin = f"line {each.line}: {each.name}"
                return Finding("begins", [begin, f"{each.value[bad].flat[0]}"])
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
