"""The study page: one HTML file with the layers' running source, what each line made, why, and the proof of it."""

import dataclasses
import importlib.util
import math
import re
from pathlib import Path

import numpy as np

import npgpt
from npgpt.errors import UserError
from npgpt.study.gradcheck import CONSTANT, OK, PARTS, SHORT_CUT, WRONG, check, matched, truth
from npgpt.study.mathematics import read_derivation
from npgpt.study.source import read_source
from npgpt.study.trace import recording

BINS = 24       # of a histogram
FORWARD, BACKWARD = "f", "b"


def require_extra():
    """UserError that names the extra where one of the page's libraries is missing."""
    missing = [name for name in ("jinja2", "pygments", "latex2mathml") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f'the study page needs {", ".join(missing)}: pip install "npgpt[study]"')


def study_page(lessons, model):
    """The page as a string: a list of `Lesson`s, and a `ModelStudy`. Raises UserError where the extra is missing."""
    require_extra()
    import jinja2

    environment = jinja2.Environment(loader=jinja2.PackageLoader("npgpt.study"), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    # `tojson` writes < > & and ' as \u003c …, so that no text can end the script element that holds it.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.globals["include_raw"] = lambda name: _raw(environment, name)
    environment.filters["percent"] = percent
    layers = [studied_layer(lesson) for lesson in lessons]
    data = {"layers": [layer.data for layer in layers], "model": {
        "tokens": model.tokens, "losses": short(model.losses), "maps": model.maps,
        "pulls": [short(row) for row in model.pulls]}}
    tensors = [tensor for whole, parts in model.parts for tensor in (whole, *parts)]
    return environment.get_template("page.html").render(
        layers=layers, model=model, data=data, names={layer.name for layer in layers}, version=npgpt.__version__,
        norms=decades(tensor.norm for tensor in tensors), ratios=decades(tensor.ratio for tensor in tensors))


def _raw(environment, name):
    """A template file as it is: the style sheet and the script, which are ours and hold no one's text."""
    from markupsafe import Markup
    return Markup(environment.loader.get_source(environment, name)[0])


@dataclasses.dataclass(frozen=True)
class Unit:
    """Lines of code that belong together: a statement, a docstring, or a single line.

    lines: (number, HTML) of each; doc: it is the docstring; active: there is something to show about it.
    """

    first: int
    lines: list
    doc: bool
    active: bool


@dataclasses.dataclass(frozen=True)
class StudiedLayer:
    """What the template shows of a lesson. `data` is for the script: see `line_entries` and `Steps`."""

    name: str
    title: str
    forward: list[Unit]
    backward: list[Unit]
    file: str
    derivation: object
    checks: list
    verdict: str
    right: bool
    data: dict


def studied_layer(lesson):
    """Run, trace and check a lesson: a `StudiedLayer`."""
    known = truth(lesson)
    checks = check(lesson, known=known)
    with recording([lesson.forward, lesson.backward]) as record:
        y, cache = lesson.run_forward(lesson.inputs)
        result = lesson.run_backward(known.dy, cache)
    forward, backward = read_source(lesson.forward), read_source(lesson.backward)
    checks = [dataclasses.replace(each, backward_line=gradient_line(each, backward)) for each in checks]
    derivation = read_derivation(lesson.name)

    steps = Steps(forward, backward, record)
    steps.pair(record)
    for name, value in lesson.inputs.items():
        steps.add(FORWARD, name, value, forward.first)
    name = returned_name(forward)
    steps.add(FORWARD, name, y, forward.filled.get(name) or returning(forward))
    for each in checks:
        name = f"d{each.variable}"
        if name in result:
            # Where its line made something else of that name, it was changed in place later.
            again = steps.has(steps.key(BACKWARD, each.backward_line), name)
            steps.add(BACKWARD, name, result[name], returning(backward) if again else each.backward_line)

    lines = line_entries(forward, backward, checks, steps, derivation.sections)
    certified = sum(each.verdict in (OK, SHORT_CUT, PARTS) for each in checks)
    wrong = sum(each.verdict == WRONG for each in checks)
    largest = max((each.relative for each in checks if each.relative is not None), default=0.0)
    verdict = f"{certified} gradients certified, largest relative error {largest:.1e}"
    return StudiedLayer(
        lesson.name, lesson.title, code_units(forward, FORWARD, lines), code_units(backward, BACKWARD, lines),
        Path(forward.file).relative_to(Path(npgpt.__file__).parent.parent).as_posix(), derivation, checks,
        f"{wrong} gradients WRONG" if wrong else verdict, not wrong,
        {"name": lesson.name, "lines": lines, "steps": steps.steps, "arrays": steps.arrays})


class Steps:
    """The pass in steps: each is a line, and the arrays that it made.

    steps: {"line": "f24", "arrays": [[name, i], …], "partners": {name: [line, n]}} in the order of the pass;
    arrays: what `summary` says of array i, each once; partners: v's step for dv and the other way round, as the n-th
    of its line (in a loop there are several).
    """

    def __init__(self, forward, backward, record):
        self.sources = {FORWARD: forward, BACKWARD: backward}
        self.arrays, self.seen = [], {}
        self.steps = []
        self.step_of = {}           # index in the record -> step
        previous = None
        for i, each in enumerate(record):
            side = FORWARD if each.function == forward.name else BACKWARD
            statement = self.sources[side].statement_at(each.line)
            if each.name in self.sources[side].filled or statement and "np.empty" in statement.text:
                continue            # not filled yet: what it holds means nothing
            # The names of one execution of a line are one step; the next execution of a loop's line is another.
            place = self.key(side, each.line)
            if place != previous or any(name == each.name for name, _ in self.steps[-1]["arrays"]):
                self.steps.append({"line": place, "arrays": [], "partners": {}})
            self.steps[-1]["arrays"].append([each.name, self.index(each.value)])
            self.step_of[i] = self.steps[-1]
            previous = place

    def pair(self, record):
        """Fill in the partners, as the gradient check matches the assignments of both passes."""
        made = {side: [(i, each) for i, each in enumerate(record) if each.function == self.sources[side].name
                       and i in self.step_of and (side == BACKWARD or each.line != self.sources[side].first)]
                for side in (FORWARD, BACKWARD)}
        found = matched([each for _, each in made[FORWARD]], [each for _, each in made[BACKWARD]])
        where = {id(each): i for i, each in made[BACKWARD]}
        for j, gradient in found.items():
            i, variable = made[FORWARD][j]
            here, there = self.step_of[i], self.step_of[where[id(gradient)]]
            here["partners"].setdefault(variable.name, self.place(there))
            there["partners"].setdefault(gradient.name, self.place(here))

    def place(self, step):
        """The line of a step, and how many steps of that line come before it."""
        same = [each for each in self.steps if each["line"] == step["line"]]
        return [step["line"], next(i for i, each in enumerate(same) if each is step)]

    def key(self, side, line):
        """What the page calls a line: its side, and the number of the first line of its statement."""
        statement = self.sources[side].statement_at(line)
        return f"{side}{statement.first if statement else line}"

    def index(self, value):
        """Where `arrays` has this value, which is added if it is new."""
        known = (np.shape(value), np.asarray(value).tobytes())
        if known not in self.seen:
            self.seen[known] = len(self.arrays)
            self.arrays.append(summary(value))
        return self.seen[known]

    def has(self, key, name):
        """Whether a line made an array of that name."""
        return any(step["line"] == key and name == each for step in self.steps for each, _ in step["arrays"])

    def add(self, side, name, value, line):
        """Add an array to the last step of a line, where no step has it: one that no line assigned to its name."""
        found = [name, self.index(value)]
        if any(step["line"][0] == side and found in step["arrays"] for step in self.steps):
            return
        key = self.key(side, line)
        step = next((each for each in reversed(self.steps) if each["line"] == key), None)
        if step is None:
            def order(key):
                return key[0] == BACKWARD, int(key[1:])

            step = {"line": key, "arrays": [], "partners": {}}
            at = next((i for i, each in enumerate(self.steps) if order(each["line"]) > order(key)), len(self.steps))
            self.steps.insert(at, step)
        step["arrays"].append(found)


def summary(value):
    """What the page shows of an array: shape, range, norm, histogram, and its values with four digits."""
    value = np.asarray(value, np.float64)
    finite = value[np.isfinite(value)]
    counts, edges = np.histogram(finite, BINS) if finite.size else (np.zeros(BINS, int), (0.0, 0.0))
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    return {"shape": list(value.shape), "low": digits(low), "high": digits(high),
            "norm": digits(np.linalg.norm(finite)), "edges": [digits(edges[0]), digits(edges[-1])],
            "counts": counts.tolist(), "values": short(value.ravel())}


def short(values):
    """Numbers for JSON, with four digits; what is not finite, which JSON does not know, becomes a string."""
    return [digits(value) if np.isfinite(value) else str(value) for value in np.asarray(values, np.float64)]


def digits(number):
    return float(f"{number:.4g}")


def returning(source):
    """The line of a function's last return statement; of its last statement if it has none."""
    found = [each for each in source.statements if each.text.startswith("return ")] or source.statements
    return found[-1].first


def returned_name(source):
    """The name of the first thing that a function returns."""
    statement = source.statement_at(returning(source))
    return re.match(r"return \(?(\w+)", statement.text)[1]


def gradient_line(checked, backward):
    """The line that makes the gradient of what was checked: where it is skipped, that of the gradient it is part of."""
    if checked.verdict in (SHORT_CUT, PARTS):
        name = checked.through.split()[0]
        return backward.filled.get(name) or assigned_line(name, backward) or returning(backward)
    if checked.backward_line == backward.first and checked.forward_text == "(argument)":
        return returning(backward)              # it has no name there: it is what another function returned
    return checked.backward_line


def assigned_line(name, source):
    """The line of the last statement that assigns a name, or None."""
    return next((each.first for each in reversed(source.statements) if name in each.targets), None)


def line_entries(forward, backward, checks, steps, sections):
    """line ("f24", "b51") -> what there is to say about each variable of it, a list of dicts for the script.

    name; partner: the line that lights up with it, or None; other: the variable there; section: the variable whose
    derivation belongs to it, or None; verdict and certificate: of the gradient check, None where it is no gradient's.
    """
    lines = {}
    for checked in checks:
        here = steps.key(FORWARD, checked.forward_line)
        there = steps.key(BACKWARD, checked.backward_line) if checked.backward_line else None
        other = checked.through.split()[0] if checked.through else f"d{checked.variable}"
        common = {"section": section_of(checked.variable, sections), "verdict": checked.verdict,
                  "certificate": certificate(checked)}
        _add(lines, here, common | {"name": checked.variable, "partner": there, "other": other})
        if there and checked.verdict not in (SHORT_CUT, PARTS):
            _add(lines, there, common | {"name": other, "partner": here, "other": checked.variable})
    for step in steps.steps:
        for name, _ in step["arrays"]:
            if any(entry["name"] == name for entry in lines.get(step["line"], [])):
                continue
            source, line = (forward, backward)[step["line"][0] == BACKWARD], int(step["line"][1:])
            partner = helper_partner(name, line, forward, backward) if source is backward else None
            _add(lines, step["line"], {
                "name": name, "partner": partner and steps.key(FORWARD, partner), "other": name, "verdict": None,
                "section": helper_section(name, line, source, sections), "certificate": None})
    orders = {step["line"]: [name for name, _ in step["arrays"]] for step in steps.steps}
    for line, entries in lines.items():
        order = orders.get(line, [])            # what the line assigns first is shown first
        entries.sort(key=lambda entry: order.index(entry["name"]) if entry["name"] in order else len(order))
    return lines


def _add(lines, line, entry):
    """Add what is said of a variable of a line; of a line that ran several times, the worst."""
    order = [OK, CONSTANT, PARTS, SHORT_CUT, WRONG]
    entries = lines.setdefault(line, [])
    for i, known in enumerate(entries):
        if known["name"] == entry["name"]:
            if order.index(entry["verdict"]) > order.index(known["verdict"]):
                entries[i] = entry
            return
    entries.append(entry)


def certificate(checked):
    """What the gradient check found out about one variable, in a sentence."""
    gradient = f"d{checked.variable}"
    if checked.verdict == OK:
        return f"{gradient} is certified: it is within {checked.relative:.1e} (relative) of the central differences."
    if checked.verdict == SHORT_CUT:
        return f"{gradient} is skipped, a short cut that the docstring names: certified as a part of {checked.through}."
    if checked.verdict == PARTS:
        return f"{checked.variable} is filled part by part: it is certified through {checked.through}."
    if checked.verdict == CONSTANT:
        return f"The output does not depend on {checked.variable}: its gradient is 0."
    error = "there is none" if checked.relative is None else f"its largest relative error is {checked.relative:.1e}"
    return f"{gradient} is WRONG: {error}."


def section_of(variable, sections):
    """The section of the derivation that a variable belongs to: its own, or that of all parameters; or None."""
    names = [variable, "p", "params"] if "." in variable else [variable]
    return next((name for name in names if name in sections), None)


def helper_partner(name, line, forward, backward):
    """The forward's line that a line of the backward belongs to that makes no gradient of a variable, or None.

    It makes a variable of the forward again; or it stands under a comment that quotes the line.
    """
    again = assigned_line(name, forward)
    if again or re.search(rf"\b{re.escape(name)}\b", forward.lines[0]):
        return again or forward.first
    above = [text.strip() for text in backward.lines[:line - backward.first]]
    quote = next((text[2:] for text in reversed(above) if text.startswith("# ") and " = " in text), None)
    if quote is None:
        return None
    target = quote.split(",")[0].split(" = ")[0]
    return assigned_line(target, forward)


def helper_section(name, line, source, sections):
    """The derivation that speaks of a variable which is no gradient itself: by its name, or of the next gradient."""
    if name in sections:
        return name
    by_name = [v for v in sections if f"{name}_".startswith(f"d{v}_")]
    if by_name:
        return max(by_name, key=len)
    later = [target[1:] for each in source.statements if each.first > line for target in each.targets]
    return next((v for v in later if v in sections), None)


def code_units(source, side, lines):
    """The `Unit`s of a function, highlighted."""
    rows = highlighted(source.lines)
    last = source.first + len(rows) - 1
    header = next(i for i, text in enumerate(source.lines) if text.endswith(":"))
    units, number = [], source.first
    while number <= last:
        statement = source.statement_at(number)
        doc = rows[number - source.first][1]
        end = number
        if number == source.first:
            end += header
        elif doc:
            while end < last and rows[end + 1 - source.first][1]:
                end += 1
        elif statement:
            end = statement.last
        units.append(Unit(number, [(i, rows[i - source.first][0]) for i in range(number, end + 1)], doc,
                          f"{side}{number}" in lines))
        number = end + 1
    return units


def highlighted(lines):
    """(HTML, whether it is of the docstring) of each line of a function."""
    from markupsafe import Markup
    from pygments.lexers import PythonLexer
    from pygments.token import STANDARD_TYPES, String

    rows = [(Markup(), False)]
    for kind, text in PythonLexer(stripnl=False, ensurenl=False).get_tokens("\n".join(lines)):
        for i, piece in enumerate(text.split("\n")):
            if i:
                rows.append((Markup(), kind is String.Doc))
            html, doc = rows[-1]
            token = Markup('<span class="{}">{}</span>').format(STANDARD_TYPES[kind], piece) if piece.strip() else piece
            rows[-1] = (html + token, doc or kind is String.Doc)
    return rows


def decades(values):
    """Exponents (low, high) of the powers of ten between which positive values lie; None and 0 do not count."""
    exponents = [math.log10(value) for value in values if value]
    return (math.floor(min(exponents)), math.floor(max(exponents)) + 1) if exponents else (-1, 0)


def percent(value, exponents):
    """Where a value lies on the logarithmic scale between two powers of ten, 0 to 100; 0 for None and 0."""
    low, high = exponents
    return round(100.0 * (math.log10(value) - low) / (high - low), 1) if value else 0.0
