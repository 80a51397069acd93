"""Judge a learner's backward: every gradient in every case, and the first wrong line.

It is right if it returns the true gradients in every `Case` and writes to none of its arguments. The names in it are
free: what is called dv is compared with the true dv to find the first wrong line, but only the results decide.
"""

import dataclasses
import secrets

import numpy as np

from npgpt.errors import one_line
from npgpt.study.exercises.findings import Finding
from npgpt.study.gradcheck.check import (
    compared,
    gradient_line,
    gradient_names,
    named_line,
    tree_line,
)
from npgpt.study.gradcheck.source import last_return, read_source
from npgpt.study.gradcheck.spelling import spelled
from npgpt.study.gradcheck.trace import is_floating
from npgpt.study.gradcheck.truth import Case, cases
from npgpt.study.gradcheck.verdicts import OK, WRONG
from npgpt.study.judge.explain import Explanation
from npgpt.study.judge.outcome import contents, run_case
from npgpt.study.judge.report import Fault, Line, Report
from npgpt.study.judge.shapes import EXACT
from npgpt.study.lessons.random_settings import in_words, simplest

SEEDS = 100000
NO_LINES = "its lines cannot be followed in this form: only its results are compared"


def new_seed():
    return secrets.randbelow(SEEDS)


def judge(name, solution, seed):
    """Return the `Report` on a `Solution`, called in this process, with its first mistake in words."""
    known = cases(name, seed)           # before the learner's function runs
    wrong, report = verdict(known, solution, seed)
    return report if wrong is None else explained(solution, known, wrong, report)


def verdict(known, solution, seed):
    """Run a `Solution` in all `Case`s. Return the number of the first wrong one, and a `Report`."""
    judgements = [Judgement(solution, case, traced=i == 0, shown=i == 0) for i, case in enumerate(known)]
    wrong = next((i for i, each in enumerate(judgements) if not each.sound), None)
    report = judgements[wrong or 0].report()
    if report.right and any(contents(each.outcome.result) != contents(each.outcome.value) for each in judgements):
        report = dataclasses.replace(report, faults=[Fault(Finding("kept"), judgements[0].last_return())])
    record = judgements[0].record
    return wrong, dataclasses.replace(report, record=record, seed=seed, count=len(known))


def explained(solution, known, i, report):
    """Return the `Report` with the mistake in words, from another run in known[i]; `report` if it is not wrong now."""
    def fails(setting):
        return not Judgement(solution, Case(name, setting)).sound

    name = known[i].name
    case = Case(name, simplest(known[0].lesson, known[i].setting, fails)) if i > 0 else known[0]
    found = Judgement(solution, case)
    # At 1 different mistakes look the same.
    others = [
        each
        for each in known
        if each.lesson.is_pair or min(each.setting.sizes.by_letter.values()) > 1
    ]
    words = found.report(Explanation(found, [case, *others]))
    return report if words.sound else dataclasses.replace(words, record=report.record, seed=report.seed)


