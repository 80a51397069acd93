"""The study page: one HTML file with the source of the layers, the arrays of each line, derivations and checks."""

import dataclasses
import importlib.util
import math
import re
from pathlib import Path

import numpy as np

import npgpt
from npgpt.errors import UserError
from npgpt.study.gradcheck import CONSTANT, OK, SHORTCUT, WRONG, check, gradient_names, matched, truth
from npgpt.study.mathematics import read_derivation
from npgpt.study.source import read_source
from npgpt.study.trace import Assignment, recording

BINS = 24       # of a histogram
WIDTH = 88      # characters of a line of code that fit into a pane


def require_extra():
    """Raise UserError, which names the extra, if one of the page's libraries is missing."""
    missing = [name for name in ("jinja2", "pygments", "latex2mathml", "scipy")
               if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f'the study page needs {", ".join(missing)}: pip install "npgpt[study]"')


def study_page(lessons, model):
    """The page as a string, from a list of `Lesson`s and a `ModelStudy`. Raises UserError if the extra is missing."""
    require_extra()
    import jinja2

    environment = jinja2.Environment(loader=jinja2.PackageLoader("npgpt.study"), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    # `tojson` writes < > & and ' as \u003c …, so that no text can end the script element that holds it.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters["percent"] = percent
    layers = [studied_layer(lesson) for lesson in lessons]
    data = {"layers": [layer.data for layer in layers], "model": {
        "tokens": model.tokens, "losses": short(model.losses), "maps": model.maps,
        "pulls": [short(row) for row in model.pulls]}}
    tensors = [tensor for whole, parts in model.parts for tensor in (whole, *parts)]
    return environment.get_template("page.html").render(
        layers=layers, model=model, data=data, names={layer.name for layer in layers}, version=npgpt.__version__,
        norms=decades(tensor.norm for tensor in tensors), ratios=decades(tensor.ratio for tensor in tensors))


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
    lines = {each.variable: each.backward_line for each in checks}
    checks = [dataclasses.replace(each, backward_line=lines[each.through[1:]]) if each.through else each
              for each in checks]
    forward, backward = read_source(lesson.forward), read_source(lesson.backward)
    derivation = read_derivation(lesson.name)
    steps = Steps(forward, backward, traced_pass(lesson, known, lines))
    entries = line_entries(forward, backward, checks, steps, derivation.sections)
    wrong = sum(each.verdict == WRONG for each in checks)
    largest = max(each.relative for each in checks if each.relative is not None)
    verdict = f"{wrong} gradients WRONG" if wrong else (
        f"{sum(each.verdict != CONSTANT for each in checks)} gradients verified, largest relative error {largest:.1e}")
    return StudiedLayer(
        lesson.name, lesson.title, code_units(forward, "f", entries), code_units(backward, "b", entries),
        Path(forward.file).relative_to(Path(npgpt.__file__).parent.parent).as_posix(), derivation, checks,
        verdict, not wrong,
        {"name": lesson.name, "lines": entries, "steps": steps.steps, "arrays": steps.arrays})


def traced_pass(lesson, known, lines):
    """The `Assignment`s of a forward and backward, with the inputs and results that no statement assigned added.

    lines: variable -> the line of the backward that its gradient comes from. What the backward calls dln_1_weight has
    the name of its parameter here, "dln_1.weight".
    """
    with recording([lesson.forward, lesson.backward]) as record:
        _, cache = lesson.run_forward(lesson.inputs)
        result = lesson.run_backward(known.dy, cache)

    def add(function, line, name, value):
        at = max((i for i, each in enumerate(record) if each.function == function.__name__ and each.line <= line),
                 default=-1)
        record.insert(at + 1, Assignment(function.__name__, line, name, value))

    for name, value in lesson.inputs.items():
        if all(each.name != name for each in record):
            add(lesson.forward, read_source(lesson.forward).first, name, value)
        made = next((each for each in reversed(record) if each.name in gradient_names(name)), None)
        if made is not None:
            made.name = f"d{name}"
        if made is None or not np.array_equal(made.value, result[f"d{name}"]):      # it was changed in place later
            add(lesson.backward, lines[name], f"d{name}", result[f"d{name}"])
    return record


class Steps:
    """The pass in steps: each is a line, and the arrays that it made.

    steps: {"line": "f24", "arrays": [[name, i], …], "partners": {name: [line, n]}} in the order of the pass, the line
    with an f for the forward or a b for the backward; arrays: what `summary` says of array i, each once; partners: v's
    step for dv and the reverse, as the n-th of its line (in a loop there are several).
    """

    def __init__(self, forward, backward, record):
        self.sources = {"f": forward, "b": backward}
        self.steps, self.arrays = [], []
        seen = {}           # shape and bytes of an array -> its index
        made = {"f": [], "b": []}       # (assignment, its step)
        for each in record:
            side = "f" if each.function == forward.name else "b"
            line = self.key(side, each.line)
            # The names of one execution of a line are one step; the next execution of a loop's line is another.
            if not self.steps or line != self.steps[-1]["line"] or each.name in dict(self.steps[-1]["arrays"]):
                self.steps.append({"line": line, "arrays": [], "partners": {}})
            index = seen.setdefault((each.value.shape, each.value.tobytes()), len(self.arrays))
            if index == len(self.arrays):
                self.arrays.append(summary(each.value))
            self.steps[-1]["arrays"].append([each.name, index])
            if side == "b" or each.line != forward.first:
                made[side].append((each, self.steps[-1]))
        found = matched([each for each, _ in made["f"]], [each for each, _ in made["b"]])
        step_of = {id(each): step for each, step in made["b"]}
        for i, gradient in found.items():
            (variable, here), there = made["f"][i], step_of[id(gradient)]
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


def assigned_line(name, source):
    """The line of the last statement that assigns a name, or None."""
    return next((each.first for each in reversed(source.statements) if name in each.targets), None)


def line_entries(forward, backward, checks, steps, sections):
    """line ("f24", "b51") -> what there is to say about each variable of it, a list of dicts for the script.

    name; partner: the line that lights up with it, or None; other: the variable there; section: the variable whose
    derivation belongs to it, or None; verdict and finding: of the gradient check, None if it is no gradient.
    """
    lines = {}
    for checked in checks:
        here = steps.key("f", checked.forward_line)
        there = steps.key("b", checked.backward_line) if checked.backward_line else None
        other = checked.through or f"d{checked.variable}"
        section = "p" if "." in checked.variable else checked.variable
        common = {"section": section if section in sections else None, "verdict": checked.verdict,
                  "finding": finding(checked)}
        add_entry(lines, here, common | {"name": checked.variable, "partner": there, "other": other})
        if there and checked.verdict != SHORTCUT:
            add_entry(lines, there, common | {"name": other, "partner": here, "other": checked.variable})
    for step in steps.steps:
        for name, _ in step["arrays"]:
            if any(entry["name"] == name for entry in lines.get(step["line"], [])):
                continue
            source, line = steps.sources[step["line"][0]], int(step["line"][1:])
            partner = helper_partner(name, line, forward, backward) if source is backward else None
            add_entry(lines, step["line"], {
                "name": name, "partner": partner and steps.key("f", partner), "other": name, "verdict": None,
                "section": helper_section(name, line, source, sections), "finding": None})
    orders = {step["line"]: [name for name, _ in step["arrays"]] for step in steps.steps}
    for line, entries in lines.items():
        order = orders.get(line, [])            # what the line assigns first is shown first
        entries.sort(key=lambda entry: order.index(entry["name"]) if entry["name"] in order else len(order))
    return lines


def add_entry(lines, line, entry):
    """Add what is said of a variable of a line; of a line that ran several times, the worst."""
    entries = lines.setdefault(line, [])
    known = next((each for each in entries if each["name"] == entry["name"]), None)
    if known is None:
        entries.append(entry)
    elif entry["verdict"] == WRONG:
        known.update(entry)


def finding(checked):
    """What the gradient check found out about one variable, in a sentence."""
    gradient = f"d{checked.variable}"
    if checked.verdict == OK:
        return f"{gradient} is verified: within {checked.relative:.1e} (relative) of the central differences."
    if checked.verdict == SHORTCUT:
        return f"{gradient} is skipped by a shortcut that the docstring derives: verified as part of {checked.through}."
    if checked.verdict == CONSTANT:
        return f"{checked.variable} is a constant: no gradient flows through it."
    error = "there is none" if checked.relative is None else f"its largest relative error is {checked.relative:.1e}"
    return f"{gradient} is WRONG: {error}."


def helper_partner(name, line, forward, backward):
    """The forward's line that belongs to a line of the backward which makes no gradient of a variable, or None.

    It computes a variable of the forward again, or is below a comment that quotes the forward's line.
    """
    again = assigned_line(name, forward)
    if again or re.search(rf"\b{re.escape(name)}\b", forward.lines[0]):
        return again or forward.first
    above = [text.strip() for text in backward.lines[:line - backward.first]]
    quote = next((text[2:] for text in reversed(above) if text.startswith("# ") and " = " in text), "")
    return assigned_line(quote.split(",")[0].split(" = ")[0], forward)


def helper_section(name, line, source, sections):
    """The section about a variable that is no gradient: by its name, or that of the next gradient."""
    by_name = [v for v in sections if name == v or f"{name}_".startswith(f"d{v}_")]
    if by_name:
        return max(by_name, key=len)
    later = [target[1:] for each in source.statements if each.first > line for target in each.targets]
    return next((v for v in later if v in sections), None)


def code_units(source, side, lines):
    """The `Unit`s of a function, highlighted."""
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
        end = ends.get(number, number)
        units.append(Unit(number, [(i, rows[i - source.first]) for i in range(number, end + 1)],
                          number in doc[:1], f"{side}{number}" in lines))
        number = end + 1
    return units


def decades(values):
    """Exponents (low, high) of the powers of ten between which positive values lie; None and 0 do not count."""
    exponents = [math.log10(value) for value in values if value]
    return (math.floor(min(exponents)), math.floor(max(exponents)) + 1) if exponents else (-1, 0)


def percent(value, exponents):
    """Where a value lies on the logarithmic scale between two powers of ten, 0 to 100; 0 for None and 0."""
    low, high = exponents
    return round(100.0 * (math.log10(value) - low) / (high - low), 1) if value else 0.0
