"""Exercise files: the forward of a layer, and its backward with `...` for some lines.

The derivation of the layer says which level leaves out which lines. The first line of a file says which exercise it is.
The file imports all that it needs, so it is an ordinary program. This module only reads and parses it; the judge runs
it.
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
from npgpt.study.gradcheck.source import backward_tree, names_in, parsed, read_source
from npgpt.study.gradcheck.spelling import spelled
from npgpt.study.lessons.table import LESSONS, lesson_named

LEVELS = (1, 2, 3)
FOLDER = "exercises"
TITLE = re.compile(
    r"# npgpt exercise: (.+?)(?: of (.+?\.py)(.*))?, (long way|level [123]|bug \d+)\s*"
)
HINT = ("The gradient of v is a sum over the forward's lines that read v: each adds the gradient of its result times "
        "its derivative with respect to v, summed over the axes along which v was broadcast.")


@dataclasses.dataclass(frozen=True)
class Step:
    """An exercise. layer: the key of its lesson; what: "long way", "level 2" or "bug 7"."""

    layer: str
    what: str

    @functools.cached_property
    def lesson(self):
        """The lesson, with the backward that the exercise is about."""
        found = lesson_named(self.layer)
        return dataclasses.replace(found, backward=found.long_way) if self.what == "long way" else found

    @property
    def name(self):
        """The exercise's name in the list of progress."""
        return f"{Path(self.layer).name} {self.what}"

    @property
    def file(self):
        """The name of the exercise's file."""
        name = re.match(r"[^ (]+", self.name)[0]        # without a constructor's arguments
        name = name.replace(".py:", "-")
        return f"{name}-{self.what.replace(' ', '')}.py"

    @property
    def is_bug(self):
        return self.what.startswith("bug")

    @property
    def level(self):
        """The level, 0 for the long way; or the seed of a bug."""
        return 0 if self.what == "long way" else int(self.what.split()[1])


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


def level_text(lesson, level, path, backward=None):
    """Return the text of an exercise file. path: its name in the header; backward: lines instead of `blanked` ones."""
    task = (f"Replace each `...` in {lesson.backward.__name__} with code. The gradient of v is called dv; it has the "
            "shape of v and holds d(loss)/d(v). All that you need is in the forward and in its cache.")
    commands = {"": "is it right? line by line", " --hint": "a hint, and the next one at each further call"}
    what = f"level {level}" if level else "long way"
    return file_text(lesson, what, task, commands, path, backward or blanked(lesson, level))


def file_text(lesson, what, task, commands, path, backward):
    """Return the text of a file. task: a paragraph; commands: options of `npgpt exercise check` -> what they do."""
    shown = str(path) if str(path).isprintable() else "FILE"
    name = lesson.name
    if lesson.is_own:
        of = " --input ".join([os.path.relpath(lesson.file, Path(path).parent), *lesson.given])
        name = f"{lesson.what} of {of}"
    header = [f"# npgpt exercise: {name}, {what}", "#"]
    header += [*(f"# {line}" for line in textwrap.wrap(task, 110)), "#"]
    header += [f"#     npgpt exercise check {shown}{flags:<10}  {purpose}" for flags, purpose in commands.items()]
    parts = header, [preamble(lesson)], read_source(lesson.forward).lines, without_explanations(lesson, backward)
    text = "\n\n\n".join("\n".join(lines) for lines in parts) + "\n"
    owner = lesson.is_own and lesson.forward.__qualname__.rpartition(".")[0].lstrip("_")
    if owner:           # outside of its class `self.__x` has another name
        text = re.sub(r"\bself\.(__\w*[^\W_])\b", rf"self._{owner}\1", text)
    return text


def preamble(lesson):
    """Return the imports, functions and constants that a lesson uses; those of one's own file are copied."""
    nodes = read_python(read_source(lesson.forward).file)[1].body
    used = names_in(parsed(lesson.forward)) | names_in(parsed(lesson.backward))
    if lesson.is_own:
        for _ in nodes:         # what they use is used, too
            used = used.union(*(names_in(node) for node in nodes if defined(node) & used))
        wanted = {*used, "*"} - {lesson.forward.__name__, lesson.backward.__name__}
        return "\n\n".join(
            ast.unparse(node)
            for node in nodes
            if defined(node) & wanted and not getattr(node, "level", 0)
        )  # the judge knows what a relative import gets
    module = inspect.getmodule(lesson.forward)
    imports = {ast.unparse(node) for node in nodes if isinstance(node, ast.Import)} | {"import numpy as np"}
    functions = sorted(node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name in used)
    layers = [f"from {module.__name__} import {', '.join(functions)}"] if functions else []
    constants = [ast.unparse(node) for node in nodes if isinstance(node, ast.Assign) and node.targets[0].id in used]
    return "\n\n".join([*sorted(imports), *layers, "\n".join(constants)]).rstrip()


