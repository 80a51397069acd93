"""A compiler of lesson lines: successive lines that treat rows alike become a loop, NumPy runs the others as they stand.

A function becomes one in which each such run of lines is a call. At its first call with arguments of some kinds a run
becomes a loop as far as its lines fit into one; then NumPy runs a line, or the rest is a run of its own.
"""

import ast
import functools
import threading
from types import FunctionType

import numpy as np

from npgpt.engine.loops import vectors
from npgpt.engine.loops.jit import jit
from npgpt.engine.loops.rows import REDUCTIONS, Lines, UnfitError, loop_of
from npgpt.engine.row_blocks import row_blocks
from npgpt.engine.sources import tree_of
from npgpt.engine.threads import free_cores, spread

MOST_KINDS = 1024       # of arguments, for which a run is remembered
LOCK = threading.RLock()


@functools.cache
def compiled(function, dying=()):
    """Return a function with the same arguments and results whose rows are computed by compiled loops.

    dying: arguments that the caller does not need any more, so that results may take their memory. If the function gets
    other code, it is compiled again. What cannot be compiled, runs as it stands.
    """
    code = driver = None

    @functools.wraps(function)
    def call(*arguments, **named):
        nonlocal code, driver
        if function.__code__ is not code:
            with LOCK:
                driver, code = driver_of(function, dying), function.__code__
        return driver(*arguments, **named)

    return call


def driver_of(function, dying):
    """Return the function with calls of `Run`s in place of the lines that may be loops."""
    tree, code = tree_of(function.__code__), function.__code__
    if tree is None or tree.decorator_list or code.co_freevars or code.co_cellvars or code.co_flags & 0x2A0:  # generator
        return function
    arguments = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    known, fresh, body, more = {*code.co_varnames[:arguments]}, {*dying}, [], {}
    statements = [*tree.body, ast.Pass()]
    while statements:
        n = next(i for i, each in enumerate(statements) if not is_of_rows(each, known | stores(statements[:i])))
        lines, after = statements[:n], statements[n:]
        if any(isinstance(each, ast.BinOp | ast.Call | ast.AugAssign) for line in lines for each in ast.walk(line)) and (
                loads(lines) & {*code.co_varnames} <= known | stores(lines)):
            names = sorted((loads(lines) | stores(lines)) & known)
            lost = {name for name in fresh if name not in loads(after) - stores(lines)}
            name = f"loop_{len(more) + 1}"
            more[name] = run = Run(lines, names, sorted(stores(lines) & loads(after)), lost, function.__globals__)
            body += ast.parse(f"{''.join(f'{each}, ' for each in run.results)}{'= ' * bool(run.results)}"
                              f"{name}({', '.join(names)})").body
        else:
            body += lines
        body += after[:1]
        fresh -= loads(statements[:n + 1])
        known |= stores(lines) | bound_by(after[0])
        match after[0]:
            case ast.Assign([ast.Name(made)], ast.BinOp(_, ast.MatMult())):
                fresh.add(made)
        statements = after[1:]
    if not more:
        return function
    called = {each.func.id for each in ast.walk(tree) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)}
    for name in called:
        other = function.__globals__.get(name)
        if isinstance(other, FunctionType) and other.__code__.co_filename == code.co_filename:
            more[name] = compiled(other)
    driver = with_names(ast.FunctionDef(tree.name, tree.args, body, []), function.__globals__, more)
    driver.__defaults__, driver.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return driver


def is_of_rows(statement, known):
    """Return whether a statement may be part of a loop, by its form. known: names that have a value before it."""
    match statement:
        case ast.Assign([ast.Name()], value) | ast.AugAssign(ast.Name(), _, value):
            return is_simple(value)
        case ast.Expr(ast.Call(ast.Attribute(ast.Name("np"), "put_along_axis"), [ast.Name(), *_])):
            return True
        case ast.If(_, body, orelse):
            return stores([statement]) <= known and all(is_of_rows(each, known) for each in body + orelse)
    return False


def is_simple(tree):
    """Return whether an expression has only operators, functions of NumPy and reductions, but no matmul."""
    match tree:
        case ast.Name() | ast.Constant():
            return True
        case ast.Call(ast.Attribute(ast.Name("np"), _) | ast.Name("erf"), parts):
            pass
        case ast.Call(ast.Attribute(ast.Call(ast.Attribute(x, "reshape")) | x, name)) if name in REDUCTIONS:
            parts = [x]
        case ast.BinOp(left, op, right) if not isinstance(op, ast.MatMult):
            parts = [left, right]
        case ast.Compare(left, [_], [right]):
            parts = [left, right]
        case ast.UnaryOp(_, operand):
            parts = [operand]
        case ast.IfExp(_, body, orelse):
            parts = [body, orelse]
        case _:
            return False
    return all(map(is_simple, parts))


def loads(statements):
    return {each.id for line in statements for each in ast.walk(line) if isinstance(each, ast.Name)
            and isinstance(each.ctx, ast.Load)} | {each.target.id for line in statements for each in ast.walk(line)
                                                   if isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name)}


def stores(statements):
    """Return the names that statements assign, or whose arrays they write to."""
    return {each.id for line in statements for each in ast.walk(line) if isinstance(each, ast.Name)
            and isinstance(each.ctx, ast.Store)} | {
        line.value.args[0].id for line in statements for line in ast.walk(line) if isinstance(line, ast.Expr)
        and is_of_rows(line, ())}