class Judgement:
    """A `Solution` in one `Case`: runs it (see `run_case`), and compares its `Outcome` with the truth."""

    def __init__(self, solution, case, traced=True, shown=False):
        self.solution, self.case, self.to_do = solution, case, solution.to_do
        self.outcome = outcome = run_case(solution, case, traced, shown)
        self.source = read_source(solution.function) if solution.tree else None
        self.lesson, self.record = case.lesson, outcome.record
        if self.source:
            spelling = spelled(case.forward, solution.function, tuple(case.inputs))
            self.source = self.source.respelled(spelling)
            self.record = [
                dataclasses.replace(each, name=spelling.get(each.name, each.name))
                for each in self.record
            ]
        self.results, self.faults = {}, []
        self.finished = False
        if outcome.raised:
            self.faults.append(Fault(Finding("raised", [outcome.raised]), outcome.line))
        elif outcome.finished:
            self.faults = self.result_faults(outcome.value)
            if not self.faults:
                self.results, self.finished = self.lesson.named(outcome.value), True
        if outcome.changed and not self.lesson.is_pair:      # there it may be the custom
            self.faults.insert(0, Fault(Finding("writes somewhere"), None))
        self.lines = self.result_lines()
        # Whether the results are right, whatever the lines before them say.
        self.decided = self.finished and not self.faults and all(line.verdict == OK for line in self.lines)
        self.lines += self.intermediate_lines() if self.record else []

    @property
    def sound(self):
        """Whether nothing is wrong so far."""
        return self.decided or not self.faults and all(line.verdict == OK for line in self.lines)

    def last_return(self):
        return last_return(self.source) if self.source else None

    def result_faults(self, result):
        """Return the `Fault`s of a result's form: how many gradients there are, and their types."""
        lesson, line, is_tuple = self.lesson, self.last_return(), isinstance(result, tuple)
        names = [f"d{name}" for name in lesson.results] + ["dp"] * lesson.is_composite
        wanted = f"{len(names)} ({', '.join(names)})"
        fits = lesson.is_pair and (isinstance(result, dict)
                                  or isinstance(result, tuple | list) and len(result) == len(names))
        if not fits and (result is None or is_tuple != (len(names) > 1) or is_tuple and len(result) != len(names)):
            what = f"{len(result)} results" if is_tuple else kind_of(result)
            return [Fault(Finding("results", [lesson.backward.__name__, what, wanted]), line)]
        tree = result[-1] if is_tuple else result
        if lesson.is_composite and not isinstance(tree, dict):
            return [Fault(Finding("no tree", [kind_of(tree)]), line)]
        named = lesson.named(result)
        missing = [name for name, true in self.case.results.items() if true is not None and name not in named]
        if missing:
            found = self.source and tree_line(self.source, missing[0][1:])
            kind = "not returned" if lesson.is_pair else "missing"
            return [Fault(Finding(kind, missing[:1]), found or line)]
        return [fault for name in dict.fromkeys([*self.case.results, *named])
                if (fault := self.type_fault(name, named.get(name))) is not None]

    def type_fault(self, name, value):
        """Return a `Fault` if a result is unexpected, or no array of floating numbers; or None."""
        true, last = self.case.results.get(name), self.last_return()
        if name in self.case.results and (value is None if true is None else is_floating(value)):
            return None
        line = named_line(self.source, name[1:]) if self.source else None
        line = last if not line or line == self.source.first else line
        if name not in self.case.results:
            return Fault(Finding("no parameter", [name[1:]]), line)
        if true is None:
            return Fault(Finding("not None", [name]), line)
        was_array = any(each.name in gradient_names(name[1:]) for each in self.record)
        return Fault(Finding("no array", [name, kind_of(value)]), last if was_array else line)

    def report(self, explanation=None):
        """Return the `Report` of this case; explanation: an `Explanation` that adds the first mistake in words."""
        lines, notes = list(self.lines), [] if self.source else [NO_LINES]
        if self.decided:         # other names for other values are no mistake
            notes += [f"line {line.line}: {line.name} is not the gradient of {line.name[1:]}, but the results are right"
                      for line in lines if line.verdict == WRONG]
            lines = [line for line in lines if line.verdict == OK]
        lines.sort(key=lambda line: line.line or 0)
        faults, lines, key = explanation.explain(lines) if explanation else (self.faults, lines, "")
        wrong = [each for each in [*faults, *lines] if each.verdict == WRONG]
        if wrong and all(each.line in self.to_do for each in wrong):
            notes = [f"line {wrong[0].line} is not right with the package's code either: look at the lines above it"]
        lines = [line for line in lines if line.line not in self.to_do]
        faults = [fault for fault in faults if fault.line not in self.to_do]
        return Report(in_words(self.lesson, self.case.setting), lines, faults, notes, self.to_do,
                      list(self.case.results), key)

    def result_lines(self):
        """Return a `Line` for each input: its gradient in the results or, without results, in the variable."""
        lines = []
        for name in self.lesson.inputs:
            if self.lesson.is_pair and f"d{name}" not in self.case.results:
                continue
            true = self.case.results[f"d{name}"]
            if self.finished and is_floating(given := self.results[f"d{name}"]):
                labels = self.source and dict(
                    zip(self.lesson.results, self.source.returned, strict=False)
                )
                line = self.source and gradient_line(
                    self.source, self.record, name, true, given, labels
                )
                lines.append(Line(f"d{name}", line, compared(given, true, EXACT)))
            elif not self.finished and self.record and not self.case.gradients.keys() & {*gradient_names(name)}:
                made = [each for each in self.record if each.name in gradient_names(name)]
                lines += [Line(f"d{name}", made[-1].line, compared(made[-1].value, true))] if made else []
        return lines

    def intermediate_lines(self):
        """Return a `Line` for each gradient of an intermediate; a variable assigned twice has two, in reverse order."""
        lines = []
        inputs = {name for each in self.lesson.inputs for name in gradient_names(each)} if self.finished else set()
        for name, values in self.case.gradients.items():
            made = [each for each in self.record if each.name == name]
            if not made or name in inputs or name in self.source.filled:
                continue
            if len({each.line for each in made}) < len(made) and np.shape(made[-1].value) != np.shape(values[-1]):
                continue        # a part of it in each turn of a loop
            at = 0
            for true in values:
                found = next((i for i in range(at, len(made)) if same(made[i].value, true)), None)
                if found is None and at == len(made) and not self.finished:
                    break               # it did not get so far
                if found is None:
                    each = made[min(at, len(made) - 1) if len(values) > 1 else -1]
                    lines.append(Line(name, each.line, WRONG))
                    break
                lines.append(Line(name, made[found].line, OK))
                at = found + 1
        return lines


def same(given, true):
    """Return whether a gradient is the true one, perhaps as rows, but not without an axis of length 1."""
    if np.size(given) == np.size(true) and np.squeeze(given).shape != np.squeeze(true).shape:
        given = np.reshape(given, np.shape(true))
    return compared(given, true) == OK


def kind_of(value):
    """Describe a `copied` result: "None", "an array of int64", "a list"."""
    name = (value if isinstance(value, type) else type(value)).__name__
    kind = f"array of {value.dtype}" if isinstance(value, np.ndarray) else one_line(name, 80)
    return "None" if value is None else f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind}"
