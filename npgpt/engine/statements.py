"""What the compilers of lesson lines share: `loops` compiles them for a CPU, `fused` for a GPU."""

import ast
import functools
import inspect
import threading
from types import FunctionType

import numpy as np

from npgpt.engine.sources import tree_of

LOCK = threading.RLock()
SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.If, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Call,
          ast.Attribute, ast.Name, ast.Constant, ast.keyword, ast.operator, ast.unaryop, ast.cmpop, ast.expr_context)


def compiled(function, donated, fits, part, again):
    """Return a function with the same arguments and results, with a `part` in place of lines that fit.

    fits(statement, known): as `is_simple`; again: compiles functions of the same file. Other code is compiled anew.
    """
    code = driver = None

    @functools.wraps(function)
    def call(*arguments, **named):
        nonlocal code, driver
        if function.__code__ is not code:
            with LOCK:
                driver, code = driver_of(function, donated, fits, part, again), function.__code__
        return driver(*arguments, **named)

    call.parts = lambda: getattr(driver, "parts", [])
    return call


def driver_of(function, donated, fits, part, again):
    """Return the function with parts in place of the lines that fit; its `parts` are these and the other lines."""
    code, module = function.__code__, function.__globals__
    tree, generator = tree_of(code), code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE)
    plain = isinstance(function, FunctionType) and not (code.co_freevars or code.co_cellvars or generator)
    if tree is None or tree.decorator_list or not plain:
        return function
    known, unshared, parts = {*inspect.signature(function).parameters}, {*donated}, []
    statements = [*tree.body, ast.Pass()]
    while statements:
        n = next(i for i, each in enumerate(statements) if not fits(each, known | stored(statements[:i])))
        lines, (line, *statements) = statements[:n], statements[n:]
        read, written, later = reads(lines), stored(lines), reads([line, *statements])
        operations = [each for some in lines for each in ast.walk(some) if isinstance(each, ast.operator | ast.Call)]
        worth = len(operations) > 1 or operations and read & unshared       # NumPy has loops of one operation
        if worth and read & {*code.co_varnames} <= known:
            numbers = {name for name in read - known if isinstance(module.get(name), int | float)}
            lines = [part(lines, sorted(read & known | numbers), sorted(written & later), unshared - (later - written),
                          module)]
        parts += [*lines, line]
        unshared -= read | reads([line])
        known |= written | bound_by(line)
        match line:
            case ast.Assign([ast.Name(name)], ast.BinOp(_, ast.MatMult())):
                unshared.add(name)
    names = {f"part_{i}": each for i, each in enumerate(parts) if isinstance(each, Part)}
    body = [each.call(f"part_{i}") if isinstance(each, Part) else each for i, each in enumerate(parts)]
    for name in names_in(tree.body, ast.Load):      # functions of the same file that it calls
        if isinstance(module.get(name), FunctionType) and module[name].__code__.co_filename == code.co_filename:
            names[name] = again(module[name])
    if not names:
        return function
    driver = with_names(ast.FunctionDef(tree.name, tree.args, body, []), module, names)
    driver.__defaults__, driver.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    driver.parts = parts
    return driver


def is_simple(statement, known, functions, methods=()):
    """Return whether a statement has a form that is compiled. known: names with a value; functions: of np."""
    for each in ast.walk(statement):
        match each:
            case ast.Call(ast.Attribute(ast.Name("np"), name)) if name in functions:
                pass
            case ast.Call(ast.Attribute(_, name)) if name in methods:
                pass
            case ast.Call(ast.Name("erf")):
                pass
            case ast.Call() | ast.MatMult():
                return False
            case ast.Assign(targets) if [type(target) for target in targets] != [ast.Name]:
                return False
            case ast.If() if not stored([each]) <= known:
                return False
            case _ if not isinstance(each, SIMPLE):
                return False
    return isinstance(statement, ast.Assign | ast.AugAssign | ast.If) or "put_along_axis" in ast.dump(statement)


def names_in(statements, context):
    """Return the names that statements read (ast.Load) or assign (ast.Store); x += y does both."""
    nodes = [each for line in statements for each in ast.walk(line)]
    return {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, context)} | {
        each.target.id for each in nodes if isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name)}


