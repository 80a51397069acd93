"""The study page: one HTML file with the source of the layers, the arrays of each line, derivations and checks."""

import ast
import dataclasses
import importlib.util
import re
from pathlib import Path

import npgpt
from npgpt.errors import UserError
from npgpt.study.exercise import key_of
from npgpt.study.gradcheck import CONSTANT, SHORTCUT, WRONG, check
from npgpt.study.known import known_truth
from npgpt.study.lessons import basics
from npgpt.study.long_way import LONG_WAYS
from npgpt.study.mathematics import read_derivation, read_notes
from npgpt.study.partners import line_entries
from npgpt.study.source import read_source
from npgpt.study.steps import Steps, short, traced_pass

WIDTH = 80      # characters of a line of code that fit into a pane


def require_extra():
    """Raise UserError, which names the extra, if one of the page's libraries is missing."""
    missing = [name for name in ("jinja2", "pygments", "latex2mathml", "scipy")
               if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f'the study page needs {", ".join(missing)}: pip install "npgpt[study]"')


def study_page(lessons, model, live=None):
    """The page as a string, from a list of `Lesson`s and a `ModelStudy`. Raises UserError if the extra is missing.

    live: {"token": …, "exercises": folder} of the server that answers the page's controls; None for a file.
    """
    require_extra()
    import jinja2

    environment = jinja2.Environment(loader=jinja2.PackageLoader("npgpt.study"), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    # `tojson` writes < > & and ' as \u003c …, so that no text can end the script element that holds it.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    studied = [studied_layer(lesson) for lesson in lessons]
    rules = [layer for layer in studied if layer.name in basics()]
    data = {"live": live, "layers": [layer.data for layer in studied], "model": {
        "tokens": model.tokens, "losses": short(model.losses), "maps": model.maps,
        "pulls": [short(row) for row in model.pulls]}}
    return environment.get_template("page.html").render(
        rules=rules, layers=[layer for layer in studied if layer not in rules], model=model, data=data,
        names={layer.name for layer in studied}, version=npgpt.__version__)


@dataclasses.dataclass(frozen=True)
class Question:
    """What a learner is asked in place of a line of the backward. names: what the line makes; shape: in letters."""

    names: tuple[str, ...]
    shape: str
    hint: str


@dataclasses.dataclass(frozen=True)
class Unit:
    """Lines of code that belong together: a statement, a docstring, or a single line.

    lines: (number, HTML) of each; doc: it is the docstring; active: there is something to show about it; question: None
    for what the backward is given.
    """

    first: int
    lines: list
    doc: bool
    active: bool
    question: Question | None


@dataclasses.dataclass(frozen=True)
class Way:
    """A backward as the template shows it. `data` is for the script: see `line_entries` and `Steps`."""

    title: str
    file: str
    units: list[Unit]
    checks: list
    data: dict


@dataclasses.dataclass(frozen=True)
class StudiedLayer:
    """What the template shows of a lesson. ways: its backward, and the same without a shortcut if there is one."""

    name: str
    title: str
    file: str
    forward: list[Unit]
    ways: list[Way]
    derivation: object
    lines: dict[str, str]       # section of the derivation -> the line of the backward, "b42"
    rows: list[dict]            # of the table of checks
    verdict: str
    right: bool

    @property
    def data(self):
        return {"name": self.name, "ways": [way.data for way in self.ways]}


def studied_layer(lesson):
    """Run, trace and check a lesson: a `StudiedLayer`."""
    known, derivation = known_truth(lesson), read_derivation(lesson.name)
    ways = [studied_way(lesson, known, derivation.sections, "shortcut")]
    if lesson.name in LONG_WAYS:
        long_way = dataclasses.replace(lesson, backward=LONG_WAYS[lesson.name])
        ways.append(studied_way(long_way, known, derivation.sections, "long way"))
    checks, entries = ways[0].checks, ways[0].data["lines"]
    wrong = sum(each.verdict == WRONG for each in checks)
    largest = max(each.relative for each in checks if each.relative is not None)
    verdict = f"{wrong} gradients WRONG" if wrong else (
        f"{sum(each.verdict != CONSTANT for each in checks)} gradients verified, largest relative error {largest:.1e}")
    lines = {}
    for line in sorted(entries, key=lambda line: int(line[1:])):
        for entry in entries[line]:
            if entry["name"] == f"d{entry['section']}":
                lines.setdefault(entry["section"], line)
    return StudiedLayer(
        lesson.name, lesson.title, shown_file(lesson.forward), code_units(read_source(lesson.forward), "f", entries),
        ways, derivation, lines, check_rows(checks), verdict, not wrong)


def studied_way(lesson, known, sections, title):
    """The `Way` of a lesson, whose `Truth` is known."""
    checks = check(lesson, known=known)
    lines = {each.variable: each.backward_line for each in checks}
    checks = [dataclasses.replace(each, backward_line=lines[each.through[1:]]) if each.through else each
              for each in checks]
    steps = Steps(lesson, traced_pass(lesson, known, lines))
    entries = line_entries(lesson, checks, steps, sections)
    notes = {} if lesson.backward in LONG_WAYS.values() else read_notes(lesson.name)     # for the short one
    units = code_units(read_source(lesson.backward), "b", entries, notes)
    return Way(title, shown_file(lesson.backward), units, checks,
               {"lines": entries, "steps": steps.steps, "arrays": steps.arrays})


def shown_file(function):
    """The path of a function's file, from the folder that holds npgpt."""
    return Path(read_source(function).file).relative_to(Path(npgpt.__file__).parent.parent).as_posix()


def check_rows(checks):
    """The rows of the table of checks, dicts; all that a shortcut skips is one row."""
    rows, skipped = [], None
    for each in checks:
        if each.verdict == SHORTCUT and skipped:
            skipped["variable"] += f", {each.variable}"
            skipped["forward"] += f", {each.forward_line}"
            continue
        rows.append({"variable": each.variable, "forward": str(each.forward_line), "backward": each.backward_line,
                     "shape": each.shape, "relative": each.relative,
                     "verdict": each.verdict + (f", part of {each.through}" if each.through else "")})
        if each.verdict == SHORTCUT:
            skipped = rows[-1]
            skipped["shape"] = ()
    return rows


def code_units(source, side, entries, notes=None):
    """The `Unit`s of a function, highlighted. notes: of the derivation; with them, each statement is a question."""
    from markupsafe import Markup
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    html = highlight("\n".join(source.lines), PythonLexer(), HtmlFormatter(nowrap=True)).removesuffix("\n").split("\n")
    # In a line that is too wide for its pane, the comment is moved to the code: then fewer lines wrap.
    rows = [Markup(re.sub('(?<=</span>) +(?=<span class="c1">)', "  ", row) if len(line) > WIDTH else row)
            for row, line in zip(html, source.lines, strict=True)]
    doc = [number for number, row in enumerate(rows, source.first) if 'class="sd"' in row]
    header = source.first + next(i for i, text in enumerate(source.lines) if text.endswith(":"))
    ends = {source.first: header} | ({doc[0]: doc[-1]} if doc else {})          # first line -> last line
    ends |= {each.first: each.last for each in source.statements}
    units, number = [], source.first
    while number < source.first + len(rows):
        end, key = ends.get(number, number), f"{side}{number}"
        question = None
        if notes is not None and key in entries and number != source.first:
            question = asked(source, number, [entry["name"] for entry in entries[key]], notes)
        units.append(Unit(number, [(i, rows[i - source.first]) for i in range(number, end + 1)],
                          number in doc[:1], key in entries, question))
        number = end + 1
    return units


def asked(source, line, names, notes):
    """The `Question` in place of a statement of the backward; None for one that reads the cache, and for the return."""
    statement = source.statement_at(line)
    node = ast.parse(statement.text).body[0]
    if isinstance(node, ast.Return) or ast.unparse(node.value) == "cache":
        return None
    note = notes.get(key_of(node))
    shape = re.search(r"# ((?:\d x )?\([^()]*\))", source.lines[statement.last - source.first])
    return Question(statement.targets or tuple(names), shape[1] if shape else "", note.hint if note else "")
