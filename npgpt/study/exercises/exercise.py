"""Exercise files: the forward of a layer, and its backward with `...` for some lines.

The derivation of the layer says which level leaves out which lines. The first line of a file says
which exercise it is. The file imports all that it needs, so it is an ordinary program. This module
only reads and parses it; the judge runs it.
"""

import ast
import dataclasses
import functools
import inspect
import io
import os
import re
import textwrap
import tokenize
from pathlib import Path

from npgpt.errors import UserError, describe
from npgpt.files import read_bytes, read_python
from npgpt.study.exercises.mathematics import Note, read_notes
from npgpt.study.gradcheck.flow import changed, undone
from npgpt.study.gradcheck.source import (
    assigned_anywhere,
    backward_tree,
    names_in,
    parsed,
    read_source,
)
from npgpt.study.gradcheck.spelling import spelled
from npgpt.study.lessons.table import LESSONS, lesson_named

LEVELS = (1, 2, 3)
FOLDER = "exercises"
NUMPY = "import numpy as np"
READING = "reading"
TITLE = re.compile(
    r"# npgpt exercise: (.+?)(?: of (.+?\.py)(.*))?, "
    r"(long way|step \d|level [123]|bug \d+|reading)\s*"
)
IN_STEPS = ("layernorm",)  # its long way is also there as steps, with one blank each
MODELS_WORDS = """\
p: the parameters, a dict of dicts of arrays; dp: their gradients, with the same keys.
ops: the functions of the layers (NumPy's, or those of a faster engine).
cache: what the forward keeps for the backward, here with the caches of the layers that it calls."""
SHAPE = re.compile(r"(# (\d x )?\(.*?\))?")  # in a comment: "# (B, T, C)"
NAMED = ast.Name | ast.Tuple | ast.List | ast.Dict
HINT = (
    "The gradient of v is a sum over the forward's lines that read v: each adds the gradient of "
    "its result times its derivative with respect to v, summed over the axes along which v was "
    "broadcast."
)


@dataclasses.dataclass(frozen=True)
class Step:
    """An exercise. layer: the key of its lesson; what: "long way", "level 2", "bug 7" and so on.

    A "step 3" is the long way with only its third blank; "reading" has no blank at all.
    """

    layer: str
    what: str

    @functools.cached_property
    def lesson(self):
        """The lesson, with the backward that the exercise is about."""
        found = lesson_named(self.layer)
        is_long = self.what.startswith(("long", "step"))
        return dataclasses.replace(found, backward=found.long_way) if is_long else found

    @property
    def name(self):
        """The exercise's name in the list of progress."""
        return f"{Path(self.layer).name} {self.what}"

    @property
    def file(self):
        """The name of the exercise's file."""
        layer = re.match(r"[^ (]+", self.name)[0]  # without a constructor's arguments
        return f"{layer.replace('.py:', '-')}-{self.what.replace(' ', '')}.py"

    @property
    def is_bug(self):
        return self.what.startswith("bug")

    @property
    def is_reading(self):
        return self.what == READING

    @property
    def level(self):
        """The level, 0 for the long way; or the number of a step, or the seed of a bug."""
        return int(self.what.split()[1]) if self.what[-1].isdigit() else 0

    @property
    def left_out(self):
        """The statements of the package's backward that the learner writes, in order."""
        if self.is_bug or self.is_reading:
            return []
        if self.what.startswith("step"):
            return left_out(self.lesson, 0)[self.level - 1 : self.level]
        return left_out(self.lesson, self.level)


@dataclasses.dataclass(frozen=True)
class Exercise(Step):
    """A learner's file, read but not run."""

    path: Path
    text: str

    @functools.cached_property
    def statements(self):
        """The simple statements of the learner's backward, in order."""
        function = find_function(ast.parse(self.text), self.lesson.backward)
        return statements(function) if function else []

    @property
    def blanks(self):
        """Those that are still to be written."""
        return [statement for statement in self.statements if is_blank(statement)]


