"""Watch the lines of a function: a copy of it calls `watch(line, name, value)` after each one.

The name that a statement assigns gets what `watch` returns. So a watcher can record arrays (the
checks of gradients), edit them (activations.py) or perturb them (central differences). The copy
has the file and the line numbers of the function, so tracebacks and breakpoints show the lines
that were written.
"""

import ast
import copy
import functools
from types import CellType, CodeType, FunctionType, MethodType

from npgpt.engine.sources import tree_of
from npgpt.errors import UserError

CALL = "__watch__"


class Watch(ast.NodeTransformer):
    """Insert the calls into the statements of a function, but not into functions inside it."""

    def targets(self, node):
        """Return what a statement assigns and is watched."""
        return assigned_names(node)

    def visit_Assign(self, node):
        self.generic_visit(node)
        text = calls(node.lineno, self.targets(node)) or f"{CALL}({node.lineno}, None, None)"
        return [node, *located(ast.parse(text), node).body]

    visit_AugAssign = visit_AnnAssign = visit_Expr = visit_Assign

    def visit_Return(self, node):
        self.generic_visit(node)
        call = located(ast.parse(f"{CALL}({node.lineno}, None)"), node).body[0].value
        call.args.append(node.value or ast.Constant(None))
        node.value = call
        return node

    def visit_FunctionDef(self, node):
        return node

    visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = visit_FunctionDef


LINES = Watch()


def watched(function, watch, tree=None, visitor=LINES, **names):
    """Return a copy of a function that calls `watch` for its arguments, then after each statement.

    watch(line, name, value) returns the value for the name; the name is None if a statement
    assigns none. The line of an argument is that of the `def`.
    tree: of its `def`, if it was not compiled from its file as that is; visitor: inserts the
    calls; names: what else they need.
    Raises UserError if its file has changed since import.
    """
    if isinstance(function, MethodType):
        new = watched(function.__func__, watch, tree, visitor, **names)
        return MethodType(new, function.__self__)
    old, names = function.__code__, {CALL: watch, **names}
    code = code_of(tree or tree_in_file(old), old, visitor, *names)
    code = code.replace(co_filename=old.co_filename)  # equal codes may be of different files
    cells = dict(zip(old.co_freevars, function.__closure__ or (), strict=True))
    cells |= {name: CellType(value) for name, value in names.items()}
    closure = tuple(cells[name] for name in code.co_freevars)
    there, defaults = function.__globals__, function.__defaults__
    new = FunctionType(code, there, function.__name__, defaults, closure)
    new.__kwdefaults__ = function.__kwdefaults__
    return new


def is_watched(code):
    """Return whether a function's code has the calls."""
    return CALL in code.co_freevars


def tree_in_file(code):
    """Return the syntax tree of a function's code.

    Raises UserError if its file has changed since import.
    """
    tree = code and tree_of(code)
    if tree is None:
        name = code.co_name if code else "a function"
        raise UserError(
            f"{name} has no lines to read: define it by def, in a file or a notebook, "
            "and load it again after a change"
        )
    return tree


@functools.lru_cache(1024)
def code_of(tree, old, visitor, *names):
    """Return the code of a function with the calls. names: the variables that these read."""
    new = copy.deepcopy(tree)
    new.name, new.decorator_list = "__copy__", []  # its own name is that of the function
    arguments = [each.arg for each in (*new.args.posonlyargs, *new.args.args)]
    visitor.generic_visit(new)
    new.body[:0] = located(ast.parse(calls(new.lineno, arguments)), new).body
    # A class around it mangles `self.__x` of a method as its own does, which has another name.
    owner = "".join(old.co_qualname.split(".")[-2:-1]).replace("<locals>", "")
    text = f"def around({', '.join({*old.co_freevars, *names})}):\n class ___{owner}: pass"
    around = ast.parse(text)
    around.body[0].body[0].body = [new]
    codes = [compile(ast.fix_missing_locations(around), old.co_filename, "exec")]
    for each in codes:
        codes += [part for part in each.co_consts if isinstance(part, CodeType)]
    code = next(each for each in codes if each.co_name == new.name)
    return code.replace(co_name=old.co_name, co_qualname=old.co_qualname)


def calls(line, names):
    """Return lines of code that call `watch` for some names; that of `self.x` is x."""
    return "\n".join(
        f"{name} = {CALL}({line}, {name.rpartition('.')[2]!r}, {name})" for name in names
    )


def located(tree, node):
    """Return the tree with the line numbers of a node."""
    for each in ast.walk(tree):
        ast.copy_location(each, node)
    return tree


def assigned_names(node):
    """Return the plain names that a statement assigns: q, k for `q, k = …`, x for `x += …`."""
    match node:
        case ast.Assign(targets):
            parts = [part for each in targets for part in getattr(each, "elts", [each])]
        case ast.AugAssign(target) | ast.AnnAssign(target, value=ast.expr()):
            parts = [target]
        case _:
            parts = []
    return tuple(dict.fromkeys(part.id for part in parts if isinstance(part, ast.Name)))
