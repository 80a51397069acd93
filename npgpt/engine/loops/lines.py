"""Compile lesson lines: lines that treat all rows alike become a loop, and NumPy runs the others as they stand.

In a function, successive lines of this form are a `Segment`. When a segment is first called with arguments of some
shapes and dtypes, it becomes a loop over the rows, as far as its lines fit into one. NumPy runs the next line, and the
rest is a segment again.
"""

import ast
import functools
import inspect
import itertools
import threading
from types import FunctionType

import numpy as np
from numba.core.errors import NumbaError

from npgpt.engine.loops import vectors
from npgpt.engine.loops.jit import jit
from npgpt.engine.loops.trace import KNOWN, Trace, UnfitError
from npgpt.engine.loops.write import Loop
from npgpt.engine.row_blocks import row_blocks
from npgpt.engine.sources import tree_of
from npgpt.engine.threads import free_cores, spread

LOCK = threading.RLock()
SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.If, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Call,
          ast.Attribute, ast.Name, ast.Constant, ast.keyword, ast.operator, ast.unaryop, ast.cmpop, ast.expr_context)
METHODS = {"sum", "mean", "max", "reshape"}


@functools.cache
def compile_lines(function, donated=()):
    """Return a function with the same arguments and results, whose rows are computed by compiled loops.

    donated: names of arguments that the caller does not need any more; results may take their memory. What cannot be
    compiled runs as it stands. If the function gets other code, that is compiled.
    """
    code = driver = None

    @functools.wraps(function)
    def call(*arguments, **named):
        nonlocal code, driver
        if function.__code__ is not code:
            with LOCK:
                driver, code = driver_of(function, donated), function.__code__
        return driver(*arguments, **named)

    call.parts = lambda: getattr(driver, "parts", [])
    return call


def driver_of(function, donated):
    """Return the function with segments in place of the lines that may be loops; its `parts` are segments and lines."""
    code, module = function.__code__, function.__globals__
    tree, generator = tree_of(code), code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE)
    plain = isinstance(function, FunctionType) and not (code.co_freevars or code.co_cellvars or generator)
    if tree is None or tree.decorator_list or not plain:
        return function
    known, unshared, parts = {*inspect.signature(function).parameters}, {*donated}, []
    statements = [*tree.body, ast.Pass()]
    while statements:
        n = next(i for i, each in enumerate(statements) if not is_simple(each, known | stored(statements[:i])))
        lines, (line, *statements) = statements[:n], statements[n:]
        read, written, later = reads(lines), stored(lines), reads([line, *statements])
        operations = [each for some in lines for each in ast.walk(some) if isinstance(each, ast.operator | ast.Call)]
        worth = len(operations) > 1 or operations and read & unshared       # NumPy has loops of one operation
        if worth and read & {*code.co_varnames} <= known:
            numbers = {name for name in read - known if isinstance(module.get(name), int | float)}
            lines = [Segment(lines, sorted(read & known | numbers), sorted(written & later),
                             unshared - (later - written), module)]
        parts += [*lines, line]
        unshared -= read | reads([line])
        known |= written | bound_by(line)
        match line:
            case ast.Assign([ast.Name(name)], ast.BinOp(_, ast.MatMult())):
                unshared.add(name)
    names = {f"loop_{i}": each for i, each in enumerate(parts) if isinstance(each, Segment)}
    body = [each.call(f"loop_{i}") if isinstance(each, Segment) else each for i, each in enumerate(parts)]
    for name in names_in(tree.body, ast.Load):      # functions of the same file that it calls
        if isinstance(module.get(name), FunctionType) and module[name].__code__.co_filename == code.co_filename:
            names[name] = compile_lines(module[name])
    if not names:
        return function
    driver = with_names(ast.FunctionDef(tree.name, tree.args, body, []), module, names)
    driver.__defaults__, driver.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    driver.parts = parts
    return driver


def is_simple(statement, known):
    """Return whether a statement may be part of a loop, by its form. known: names that have a value before it."""
    for each in ast.walk(statement):
        match each:
            case ast.Call(ast.Attribute(ast.Name("np"), name)) if name in KNOWN:
                pass
            case ast.Call(ast.Attribute(_, name)) if name in METHODS:
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