def step_text(step, path, backward=None):
    """Return the text of an exercise's file.

    path: where it will be. backward: other lines, without blanks.
    """
    lesson = step.lesson
    name = lesson.name
    lines = backward or blanked(lesson, step.left_out)
    task = (
        f"Replace each `...` in {lesson.backward.__name__} with code. The gradient of v is called "
        "dv; it has the shape of v and holds d(loss)/d(v). All that you need is in the forward "
        "and in its cache, the tuple that it keeps for the backward."
    )
    if step.is_reading:
        task = (
            f"Nothing is to be written here. Read {lesson.forward.__name__} from its first line to "
            f"its last, and {lesson.backward.__name__} beside it: it undoes the same lines in the "
            "opposite order, each by that layer's own backward. One line of it is a sum: which, "
            "and why?"
        )
    if step.is_bug:
        place = place_of(lesson, step.level)
        called = lesson.backward.__name__
        task = f"One line of {called} has a bug. Find it, fix it, and check the file."
        replace_code(lines, place, place, mistakes_of(lesson)[key_of(place)])
    if lesson.is_own:
        file = os.path.relpath(lesson.file, Path(path).parent)
        name = f"{lesson.what} of {' --input '.join([file, *lesson.given])}"
    header = [f"npgpt exercise: {name}, {step.what}", "", *textwrap.wrap(task, 98)]
    if lesson.is_composite:
        header += ["", *MODELS_WORDS.split("\n")]
    header += [
        "",
        f"    npgpt exercise check {path}            is it right?",
        f"    npgpt exercise check {path} --hint     a hint; one more at each call",
    ]
    header = [f"# {line}".rstrip() for line in header]
    forward = read_source(lesson.forward).lines
    parts = header, [preamble(lesson)], forward, without_explanations(lesson, lines)
    text = "\n\n\n".join("\n".join(lines) for lines in parts) + "\n"
    return outside_class(lesson.forward, text)


def outside_class(function, text):
    """Return the code of a method as code outside its class, where `self.__x` has another name."""
    owner = function.__qualname__.rpartition(".")[0].lstrip("_")
    return re.sub(r"\bself\.(__\w*[^\W_])\b", rf"self._{owner}\1", text) if owner else text


def preamble(lesson):
    """Return the imports, functions and constants that a lesson uses.

    The package's functions are imported, those of one's own file copied.
    """
    nodes = read_python(read_source(lesson.forward).file)[1].body
    imported = [] if lesson.is_own else [n for n in nodes if isinstance(n, ast.FunctionDef)]
    copied = [node for node in nodes if node not in imported]
    needed = names_in(parsed(lesson.forward)) | names_in(parsed(lesson.backward)) | {"*"}
    for _ in copied:  # also what they need themselves
        needed = needed.union(*(names_in(node) for node in copied if defined(node) & needed))
    needed -= {lesson.forward.__name__, lesson.backward.__name__}
    # the judge resolves relative imports itself
    copied = [node for node in copied if not getattr(node, "level", 0)]
    lines = [ast.unparse(node) for node in copied if defined(node) & needed]
    names = [node.name for node in imported if node.name in needed]
    if names:
        lines.append(f"from {lesson.forward.__module__} import {', '.join(names)}")
    if NUMPY not in lines:
        lines.insert(0, NUMPY)
    return "\n\n".join(lines)


def defined(node):
    """Return the names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    aliases = [each for each in ast.walk(node) if isinstance(each, ast.alias)]
    return assigned_anywhere(node) | {each.asname or each.name.split(".")[0] for each in aliases}


def blanked(lesson, left):
    """Return the lines of the lesson's backward without those statements; one `...` for all."""
    lines = list(read_source(lesson.backward).lines)
    if len(left) == len(statements(backward_tree(lesson))):
        _, indent, _, end = beginning(lines)
        return [*lines[:end], f"{indent}..."]
    for statement in reversed(left):
        replace_code(lines, statement, statement.value, "...")
    return lines


def replace_code(lines, statement, first, code):
    """Replace a statement from its node `first` on by code; its comment stays in its column."""
    last = lines[statement.end_lineno - 1]
    comment = last[statement.end_col_offset :].lstrip()
    begin = lines[first.lineno - 1][: first.col_offset]
    new = (begin + code).ljust(len(last) - len(comment) - 2)
    lines[first.lineno - 1 : statement.end_lineno] = [f"{new}  {comment}".rstrip()]


def left_out(lesson, level):
    """Return the statements of the lesson's backward that a level leaves out, in order."""
    keys = {key for key, note in notes_of(lesson).items() if note.level <= level}
    found = statements(backward_tree(lesson))
    return [each for each in found if level == 3 or key_of(each) in keys]


