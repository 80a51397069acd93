"""Compile lines of a function that treat all rows alike as loops; NumPy runs the others."""

import ast
import functools
import inspect
from types import FunctionType

from npgpt.engine.loops.segment import LOCK, Segment
from npgpt.engine.loops.statements import bound_by, can_move, is_simple, names_in, reads, with_names
from npgpt.engine.sources import tree_of


@functools.cache
def compile_lines(function, donated=()):
    """Return a function with the same arguments and results, which calls compiled loops.

    donated: names of arguments that the caller does not need any more; results may take their
    memory. What cannot be compiled runs as it stands. The function is recompiled when it, or a
    function of its file that it calls, is edited. The loops are compared with NumPy: see check.py.
    """
    code = driver = None
    helpers = {}

    @functools.wraps(function)
    def call(*arguments, **named):
        nonlocal code, driver, helpers
        if function.__code__ is not code or helpers and helpers != helpers_of(function):
            with LOCK:
                helpers = helpers_of(function)
                driver, code = driver_of(function, donated, helpers), function.__code__
        return driver(*arguments, **named)

    return call


def helpers_of(function):
    """Return the functions of the same file whose names a function reads: name -> function."""
    code, module = function.__code__, function.__globals__
    known = {name: module[name] for name in code.co_names if name in module}
    return {
        name: each
        for name, each in known.items()
        if isinstance(each, FunctionType) and each.__code__.co_filename == code.co_filename
    }


def driver_of(function, donated, helpers):
    """Return the function with segments."""
    code, module, tree = function.__code__, function.__globals__, tree_of(function.__code__)
    if tree is None or not isinstance(function, FunctionType) or not can_move(tree, code, module):
        return function
    known, unshared = {*inspect.signature(function).parameters}, {*donated}
    names, body = {}, []
    statements = [*tree.body, ast.Pass()]
    while statements:
        n, bound = 0, known
        while is_simple(statements[n], bound):
            bound = bound | names_in([statements[n]], ast.Store)
            n += 1
        lines, (line, *statements) = statements[:n], statements[n:]
        read, written, later = reads(lines), names_in(lines, ast.Store), reads([line, *statements])
        nodes = ast.walk(ast.Module(lines, []))
        operations = [each for each in nodes if isinstance(each, ast.operator | ast.Call)]
        # NumPy has loops of one operation.
        worth = len(operations) > 1 or operations and read & unshared
        if worth and read & {*code.co_varnames} <= known:
            others = (read - known) & (module.keys() - {"np"})
            needed, results = sorted(read & known | others), sorted(written & later)
            given_up, part = unshared - (later - written), f"part_{len(names)}"
            segment = Segment(lines, needed, results, given_up, module, code.co_filename)
            names[f".{part}"], lines = segment, [segment.call(part)]
        body += [*lines, line]
        # A name that gets another value may stand for an array of another name.
        unshared -= read | written | reads([line]) | names_in([line], ast.Store)
        known |= written | bound_by(line)
        match line:
            case ast.Assign([ast.Name(name)], ast.BinOp(_, ast.MatMult())):
                unshared.add(name)
    names |= {name: compile_lines(each) for name, each in helpers.items()}
    if not names:
        return function
    never = ast.parse(f"if False:\n    {' = '.join([*code.co_varnames, 'None'])}").body
    # A name whose value nobody needs is not assigned any more; `never` keeps it the function's own.
    # Python has evaluated the defaults already, perhaps with names that are not there any more.
    bare = {"defaults": [], "kw_defaults": [None] * len(tree.args.kwonlyargs)}
    arguments = ast.arguments(**vars(tree.args) | bare)
    driver = ast.FunctionDef(tree.name, arguments, [*never, *body], [])
    driver = with_names(driver, module, names, code.co_filename)
    driver.__defaults__, driver.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return driver
