"""The study page: one HTML file with the layers' source, arrays, derivations and checks."""

import collections
import dataclasses
import importlib.util
import re
import shlex

import npgpt
from npgpt.errors import UserError
from npgpt.study.exercises.exercise import beginning
from npgpt.study.exercises.mathematics import built_on, parse_derivation, read_text
from npgpt.study.gradcheck.check import check_lesson
from npgpt.study.gradcheck.source import read_source
from npgpt.study.gradcheck.verdicts import OK, WRONG
from npgpt.study.lessons.table import LESSON_0
from npgpt.study.page.edits import view_name, views_of
from npgpt.study.page.origins import CHOICES, first_lines
from npgpt.study.page.planted import planted
from npgpt.study.page.rows import line_entries, rows_of
from npgpt.study.page.steps import Steps, known_truth


def require_extra():
    """Raise a UserError that names the extra if a library is missing."""
    missing = [
        name
        for name in ("jinja2", "pygments", "latex2mathml", "scipy")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise UserError(f'the study page needs {", ".join(missing)}: pip install "npgpt[study]"')


def study_page(lessons, model, live=None):
    """Return the page in UTF-8.

    lessons: `Lesson`s; model: the dict of `study_model`; live: {"token": …} of the server.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("npgpt.study.page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    # `tojson` writes < > & and ' as \u003c …, so that no text can end its script element.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    studied = {each.name: studied_views(each) for each in lessons}
    views = [view for pair in studied.values() for view in pair]
    own = next((command_of(lesson) for lesson in lessons if lesson.is_own), None)
    subject = next((view["file"] for view in views if own), "GPT-2")
    title = f"every gradient of {subject}, line by line" if views else "a model on a text"
    data = {
        "live": live,
        "own": own,
        "layers": [view["data"] for view in views],
        "first": first_lines(),
        "model": None if own else model,
    }
    page = environment.get_template("page.html").render(
        rules=[views for name, views in studied.items() if name in LESSON_0],
        layers=[views for name, views in studied.items() if name not in LESSON_0],
        model=model,
        data=data,
        names=set(studied),
        version=npgpt.__version__,
        choices=CHOICES,
        own=own,
        title=title,
    )
    return page.encode("utf-8", "replace")  # an argument that is not UTF-8 has surrogates


def command_of(lesson):
    """Return how `npgpt study` is told of one's own layer."""
    inputs = [part for text in lesson.given for part in ("--input", text)]
    return shlex.join([str(lesson.file), *inputs])


def studied_views(lesson):
    """Return the `studied_layer` of each view of a lesson.

    others: title -> name, of both views. Step by step, become: the units that do it in one step;
    in one line, the verdict of the other view, and no sections of the derivation, which are there.
    """
    *steps, view = map(studied_layer, views_of(lesson))
    if not steps:
        return [view]
    [steps] = steps
    merged = {row["at"] for row in view["rows"]} - {None}
    for row in view["rows"]:
        become = row["backward"]
        if any(unit["line"] in merged for unit in become):
            break
    others = {"step by step": steps["data"]["name"], "one line": view["data"]["name"]}
    return [
        steps | {"others": others, "become": become},
        view | {"others": others, "steps": steps["verdict"], "sections": {}},
    ]


def studied_layer(lesson):
    """Check a lesson; return a dict for the template.

    data: for the script; there built_on is section -> the sections to show before it.
    """
    known = known_truth(lesson.key)
    introduction, sections = parse_derivation(read_text(lesson))
    checks = check_lesson(lesson, known=known)
    of_gradients = {each.variable: each.backward_line for each in checks}
    for i, each in enumerate(checks):
        if each.through:
            checks[i] = dataclasses.replace(each, backward_line=of_gradients[each.through[1:]])
    steps = Steps(lesson, known, of_gradients)
    entries = line_entries(checks, steps, sections)
    forward = code_units(read_source(lesson.forward), "f")
    backward = code_units(read_source(lesson.backward), "b")
    wrong = sum(each.verdict == WRONG for each in checks)
    largest = max([each.relative for each in checks if each.relative is not None], default=0.0)
    verified = sum(each.verdict == OK for each in checks)
    inside = collections.Counter(each.through for each in checks if each.through)
    more = [f"{count} more inside {through}" for through, count in inside.items()]
    counts = "; ".join([f"{verified} gradients verified", *more])
    right = f"{counts}, largest relative error {largest:.1e}"
    module = lesson.forward.__module__.replace(".", "/")
    data = {
        "name": view_name(lesson),
        "lines": entries,
        "built_on": built_on(lesson),
        "planted": {} if wrong or lesson.is_own else planted(lesson),
        "steps": steps.steps,
        "arrays": steps.arrays,
        "parts": steps.parts,
    }
    return {
        "lesson": lesson.name,
        "title": lesson.title or lesson.name,
        "is_composite": lesson.is_composite,
        "file": lesson.file.name if lesson.is_own else f"{module}.py",
        "verdict": f"{wrong} gradients WRONG" if wrong else right,
        "right": not wrong,
        "rows": rows_of(lesson, forward, backward, checks),
        "introduction": introduction,
        "sections": sections,
        "checks": checks,
        "entries": entries,
        "data": data,
        "others": {},
        "become": [],
        "steps": "",
    }


def code_units(source, side):
    """Return a dict for each statement of a function, for its docstring, and for each other line.

    key: "b57" of a statement or the `def`, else None. In a backward a comment on a line of its own
    is left out: it quotes a line of the forward, which is beside it.
    """
    from markupsafe import Markup
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    first = source.first
    html = highlight("\n".join(source.lines), PythonLexer(), HtmlFormatter(nowrap=True))
    html = html.removesuffix("\n").split("\n")
    doc = [number for number, row in enumerate(html, first) if 'class="sd"' in row]
    header = first + beginning(source.lines)[2] - 1
    # first line -> last line
    ends = {first: header} | {each.first: each.last for each in source.statements}
    units = []
    number = first
    while number < first + len(html):
        end = doc[-1] if number in doc[:1] else ends.get(number, number)
        key = f"{side}{number}" if number in ends else None
        texts = [html[i - first].removeprefix("    ") for i in range(number, end + 1)]
        texts = [Markup(re.sub(' +(?=<span class="c1">)', "  ", text)) for text in texts]
        begin = source.lines[number - first].lstrip()
        if any(texts) and not (side == "b" and begin.startswith("#")):
            units.append(
                {
                    "lines": [*enumerate(texts, number)],
                    "line": number,
                    "key": key,
                    "doc": number in doc[:1],
                    "returns": begin.startswith("return"),
                }
            )
        number = end + 1
    return units