def notes_of(lesson):
    """Return the derivation's notes by the keys of lines.

    Without notes each gradient of one's own gets the same hint: level 1 leaves out the longest
    line, level 2 all. Raises UserError if one's own derivation is damaged.
    """
    try:
        notes = read_notes(lesson)
    except (KeyError, ValueError) as error:
        raise UserError(f"{lesson.derivation}: a note is damaged: {describe(error)}") from None
    if notes or not lesson.is_own:
        return notes
    source = read_source(lesson.backward)
    gradients = {*spelled(lesson.forward, lesson.backward, tuple(lesson.inputs)), *source.returned}
    lines = {each.first - source.first + 1: {*each.targets} for each in source.statements}
    lengths = {}
    for each in statements(backward_tree(lesson)):
        made = {name.rpartition(".")[2] for name in changed(each)} | lines.get(each.lineno, set())
        is_result = isinstance(each, ast.Return) and not isinstance(each.value, NAMED)
        if is_result or made & gradients and not isinstance(each.value, ast.Dict):
            lengths[key_of(each)] = len(ast.unparse(each.value))
    longest = max(lengths, key=lengths.get, default=None)  # the line that is most worth writing
    return {key: Note(HINT, HINT, 1 if key == longest else 2) for key in lengths}


@functools.cache
def levels_of(layer):
    """Return what exercises a layer has: "long way", steps, each "level N" that leaves out more."""
    lesson = lesson_named(layer)
    found, before = ["long way"] * bool(lesson.long_way), 0
    if layer in IN_STEPS:
        blanks = left_out(Step(layer, "long way").lesson, 0)
        found += [f"step {i}" for i, _ in enumerate(blanks, 1)]
    for level in LEVELS:
        number = sum(not is_given(each) for each in left_out(lesson, level))
        if number > before:
            found.append(f"level {level}")
        before = number
    return found


def step_named(layer, level=None):
    """Return the `Step` of a level: 1 or "1", "long", "step1"; by default the lowest one."""
    steps = {re.sub("level | way| ", "", what): Step(layer, what) for what in levels_of(layer)}
    level = next(filter(str.isdigit, steps)) if level is None else str(level)
    if level not in steps:
        raise UserError(f"{layer} has no level {level}: choose {', '.join(steps)}")
    return steps[level]


def beginning(lines):
    """Return a function's docstring or "", its indentation, and two numbers of lines.

    These are the lines before the docstring, and those up to its end.
    """
    function = ast.parse("\n".join(lines)).body[0]
    first, text = function.body[0], ast.get_docstring(function, clean=False) or ""
    if first.lineno == function.lineno:
        raise UserError(
            f"{function.name} has its code on the line of its def: begin a new line for it"
        )
    begin = first.lineno - 1
    return text, lines[begin][: first.col_offset], begin, first.end_lineno if text else begin


def without_explanations(lesson, lines):
    """Return the lines of a backward without what tells the answer in docstring and comments.

    The docstring up to its notes and the shapes remain. Comments quote the forward's lines.
    lines: the package's, perhaps with other statements, or with one `...` for all.
    """
    text, indent, begin, end = beginning(lines)
    kept = list(lines[:begin])
    if text:
        kept += docstring_without_notes(text, indent)
    above = quotations(lesson, lines)
    tokens = tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline)
    comments = {each.start[0]: each for each in tokens if each.type == tokenize.COMMENT}
    for i, line in enumerate(lines[end:], end + 1):
        if i in comments:
            code = line[: comments[i].start[1]]
            if not code.strip():
                continue
            line = (code + SHAPE.match(comments[i].string)[0]).rstrip()
        kept += [*above.get(i, ()), line]
    return kept


def docstring_without_notes(text, indent):
    """Return the lines of a docstring up to its notes; without sections its first sentence."""
    head, section, rest = inspect.cleandoc(text).partition("\n\nParameters\n")
    if section:
        head += section + rest.partition("\n\nNotes\n")[0] + "\n"
    else:
        sentence = " ".join(head.split("\n\n")[0].split()).split(". ")[0]
        head = sentence.rstrip(".") + "."
    return textwrap.indent(f'"""{head}"""'.replace("\\", "\\\\"), indent).split("\n")


