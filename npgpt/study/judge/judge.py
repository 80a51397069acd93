"""Judge a learner's backward: every gradient in every case, and the first wrong line.

It is right if it returns the true gradients in every `Case` and writes to none of its arguments. The names in it are
free: what is called dv is compared with the true dv to find the first wrong line, but only the results decide.
"""

import dataclasses
import secrets

import numpy as np

from npgpt.errors import one_line
from npgpt.study.exercises.findings import Finding
from npgpt.study.gradcheck.check import compared, gradient_line, gradient_names, tree_line
from npgpt.study.gradcheck.source import last_return, read_source
from npgpt.study.gradcheck.spelling import spelled
from npgpt.study.gradcheck.trace import is_floating
from npgpt.study.gradcheck.truth import Case, cases
from npgpt.study.gradcheck.verdicts import FOLLOWS, OK, OTHER, WRONG
from npgpt.study.judge.blame import Blame
from npgpt.study.judge.outcome import contents, run_case
from npgpt.study.judge.report import Line, Report
from npgpt.study.judge.shapes import same
from npgpt.study.lessons.random_settings import in_words, simplest

SEEDS = 100000
NO_LINES = "its lines cannot be followed in this form: only its results are compared"


def new_seed():
    return secrets.randbelow(SEEDS)


def judge(layer, solution, seed):
    """Return the `Report` on a `Solution`, called in this process, with its first mistake in words."""
    known = cases(layer, seed)           # before the learner's function runs
    wrong, report = verdict(known, solution, seed)
    return report if wrong is None else explained(solution, known, wrong, report)


def verdict(known, solution, seed):
    """Run a `Solution` in all `Case`s. Return the number of the first wrong one, and a `Report`."""
    judgements = [Judgement(solution, case, traced=i == 0, shown=i == 0) for i, case in enumerate(known)]
    first = judgements[0]
    wrong = next((i for i, each in enumerate(judgements) if not each.sound), None)
    report = judgements[wrong or 0].report()
    if report.right:
        kept = all(
            contents(each.outcome.result) == contents(each.outcome.value) for each in judgements
        )
        # the same arrays with other numbers, as weights are after a step of training
        *_, other = known[:2]
        again = Judgement(solution, other, traced=False, into=first.outcome.arguments)
        if not kept or not again.sound:
            report = report.with_error("again" if kept else "kept", first)
    return wrong, dataclasses.replace(report, record=first.record, seed=seed, count=len(known))


def explained(solution, known, i, report):
    """Return the `Report` with the mistake in words, from another run in known[i], where it may be
    right now.
    """
    def fails(setting):
        return not Judgement(solution, Case(name, setting)).sound

    name = known[i].name
    case = Case(name, simplest(known[0].lesson, known[i].setting, fails)) if i > 0 else known[0]
    found = Judgement(solution, case)
    words = found.report([case, *(each for each in known[:4] if each is not case)])
    words = report.with_error("again", found) if words.sound else words
    return dataclasses.replace(words, record=report.record, seed=report.seed)