class Segment:
    """Lines that may be a loop: a function of the names that they read, which returns the names in `results`.

    donated: names whose arrays nobody reads after these lines.
    """

    def __init__(self, lines, names, results, donated, module):
        self.lines, self.names, self.results, self.donated, self.module = lines, names, results, donated, module
        self.known = {}                         # kinds of arguments -> function
        self.parts = [(lines, None)]            # for the last kind: lines with the source of their loop, and segments
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
        except NumbaError:                      # raised before the loop begins
            self.known[key] = self.plain
            return self.plain(*values)

    def function_for(self, key, values):
        """Return the function for values of these kinds; only other equalities of sizes need another loop."""
        alike = pattern(key)
        if alike not in self.known:
            self.known[alike] = self.build(dict(zip(self.names, values, strict=True)))
        return self.known.setdefault(key, self.known[alike])

    def build(self, values):
        """Return the function for such values: a loop, or one line by NumPy; then the rest."""
        try:
            trace = Trace(values, self.module)
        except UnfitError:                      # there are no arrays
            return self.plain
        n, more, source = trace.read(self.lines), {}, None
        rest = self.lines[n:]
        try:
            if not n:
                raise UnfitError
            later = {*self.results} | reads(rest)
            loop = Loop(trace, [name for name in trace.names if name in later], self.donated)
            source, results = loop.source(), loop.results()
            body = ast.parse("\n".join(loop.call())).body
            if results:
                body += ast.parse(f"{', '.join(results)}, = {', '.join(results.values())},").body
            helpers = contiguous, row_numbers, alone, over_blocks, free_cores
            more = {"loop": kernel(source, trace.dtype), "plain": self.plain, "np": np,
                    **{each.__name__: each for each in helpers}}
        except UnfitError:
            n = max(n, 1)
            body, rest = self.lines[:n], self.lines[n:]
        self.parts = [(self.lines[:n], source)]
        if not rest:
            return self.function(body, self.returned(), more)
        names = sorted((reads(rest) | {*self.results}) & ({*self.names} | stored(body)))
        more["rest"] = Segment(rest, names, self.results, (), self.module)
        self.parts.append(more["rest"])
        return self.function(body, f"rest({', '.join(names)})", more)

    def function(self, body, result, more=()):
        tree = ast.parse(f"def segment({', '.join(self.names)}):\n    return {result}").body[0]
        return with_names(ast.FunctionDef("segment", tree.args, [*body, *tree.body], []), self.module, dict(more))

    def returned(self):
        return f"({''.join(f'{name}, ' for name in self.results)})"

    def call(self, name):
        results = "".join(f"{each}, " for each in self.results)
        return ast.parse(f"{results}{'= ' * bool(results)}{name}({', '.join(self.names)})").body[0]


@functools.cache
def kernel(source, dtype):
    names = {**vars(vectors), "real": dtype.type}           # with its name, by which Numba imports the module
    exec(source, names)
    return jit(names["loop"], source)


def kind(value):
    """Return what the code of a loop depends on: an array's shape and dtype, a flag's value, otherwise the type."""
    if isinstance(value, np.ndarray):           # of a subclass
        return value.shape, value.dtype
    return (type(value), value) if value is None or isinstance(value, int) or callable(value) else type(value)


def pattern(key):
    """Return the kinds with sizes replaced by labels: 0, 1, and equal labels for equal sizes."""
    labels = {0: 0, 1: 1}

    def label(size):
        return labels.setdefault(size, len(labels))

    return tuple((tuple(map(label, each[0])), each[1]) if isinstance(each, tuple) and isinstance(each[0], tuple) else
                 (int, label(each[1])) if isinstance(each, tuple) and each[0] is int else each for each in key)


# What the call of a loop needs.

def contiguous(array, *shape):
    return np.ascontiguousarray(array).reshape(shape)


@functools.lru_cache(256)
def row_numbers(shape, whole):
    """Return the row of an array of this shape that is broadcast to each row of an array of shape `whole`."""
    numbers = np.arange(np.prod(shape[:-1], dtype=int)).reshape(shape[:-1])
    return contiguous(np.broadcast_to(numbers, whole[:-1]), -1)


def alone(written, read):
    """Return whether a loop may write to some of the arrays that it reads: contiguous ones that share no memory."""
    return all(each.flags.c_contiguous and each.flags.writeable for each in written) and not any(
        np.may_share_memory(*each) for each in itertools.combinations(read, 2))


def over_blocks(loop, arrays, others, n_sums, axis):
    """Call a loop on blocks of arrays along an axis, on all free cores; return the sums over all rows."""
    def run(block):
        sums = [np.zeros(arrays[0].shape[1], arrays[0].dtype) for _ in range(n_sums)]
        cut = [each[:, block] for each in arrays] if axis else [each[block] for each in arrays]
        loop(*cut, *others, *sums)
        return sums

    blocks = row_blocks(arrays[0].T if axis else arrays[0])
    if len(blocks) == 1:
        return run(slice(None))
    return [functools.reduce(np.add, each) for each in zip(*spread(run, blocks), strict=True)]
