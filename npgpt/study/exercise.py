"""Exercise files: a layer's forward as it stands in the package, and its backward with lines left out to be written.

A file says in its first line which exercise it is. It imports all that it needs, so it is a program like any other;
what is to be written stands there as `...`. Here it is only read and parsed; `judge.py` runs it.
"""

import ast
import dataclasses
import inspect
import os
import re
import sys
import textwrap
from pathlib import Path

from npgpt.errors import UserError, one_line
from npgpt.files import make_folder, read_bytes, write_atomically
from npgpt.study.lessons import chosen_lessons
from npgpt.study.source import read_source

# The lines of each backward that are left out at level 1 and at level 2, by what they assign or call (see `key_of`).
BLANKS = {
    "linear": (["dweight"], ["dbias", "dweight", "drows"]),
    "gelu_tanh": (["dinner"], ["dx_outside", "dphi", "dinner", "dx_inside"]),
    "gelu_exact": (["density"], ["dx_outside", "density", "dx_inside"]),
    "layernorm": (["dx"], ["dbias", "dweight", "dxhat", "dx"]),
    "softmax_loss": (["dlogits"], ["dlosses", "dlogits", "np.put_along_axis"]),
    "cross_entropy": (["return"], ["return"]),
    "embedding": (["dposition"], ["dposition", "dwpe[:T]", "add_rows_by_index"]),
    "head": (["drows"], ["dweight", "drows"]),
    "dropout": (["dx"], ["dx"]),
    "attention": (["dmasked"], ["dkept", "dv", "datt", "dmasked", "dk", "dq"]),
    "self_attention": (["dqkv"], ["dmerged", "dmix", "dqkv"]),
    "mlp": (["dhidden"], ["dactive", "dhidden", "dx"]),
    "block": (["dx_mid"], ["dthought", "dx_mid", "dattended", "dx"]),
}
LEVELS = (1, 2, 3)
FOLDER = "exercises"
TITLE = "# npgpt exercise: {}, {}"
TITLE_PATTERN = re.compile(r"# npgpt exercise: (\w+), (level [123]|bug \d+)\s*")


@dataclasses.dataclass(frozen=True)
class Exercise:
    """A learner's file, read but not run. what: "level 2" or "bug 7"; function: the tree of the learner's backward."""

    path: Path
    lesson: object
    what: str
    function: ast.FunctionDef

    @property
    def name(self):
        """The exercise's name in the list of progress."""
        return f"{self.lesson.name} {self.what}"

    @property
    def is_bug(self):
        return self.what.startswith("bug")


def exercise_lesson(name):
    """The lesson of that name; UserError where there is none, or no exercise on it."""
    if name == "all":
        raise UserError(f"an exercise is on one layer: choose one of {', '.join(BLANKS)}")
    [lesson] = chosen_lessons(name)
    if name not in BLANKS:
        raise UserError(f"there is no exercise on {name}, which only puts other layers' backwards together: "
                        f"choose one of {', '.join(BLANKS)}")
    return lesson


def level_text(lesson, level, path):
    """The text of an exercise file at a level; path: what the header calls it."""
    task = [f"Write what is missing in {lesson.backward.__name__}: put your own code in place of each `...`. The "
            "gradient of v is called dv; it has the shape of v and holds d(loss)/d(v). All that you need stands in the "
            "forward and in its cache."]
    commands = {"": "is it right? line by line", " --hint": "a hint, and the next one at each further call"}
    return file_text(lesson, f"level {level}", task, commands, path, blanked(lesson, level))


def file_text(lesson, what, task, commands, path, backward):
    """An exercise file: header, imports, the forward, and the lines of a backward.

    task: paragraphs; commands: what follows `npgpt exercise check FILE` -> what it is for.
    """
    shown = str(path) if str(path).isprintable() else "FILE"
    header = [TITLE.format(lesson.name, what), "#"]
    for paragraph in task:
        header += [f"# {line}" for line in textwrap.wrap(paragraph, 110)] + ["#"]
    header += [f"#     npgpt exercise check {shown}{flags:<10}  {purpose}" for flags, purpose in commands.items()]
    forward = list(read_source(lesson.forward).lines)
    parts = ["\n".join(header), *preamble(lesson), "\n".join(forward), "\n".join(backward)]
    return "\n\n\n".join(parts) + "\n"


def preamble(lesson):
    """What a lesson's two functions need from their module: its imports, and the constants and helpers themselves.

    Returns one text for the imports and constants, and one for each helper. Other layers of the module are imported.
    """
    function = inspect.unwrap(lesson.forward)
    module = sys.modules[function.__module__]
    tree = ast.parse(inspect.getsource(module))
    lines = inspect.getsource(module).split("\n")
    pair = {lesson.forward.__name__, lesson.backward.__name__}
    defined = {name: node for node in tree.body for name in names_made_by(node)}
    needed, waiting = set(), [node for node in tree.body if getattr(node, "name", None) in pair]
    while waiting:
        statement = waiting.pop()
        statement.decorator_list = []       # it is not shown, so its name is not needed
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id in defined and node.id not in needed | pair:
                needed.add(node.id)
                if is_copied(defined[node.id]):
                    waiting.append(defined[node.id])

    imports, constants, helpers, others = [], [], [], []
    for node in tree.body:
        names = [name for name in names_made_by(node) if name in needed]
        if not names:
            continue
        text = "\n".join(lines[node.lineno - 1:node.end_lineno])
        if isinstance(node, ast.ImportFrom):
            imports.append(f"from {node.module} import {', '.join(names)}")
        elif isinstance(node, ast.Import):
            imports.append(text)
        elif not is_copied(node):
            others += names
        elif isinstance(node, ast.Assign):
            constants.append(text)
        else:
            helpers.append(text)
    if others:
        imports.append(f"from {module.__name__} import {', '.join(sorted(others))}")
    groups = [[line for line in imports if import_group(line) == group] for group in (0, 1, 2)]
    heads = ["\n".join(group) for group in [*groups, constants] if group]
    return (["\n\n".join(heads)] if heads else []) + helpers