class Judgement:
    """A `Solution` in one `Case`: runs it (see `run_case`), and compares its `Outcome` with the
    truth.

    record: the assignments of its lines
    results: {"dx": array}, empty if they do not have the right form
    faults: `Line`s of errors apart from the numbers
    finished: whether there are results
    values: (name, line) of a compared gradient -> its value and the true one
    """

    def __init__(self, solution, case, traced=True, shown=False, into=None):
        self.solution, self.case, self.to_do = solution, case, solution.to_do
        self.outcome = outcome = run_case(solution, case, traced, shown, into)
        self.lesson, self.record, self.values = case.lesson, outcome.record, {}
        self.source, self.spelling = None, {}
        if solution.tree:
            self.spelling = spelled(case.forward, solution.function, tuple(case.inputs))
            self.source = read_source(solution.function).respelled(self.spelling)
            self.record = [dataclasses.replace(each, name=self.spelling.get(each.name, each.name))
                           for each in self.record]
        self.last_return = last_return(self.source) if self.source else None
        self.faults, self.results = [], {}
        if outcome.raised:
            self.faults = [Line("", outcome.line, WRONG, [], [Finding("raised", [outcome.raised])])]
        elif outcome.finished:
            self.faults = self.result_faults(outcome.value)
            self.results = {} if self.faults else self.lesson.named(outcome.value)
        self.finished = outcome.finished and not self.faults
        if outcome.changed and not self.lesson.is_pair:      # there it may be the custom
            self.faults.insert(0, self.write_fault())
        self.lines = self.result_lines()
        # Whether the results are right, whatever the lines before them say.
        self.decided = self.finished and not self.faults and all(line.verdict == OK for line in self.lines)
        self.lines += self.intermediate_lines() if self.record else []

    @property
    def sound(self):
        """Whether nothing is wrong so far."""
        return (
            self.decided
            or not self.faults
            and not any(line.verdict == WRONG for line in self.lines)
        )

    def write_fault(self):
        """Return the `Line` that first changes an argument."""
        if not self.outcome.written:
            return Line("", None, WRONG, [], [Finding("writes somewhere")])
        line, argument = self.outcome.written
        text = one_line(self.source.statement_at(line).text, 100)
        return Line("", line, WRONG, [], [Finding("writes", [text, argument])])

    def result_faults(self, result):
        """Return a `Line` if a result does not have the right form: how many gradients there are,
        of which types.
        """
        lesson, true, is_tuple = self.lesson, self.case.results, isinstance(result, tuple)
        names = [f"d{name}" for name in lesson.results] + ["dp"] * lesson.is_composite
        number = len(result) if is_tuple else 1
        fits = lesson.is_pair and (isinstance(result, dict)
                                  or isinstance(result, tuple | list) and len(result) == len(names))
        if result is None or not fits and (is_tuple != (len(names) > 1) or number != len(names)):
            called = getattr(self.solution.function, "__name__", lesson.backward.__name__)
            what = (
                f"{number} results"
                if is_tuple
                else kind_of(result).replace("of type", "a result of type")
            )
            found = Finding("results", [called, what, f"{len(names)} ({', '.join(names)})"])
            return [Line("", self.last_return, WRONG, [], [found])]
        tree = result[-1] if is_tuple else result
        named = lesson.named(result)
        if lesson.is_composite and not isinstance(tree, dict):
            named, true = {"dp": tree}, {"dp.": None}
        for name in dict.fromkeys([*named, *true]):
            value, wanted = named.get(name), "an array of floating numbers"
            if name not in true:
                is_part = any(each.startswith(f"{name}.") for each in true)
                wanted = "a dict" if is_part else "left out, there is no such parameter"
            elif true[name] is None:
                wanted = "None"
            if name not in true or (
                value is not None if true[name] is None else not is_floating(value)
            ):
                kind = kind_of(value) if name in named else "missing"
                said = f"dp[{name[1:]!r}]" if wanted == "a dict" and name != "dp" else name
                at = self.last_return if name == "dp" else self.line_of(name)
                return [Line("", at, WRONG, [], [Finding("form", [said, kind, wanted])])]
        return []

    def line_of(self, name):
        """Return the line that puts a gradient into the results."""
        if not self.source:
            return None
        names = gradient_names(name[1:])
        made = [
            each.first for each in self.source.statements if not {*names}.isdisjoint(each.targets)
        ]
        was_array = (
            any(each.name in names for each in self.record)
            and self.case.results.get(name) is not None
        )
        return tree_line(self.source, name[1:]) or (
            self.last_return if was_array or not made else made[-1]
        )

    def report(self, others=None):
        """Return the `Report` of this case. others: cases in which the first mistake is looked for,
        and named.
        """
        lines, key, notes = [*self.faults, *self.lines], "", [] if self.source else [NO_LINES]
        if self.decided:         # other names for other values are no mistake
            lines = [line for line in lines if line.verdict == OK]
        if others:
            lines, key = Blame(self).explained(others)
        lines = sorted(lines, key=lambda line: line.line or 0)
        wrong = [each for each in lines if each.verdict in (WRONG, FOLLOWS)]
        if wrong and all(each.line in self.to_do for each in wrong):
            notes = [f"line {wrong[0].line} is not right with the package's code either: look at the lines above it"]
        lines = [line for line in lines if line.line not in self.to_do and line.verdict != OTHER]
        return Report(in_words(self.lesson, self.case.setting), lines, notes, self.to_do,
                      list(self.case.results), key)

    def compare(self, name, line, given, true, verdict):
        """Return the `Line` of a gradient, and keep its numbers."""
        self.values[name, line] = given, true
        return Line(name, line, verdict)

    def result_lines(self):
        """Return a `Line` for each gradient that the backward has returned."""
        lines, line = [], None
        for name in self.lesson.inputs if self.finished else ():
            given, true = self.results.get(f"d{name}"), self.case.results.get(f"d{name}")
            if is_floating(given) and true is not None:
                if self.source:
                    labels = dict(zip(self.lesson.results, self.source.returned, strict=False))
                    line = gradient_line(self.source, self.record, name, true, given, labels)
                verdict = compared(given, true, self.case.tolerance(f"d{name}"))
                lines.append(self.compare(f"d{name}", line, given, true, verdict))
        return lines

    def intermediate_lines(self):
        """Return a `Line` for each gradient of an intermediate; without results, also of an input.

        A variable that is assigned twice has two, in reverse order.
        """
        lines, known = [], dict(self.case.gradients)
        for each in self.lesson.inputs:
            for name in gradient_names(each):
                if self.finished:
                    known.pop(name, None)
                elif f"d{each}" in self.case.results:
                    known.setdefault(name, [self.case.results[f"d{each}"]])
        for name, values in known.items():
            made = [each for each in self.record if each.name == name]
            if not made or name in self.source.filled:
                continue
            if len({each.line for each in made}) < len(made) and np.shape(made[-1].value) != np.shape(values[-1]):
                continue        # a part of it in each turn of a loop
            at = 0
            for true in values:
                found = next((i for i in range(at, len(made)) if same(made[i].value, true)), None)
                if found is None and at == len(made) and not self.finished:
                    break  # it did not get so far
                each = made[
                    found
                    if found is not None
                    else min(at, len(made) - 1)
                    if len(values) > 1
                    else -1
                ]
                verdict = (
                    OK if found is not None else OTHER if self.is_another(each.value) else WRONG
                )
                lines.append(self.compare(name, each.line, each.value, true, verdict))
                if found is None:
                    break
                at = found + 1
        return lines

    def is_another(self, given):
        """Return whether a value is the true gradient of a variable: under another name it is no
        mistake.
        """
        true = [value for values in self.case.gradients.values() for value in values] + [
            value for value in self.case.results.values() if value is not None]
        return any(same(given, value) for value in true if np.size(value) > 1)


def kind_of(value):
    """Describe a `copied` result: "None", "an array of int64", "of type list"."""
    if value is None or isinstance(value, np.ndarray):
        return "None" if value is None else f"an array of {value.dtype}"
    name = (value if isinstance(value, type) else type(value)).__name__
    return (
        "a generator: return instead of yielding"
        if name == "generator"
        else f"of type {one_line(name, 80)}"
    )
