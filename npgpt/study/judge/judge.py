"""Judge a learner's backward: every gradient in every case, and the first wrong line.

It is right if it returns the true gradients in every `Case` and writes to none of its arguments.
Names in it are free: what is called dv is compared with the true dv to find the first wrong line,
but only the results decide.
"""

import dataclasses
import secrets

import numpy as np

from npgpt.errors import one_line
from npgpt.study.gradcheck.check import compared, gradient_line, gradient_names, tree_line
from npgpt.study.gradcheck.source import last_return, read_source
from npgpt.study.gradcheck.spelling import spelled
from npgpt.study.gradcheck.trace import is_floating
from npgpt.study.gradcheck.truth import Case, cases
from npgpt.study.gradcheck.verdicts import FOLLOWS, OK, OTHER, WRONG
from npgpt.study.judge.blame import Blame
from npgpt.study.judge.outcome import copied, run_case
from npgpt.study.judge.report import Line, Report, fault
from npgpt.study.judge.shapes import same
from npgpt.study.lessons.own_state import same as same_content
from npgpt.study.lessons.random_settings import in_words, simplest

SEEDS = 100000
NO_LINES = "its lines cannot be followed in this form: only its results are compared"


def new_seed():
    return secrets.randbelow(SEEDS)


def judge(layer, solution, seed):
    """Return the `Report` on a `Solution`, called in this process, its first mistake in words."""
    known = cases(layer, seed)  # before the learner's function runs
    wrong, report = verdict(known, solution, seed)
    return report if wrong is None else explained(solution, known, wrong, report)


def verdict(known, solution, seed):
    """Run a `Solution` in all `Case`s. Return the number of the first wrong one, and a `Report`."""
    first = Judgement(solution, known[0], shown=True)
    others = [Judgement(solution, case, traced=False) for case in known[1:]]
    judgements = [first, *others]
    wrong = next((i for i, each in enumerate(judgements) if not each.sound), None)
    report = judgements[wrong or 0].report()
    if report.right:
        outcomes = [each.outcome for each in judgements]
        kept = [same_content(copied(each.result), each.value) for each in outcomes]
        # the same arrays with other numbers, as weights are after a step of training
        *_, other = known[:2]
        again = Judgement(solution, other, traced=False, into=first.outcome.arguments)
        if not all(kept):
            report.lines.append(fault(first.last_return, "kept"))
        elif not again.sound:
            report.lines.append(fault(first.last_return, "again"))
    return wrong, dataclasses.replace(report, record=first.record, seed=seed, count=len(known))


def explained(solution, known, i, report):
    """Return the `Report` with the mistake in words, from another run in known[i].

    There it may be right now.
    """

    def fails(setting):
        return not Judgement(solution, Case(name, setting)).sound

    name = known[i].name
    case = Case(name, simplest(known[0].lesson, known[i].setting, fails)) if i > 0 else known[0]
    found = Judgement(solution, case)
    words = found.report([case, *(each for each in known[:4] if each is not case)])
    if words.sound:
        words.lines.append(fault(found.last_return, "again"))
    return dataclasses.replace(words, record=report.record, seed=report.seed)