def defined(node):
    """Return the names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)} | {
        each.asname or each.name.split(".")[0] for each in ast.walk(node) if isinstance(each, ast.alias)}


def blanked(lesson, level):
    """Return the lines of the lesson's backward without the lines of that level."""
    lines = list(read_source(lesson.backward).lines)
    if level == 3:
        _, indent, _, end = beginning(lines)
        return [*lines[:end], f"{indent}..."]
    for statement in reversed(left_out(lesson, level)):
        lines[statement.lineno - 1:statement.end_lineno] = placeholder(lines, statement)
    return lines


def left_out(lesson, level):
    """Return the statements of the lesson's backward that a level leaves out, in order."""
    keys = {key for key, note in notes_of(lesson).items() if note.level <= level}
    return [each for each in statements(backward_tree(lesson)) if level == 3 or key_of(each) in keys]


def notes_of(lesson):
    """Return the derivation's notes by the keys of lines. Raises UserError if one's own derivation
    is damaged.

    Without notes each gradient of one's own gets the same hint: level 1 leaves out the longest
    line, level 2 all.
    """
    try:
        notes = read_notes(lesson, long=lesson.backward is lesson.long_way)
    except (KeyError, ValueError) as error:
        raise UserError(f"{lesson.derivation}: a note is damaged: {describe(error)}") from None
    if notes or not lesson.is_own:
        return notes
    source = read_source(lesson.backward)
    lines = {each.first - source.first + 1: {*each.targets} for each in source.statements}
    made = {
        each: {name.rpartition(".")[2] for name in changed(each)} | lines.get(each.lineno, set())
        for each in statements(backward_tree(lesson))
        if not isinstance(each.value, ast.Dict)
    }
    known = spelled(lesson.forward, lesson.backward, tuple(lesson.inputs))
    returned = {*source.returned}
    keys = {
        key_of(each): len([*ast.walk(each.value)])
        for each, names in made.items()
        if any(name in known or name in returned for name in names)
        or isinstance(each, ast.Return)
        and not isinstance(each.value, ast.Name | ast.Tuple | ast.List | ast.Dict)
    }
    longest = max(keys, key=keys.get, default=None)         # the line that is most worth writing
    return {key: Note(HINT, 1 if key == longest else 2) for key in keys}


@functools.cache
def levels_of(layer):
    """Return the exercises that a layer has: "long way", and each "level N" that leaves out more than the one below."""
    lesson = lesson_named(layer)
    numbers = [sum(lesson.is_own or not isinstance(each, ast.Return) for each in left_out(lesson, level))
               for level in LEVELS]
    more = [f"level {level}" for level, n, less in zip(LEVELS, numbers, [0, *numbers], strict=False) if n > less]
    return ["long way"] * (lesson.long_way is not None) + more


def beginning(lines):
    """Return a function's docstring or "", its indentation, and the numbers of lines before it and up to its end."""
    function = ast.parse("\n".join(lines)).body[0]
    first, text = function.body[0], ast.get_docstring(function, clean=False) or ""
    if first.lineno == function.lineno:
        raise UserError(f"{function.name} has its code on the line of its def: begin a new line for it")
    begin = first.lineno - 1
    return text, lines[begin][:first.col_offset], begin, first.end_lineno if text else begin