def quotations(lesson, lines):
    """Return {line: comments above it}: the forward's lines, where they are undone first."""
    mine = statements(ast.parse("\n".join(lines)).body[0])
    first = read_source(lesson.backward).first
    quoted, above = set(), {}
    for each, own in zip(mine, statements(backward_tree(lesson))[-len(mine) :], strict=False):
        forward = undone(lesson, own.lineno + first - 1)
        if forward.keys() - quoted:
            quoted |= forward.keys()
            indent = " " * each.col_offset
            above[each.lineno] = [f"{indent}# {line}" for line in forward.values()]
    return above


def statements(function):
    """Return the simple statements of a function's tree, without docstrings, in order."""
    found = []
    for node in ast.walk(function):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                continue
            case ast.Assign() | ast.AugAssign() | ast.Expr() | ast.Return(value=ast.expr()):
                found.append(node)
    return sorted(found, key=lambda node: node.lineno)


def key_of(statement):
    """Return the key of a statement: its targets, what it calls, or "return"; "..." for a blank."""
    match statement:
        case ast.Return():
            return "return"
        case ast.Assign(targets=[target, *_]) | ast.AugAssign(target=target):
            return ", ".join(map(ast.unparse, getattr(target, "elts", [target])))
        case ast.Expr(value=ast.Call(func=called)):
            return ast.unparse(called)
    return ast.unparse(statement)


def is_given(statement):
    """Return whether a statement is not worth asking for: it reads the cache, or returns."""
    return isinstance(statement, ast.Return) or ast.unparse(statement.value) == "cache"


def package_statements(lesson):
    """Return key -> statement of the lines of the package's backward."""
    return {key_of(each): each for each in statements(backward_tree(lesson))}


def is_blank(node):
    """Return whether a statement contains a `...` that is not in an index, as in `x[..., 0]`."""
    if isinstance(node, ast.Subscript):
        return is_blank(node.value)
    is_dots = isinstance(node, ast.Constant) and node.value is ...
    return is_dots or any(map(is_blank, ast.iter_child_nodes(node)))


def read_title(path):
    """Return the `Step` of a learner's file.

    Raises UserError if it is no exercise; OSError as open.
    """
    first = read_bytes(path).split(b"\n", 1)[0].decode("utf-8-sig", "replace")
    title = TITLE.fullmatch(first)
    if not title or not title[2] and title[1] not in LESSONS:
        raise UserError(
            f"{path} is not an exercise file: its first line does not say which exercise it is"
        )
    layer, file, arguments, what = title.groups()
    if file:
        layer = f"{os.path.normpath(Path(path).parent / file)}:{layer}{arguments}"
    return Step(layer, what)


def read_exercise(path):
    """Return the `Exercise` in a file. Raises UserError, with the line, if it cannot be parsed."""
    step = read_title(path)
    text, _ = read_python(path)
    return Exercise(step.layer, step.what, Path(path), text)


def find_function(tree, function):
    """Return the last definition of a function's name in a file, also inside an `if`, or None."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found = [node for node in functions if node.name == function.__name__]
    return max(found, key=lambda node: node.lineno, default=None)


def forward_remark(exercise):
    """Return a sentence if the forward in an exercise's file was edited, or None."""
    lesson = exercise.lesson
    theirs = find_function(ast.parse(exercise.text), lesson.forward)
    text = outside_class(lesson.forward, "\n".join(read_source(lesson.forward).lines))
    if theirs is None or ast.dump(theirs) == ast.dump(ast.parse(text).body[0]):
        return None
    owner = lesson.file if lesson.is_own else "npgpt"
    return f"the {theirs.name} in this file differs from {owner}'s: the judge calls {owner}'s own"


@functools.cache
def bug_layers():
    """Return the layers that have exercises with bugs: those whose derivation notes a mistake."""
    return [name for name, lesson in LESSONS.items() if mistakes_of(lesson)]


def mistakes_of(lesson):
    """Return {key of a line of the backward: a common mistake in it}."""
    return {key: note.mistake for key, note in read_notes(lesson).items() if note.mistake}


def place_of(lesson, seed):
    """Return the statement in which a seed plants its bug."""
    mistakes = mistakes_of(lesson)
    places = [each for each in statements(backward_tree(lesson)) if key_of(each) in mistakes]
    return places[seed % len(places)]
