"""What the compilers of lesson lines share: `loops` compiles them for a CPU, `fused` for a GPU."""

import ast
import functools
import inspect
import itertools
import re
import threading
from collections.abc import Hashable
from types import FunctionType

import numpy as np

from npgpt.engine.sources import tree_of

LOCK = threading.RLock()
MOST_KINDS = 128    # of arguments for which lines are compiled; with more, they run as they stand
SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.If, ast.BinOp, ast.UnaryOp, ast.Compare,
          ast.IfExp, ast.Call, ast.Attribute, ast.Name, ast.Constant, ast.keyword,
          ast.operator, ast.unaryop, ast.cmpop, ast.expr_context)
INSIGHT = {"locals", "vars", "dir", "eval", "exec", "globals"}  # they see which names there are


def compiled(function, donated, fits, part, again):
    """Return a function with the same arguments and results, with a `part` for lines that fit.

    fits(statement, known): as `is_simple`; again: compiles functions of the same file. Other code
    is compiled anew, also that of these functions.
    """
    code = driver = None
    helpers = {}

    @functools.wraps(function)
    def call(*arguments, **named):
        nonlocal code, driver, helpers
        other = any(function.__globals__.get(name) is not each for name, each in helpers.items())
        if function.__code__ is not code or other:
            with LOCK:
                helpers = helpers_of(function)
                driver = driver_of(function, donated, fits, part, again, helpers)
                code = function.__code__
        return driver(*arguments, **named)

    call.parts = lambda: getattr(driver, "parts", [])
    return call


def helpers_of(function):
    """Return name -> function of those of the same file whose names a function reads."""
    code, found = getattr(function, "__code__", None), {}
    for name in getattr(code, "co_names", ()):
        each = function.__globals__.get(name)
        if isinstance(each, FunctionType) and each.__code__.co_filename == code.co_filename:
            found[name] = each
    return found


def driver_of(function, donated, fits, part, again, helpers):
    """Return the function with parts for the lines that fit; `parts` of it: these, and other lines.
    """
    code, module, tree = function.__code__, function.__globals__, tree_of(function.__code__)
    if tree is None or not isinstance(function, FunctionType) or not can_move(tree, code, module):
        return function
    known, unshared, parts = {*inspect.signature(function).parameters}, {*donated}, []
    statements = [*tree.body, ast.Pass()]
    while statements:
        n = next(
            i for i, each in enumerate(statements) if not fits(each, known | stored(statements[:i]))
        )
        lines, (line, *statements) = statements[:n], statements[n:]
        read, written, later = reads(lines), stored(lines), reads([line, *statements])
        nodes = itertools.chain.from_iterable(map(ast.walk, lines))
        operations = [each for each in nodes if isinstance(each, ast.operator | ast.Call)]
        # NumPy has loops of one operation.
        worth = len(operations) > 1 or operations and read & unshared
        if worth and read & {*code.co_varnames} <= known:
            others = {name for name in read - known if name in module and name != "np"}
            names, results = sorted(read & known | others), sorted(written & later)
            given_up = unshared - (later - written)
            lines = [part(lines, names, results, given_up, module, code.co_filename)]
        parts += [*lines, line]
        unshared -= read | reads([line])
        known |= written | bound_by(line)
        match line:
            case ast.Assign([ast.Name(name)], ast.BinOp(_, ast.MatMult())):
                unshared.add(name)
    names = {f".part_{i}": each for i, each in enumerate(parts) if isinstance(each, Part)}
    body = [
        each.call(f"part_{i}") if isinstance(each, Part) else each for i, each in enumerate(parts)
    ]
    names |= {name: again(each) for name, each in helpers.items()}
    if not names:
        return function
    own = sorted(names_in(tree.body, ast.Store))
    never = ast.parse(f"if False:\n    {' = '.join([*own, 'None'])}").body
    # A name whose value nobody needs is not assigned any more; `never` keeps it the function's own.
    driver = ast.FunctionDef(tree.name, tree.args, [*never, *body], [])
    driver = with_names(driver, module, names, code.co_filename)
    driver.__defaults__, driver.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    driver.parts = parts
    return driver


