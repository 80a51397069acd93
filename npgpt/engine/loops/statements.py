"""The statements of a function: which may be in a loop, what they read and write, and new ones."""

import __future__

import ast
import inspect

import numpy as np

from npgpt.engine.loops.trace import KNOWN

SIMPLE = (
    ast.Assign,
    ast.AugAssign,
    ast.If,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.IfExp,
    ast.Call,
    ast.Attribute,
    ast.Name,
    ast.Constant,
    ast.keyword,
    ast.operator,
    ast.unaryop,
    ast.cmpop,
    ast.expr_context,
)
INSPECTING = {"locals", "vars", "dir", "eval", "exec", "globals"}
METHODS = {"sum", "mean", "max", "reshape"}  # of arrays


def can_move(tree, code, module):
    """Return whether a function's lines can move to another function.

    `np` must be NumPy, and no line may inspect names or scopes.
    """
    nodes = [*ast.walk(tree)]
    names = {each.id for each in nodes if isinstance(each, ast.Name)}
    attributes = {each.attr for each in nodes if isinstance(each, ast.Attribute)}
    private = any(each.startswith("__") for each in names | attributes)  # a class respells them
    flags = code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE)
    other = flags or code.co_freevars or code.co_cellvars
    scopes = any(isinstance(each, ast.Global | ast.Nonlocal) for each in nodes)
    numpys = "np" not in names or "np" not in code.co_varnames and module.get("np") is np
    return numpys and not (tree.decorator_list or other or private or scopes or names & INSPECTING)


def is_simple(statement, known):
    """Return whether a statement has a form that may be in a loop. known: names with a value."""
    called = [each.func for each in ast.walk(statement) if isinstance(each, ast.Call)]
    for each in ast.walk(statement):
        match each:
            case ast.Call(ast.Attribute(ast.Name("np"), name)) if name in KNOWN:
                pass
            case ast.Call(ast.Attribute(_, name)) if name in METHODS:
                pass
            case ast.Call(ast.Name("erf")) | ast.Attribute(ast.Name("np")):
                pass
            case ast.Attribute() if each not in called:
                return False
            case ast.Compare(_, signs, others) if asks_identity(signs, others):
                return False  # two names may be of one array
            case ast.Call() | ast.MatMult():
                return False
            case ast.Assign(targets) if [type(target) for target in targets] != [ast.Name]:
                return False
            case ast.If() if not names_in([each], ast.Store) <= known:
                return False
            case _ if not isinstance(each, SIMPLE):
                return False
    return isinstance(statement, ast.Assign | ast.AugAssign | ast.If)


def asks_identity(signs, others):
    """Return whether a comparison asks if something is another thing than None."""
    asks = {ast.Is, ast.IsNot} & {*map(type, signs)}
    return asks and any(ast.unparse(each) != "None" for each in others)


def names_in(statements, context):
    """Return the names that statements read (ast.Load) or assign (ast.Store); x += y does both."""
    nodes = [*ast.walk(ast.Module(statements, []))]
    targets = [each.target for each in nodes if isinstance(each, ast.AugAssign)]
    found = {each.id for each in targets if isinstance(each, ast.Name)}
    names = [each for each in nodes if isinstance(each, ast.Name)]
    return found | {each.id for each in names if isinstance(each.ctx, context)}


def reads(statements):
    """Return the names that statements may read before they assign them, or leave unassigned."""
    found, assigned = set(), set()
    for each in statements:
        unsure = names_in([each], ast.Store) - bound_by(each)
        found |= (names_in([each], ast.Load) | unsure) - assigned
        assigned |= bound_by(each)
    return found


def bound_by(statement):
    """Return the names that a statement always assigns."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {each.asname or each.name for each in statement.names}
    assigns = isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign)
    return names_in([statement], ast.Store) if assigns and statement.value else set()


class Spelled(ast.NodeTransformer):
    """Rewrite generated code, in which users' names end with "_". Others get a dot, as none has."""

    def visit_Name(self, node):
        node.id = node.id[:-1] if node.id.endswith("_") else f".{node.id}"
        return node


def generated(text, line):
    """Return the statements of generated code, at a line of the user's file. See `Spelled`."""
    tree = Spelled().visit(ast.parse(text))
    for each in ast.walk(tree):
        if hasattr(each, "lineno"):
            each.lineno = each.end_lineno = line
    return tree.body


def in_user(names):
    """Return users' names as generated code spells them."""
    return [f"{name}_" for name in names]


def with_names(tree, module, more, file):
    """Return the function of a tree with the global names of its module, and more."""
    arguments = ast.arguments([], [ast.arg(name) for name in more], None, [], [], None, [])
    body = [tree, ast.Return(ast.Name(tree.name, ast.Load()))]
    outer = ast.Module([ast.FunctionDef("outer", arguments, body, [])], [])
    found, flag = {}, __future__.annotations.compiler_flag  # annotations are not evaluated
    exec(compile(ast.fix_missing_locations(outer), file, "exec", flag), module, found)
    return found["outer"](**more)