class Judgement:
    """Runs a `Solution` in one `Case`, and compares its `Outcome` with the truth.

    record: the assignments of its lines
    results: {"dx": array}, empty if they do not have the right form
    faults: `Line`s of errors apart from the numbers
    finished: whether there are results
    lines: a `Line` for each compared gradient
    decided: whether the results are right, whatever the lines before them say
    values: (name, line) of a compared gradient -> its value and the true one
    """

    def __init__(self, solution, case, traced=True, shown=False, into=None, instead=None):
        self.solution, self.case, self.to_do = solution, case, solution.to_do
        self.outcome = outcome = run_case(solution, case, traced, shown, into, instead)
        self.lesson, self.record, self.values = case.lesson, outcome.record, {}
        self.source, self.spelling, self.last_return = None, {}, None
        if solution.tree:
            self.spelling = spelled(case.forward, solution.function, tuple(case.inputs))
            self.source = read_source(solution.function).respelled(self.spelling)
            self.last_return = last_return(self.source)
        self.faults, self.results = [], {}
        if outcome.raised:
            self.faults = [fault(outcome.line, "raised", outcome.raised)]
        elif outcome.finished:
            self.faults = self.result_faults(outcome.value)
            self.results = {} if self.faults else self.lesson.named(outcome.value)
        self.finished = outcome.finished and not self.faults
        if outcome.changed and not self.lesson.is_pair:  # user layers may change their arguments
            self.faults.insert(0, self.write_fault())
        self.lines = self.result_lines()
        verdicts = {line.verdict for line in self.lines}
        self.decided = self.finished and not self.faults and verdicts <= {OK}
        self.lines += self.intermediate_lines() if self.record else []

    @property
    def sound(self):
        """Whether nothing is wrong so far."""
        is_wrong = self.faults or any(line.verdict == WRONG for line in self.lines)
        return self.decided or not is_wrong

    def write_fault(self):
        """Return the `Line` that first changes an argument."""
        if not self.outcome.written:
            return fault(None, "writes somewhere")
        line, argument = self.outcome.written
        return fault(line, "writes", one_line(self.source.statement_at(line).text, 100), argument)

    def result_faults(self, result):
        """Return a `Line` if there are not as many gradients as inputs, or one is no array."""
        lesson, true = self.lesson, self.case.results
        names = [f"d{name}" for name in lesson.results] + ["dp"] * lesson.is_composite
        given = result if isinstance(result, tuple) else (result,)
        has_number = (result is given) == (len(names) > 1) and len(given) == len(names)
        if result is None or not has_number and not lesson.is_pair:  # its are in a dict
            called = getattr(self.solution.function, "__name__", lesson.backward.__name__)
            what = kind_of(result).replace("of type", "a result of type")
            what = f"{len(given)} results" if result is given else what
            wanted = f"{len(names)} ({', '.join(names)})"
            return [fault(self.last_return, "results", called, what, wanted)]
        tree = given[-1] if lesson.is_composite and isinstance(given[-1], dict) else {}
        if flat := [key for key in tree if "." in str(key)]:
            nested = "".join(f"[{key!r}]" for key in flat[0].split("."))
            return [fault(self.last_return, "form", f"dp[{flat[0]!r}]", "there", f"dp{nested}")]
        named = lesson.named(result)
        for name in dict.fromkeys([*named, *true]):
            value, said, wanted = named.get(name), name, ""
            if name not in true and any(each.startswith(f"{name}.") for each in true):
                said, wanted = f"dp[{name[1:]!r}]", "a dict"
            elif name not in true:
                wanted = "left out, there is no such parameter"
            elif true[name] is None:
                wanted = "None" * (value is not None)
            elif not is_floating(value):
                wanted = "an array of floating numbers"
            if wanted:
                kind = kind_of(value) if name in named else "missing"
                return [fault(self.line_of(name), "form", said, kind, wanted)]
        return []

    def line_of(self, name):
        """Return the line that makes a gradient, or puts it into the results."""
        if not self.source:
            return None
        names = {*gradient_names(name[1:])}
        made = [each.first for each in self.source.statements if names & {*each.targets}]
        was_array = any(each.name in names for each in self.record)
        if was_array and self.case.results.get(name) is not None:
            made = []  # it was right there: the `return` leaves it out
        return tree_line(self.source, name[1:]) or [self.last_return, *made][-1]

    def report(self, others=None):
        """Return the `Report` of this case.

        others: cases in which the first mistake is looked for, and named.
        """
        lines, key, notes = [*self.faults, *self.lines], "", [] if self.source else [NO_LINES]
        if self.decided:  # other names for other values are no mistake
            lines = [line for line in lines if line.verdict == OK]
        if others:
            lines, key = Blame(self).explained(others)
        lines = sorted(lines, key=lambda line: line.line or 0)
        wrong = [each.line for each in lines if each.verdict in (WRONG, FOLLOWS)]
        if wrong and {*wrong} <= {*self.to_do}:
            notes = [
                f"line {wrong[0]} is not right with the package's code either: look at the lines "
                "above it"
            ]
        lines = [line for line in lines if line.line not in self.to_do and line.verdict != OTHER]
        case = in_words(self.lesson, self.case.setting)
        return Report(case, lines, notes, self.to_do, list(self.case.results), key)

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
            is_looped = len({each.line for each in made}) < len(made)
            if is_looped and np.shape(made[-1].value) != np.shape(values[-1]):
                continue  # a part of it in each turn of a loop
            lines += self.lines_of(name, made, values)
        return lines

    def lines_of(self, name, made, values):
        """Return the `Line`s of a gradient: its assignments `made`, compared with its values."""
        lines, left = [], made
        for true in values:
            right = [i for i, each in enumerate(left) if same(each.value, true)]
            if right:
                each, left = left[right[0]], left[right[0] + 1 :]
                lines.append(self.compare(name, each.line, each.value, true, OK))
                continue
            if left or self.finished:  # else it did not get so far
                each = left[0] if left and len(values) > 1 else made[-1]
                verdict = OTHER if self.is_another(each.value) else WRONG
                lines.append(self.compare(name, each.line, each.value, true, verdict))
            break
        return lines

    def is_another(self, given):
        """Return whether a value is any variable's true gradient: then only its name differs."""
        true = [*self.case.results.values()]
        for values in self.case.gradients.values():
            true += values
        return any(same(given, each) for each in true if np.size(each) > 1)


def kind_of(value):
    """Describe a `copied` result: "None", "an array of int64", "of type list"."""
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    name = (value if isinstance(value, type) else type(value)).__name__
    is_generator = name == "generator"
    return "a generator: return instead of yielding" if is_generator else f"of type {name}"