def without_explanations(lesson, lines):
    """Return the lines of a lesson's backward without the explanations in docstring and comments: they tell the answer.

    The first sentence of the docstring and the shapes remain. Comments quote the forward's lines above the first
    statement that undoes them. lines: the package's, perhaps with other statements, or with one `...` for all.
    """
    (text, indent, begin, end), quoted, above = beginning(lines), set(), {}
    sentence = " ".join(text.split("\n\n")[0].split()).split(". ")[0].rstrip(".").replace("\\", "\\\\")
    mine, first = statements(ast.parse("\n".join(lines)).body[0]), read_source(lesson.backward).first
    for each, own in zip(mine, statements(backward_tree(lesson))[-len(mine):], strict=False):
        forward = undone(lesson, own.lineno + first - 1)
        if forward.keys() - quoted:
            above[each.lineno] = [f"{' ' * each.col_offset}# {line}" for line in forward.values()]
            quoted |= forward.keys()
    comments = {token.start[0]: token.start[1] for token in tokenize.generate_tokens(
        io.StringIO("\n".join(lines)).readline) if token.type == tokenize.COMMENT}
    kept = [*lines[:begin], *[f'{indent}"""{sentence}."""'] * bool(text)]
    for i, line in enumerate(lines[end:], end + 1):
        code = line[:comments.get(i)]
        shape = re.match(r"(# (\d x )?\(.*?\))?", line[len(code):])[0]
        if i not in comments or code.strip():
            kept += [*above.get(i, ()), (code + shape).rstrip() if i in comments else line]
    return kept


def placeholder(lines, statement):
    """Return the lines that replace a statement: its right side becomes `...`, its comment stays where it was."""
    value, last = statement.value, lines[statement.end_lineno - 1]
    comment = last[statement.end_col_offset:].lstrip()
    new = f"{lines[value.lineno - 1][:value.col_offset]}...".ljust(len(last) - len(comment)) + comment
    return [*lines[statement.lineno - 1:value.lineno - 1], new.rstrip()]


def statements(function):
    """Return the simple statements of a function's tree, without docstrings, in order."""
    found = [node for node in ast.walk(function) if isinstance(node, ast.Assign | ast.AugAssign | ast.Return)
             and node.value or isinstance(node, ast.Expr) and not isinstance(getattr(node.value, "value", None), str)]
    return sorted(found, key=lambda node: node.lineno)


def key_of(statement):
    """Return the key of a statement: all its targets, the function that it calls, or "return"; "..." for a blank."""
    match statement:
        case ast.Return():
            return "return"
        case ast.Assign(targets=[ast.Tuple(elts=targets), *_]):
            return ", ".join(map(ast.unparse, targets))
        case ast.Assign(targets=[target, *_]) | ast.AugAssign(target=target):
            return ast.unparse(target)
        case ast.Expr(value=ast.Call(func=called)):
            return ast.unparse(called)
    return ast.unparse(statement)


def is_blank(statement):
    """Return whether a statement contains a `...` that is not in an index, as in `x[..., 0]`."""
    nodes = list(ast.walk(statement))
    in_index = {id(part) for node in nodes if isinstance(node, ast.Subscript) for part in ast.walk(node.slice)}
    return any(isinstance(node, ast.Constant) and node.value is ... and id(node) not in in_index for node in nodes)


def read_title(path):
    """Return the `Step` of a learner's file. Raises UserError if it is no exercise; OSError as open."""
    first = read_bytes(path).split(b"\n", 1)[0].decode("utf-8-sig", "replace")
    title = TITLE.fullmatch(first.rstrip("\r"))
    if title is None or title[2] is None and title[1] not in LESSONS:
        raise UserError(f"{path} is not an exercise file, because its first line does not say which exercise it is")
    own = title[2] and f"{os.path.normpath(Path(path).parent / title[2])}:{title[1]}{title[3]}"
    return Step(own or title[1], title[4])


def read_exercise(path):
    """Return the `Exercise` in a learner's file. Raises UserError, with the line, if it cannot be parsed."""
    step = read_title(path)
    text, _ = read_python(path)
    return Exercise(step.layer, step.what, Path(path), text)


def find_function(tree, function):
    """Return the last definition of a function's name in the tree of a file, also inside an `if`, or None."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function.__name__]
    return max(found, key=lambda node: node.lineno, default=None)


def forward_remark(exercise):
    """Return a sentence if the forward in an exercise's file was edited, or None. Comments do not count."""
    forward = exercise.lesson.forward
    owner = forward.__qualname__.rpartition(".")[0].lstrip("_")
    text = exercise.text.replace(f"self._{owner}__", "self.__") if owner else exercise.text
    theirs = find_function(ast.parse(text), forward)
    if theirs is None or ast.dump(theirs) == ast.dump(parsed(forward)):
        return None
    owner = exercise.lesson.file if exercise.lesson.is_own else "npgpt"
    return f"the {forward.__name__} in this file differs from {owner}'s: the judge calls {owner}'s own"