def names_made_by(node):
    """The names that a statement of a module makes."""
    match node:
        case ast.Import() | ast.ImportFrom():
            return [(alias.asname or alias.name) for alias in node.names]
        case ast.FunctionDef():
            return [node.name]
        case ast.Assign():
            return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def is_copied(node):
    """Whether an exercise shows this statement of the module itself: a constant, or a helper that is no layer."""
    return isinstance(node, ast.Assign) or \
        isinstance(node, ast.FunctionDef) and not node.name.endswith(("_forward", "_backward"))


def import_group(line):
    """0 for the standard library, 1 for other packages, 2 for npgpt."""
    package = line.split()[1].split(".")[0]
    return 2 if package == "npgpt" else 0 if package in sys.stdlib_module_names else 1


def blanked(lesson, level):
    """The lines of the lesson's backward with the lines of that level left out."""
    lines = list(read_source(lesson.backward).lines)
    function = ast.parse("\n".join(lines)).body[0]
    if level == 3:
        start = function.body[0].lineno - 1         # the docstring
        return lines[:start] + short_docstring(ast.get_docstring(function)) + ["    ..."]
    keys = BLANKS[lesson.name][level - 1]
    for statement in reversed(statements(function)):
        if key_of(statement) in keys:
            lines[statement.lineno - 1:statement.end_lineno] = placeholder(lines, statement)
    return lines


def placeholder(lines, statement):
    """The lines that stand in a statement's place: its right side is `...`, its comment stays where it was."""
    value = statement.value
    last = lines[statement.end_lineno - 1]
    comment = last[statement.end_col_offset:].strip()
    new = lines[value.lineno - 1][:value.col_offset] + "..."
    if comment:
        new = new.ljust(last.index(comment, statement.end_col_offset)) + comment
    return [*lines[statement.lineno - 1:value.lineno - 1], new]


def short_docstring(docstring):
    """The lines of a docstring without its derivation: what comes in and out, and what the arguments are."""
    first, *rest = docstring.split("\n\n")
    kept = [first, *(paragraph for paragraph in rest if re.match(r"d\w+(, d\w+)*: ", paragraph))]
    text = "\n\n".join(kept)
    return textwrap.indent(f'"""{text}\n"""' if "\n" in text else f'"""{text}"""', "    ").split("\n")


def statements(function):
    """The simple statements of a function's tree that compute or return something, in order."""
    def is_text(node):
        return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is not ...

    found = [node for node in ast.walk(function)
             if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.Return) and not is_text(node)]
    return sorted(found, key=lambda node: node.lineno)


def key_of(statement):
    """What a statement is known by: its (first) target, the function that it calls, or "return"; "..." for a blank."""
    match statement:
        case ast.Return():
            return "return"
        case ast.Assign(targets=[ast.Tuple(elts=[target, *_]), *_]) | ast.Assign(targets=[target, *_]):
            return ast.unparse(target)
        case ast.AugAssign(target=target):
            return ast.unparse(target)
        case ast.Expr(value=ast.Call(func=called)):
            return ast.unparse(called)
    return ast.unparse(statement)


def is_blank(statement):
    """Whether a `...` that is to be written stands in a statement. (`x[..., 0]` and "..." are no such thing.)"""
    nodes = list(ast.walk(statement))
    in_index = {id(part) for node in nodes if isinstance(node, ast.Subscript) for part in ast.walk(node.slice)}
    return any(isinstance(node, ast.Constant) and node.value is ... and id(node) not in in_index for node in nodes)


def write_new(path, text):
    """Write an exercise file; UserError if there is something already, which may be the learner's work."""
    path = Path(path)
    if os.path.lexists(path):
        raise UserError(f"{path} is there already: choose another name with --out, or delete it")
    make_folder(path.parent)
    write_atomically(path, text.encode("utf-8", "replace"))


def read_exercise(path):
    """The `Exercise` in a learner's file. UserError, with the line, for whatever makes it none; OSError as open."""
    path = Path(path)
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[:error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not UTF-8 text ({error.reason})") from None
    title = TITLE_PATTERN.fullmatch(text.split("\n", 1)[0].rstrip("\r"))
    if title is None or title[1] not in BLANKS:
        raise UserError(f"{path} is not an exercise file: `npgpt exercise LAYER` writes one, and its first line says "
                        "which exercise it is")
    lesson = exercise_lesson(title[1])
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""         # none for a null byte
        raise UserError(f"{path}{line}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:      # null bytes in older Pythons; deep brackets
        raise UserError(f"{path} cannot be parsed: {error}") from None
    return Exercise(path, lesson, title[2], find_function(path, tree, lesson.backward))


def find_function(path, tree, backward):
    """The tree of the learner's version of a backward; UserError where it is missing or takes other arguments."""
    name = backward.__name__
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not found:
        raise UserError(f"{path} has no function {name}: the function to write must keep its name")
    wanted = ast.unparse(ast.parse("\n".join(read_source(backward).lines)).body[0].args)
    if ast.unparse(found[-1].args) != wanted:
        raise UserError(f"{path}, line {found[-1].lineno}: the function must be {name}({wanted}), "
                        f"not {name}({one_line(ast.unparse(found[-1].args), 200)})")
    return found[-1]


def blanks_left(exercise):
    """The statements of a learner's backward that are still to be written, in order."""
    return [statement for statement in statements(exercise.function) if is_blank(statement)]
