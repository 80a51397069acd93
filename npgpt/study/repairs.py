"""Which small change makes a wrong line right? It names the mistake, because it says what the learner did instead.

The learner's function runs statement by statement. Each small edit of a statement is tried on the learner's own values,
until the gradient that was wrong is the true one. So a mistake is only named if mending it mends the numbers.
"""

import ast
import contextlib
import copy
import io
import itertools
import types

import numpy as np

EDITS, LOOP_EDITS = 6000, 800       # how many are tried at most, and in a function with a loop, which takes longer
BACK = 6                # statements before the wrong one that are edited too
NUMBERS = (0.044715, 0.5, 1.0, 2.0, 3.0)
AXES = (-1, 0, 1, (0, 1), 2, (0, 1, 2), -2, None)
FUNCTIONS = ("exp", "log", "sqrt", "sin", "cos", "tanh")
RESULT = "__result__"


def straight_line(function):
    """The statements of a function's tree, with `return x` as an assignment to `RESULT`.

    None if it cannot be run again and again: a branch or a loop returns, a `while` might not end after an edit, and an
    import may be of what has effects outside.
    """
    body = [each for each in function.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    nested = [node for each in body if not isinstance(each, ast.Return) for node in ast.walk(each)]
    if any(isinstance(node, ast.Return | ast.FunctionDef | ast.Lambda | ast.While) for node in nested):
        return None
    imported = {alias.name for node in nested if isinstance(node, ast.Import) for alias in node.names}
    if not imported <= {"math", "numpy"} or any(isinstance(node, ast.ImportFrom) for node in nested):
        return None
    return [ast.copy_location(ast.Assign([ast.Name(RESULT, ast.Store())], each.value or ast.Constant(None)), each)
            if isinstance(each, ast.Return) else each for each in body]


class Walk:
    """A function run statement by statement, up to its first exception: `before[i]` holds the names before statement i.

    statements: from `straight_line`; names: the globals and the arguments, whose names are `arguments`.
    """

    def __init__(self, statements, names, arguments):
        self.statements, self.globals = statements, set(names) - set(arguments)
        self.codes = [compiled(each) for each in statements]
        self.in_place = any(isinstance(node, ast.AugAssign | ast.Expr) or isinstance(node, ast.Subscript)
                            and isinstance(node.ctx, ast.Store) for each in statements for node in ast.walk(each))
        self.has_loop = any(isinstance(each, ast.For) for each in statements)
        self.before = [names]
        with silent():
            for code in self.codes:
                names = self.fork(self.before[-1])
                try:
                    exec(code, names)
                except (Exception, SystemExit):
                    break
                self.before.append(names)

    def fork(self, names):
        """The same names, each array with a copy of its own if a statement may write to it."""
        if not self.in_place:
            return dict(names)
        arrays = {name: value for name, value in names.items() if isinstance(value, np.ndarray | tuple | list | dict)
                  and name != "__builtins__"}
        modules = {id(value): value for value in names.values() if isinstance(value, types.ModuleType)}
        return names | copy.deepcopy(arrays, modules)

    def index(self, line):
        """The number of the statement on a line of the file, or None."""
        return next((i for i, each in enumerate(self.statements) if each.lineno <= line <= each.end_lineno), None)

    def with_edit(self, i, statement, last):
        """The names after statement `last` if statement i is another one; None if something raises."""
        names = self.fork(self.before[i])
        try:
            exec(compiled(statement), names)
            for code in self.codes[i + 1:last + 1]:
                exec(code, names)
        except (Exception, SystemExit):
            return None
        return names


def compiled(statement):
    return compile(ast.fix_missing_locations(ast.Module([statement], [])), "<statement>", "exec")


@contextlib.contextmanager
def silent():
    """Within it nothing is printed, and no warning: the learner's lines have run once already."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), \
            np.errstate(all="ignore"):
        yield


def repair(walk, first, last, is_right, terms, fixed=()):
    """(line, message) of the edit that makes the value of statement `last` right, or None.

    first: the statement to begin with, from which it goes back; is_right(names): whether the value is right after
    statement `last`; terms: text -> value of the parts of the package's line, which may be missing in the learner's;
    fixed: the lines that stay as they are.
    """
    left = LOOP_EDITS if walk.has_loop else EDITS
    for i in range(min(first, len(walk.before) - 1), max(-1, first - BACK - 1), -1):
        if walk.statements[i].lineno in fixed:
            continue
        pieces = Pieces(walk.before[i], walk.globals, terms)
        tries = sorted(edited(walk.statements[i], pieces), key=lambda edit: (edit[0], -edit[1]))
        for _, line, message, statement in tries[:left]:
            with silent():
                after = walk.with_edit(i, statement, last)
                if after is not None and is_right(after):
                    return line, message
        left -= min(left, len(tries))
    return None


class Pieces:
    """What an edit may put into a line.

    kinds: name -> type of all variables so far; values: (text, node, rank) of what can be a factor or a term.
    """

    def __init__(self, names, outer, terms):
        own = {name: value for name, value in names.items() if name not in outer
               or isinstance(value, float) and not name.startswith("__")}
        self.kinds = {name: "number" if isinstance(value, float | np.floating) else type(value)
                      for name, value in own.items()}
        self.likely = set(terms)
        self.values = [(text, ast.Name(hidden(text), ast.Load()), 3) for text in terms]
        self.values += [(name, ast.Name(name, ast.Load()), 5) for name, value in own.items() if name not in terms
                        and isinstance(value, np.ndarray | float | np.floating)]
        counts = [name for name, value in own.items() if type(value) is int and value > 1]
        self.values += [(name, ast.Name(name, ast.Load()), 4) for name in counts]
        self.values += [(f"{name} / {count}", ast.parse(f"{name} / {count}", mode="eval").body, 5.2) for count in counts
                        for name, value in own.items() if isinstance(value, np.ndarray) and name.startswith("d")]


def hidden(text):
    """The name under which the value of a term stands among the learner's names."""
    return "__" + "".join(char if char.isalnum() else f"_{ord(char)}_" for char in text) + "__"


def edited(node, pieces, line=None, is_value=False):
    """Yield (rank, line, message, node with one edit) for the node and all below it; the lowest rank says most."""
    line = node.lineno if isinstance(node, ast.stmt) else line
    for rank, message, new in edits(node, pieces):
        yield rank, line, message, new
    for rank, message, new in insertions(node, pieces, is_value == "all") if is_value else []:
        yield rank, line, message, new
    for field, child in ast.iter_fields(node):
        if isinstance(node, ast.Call) and field == "func" and not isinstance(child, ast.Attribute) \
                or isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            continue
        values = field in ("value", "left", "right", "body", "orelse", "args", "elts", "values")
        if isinstance(node, ast.Assign):
            values = "all"
        parts = child if isinstance(child, list) else [child]
        for i, part in reversed([*enumerate(parts)]):       # of a loop the last line first: it is nearer to the result
            if isinstance(part, ast.AST):
                for rank, at, message, new in edited(part, pieces, line, isinstance(part, ast.expr) and values):
                    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and field == "right":
                        message = message.replace("the factor", "the division by", 1)
                    if isinstance(node, ast.For) and message.startswith("= instead of +="):
                        message = "= instead of +=: only the last gradient was kept"
                    news = [*parts[:i], new, *parts[i + 1:]]
                    yield rank, at, message, changed(node, **{field: news if isinstance(child, list) else new})


def edits(node, pieces):
    """Yield (rank, message, replacement) for each small edit of this very node."""
    text = ast.unparse
    match node:
        case ast.BinOp(left, ast.Mult() | ast.Div() as op, right):
            divided = isinstance(op, ast.Div)
            yield (0, f"divided by {text(right)} instead of multiplied" if divided
                   else f"multiplied by {text(right)} instead of divided",
                   changed(node, op=ast.Mult() if divided else ast.Div()))
            yield (2, f"divided by {text(right)}, which does not belong there" if divided
                   else f"the factor {text(right)} does not belong there", left)
            yield 2, f"the factor {text(left)} does not belong there", right
            yield 2.5, f"a {'quotient' if divided else 'product'} instead of a sum", changed(node, op=ast.Add())
            if not divided:
                yield 6, f"`{text(node)}` is elementwise, a matmul belongs there", changed(node, op=ast.MatMult())
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            added = isinstance(op, ast.Add)
            yield (0, f"the term {text(right)} has the wrong sign",
                   changed(node, op=ast.Sub() if added else ast.Add()))
            yield 0, f"the term {text(left)} has the wrong sign", changed(node, left=negative(left))
            yield 2, f"the term {text(right)} does not belong there", left
            yield 2, f"the term {text(left)} does not belong there", right if added else negative(right)
            for operator in (ast.Mult(), ast.Div()):
                word = "multiplied" if isinstance(operator, ast.Mult) else "divided"
                yield (2, f"{text(right)} is {'added' if added else 'subtracted'}, not {word}",
                       changed(node, op=operator))
        case ast.BinOp(left, ast.MatMult(), right):
            yield 1, "the factors are in the wrong order", changed(node, left=right, right=left)
            for old, field in ((left, "left"), (right, "right")):
                yield 1, transposition(old), changed(node, **{field: transposed(old)})
                other = "right" if field == "left" else "left"
                yield (1.5, f"the factors are in the wrong order, and {transposition(old)}",
                       changed(node, **{other: transposed(old), field: right if old is left else left}))
            yield (1.5, f"{transposition(left)}, and {transposition(right)}",
                   changed(node, left=transposed(left), right=transposed(right)))
            yield 6, f"`{text(node)}` is a matmul, * belongs there", changed(node, op=ast.Mult())
        case ast.BinOp(left, ast.Pow(), ast.Constant(power)):
            for other in (power - 1, power + 1):
                yield 1, f"the power {power} instead of {other}", changed(node, right=ast.Constant(other))
        case ast.Attribute(value, "T"):
            yield 1, f"{text(value)} should not be transposed", value
        case ast.Call():
            yield from call_edits(node)
        case ast.Tuple(items) | ast.List(items) if len(items) < 7:
            for i, j in itertools.combinations(range(len(items)), 2):
                order = list(items)
                order[i], order[j] = items[j], items[i]
                yield 4, f"{text(items[i])} and {text(items[j])} are in each other's place", changed(node, elts=order)
        case ast.Name(name, ast.Load()):
            for other, kind in pieces.kinds.items():
                if other != name and kind == pieces.kinds.get(name):
                    # Of a cache there is little else that can be wrong.
                    rank = 1.5 if kind not in (np.ndarray, "number") else 4 if other in pieces.likely else 4.2
                    yield rank, f"uses {name} in place of {other}", ast.Name(other, ast.Load())
        case ast.Constant(float(number)):
            for other in NUMBERS:
                yield 2.7, f"{number} instead of {other}", ast.Constant(other)
            for other in pieces.kinds:
                yield 4.6, f"uses {number} in place of {other}", ast.Name(other, ast.Load())
        case ast.UnaryOp(ast.USub(), operand):
            yield 0, "its sign is wrong", operand
        case ast.For(_, order):
            yield (1, "the loop runs in the wrong order: reversed is missing",
                   changed(node, iter=ast.Call(ast.Name("reversed", ast.Load()), [order], [])))
        case ast.AugAssign(target, ast.Add(), value):
            yield 1, "+= instead of =: it adds to what was there before", ast.copy_location(
                ast.Assign([target], value), node)
        case ast.Assign([target], value) if not isinstance(target, ast.Tuple):
            yield 0, "its sign is wrong", changed(node, value=negative(value))
            if isinstance(target, ast.Subscript) or getattr(target, "id", None) in pieces.kinds:
                yield 1, "= instead of +=: it overwrites what was there before", ast.copy_location(
                    ast.AugAssign(target, ast.Add(), value), node)
        case ast.Assign([ast.Tuple(targets)]):
            for i, j in itertools.combinations(range(len(targets)), 2):
                order = list(targets)
                order[i], order[j] = targets[j], targets[i]
                yield (1, f"{text(targets[i])} and {text(targets[j])} are in each other's place",
                       changed(node, targets=[ast.Tuple(order, ast.Store())]))
        case ast.Subscript(value, ast.Constant(int())):
            yield (2, f"{text(node)} is only one entry: the sum over axis 0 is missing",
                   ast.parse(f"({text(value)}).sum(axis=0)", mode="eval").body)
        case ast.IfExp(_, body, orelse):
            yield 6, "the two cases of the condition are swapped", changed(node, body=orelse, orelse=body)
        case ast.Constant(str(key)):
            for other in ("weight", "bias", "c_fc", "c_proj", "c_attn", "ln_1", "ln_2", "attn", "mlp", "wte", "wpe"):
                yield 6, f"uses {key!r} in place of {other!r}", ast.Constant(other)


def call_edits(node):
    """The edits of a call: of a reduction, of a transposition, and of the order of the arguments."""
    text = ast.unparse
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    of_module = isinstance(node.func, ast.Attribute) and text(node.func.value) == "np"
    if name in ("sum", "mean"):
        yield from reduction_edits(node, name, of_module)
    elif name in ("swapaxes", "transpose") and not of_module:
        yield 1, f"{text(node.func.value)} should not be transposed", node.func.value
        if name == "transpose" and 2 < len(node.args) < 6:
            for order in itertools.permutations(range(len(node.args))):
                yield 6, f"transpose{order} would be right", changed(node, args=[ast.Constant(i) for i in order])
    elif of_module and len(node.args) == 1 and not node.keywords:
        yield 2, f"{text(node.func)} does not belong there", node.args[0]
        for other in FUNCTIONS:
            yield 3, f"{text(node.func)} in place of np.{other}", changed(node, func=changed(node.func, attr=other))
    for i, j in itertools.combinations(range(min(len(node.args), 5)), 2):
        order = list(node.args)
        order[i], order[j] = node.args[j], node.args[i]
        yield 4, f"{text(node.args[i])} and {text(node.args[j])} are in each other's place", changed(node, args=order)


def reduction_edits(node, name, of_module):
    """The edits of a sum or mean: over which axes, whether the axis stays, and which of the two it is."""
    value = node.args[0] if of_module and node.args else node.func.value
    rest = node.args[1:] if of_module else node.args
    given = {each.arg: each.value for each in node.keywords}
    axis = ast.unparse(given.get("axis", rest[0] if rest else ast.Constant(None)))
    kept = "keepdims" in given and ast.unparse(given["keepdims"]) == "True"
    arguments = [value] if of_module else []

    def call(name, axis, kept):
        keywords = [ast.keyword("axis", ast.parse(axis, mode="eval").body)]
        keywords += [ast.keyword("keepdims", ast.Constant(True))] * kept
        return ast.Call(changed(node.func, attr=name), arguments, keywords)

    other = "mean" if name == "sum" else "sum"
    yield 0, f"a {name} instead of a {other}", call(other, axis, kept)
    yield (1, "an axis of length 1 is too much (keepdims?)" if kept else "keepdims=True is missing",
           call(name, axis, not kept))
    for right in AXES:
        if str(right) != axis:
            wrong = f"axis={right} is missing" if axis == "None" else f"axis {axis} instead of axis {right}"
            yield 1.2, wrong, call(name, str(right), kept)
            yield (1.4, f"{wrong}, and keepdims=True is {'too much' if kept else 'missing'}",
                   call(name, str(right), not kept))
    yield 2, f"the {name} does not belong there", value


def insertions(node, pieces, is_all):
    """Yield (rank, message, replacement) for each factor or term that may be missing at a node.

    is_all: whether the node is all that a statement assigns.
    """
    if isinstance(node, ast.Constant | ast.Tuple | ast.List | ast.Dict | ast.Starred | ast.Slice) or is_module(node):
        return
    # A term is missing in a sum; anywhere else it is less likely.
    is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)
    for text, value, rank in pieces.values:
        yield rank, f"the factor {text} is missing", ast.BinOp(node, ast.Mult(), value)
        at = rank + (0.1 if is_sum or is_all else 2.0)
        yield at, f"the term {text} is missing", ast.BinOp(node, ast.Add(), value)
        yield at, f"the term {text} is missing, subtracted", ast.BinOp(node, ast.Sub(), value)
        yield rank + 0.2, f"the division by {text} is missing", ast.BinOp(node, ast.Div(), value)
        yield at + 0.3, f"it is to be subtracted from {text}", ast.BinOp(value, ast.Sub(), node)
    for number in NUMBERS:
        yield 2.8, f"the factor {number} is missing", ast.BinOp(ast.Constant(number), ast.Mult(), node)
        yield 2.9, f"the term {number} is missing", ast.BinOp(ast.Constant(number), ast.Add(), node)
        yield 2.9, f"it is to be subtracted from {number}", ast.BinOp(ast.Constant(number), ast.Sub(), node)
    yield 0.5, f"the sign of {ast.unparse(node)} is wrong", negative(node)
    if not isinstance(node, ast.Name):
        for name, kind in pieces.kinds.items():
            if kind in (np.ndarray, "number"):
                yield (6.5 if is_all else 4.5 if name in pieces.likely else 4.7,
                       f"uses {ast.unparse(node)} in place of {name}", ast.Name(name, ast.Load()))


def is_module(node):
    return isinstance(node, ast.Name) and node.id in ("np", "math", "ops", "layers")


def negative(node):
    return ast.UnaryOp(ast.USub(), node)


def transposed(node):
    """The node with its last two axes swapped; one that is transposed already, as it was before."""
    match node:
        case ast.Attribute(value, "T") | ast.Call(ast.Attribute(value, "swapaxes")):
            return value
    return ast.Call(ast.Attribute(node, "swapaxes", ast.Load()), [ast.Constant(-1), ast.Constant(-2)], [])


def transposition(node):
    """What is wrong with a factor that `transposed` mends."""
    match node:
        case ast.Attribute(value, "T") | ast.Call(ast.Attribute(value, "swapaxes")):
            return f"{ast.unparse(value)} should not be transposed"
    return f"{ast.unparse(node)} should be transposed"


def changed(node, **fields):
    """A copy of a node with other fields; the parts that stay are shared."""
    return ast.copy_location(type(node)(**{**dict(ast.iter_fields(node)), **fields}), node)