def bound_by(statement):
    """Return the names that have a value after a statement that NumPy runs."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {each.asname or each.name for each in statement.names}
    return stores([statement]) if isinstance(statement, ast.Assign | ast.AugAssign) else set()


def with_names(tree, names, more):
    """Return the function of a tree with the global names of its module, and more."""
    outer = ast.parse(f"def outer({', '.join(more)}):\n    return {tree.name}").body[0]
    outer.body.insert(0, tree)
    found = {}
    exec(compile(ast.fix_missing_locations(ast.Module([outer], [])), "<loops>", "exec"), names, found)
    return found["outer"](**more)


class Run:
    """Successive lines that may be a loop: a function of the names that they read, which returns `results`, a tuple.

    dying: names whose arrays nobody reads after these lines.
    """

    def __init__(self, lines, names, results, dying, module):
        self.lines, self.names, self.results, self.dying, self.module = lines, names, results, dying, module
        self.known, self.loops = {}, []
        self.plain = self.function(lines, f"({''.join(f'{name}, ' for name in results)})")

    def __call__(self, *values):
        key = tuple([(each.shape, each.dtype) if type(each) is np.ndarray else kind(each) for each in values])
        run = self.known.get(key)
        if run is None:
            with LOCK:
                run = self.prepared(key, values)
        return run(*values)

    def prepared(self, key, values):
        """Return the function for values of these kinds."""
        if len(self.known) > MOST_KINDS:
            self.known.clear()
        alike = pattern(key)
        if alike not in self.known:
            self.known[alike] = self.made(dict(zip(self.names, values, strict=True)))
        return self.known.setdefault(key, self.known[alike])

    def made(self, values):
        """Return the function for these values: a loop, then a line by NumPy, then the rest, as far as there are."""
        n, more = 0, {}
        try:
            lines = Lines(values, self.module)
            for n, line in enumerate([*self.lines, None]):      # noqa: B007
                lines.read(line)
        except UnfitError:
            pass
        rest = self.lines[n:]
        try:
            if not n:
                raise UnfitError
            needed = [name for name in lines.env if name in self.results or name in loads(rest) | stores(rest)]
            source, call, results = loop_of(lines, needed, self.dying)
            loop = kernel(source, lines.dtype)
            self.loops.append((self.lines[:n], source))
            body = ast.parse("\n".join(call)).body
            if needed:
                body += ast.parse(f"{', '.join(results)}, = {', '.join(results.values())},").body
            more = {"loop": loop, "real": lines.dtype.type, "plain": self.plain, "np": np, "over_blocks": over_blocks,
                    "by_row": by_row, "flat": flat, "row_numbers": row_numbers, "alone": alone, "within": within}
        except UnfitError:
            if not any(isinstance(each, np.ndarray) for each in values.values()) or len(self.lines) == 1:
                return self.plain
            body, rest = self.lines[:max(n, 1)], self.lines[max(n, 1):]
        if not rest:
            return self.function(body, f"({''.join(f'{name}, ' for name in self.results)})", more)
        names = sorted((loads(rest) | stores(rest) | {*self.results}) & ({*self.names} | stores(body)))
        more["rest"] = Run(rest, names, self.results, (), self.module)
        return self.function(body, f"rest({', '.join(names)})", more)

    def function(self, body, result, more=()):
        tree = ast.parse(f"def run({', '.join(self.names)}):\n    return {result}").body[0]
        return with_names(ast.FunctionDef("run", tree.args, body + tree.body, []), self.module, dict(more))


@functools.cache
def kernel(source, dtype):
    """Compile the source of a loop."""
    names = {name: getattr(vectors, name) for name in ("exp", "tanh", "erf", "maximum", "add")}
    names |= {"np": np, "real": dtype.type, "__name__": vectors.__name__}        # Numba imports the module by its name
    exec(source, names)
    return jit(names["loop"], source)


def kind(value):
    """Return on what of a value the code of a loop depends."""
    if isinstance(value, np.ndarray):           # of a subclass
        return value.shape, value.dtype
    return (type(value), value) if value is None or isinstance(value, int) or callable(value) else type(value)


def pattern(key):
    """Return the kinds without the sizes: only which are 0, which are 1, and which are equal."""
    labels = {0: 0, 1: 1}

    def label(size):
        return labels.setdefault(size, len(labels))

    return tuple((tuple(map(label, each[0])), each[1]) if isinstance(each, tuple) and isinstance(each[0], tuple) else
                 (int, label(each[1])) if isinstance(each, tuple) and each[0] is int else each for each in key)


# What the call of a loop needs.

def by_row(array):
    return np.ascontiguousarray(array).reshape(-1, array.shape[-1])


def flat(array):
    return np.ascontiguousarray(array).reshape(-1)


@functools.lru_cache(256)
def row_numbers(shape, whole):
    """Return for each row of an array of shape `whole` the row of one that is broadcast to it."""
    numbers = np.arange(np.prod(shape[:-1], dtype=int)).reshape(shape[:-1])
    return np.ascontiguousarray(np.broadcast_to(numbers, whole[:-1])).reshape(-1)


def alone(written, read):
    """Return whether arrays can be written to while others are read: whole, and nowhere in the memory of another."""
    return all(each.flags.c_contiguous and each.flags.writeable for each in written) and sum(
        np.may_share_memory(one, other) for one in written for other in read) == len(written)


def within(index, size):
    return not index.size or index.min() >= 0 and index.max() < size


def over_blocks(loop, arrays, others, n_sums):
    """Call a loop on blocks of rows, on all free cores; return the sums over all rows."""
    def run(block):
        sums = [np.zeros(arrays[0].shape[1], arrays[0].dtype) for _ in range(n_sums)]
        loop(*[each[block] for each in arrays], *others, *sums)
        return sums

    if not n_sums and free_cores() == 1:
        return loop(*arrays, *others)
    blocks = row_blocks(arrays[0])
    if len(blocks) == 1:
        return run(slice(None))
    return [functools.reduce(np.add, each) for each in zip(*spread(run, blocks), strict=True)]