def reads(statements):
    """Return the names that statements may read before they assign them, or may leave unassigned."""
    found, assigned = set(), set()
    for each in statements:
        found |= (names_in([each], ast.Load) | names_in([each], ast.Store) - bound_by(each)) - assigned
        assigned |= bound_by(each)
    return found


def stored(statements):
    """Return the names that simple statements assign, or whose arrays they write to."""
    calls = [each.value for line in statements for each in ast.walk(line) if isinstance(each, ast.Expr)]
    first = [each.args[0] for each in calls if isinstance(each, ast.Call) and each.args]
    return names_in(statements, ast.Store) | {each.id for each in first if isinstance(each, ast.Name)}


def bound_by(statement):
    """Return the names that a statement always assigns."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {each.asname or each.name for each in statement.names}
    return names_in([statement], ast.Store) if isinstance(statement, ast.Assign | ast.AugAssign) else set()


def with_names(tree, module, more):
    """Return the function of a tree with the global names of its module, and more."""
    outer = ast.parse(f"def outer({', '.join(more)}):\n    return {tree.name}").body[0]
    outer.body.insert(0, tree)
    found = {}
    exec(compile(ast.fix_missing_locations(ast.Module([outer], [])), "<loops>", "exec"), module, found)
    return found["outer"](**more)


def kind(value):
    """Return what the code of a loop depends on: an array's shape and dtype, a flag's value, otherwise the type."""
    if hasattr(value, "shape"):                # of NumPy or CuPy
        return value.shape, value.dtype
    return (type(value), value) if value is None or isinstance(value, int) or callable(value) else type(value)


def pattern(key):
    """Return the kinds with sizes replaced by labels: 0, 1, and equal labels for equal sizes."""
    labels = {0: 0, 1: 1}

    def label(size):
        return labels.setdefault(size, len(labels))

    return tuple((tuple(map(label, each[0])), each[1]) if isinstance(each, tuple) and isinstance(each[0], tuple) else
                 (int, label(each[1])) if isinstance(each, tuple) and each[0] is int else each for each in key)


class Part:
    """Lines that are compiled: a function of the names that they read, which returns the names in `results`.

    donated: names whose arrays nobody reads after these lines; how: for a subclass. It defines build(values), which
    returns the function for such values. If that raises `refusal`, the lines run as they stand.
    """

    def __init__(self, lines, names, results, donated, module, *how):
        self.lines, self.names, self.results, self.donated, self.module = lines, names, results, donated, module
        self.how = how
        self.known = {}                         # kinds of arguments -> function
        self.parts = [(lines, None)]            # for the last kind: lines with their source, and parts
        self.plain = self.function(lines, self.returned())

    def __call__(self, *values):
        key = tuple([(each.shape, each.dtype) if type(each) is np.ndarray else float if type(each) is float else
                     kind(each) for each in values])
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
        """Return the function for values of these kinds; only other equalities of sizes need another loop."""
        alike = pattern(key)
        if alike not in self.known:
            self.known[alike] = self.build(dict(zip(self.names, values, strict=True)))
        return self.known.setdefault(key, self.known[alike])

    def followed(self, body, rest, more):
        """Return the function with a body for its first lines, which reads the names `more`; the rest is a part."""
        if not rest:
            return self.function(body, self.returned(), more)
        names = sorted((reads(rest) | {*self.results}) & ({*self.names} | stored(body)))
        more["rest"] = type(self)(rest, names, self.results, (), self.module, *self.how)
        self.parts.append(more["rest"])
        return self.function(body, f"rest({', '.join(names)})", more)

    def function(self, body, result, more=()):
        tree = ast.parse(f"def part({', '.join(self.names)}):\n    return {result}").body[0]
        return with_names(ast.FunctionDef("part", tree.args, [*body, *tree.body], []), self.module, dict(more))

    def returned(self):
        return f"({''.join(f'{name}, ' for name in self.results)})"

    def call(self, name):
        results = "".join(f"{each}, " for each in self.results)
        return ast.parse(f"{results}{'= ' * bool(results)}{name}({', '.join(self.names)})").body[0]
