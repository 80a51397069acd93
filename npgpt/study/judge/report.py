"""The verdict on a learner's backward: as data and as text."""

import dataclasses
import math

from npgpt.study.exercises.findings import Finding
from npgpt.study.gradcheck.trace import Assignment
from npgpt.study.gradcheck.verdicts import FOLLOWS, OK, WRONG


@dataclasses.dataclass
class Line:
    """The check of a gradient "dx", at a line of the learner's file or None.

    Without a name it is an error. evidence: what shows the mistakes. since, until: the lines that
    can hold the mistake of a wrong gradient.
    """

    name: str
    line: int | None
    verdict: str
    mistakes: list[Finding] = dataclasses.field(default_factory=list)
    evidence: list[Finding] = dataclasses.field(default_factory=list)
    since: int | None = None
    until: int | None = None

    @property
    def place(self):
        return self.name, self.line

    def is_fault(self, kind):
        """Return whether it is an error of a kind."""
        return not self.name and self.evidence[0].kind == kind


def fault(line, kind, *operands):
    """Return the `Line` of an error."""
    return Line("", line, WRONG, [], [Finding(kind, [*operands])])


@dataclasses.dataclass(frozen=True)
class Report:
    """The verdict on a backward.

    case: in words, "" for the plain one
    notes: remarks that do not affect the verdict
    to_do: the lines that are still `...`
    results: the names of the returned gradients
    key: of the package's line with the first mistake, or ""
    count, seed: of the cases
    record: the assignments of the learner's lines in the plain case
    """

    case: str
    lines: list[Line]
    notes: list[str]
    to_do: list[int]
    results: list[str]
    key: str = ""
    count: int = 0
    seed: int = 0
    record: list[Assignment] = dataclasses.field(default_factory=list)

    @property
    def wrong(self) -> list[Line]:
        """The wrong lines, from the first to the last; errors without a line come last."""
        found = [each for each in self.lines if each.verdict == WRONG]
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
    def range(self) -> tuple[int, int] | None:
        """The first and the last of the lines that the first mistake can be in, or None."""
        wrong = self.wrong[0] if self.wrong else None
        if wrong is None or wrong.line is None:
            return None
        return wrong.since or wrong.line, wrong.until or wrong.line

    @property
    def is_measured(self) -> bool:
        """Whether a central difference is shown beside a gradient."""
        return any(each.kind == "worst" for line in self.lines for each in line.evidence)


def report_text(report, title, with_mistakes=True) -> str:
    """Return a `Report` as text, a line for each gradient.

    with_mistakes: say what the mistake is, not only where it is.
    """
    width, text = max([len(line.name) for line in report.lines], default=0) + 2, [title]
    blanks = [Line("...", line, "") for line in report.to_do]
    for each in sorted([*report.lines, *blanks], key=lambda each: each.line or 0):
        line = f"line {each.line}" if each.line else ""
        verdict, mistakes = each.verdict, each.mistakes
        if verdict == FOLLOWS:
            verdict, mistakes = str(mistakes[0]), []
        name = each.name.ljust(width) if each.name and verdict else each.name
        text.append(f"  {line:<9}{name}{verdict}")
        said = [*each.evidence, *(mistakes if with_mistakes else [])]
        text += [f"             {finding}" for finding in said]
    text += [f"  note: {note}" for note in report.notes]
    return "\n".join([*text, summary(report)])


def summary(report):
    """Say in one line: right, wrong and where, or how much is still to be written."""
    if report.right:
        return (
            f"right: every gradient is the true one, in {report.count} cases (--seed {report.seed})"
        )
    if report.sound:
        lines = ", ".join(map(str, report.to_do))
        missing = f"still to be written: line{'s' * (len(report.to_do) > 1)} {lines}"
        return missing if report.notes else f"right so far; {missing}"
    since, until = report.range or (None, None)
    where = f": the first wrong line is {since}" if since else ""
    if since != until:
        where = f": the mistake is in lines {since} to {until}"
        if name := report.wrong[0].name:
            where += f"; the first wrong gradient is {name}, line {report.first}"
    return f"wrong{in_case(report)}{where}"


def in_case(report):
    """Where it is wrong, if not in the plain case: " without a bias (--seed 4)"."""
    return f" {report.case} (--seed {report.seed})" if report.case else ""


def hunt_text(report, title):
    """Say of a bug hunt which results are wrong, but not in which line."""
    if report.right:
        return f"{title}: fixed; every gradient is right"
    failed = [line.name for line in report.lines if line.verdict not in ("", OK)]
    for line in report.wrong:  # of one without a dv the evidence is a result
        failed += [each.operands[0].partition("[")[0] for each in line.evidence]
    wrong = ", ".join(name for name in dict.fromkeys(failed) if name in report.results)
    wrong = wrong or "an intermediate, but no result"
    text = [f"{title}: the bug is still there{in_case(report)}; wrong: {wrong}"]
    text += [f"  {each.evidence[0]}" for each in report.wrong if not each.name]
    return "\n".join(text)
