"""The study page: one HTML file with the source of the layers, the arrays of each line, derivations and checks."""

import ast
import dataclasses
import importlib.util
import re
import shlex

import npgpt
from npgpt.errors import UserError
from npgpt.study.exercises.exercise import (
    Step,
    beginning,
    is_given,
    key_of,
    notes_of,
    package_statements,
)
from npgpt.study.exercises.mathematics import built_on, is_long, parse_derivation, read_text
from npgpt.study.exercises.worked import worked
from npgpt.study.gradcheck.check import check_lesson
from npgpt.study.gradcheck.source import read_source
from npgpt.study.gradcheck.verdicts import CONSTANT, OTHER, WRONG
from npgpt.study.lessons.table import LESSON_0
from npgpt.study.page.edits import levels_on_path, typed_statements
from npgpt.study.page.planted import planted
from npgpt.study.page.rows import line_entries, rows_of
from npgpt.study.page.steps import Steps, known_truth


def require_extra():
    """Raise a UserError that names the extra if a library is missing."""
    missing = [name for name in ("jinja2", "pygments", "latex2mathml", "scipy")
               if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f'the study page needs {", ".join(missing)}: pip install "npgpt[study]"')


def study_page(lessons, model, live=None):
    """Return the page in UTF-8 from `Lesson`s and the dict of `study_model`. live: {"token": …} of the server."""
    import jinja2

    environment = jinja2.Environment(loader=jinja2.PackageLoader("npgpt.study.page"), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    # `tojson` writes < > & and ' as \u003c …, so that no text can end the script element that holds it.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    studied = {}
    for lesson in lessons:
        studied[lesson.key] = studied_layer(lesson)
        if (
            lesson.key == "layernorm"
        ):  # with the other long ways the page would be larger than 1.1 MB
            long_way = dataclasses.replace(lesson, backward=lesson.long_way)
            studied["layernorm_long_way"] = studied_layer(long_way, "layernorm_long_way")
    own = next((shlex.quote(str(lesson.file)) for lesson in lessons if lesson.is_own), None)
    subject = next((layer["file"] for layer in studied.values() if own), "GPT-2")
    data = {"live": live, "own": own, "layers": [layer["data"] for layer in studied.values()],
            "model": None if own else model}
    page = environment.get_template("page.html").render(
        rules=[layer for name, layer in studied.items() if name in LESSON_0],
        layers=[layer for name, layer in studied.items() if name not in LESSON_0],
        model=model,
        data=data,
        names=set(studied),
        version=npgpt.__version__,
        own=own,
        subject=subject,
    )
    return page.encode("utf-8", "replace")          # an argument that is not UTF-8 has surrogates


def studied_layer(lesson, long_way=None):
    """Check a lesson; return a dict for the template.

    long_way: the name of its section if the backward is the long way, whose lines are not edited.
    lines: section -> line of the backward; data: for the script. There built_on is section -> the
    sections to show before it, and worked {"b57": lines of text}, an example of a line in numbers.
    """
    known = known_truth(lesson.key)
    typed = {} if long_way else typed_statements(lesson)
    name = lesson.name
    title = lesson.title
    if long_way:
        name = long_way
        title = f"{title}, step by step"
    introduction, sections = parse_derivation(read_text(lesson), is_long(lesson))
    checks = check_lesson(lesson, known=known)
    of_gradients = {each.variable: each.backward_line for each in checks}
    for i, each in enumerate(checks):
        if each.through:
            checks[i] = dataclasses.replace(each, backward_line=of_gradients[each.through[1:]])
    steps = Steps(lesson, known, of_gradients)
    entries = line_entries(checks, steps, sections)
    forward = code_units(read_source(lesson.forward), "f")
    backward = code_units(read_source(lesson.backward), "b", entries, notes_of(lesson), typed)
    wrong = sum(each.verdict == WRONG for each in checks)
    largest = max([each.relative for each in checks if each.relative is not None], default=0.0)
    verified = sum(each.verdict not in (CONSTANT, OTHER) for each in checks)
    verdict = f"{wrong} gradients WRONG" if wrong else (
        f"{verified} gradients verified, largest relative error {largest:.1e}")
    lines = {entry["section"]: line for line in sorted(entries, key=lambda line: -int(line[1:]))
             for entry in entries[line] if entry["name"] == f"d{entry['section']}"}     # the first
    exercise = lesson.name
    file = f"{lesson.forward.__module__.replace('.', '/')}.py"
    if lesson.is_own:
        exercise = shlex.join([str(lesson.file), lesson.name])
        file = lesson.file.name
    data = {
        "name": name,
        "levels": [] if long_way else levels_on_path(lesson),
        "typed": typed,
        "lines": entries,
        "built_on": built_on(lesson),
        "worked": worked_lines(lesson),
        "planted": {} if wrong or lesson.is_own or long_way else planted(lesson),
        "steps": steps.steps,
        "arrays": steps.arrays,
        "parts": steps.parts,
    }
    return {
        "name": name,
        "title": title,
        "is_composite": lesson.is_composite,
        "exercise": exercise,
        "file": file,
        "verdict": verdict,
        "right": not wrong,
        "rows": rows_of(lesson, forward, backward, checks),
        "introduction": introduction,
        "sections": sections,
        "lines": lines,
        "checks": checks,
        "entries": entries,
        "data": data,
    }


def worked_lines(lesson):
    """Return {"b57": lines of text}: the worked example of each line that an exercise asks for.

    Without its boxes, since the page has pictures.
    """
    step = Step(lesson.key, "long way" if is_long(lesson) else "level 3")
    first, nodes = read_source(lesson.backward).first, package_statements(lesson)
    examples = {key: worked(step, key) for key in notes_of(lesson) if key in nodes}
    return {f"b{first + nodes[key].lineno - 1}": [each for each in lines if each[0] not in "┌│└"]
            for key, lines in examples.items() if lines}


def code_units(source, side, entries=None, notes=None, typed=()):
    """Return a dict for each statement of a function, for its docstring, and for each other line.

    key: "b57" of a statement or the `def`, else None; question: see `question_about`; level: the
    lowest that hides it.
    notes, typed: for a backward; typed: its statements. There a comment on a line of its own is
    left out: it quotes a line of the forward, which is beside it.
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
        question = None
        if notes is not None and key in typed:
            names = [entry["name"] for entry in entries.get(key, ())]
            question = question_about(source, number, names, notes)
        texts = [html[i - first].removeprefix("    ") for i in range(number, end + 1)]
        texts = [Markup(re.sub(' +(?=<span class="c1">)', "  ", text)) for text in texts]
        begin = source.lines[number - first].lstrip()
        if any(texts) and not (side == "b" and begin.startswith("#")):
            units.append(
                {
                    "lines": [*enumerate(texts, number)],
                    "line": number,
                    "doc": number in doc[:1],
                    "question": question,
                    "level": typed[key]["level"] if question else None,
                    "key": key,
                    "returns": begin.startswith("return"),
                }
            )
        number = end + 1
    return units


def question_about(source, line, names, notes):
    """Return a dict for the question that hides a line of the backward; None if the line is always shown."""
    statement = source.statement_at(line)
    node = ast.parse(statement.text).body[0]
    if is_given(node):
        return None
    note = notes.get(key_of(node))
    shape = re.search(r"# ((?:\d x )?\([^()]*\))", source.lines[statement.last - source.first])
    return {"names": statement.targets or tuple(names), "shape": shape[1] if shape else "",
            "hint": note.hint if note else ""}
