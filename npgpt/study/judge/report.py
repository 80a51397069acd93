"""The verdict on a learner's backward: as data and as text."""

import dataclasses
import math

from npgpt.study.exercises.findings import Finding
from npgpt.study.gradcheck.trace import Assignment
from npgpt.study.gradcheck.verdicts import WRONG


@dataclasses.dataclass(frozen=True)
class Line:
    """The check of one gradient, "dx", at a line of the learner's file (or None). evidence: what shows the mistakes."""

    name: str
    line: int | None
    verdict: str
    mistakes: list[Finding] = dataclasses.field(default_factory=list)
    evidence: list[Finding] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Fault:
    """An error apart from the numbers, at a line of the learner's file (or None). mistakes: those behind it."""

    what: Finding
    line: int | None
    mistakes: list[Finding] = dataclasses.field(default_factory=list)
    name, verdict = "", WRONG           # as of a `Line`

    @property
    def evidence(self) -> list[Finding]:
        return [self.what]


@dataclasses.dataclass(frozen=True)
class Report:
    """The verdict on a backward.

    case: in words, "" for the plain one; notes: remarks that do not affect the verdict; to_do: the lines that are still
    `...`; results: the names of the returned gradients; key: of the package's line with the first mistake, or "";
    count, seed: of the cases; record: the assignments of the learner's lines in the plain case.
    """

    case: str
    lines: list[Line]
    faults: list[Fault]
    notes: list[str]
    to_do: list[int]
    results: list[str]
    key: str = ""
    count: int = 0
    seed: int = 0
    record: list[Assignment] = dataclasses.field(default_factory=list)

    @property
    def wrong(self) -> list[Line | Fault]:
        """The faults and the wrong lines, from the first to the last; those without a line come last."""
        every: list[Line | Fault] = [*self.faults, *self.lines]
        found = [each for each in every if each.verdict == WRONG]
        return sorted(found, key=lambda each: math.inf if each.line is None else each.line)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong so far."""
        return not self.wrong

    @property
    def right(self) -> bool:
        return self.sound and not self.to_do

    @property
    def first(self) -> int | None:
        """The first line that is wrong, or None."""
        return self.wrong[0].line if self.wrong else None

    @property
    def is_measured(self) -> bool:
        """Whether a central difference is shown beside a gradient."""
        return any(each.kind == "worst" for line in self.lines for each in line.evidence)


def report_text(report, title, with_mistakes=True) -> str:
    """A `Report` as text, a line for each gradient. with_mistakes: say what the mistake is, not only where it is."""
    width, text = max([len(line.name) for line in report.lines], default=0) + 2, [title]
    blanks = [Line("...", line, "") for line in report.to_do]
    for each in sorted([*report.lines, *report.faults, *blanks], key=lambda each: each.line or 0):
        line, name = f"line {each.line}" if each.line else "", each.name
        text.append(f"  {line:<9}{name:<{width if name and each.verdict else 0}}{each.verdict}")
        said = [*each.evidence, *(each.mistakes if with_mistakes else [])]
        text += [f"             {finding}" for finding in said]
    text += [f"  note: {note}" for note in report.notes]
    return "\n".join([*text, summary(report)])


def summary(report):
    """The last line: right, wrong and where, or how much is still to be written."""
    if report.right:
        return f"right: every gradient is the true one, in {report.count} cases (--seed {report.seed})"
    if not report.sound:
        return f"wrong{in_case(report)}" + (f": the first wrong line is {report.first}" if report.first else "")
    missing = f"still to be written: line{'s' * (len(report.to_do) > 1)} {', '.join(map(str, report.to_do))}"
    return missing if report.notes else f"right so far; {missing}"


def in_case(report):
    """Where it is wrong, if not in the plain case: " without a bias (--seed 4)"."""
    return f" {report.case} (--seed {report.seed})" if report.case else ""


def hunt_text(report, title):
    """Say of a bug hunt which results are wrong, but not in which line."""
    if report.right:
        return f"{title}: fixed; every gradient is right"
    names = [line.name for line in report.lines if line.verdict == WRONG and line.name in report.results]
    wrong = ", ".join(names) or "an intermediate, but no result"
    return "\n".join([f"{title}: the bug is still there{in_case(report)}; wrong: {wrong}",
                      *(f"  {fault.what}" for fault in report.faults)])