def can_move(tree, code, module):
    """Return whether a function's lines mean the same in a function of other names: `np` is NumPy,
    and no line sees which names there are, or where the function stands.
    """
    nodes = [*ast.walk(tree)]
    names = {each.id for each in nodes if isinstance(each, ast.Name)}
    attributes = {each.attr for each in nodes if isinstance(each, ast.Attribute)}
    # A class gives private names another spelling.
    private = [each for each in names | attributes if re.fullmatch(r"__.*(?<!__)", each)]
    flags = code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE)
    other = flags or code.co_freevars or code.co_cellvars
    scopes = any(isinstance(each, ast.Global | ast.Nonlocal) for each in nodes)
    numpys = "np" not in names or "np" not in code.co_varnames and module.get("np") is np
    return numpys and not (tree.decorator_list or other or private or scopes or names & INSIGHT)


def is_simple(statement, known, functions, methods=()):
    """Return whether a statement has a form that is compiled.

    known: names with a value; functions: of np; methods: of arrays.
    """
    called = [each.func for each in ast.walk(statement) if isinstance(each, ast.Call)]
    for each in ast.walk(statement):
        match each:
            case ast.Call(ast.Attribute(ast.Name("np"), name)) if name in functions:
                pass
            case ast.Call(ast.Attribute(_, name)) if name in methods:
                pass
            case ast.Call(ast.Name("erf")) | ast.Attribute(ast.Name("np")):
                pass
            case ast.Attribute() if each not in called:
                return False
            case ast.Compare(_, signs, others) if asks_identity(signs, others):
                return False                    # two names may be of one array
            case ast.Call() | ast.MatMult():
                return False
            case ast.Assign(targets) if [type(target) for target in targets] != [ast.Name]:
                return False
            case ast.If() if not stored([each]) <= known:
                return False
            case _ if not isinstance(each, SIMPLE):
                return False
    assigns = isinstance(statement, ast.Assign | ast.AugAssign | ast.If)
    return assigns or "put_along_axis" in ast.dump(statement)


def asks_identity(signs, others):
    """Return whether a comparison asks if something is another thing than None."""
    asks = any(isinstance(each, ast.Is | ast.IsNot) for each in signs)
    with_none = [isinstance(each, ast.Constant) and each.value is None for each in others]
    return asks and not all(with_none)


def names_in(statements, context):
    """Return the names that statements read (ast.Load) or assign (ast.Store); x += y does both."""
    nodes = [*itertools.chain.from_iterable(map(ast.walk, statements))]
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


def stored(statements):
    """Return the names that simple statements assign, or whose arrays they write to."""
    nodes = itertools.chain.from_iterable(map(ast.walk, statements))
    calls = [each.value for each in nodes if isinstance(each, ast.Expr)]
    first = [each.args[0] for each in calls if isinstance(each, ast.Call) and each.args]
    written = {each.id for each in first if isinstance(each, ast.Name)}
    return written | names_in(statements, ast.Store)


