"""The verdict on a learner's backward: as data, as text, and as HTML for a notebook."""

import dataclasses
import html

from npgpt.study.gradcheck.check import OK, WRONG
from npgpt.study.gradcheck.trace import Assignment


@dataclasses.dataclass(frozen=True)
class Line:
    """The check of one gradient, "dx", at a line of the learner's file (or None).

    verdict: OK or WRONG; diagnosis: the mistake; evidence: its worst value beside the central difference.
    """

    name: str
    line: int | None
    verdict: str
    diagnosis: str | None = None
    evidence: str | None = None


@dataclasses.dataclass(frozen=True)
class Fault:
    """An error apart from the numbers, at a line of the learner's file (or None). diagnosis: the mistake behind it."""

    message: str
    line: int | None
    is_write: bool = False      # to an argument, in place
    diagnosis: str | None = None


@dataclasses.dataclass(frozen=True)
class Report:
    """The verdict on a backward.

    case: the branch that it is about, "" for the lesson's own; notes: remarks that do not affect the
    verdict; to_do: the lines that are still `...`; results: the gradients that are returned; differs: the names with
    other values than in the package's backward, in its order; count, seed: the number of cases, and their seed; record:
    the assignments of the learner's lines in the plain case, if they are known.
    """

    case: str
    lines: list[Line]
    faults: list[Fault]
    notes: list[str]
    to_do: list[int]
    results: list[str]
    differs: list[str]
    count: int = 0
    seed: int = 0
    record: list[Assignment] = dataclasses.field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong so far."""
        return not self.faults and all(line.verdict != WRONG for line in self.lines)

    @property
    def right(self) -> bool:
        return self.sound and not self.to_do

    @property
    def first(self) -> int | None:
        """The first line that is wrong, or None."""
        wrong = [line.line for line in self.lines if line.verdict == WRONG] + [fault.line for fault in self.faults]
        return min((line for line in wrong if line is not None), default=None)


def report_text(report, title, with_diagnosis=True) -> str:
    """A `Report` as lines of text: a line for each gradient with its line in the file, and then what to do.

    with_diagnosis: say what the mistake is, too; otherwise only where it is, and its evidence.
    """
    width = max([len(line.name) for line in report.lines], default=0) + 2
    entries = []
    for each in report.lines:
        evidence = each.evidence or ""
        if not with_diagnosis and evidence.startswith("its shape is"):      # and after that, what the mistake is
            evidence = evidence.partition(": ")[0]
        head = f"{each.name:<{width}}{each.verdict}"
        entries.append((each.line, head, [evidence, with_diagnosis and each.diagnosis]))
    entries += [(each.line, WRONG, [each.message, with_diagnosis and each.diagnosis]) for each in report.faults]
    entries += [(line, "...", []) for line in report.to_do]
    text = [title]
    for line, head, more in sorted(entries, key=lambda entry: entry[0] or 0):
        text.append(f"  {f'line {line}' if line else '':<9}{head}")
        text += [f"             {each}" for each in more if each]
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
    """What a check of a bug hunt says: which results are wrong, but not the line."""
    if report.right:
        return f"{title}: fixed; every gradient is right"
    names = [line.name for line in report.lines if line.verdict == WRONG and line.name in report.results]
    right = [name for name in report.results if name not in names]
    wrong = ", ".join(names) or "an intermediate, but no result"
    said = f"{title}: the bug is still there{in_case(report)}; wrong: {wrong}"
    if right and not report.faults:
        said += f"; right: {', '.join(right)}"
    return "\n".join([said, *(f"  {fault.message}" for fault in report.faults)])


def report_html(report, title) -> str:
    """A `Report` as an HTML table."""
    rows = [(line.line, line.name, line.verdict, [line.diagnosis, line.evidence]) for line in report.lines]
    rows += [(fault.line, "", WRONG, [fault.message, fault.diagnosis]) for fault in report.faults]
    cells = []
    for line, name, verdict, more in sorted(rows, key=lambda row: row[0] or 0):
        text = "<br>".join(html.escape(each) for each in more if each)
        colour = "#1a7f37" if verdict == OK else "#cf222e"
        cells.append(f"<tr><td>{line or ''}</td><td><code>{html.escape(name)}</code></td>"
                     f'<td style="color: {colour}">{verdict}</td>'
                     f'<td style="text-align: left">{text}</td></tr>')
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in report.notes)
    return (f"<p><b>{html.escape(title)}</b>: {html.escape(summary(report))}</p>"
            f"<table><tr><th>line</th><th>gradient</th><th>verdict</th><th></th></tr>{''.join(cells)}</table>{notes}")
