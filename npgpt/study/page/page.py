"""The study page: one HTML file with the source of the layers, the arrays of each line, derivations and checks."""

import ast
import dataclasses
import importlib.util
import re
from pathlib import Path

import npgpt
from npgpt.errors import UserError
from npgpt.study.exercises.exercise import LEVELS, key_of
from npgpt.study.exercises.mathematics import read_derivation, read_notes
from npgpt.study.gradcheck.check import CONSTANT, SHORTCUT, WRONG, check
from npgpt.study.gradcheck.lessons import basics
from npgpt.study.gradcheck.source import read_source
from npgpt.study.page.controls import first_screen, typed_statements
from npgpt.study.page.long_way import LONG_WAYS
from npgpt.study.page.partners import line_entries
from npgpt.study.page.steps import Steps, known_truth, traced_pass

WIDTH = 80      # characters that fit into a pane
FIRST_SCREEN = "layernorm"      # the page starts with its gradient


def require_extra():
    """Raise a UserError that names the extra if a library is missing."""
    missing = [name for name in ("jinja2", "pygments", "latex2mathml", "scipy")
               if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f'the study page needs {", ".join(missing)}: pip install "npgpt[study]"')


def study_page(lessons, model, live=None):
    """Return the page as a string, from a list of `Lesson`s, which may be empty, and a `ModelStudy`.

    live: {"token": …, "exercises": folder} of the live page's server; None for a file.
    Raises UserError if the extra is missing.
    """
    require_extra()
    import jinja2

    environment = jinja2.Environment(loader=jinja2.PackageLoader("npgpt.study.page"), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    # `tojson` writes < > & and ' as \u003c …, so that no text can end the script element that holds it.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    studied = [studied_layer(lesson) for lesson in lessons]
    rules = [layer for layer in studied if layer.name in basics()]
    first = next((layer for layer in studied if layer.name == FIRST_SCREEN), studied[-1] if studied else None)
    data = {"live": live, "layers": [layer.data for layer in studied], "first": first and first.first,
            "model": model.data}
    return environment.get_template("page.html").render(
        rules=rules, layers=[layer for layer in studied if layer not in rules], model=model, data=data, first=first,
        names={layer.name for layer in studied}, version=npgpt.__version__)


@dataclasses.dataclass(frozen=True)
class Question:
    """A question instead of a line of the backward. names: what the line assigns; shape: in letters."""

    names: tuple[str, ...]
    shape: str
    hint: str


@dataclasses.dataclass(frozen=True)
class Unit:
    """Lines of code that belong together: a statement, a docstring, or a single line.

    lines: (number, HTML) of each; doc: it is the docstring; active: it has an entry; question: None for the cache and
    the return; typed: it can be edited, see `typed_statements`; level: the lowest one that hides it.
    """

    first: int
    lines: list
    doc: bool
    active: bool
    question: Question | None
    typed: bool
    level: int | None


@dataclasses.dataclass(frozen=True)
class Way:
    """A backward for the template. data: for the script, see `line_entries` and `Steps`."""

    title: str
    file: str
    units: list[Unit]
    checks: list
    data: dict


@dataclasses.dataclass(frozen=True)
class StudiedLayer:
    """A lesson for the template.

    ways: its backward, and the one without a shortcut if it exists; inputs, result: their names; typed: see
    `typed_statements`; first: see `first_screen`.
    """

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
    inputs: list[str]
    result: str
    levels: dict[int, list[str]]        # the lines of the backward that each leaves out
    typed: dict[str, dict]
    first: dict

    @property
    def data(self):
        return {"name": self.name, "inputs": self.inputs, "result": self.result, "levels": self.levels,
                "typed": self.typed, "ways": [way.data for way in self.ways]}


def studied_layer(lesson):
    """Run, trace and check a lesson: return a `StudiedLayer`."""
    known, derivation, typed = known_truth(lesson.name), read_derivation(lesson.name), typed_statements(lesson)
    ways = [studied_way(lesson, known, derivation.sections, "shortcut", typed)]
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
    levels = {level: [f"b{line}" for line, each in typed.items() if each["level"] and each["level"] <= level]
              for level in sorted({each["level"] for each in typed.values() if each["level"]})}
    return StudiedLayer(
        lesson.name, lesson.title, shown_file(lesson.forward),
        code_units(read_source(lesson.forward), "f", entries, shapes_of(ways[0].data)), ways, derivation, lines,
        check_rows(checks), verdict, not wrong, list(lesson.inputs), lesson.upstream[1:], levels, typed,
        first_screen(lesson, known, checks))


def studied_way(lesson, known, sections, title, typed=None):
    """Return the `Way` of a lesson; known: its `Truth`; typed: the editable statements, by default none."""
    checks = check(lesson, known=known)
    lines = {each.variable: each.backward_line for each in checks}
    checks = [dataclasses.replace(each, backward_line=lines[each.through[1:]]) if each.through else each
              for each in checks]
    steps = Steps(lesson, traced_pass(lesson, known, lines))
    entries = line_entries(lesson, checks, steps, sections)
    notes = {} if lesson.backward in LONG_WAYS.values() else read_notes(lesson.name)     # for the short one
    data = {"lines": entries, "steps": steps.steps, "arrays": steps.arrays}
    units = code_units(read_source(lesson.backward), "b", entries, shapes_of(data), notes, typed or {})
    return Way(title, shown_file(lesson.backward), units, checks, data)


def shapes_of(data):
    """Map each line to the shape of its first array."""
    found = {}
    for step in data["steps"]:
        found.setdefault(step["line"], data["arrays"][step["arrays"][0][1]]["shape"])
    return found


def shown_file(function):
    """Return the path of a function's file, relative to the folder of npgpt."""
    return Path(read_source(function).file).relative_to(Path(npgpt.__file__).parent.parent).as_posix()


def check_rows(checks):
    """Return the rows of the table of checks, dicts; gradients skipped by a shortcut share one row."""
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


def code_units(source, side, entries, shapes, notes=None, typed=()):
    """Return the highlighted `Unit`s of a function. notes: of the derivation; they turn statements into questions."""
    from markupsafe import Markup
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    html = highlight("\n".join(source.lines), PythonLexer(), HtmlFormatter(nowrap=True)).removesuffix("\n").split("\n")
    doc = [number for number, row in enumerate(html, source.first) if 'class="sd"' in row]
    header = source.first + next(i for i, text in enumerate(source.lines) if text.endswith(":"))
    ends = {source.first: header} | ({doc[0]: doc[-1]} if doc else {})          # first line -> last line
    ends |= {each.first: each.last for each in source.statements}
    units, number = [], source.first
    while number < source.first + len(html):
        end, key = ends.get(number, number), f"{side}{number}"
        question = None
        if notes is not None and key in entries and number != source.first:
            question = asked(source, number, [entry["name"] for entry in entries[key]], notes)
        rows = [(i, Markup(with_comment(html[i - source.first], source.lines[i - source.first], shapes.get(key))))
                for i in range(number, end + 1)]
        is_typed = str(number) in typed
        # A backward that cannot be edited has only the highest level.
        level = (typed[str(number)]["level"] if is_typed else LEVELS[-1]) if question else None
        units.append(Unit(number, rows, number in doc[:1], key in entries, question, is_typed, level))
        number = end + 1
    return units


def with_comment(html, line, shape):
    """Mark the parts of a line's comment: a shape, shown as that of the example, and what would reveal the answer.

    In a line too wide for its pane, the comment moves next to the code, so that fewer lines wrap.
    """
    code, comment = re.fullmatch(r'(.*?)(?:<span class="c1">(.*)</span>)?', html).groups()
    if comment is None:
        return html
    if not line.partition("# ")[0].strip():         # a whole line: the forward's line, then the reason
        quoted = re.match("(.*?)((?:: |, and ).*)?$", comment)
        return code + span("c1", quoted[1]) + span("c1 tells", quoted[2])
    if len(line) > WIDTH:
        code = re.sub("(?<=</span>) +$", "  ", code)
    sizes = re.match(r"(# (?:\d x )?)(\([^()]*\))(.*)", comment)
    if not sizes or not shape:
        return code + span("c1", comment)
    here = f'<span class="sizes" title="{sizes[2]}" data-here="{tuple(shape)}">{sizes[2]}</span>'
    return code + span("c1", sizes[1] + here) + span("c1 tells", sizes[3])


def span(kind, html):
    """Return a span of HTML, or nothing."""
    return f'<span class="{kind}">{html}</span>' if html else ""


def asked(source, line, names, notes):
    """Return the `Question` for a statement of the backward; None for reading the cache and for the return."""
    statement = source.statement_at(line)
    node = ast.parse(statement.text).body[0]
    if isinstance(node, ast.Return) or ast.unparse(node.value) == "cache":
        return None
    note = notes.get(key_of(node))
    shape = re.search(r"# ((?:\d x )?\([^()]*\))", source.lines[statement.last - source.first])
    return Question(statement.targets or tuple(names), shape[1] if shape else "", note.hint if note else "")