def bound_by(statement):
    """Return the names that a statement always assigns."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {each.asname or each.name for each in statement.names}
    surely = isinstance(statement, ast.Assign | ast.AugAssign)
    return names_in([statement], ast.Store) if surely else set()


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
    found = {}
    exec(compile(ast.fix_missing_locations(outer), file, "exec"), module, found)
    return found["outer"](**more)


def kind(value):
    """Return what the code of a loop depends on: shape, dtype and class of an array; a constant.

    Of everything else it is the type.
    """
    if hasattr(value, "shape"):                 # of NumPy or CuPy
        return value.shape, value.dtype, type(value)
    return (type(value), value) if is_constant(value) else type(value)


def is_constant(value):
    """Return whether the code of a loop depends on the value: None, a flag, an integer, a function.
    """
    is_function = callable(value) and isinstance(value, Hashable)
    return value is None or isinstance(value, int) or is_function


def pattern(key, exact):
    """Return the kinds with sizes replaced by labels: 0, 1, and equal labels for equal sizes.

    exact: where integers stand on which a condition depends.
    """
    labels = {0: 0, 1: 1}

    def label(size):
        return labels.setdefault(size, len(labels))

    def labelled(each, is_exact):
        match each:
            case (tuple(shape), *others):
                return (*map(label, shape), *others)
            case (type() as of, size) if of is int and not is_exact:
                return of, label(size)
        return each

    return tuple(map(labelled, key, exact))


class Part:
    """Lines that are compiled: a function of the names that they read, which returns `results`.

    donated: names whose arrays nobody reads after these lines; file: where they stand; how: for a
    subclass. It defines build(values), which returns the function for such values. If that raises
    `refusal`, the lines run as they stand.
    """

    rest_type: type | None = None  # of the lines after the first ones; by default the same

    def __init__(self, lines, names, results, donated, module, file, *how):
        self.lines, self.names, self.results, self.donated = lines, names, results, donated
        self.module, self.file, self.how = module, file, how
        nodes = itertools.chain.from_iterable(map(ast.walk, lines))
        tests = [each.test for each in nodes if isinstance(each, ast.If | ast.IfExp)]
        self.deciding = names_in(tests, ast.Load)       # names that a condition reads
        self.known = {}                                 # kinds of arguments -> function
        self.patterns = {}                              # patterns of kinds -> function
        self.parts = [(lines, None)]    # for the last kind: lines with their source, and parts
        self.plain = self.function(lines, self.returned())

    def __call__(self, *values):
        key = tuple([(each.shape, each.dtype, np.ndarray) if type(each) is np.ndarray
                     else float if type(each) is float else kind(each) for each in values])
        function = self.known.get(key)
        if function is None:
            with LOCK:
                function = self.function_for(key, values)
        try:
            return function(*values)
        except self.refusal:
            self.known[key] = self.plain
            return self.plain(*values)

    def function_for(self, key, values):
        """Return the function for values of these kinds. Other sizes, if equal ones stay equal and
        others different, need no other loop.
        """
        alike = pattern(key, [name in self.deciding for name in self.names])
        if alike not in self.patterns and len(self.patterns) < MOST_KINDS:
            self.patterns[alike] = self.build(dict(zip(self.names, values, strict=True)))
        if len(self.known) > 99 * MOST_KINDS:
            self.known.clear()
        return self.known.setdefault(key, self.patterns.get(alike, self.plain))

    def followed(self, body, rest, more):
        """Return the function with a body for its first lines; the rest is a part.

        more: what the body reads besides: name -> value.
        """
        if not rest:
            return self.function(body, self.returned(), more)
        names = sorted((reads(rest) | {*self.results}) & ({*self.names} | stored(body)))
        of = self.rest_type or type(self)
        more[".rest"] = of(rest, names, self.results, (), self.module, self.file, *self.how)
        self.parts.append(more[".rest"])
        return self.function(body, f"rest({', '.join(in_user(names))})", more)

    def function(self, body, result, more=()):
        arguments = ast.parse(f"def part({', '.join(self.names)}): pass").body[0].args
        last = generated(f"return {result}", self.lines[0].lineno)
        tree = ast.FunctionDef("part", arguments, [*body, *last], [])
        return with_names(tree, self.module, dict(more), self.file)

    def returned(self):
        return f"({''.join(f'{name}, ' for name in in_user(self.results))})"

    def call(self, name):
        results = "".join(f"{each}, " for each in in_user(self.results))
        arguments = ", ".join(in_user(self.names))
        assigned = f"{results} = " if results else ""
        return generated(f"{assigned}{name}({arguments})", self.lines[0].lineno)[0]
