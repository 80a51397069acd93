"""Which small change makes a wrong line right? It names the mistake, because it says what the learner did instead.

The learner's function runs statement by statement. Each small edit of a statement is tried on the learner's own values,
until the results are the true ones. So a mistake is only named if its correction gives the true numbers.
"""

import ast
import copy
import itertools
import re

import numpy as np

from npgpt.study.exercises.mutants import changed, exchanged, negative
from npgpt.study.gradcheck.source import names_in
from npgpt.study.judge.walk import RESULT, stored_names

EDITS, LOOP_EDITS = 6000, 1000      # how many are tried at most, and in a function with a loop, which takes longer
NUMBERS = (0.5, 1.0, 2.0, 3.0)
AXES = (-1, 0, 1, (0, 1), 2, (0, 1, 2), -2, None)
REPEATS = "only the last gradient is kept of an index that occurs several times: they have to be added"
# Other arguments of these could fill the memory: in a loop, np.outer(dx, …) makes an ever larger dx.
ALLOCATE = {"zeros", "ones", "empty", "full", "eye", "tile", "repeat", "outer", "kron", "tensordot"}
FUNCTIONS = ("exp", "log", "sqrt", "sin", "cos", "tanh")


def repairs(walk, window, whole, others, is_right, terms):
    """Yield (rank, line, message, edits) for each edit that makes the results of a `Walk` right, smallest first.

    window: numbers of statements, the likeliest first; whole: those in which arrays are swapped too; others: those
    whose right sides may be swapped with them; is_right(names): whether the walk ended well; terms(statement): text ->
    value of the parts of the package's line, which may be missing in the learner's; edits: as `Walk.run` takes them.
    """
    tries = []
    for nearness, i in enumerate(window):
        pieces = Pieces(walk.before[i], walk.globals, terms(walk.statements[i]), walk.statements[i])
        tries += [(rank, nearness, line, message, {i: statement})
                  for rank, line, message, statement in edited(walk.statements[i], pieces)]
    tries += swaps(walk, whole, others)
    tries.sort(key=lambda each: each[:2])
    for rank, _, line, message, edits in tries[:LOOP_EDITS if walk.has_loop else EDITS]:
        if any(map(is_trivial, edits.values())):
            continue
        after = walk.run(min(edits), edits)
        if after is not None and is_right(after):
            yield rank, line, message, edits


def swaps(walk, window, others):
    """Yield the tries that swap the right sides of two lines, or two arrays of a line."""
    statements = walk.statements
    simple = [i for i in others if isinstance(statements[i], ast.Assign) and RESULT not in stored_names(statements[i])]
    for i, j in itertools.combinations(simple, 2):
        a, b = statements[i], statements[j]
        if (i in window or j in window) and type(a.value) is type(b.value):     # others are not mistaken for each other
            yield (1.1, 0, a.lineno, f"the right sides of lines {a.lineno} and {b.lineno} are swapped",
                   {i: changed(a, value=b.value), j: changed(b, value=a.value)})
    for i in window:
        arrays = [name for name, value in walk.before[i].items() if isinstance(value, np.ndarray)]
        for a, b in itertools.combinations([name for name in arrays if name in names_in(statements[i])], 2):
            swapped = copy.deepcopy(statements[i])
            for node in ast.walk(swapped):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in (a, b):
                    node.id = b if node.id == a else a
            yield 1.25, 0, swapped.lineno, f"{a} and {b} are swapped", {i: swapped}


class Pieces:
    """What an edit may put into a line.

    kinds: name -> type of all variables so far, and of those of the statement's loops; values: (text, node, rank) of
    what can be a factor or a term; numbers: the same, of the package's line and a few that are often forgotten.
    """

    def __init__(self, names, outer, terms, statement=None):
        numbers = {text: value for text, value in terms.items() if re.fullmatch(r"[\d.e-]+", text)}
        self.numbers = sorted({*NUMBERS, *numbers.values()})
        terms = {text: value for text, value in terms.items() if text not in numbers}
        own = {name: value for name, value in names.items() if name not in outer
               or isinstance(value, float) and not name.startswith("__")}
        self.kinds = {name: "number" if isinstance(value, float | np.floating) else type(value)
                      for name, value in own.items()}
        for node in ast.walk(statement) if statement else []:
            if isinstance(node, ast.For | ast.comprehension):
                self.kinds |= dict.fromkeys(stored_names(node.target), int)
        self.likely = set(terms)
        self.values = [(text, ast.Name(hidden(text), ast.Load()), 3) for text in terms]
        self.values += [(name, ast.Name(name, ast.Load()), 5) for name, value in own.items() if name not in terms
                        and isinstance(value, np.ndarray | float | np.floating)]
        counts = [name for name, value in own.items() if type(value) is int and value > 1]
        self.values += [(name, ast.Name(name, ast.Load()), 4) for name in counts]
        lengths = {}        # a length of an axis -> the first text that gives it
        for name, value in own.items():
            if isinstance(value, np.ndarray):
                for i in range(-1, -value.ndim - 1, -1):
                    lengths.setdefault(value.shape[i], f"{name}.shape[{i}]")
        self.values += [(text, ast.parse(text, mode="eval").body, 4.3) for text in lengths.values()]


def hidden(text):
    """The name that holds the value of a term among the learner's names."""
    return "__" + "".join(char if char.isalnum() else f"_{ord(char)}_" for char in text) + "__"


def edited(node, pieces, line=None, is_value=False):
    """Yield (rank, line, message, node with one edit) for the node and all below it; the lowest rank says most."""
    line = node.lineno if isinstance(node, ast.stmt) else line
    for rank, message, new in edits(node, pieces):
        yield rank, line, message, new
    for rank, message, new in insertions(node, pieces, is_value == "all") if is_value else []:
        yield rank, line, message, new
    if isinstance(node, ast.Call) and getattr(node.func, "attr", None) in ALLOCATE:
        return
    for field, child in ast.iter_fields(node):
        if isinstance(node, ast.Call) and field == "func" and not isinstance(child, ast.Attribute) \
                or isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            continue
        values = field in ("value", "left", "right", "body", "orelse", "args", "elts", "values")
        if isinstance(node, ast.Assign):
            values = "all" if field == "value" else False
        parts = child if isinstance(child, list) else [child]
        for i, part in reversed([*enumerate(parts)]):       # of a loop the last line first: it is nearer to the result
            if isinstance(part, ast.AST):
                for rank, at, message, new in edited(part, pieces, line, isinstance(part, ast.expr) and values):
                    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and field == "right" \
                            and " in `" not in message:
                        missing = re.match(r"the factor (\w+) is missing", message)
                        if missing and missing[1] in names_in(node.left):
                            continue                    # x / (x * y) gives the numbers by accident
                        is_sum = isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add | ast.Sub)
                        message = f"{message}, in `{ast.unparse(part)}`" if is_sum else \
                            message.replace("the factor", "the division by", 1)
                    if isinstance(node, ast.Call) and field == "args" and " in `" not in message and not (
                            isinstance(part, ast.Name) or rank == 4):       # the message does not say where it is
                        message = f"{message}, in `{ast.unparse(node)}`"
                    if isinstance(node, ast.For) and message.startswith("= instead of +="):
                        message = "= instead of +=: only the last gradient was kept"
                    news = [*parts[:i], new, *parts[i + 1:]]
                    yield rank, at, message, changed(node, **{field: news if isinstance(child, list) else new})


def edits(node, pieces):
    """Yield (rank, message, replacement) for each small edit of this very node."""
    text = ast.unparse
    if isinstance(node, ast.BinOp):
        for new in rebracketed(node):
            yield 1.4, f"brackets are missing: {text(new)}", new
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
            for old, other, field, other_field in ((left, right, "left", "right"), (right, left, "right", "left")):
                message, new = transposed(old)
                yield 1, message, changed(node, **{field: new})
                yield (1.5, f"the factors are in the wrong order, and {message}",
                       changed(node, **{other_field: new, field: other}))
            yield 1.5, f"`{text(node)}` should be transposed", transposed(node)[1]
        case ast.BinOp(left, ast.Pow(), ast.Constant(power)):
            for other in (power - 1, power + 1):
                yield 1, f"the power {power} instead of {other}", changed(node, right=ast.Constant(other))
        case ast.Attribute(value, "T"):
            yield 1, f"{text(value)} should not be transposed", value
        case ast.Call():
            yield from call_edits(node)
        case ast.Tuple(items) | ast.List(items) if len(items) < 7:
            for message, order in exchanged(items):
                yield 4, message, changed(node, elts=order)
        case ast.Name(name, ast.Load()):
            for other, kind in pieces.kinds.items():
                if other != name and kind == pieces.kinds.get(name) and other != "_":
                    # Of a cache there is little else that can be wrong.
                    rank = 1.5 if kind not in (np.ndarray, "number") else 4 if other in pieces.likely else 4.2
                    yield rank, f"uses {name} instead of {other}", ast.Name(other, ast.Load())
        case ast.Constant(float(number)):
            for other in pieces.numbers:
                yield 2.7, f"{number} instead of {other}", ast.Constant(other)
            for other, kind in pieces.kinds.items():
                yield (4.1 if kind == "number" else 4.6, f"uses {number} instead of {other}",
                       ast.Name(other, ast.Load()))
        case ast.Constant(int(number)) if type(number) is int:
            for other in (number + 1, number - 1):
                yield 2.6, f"{number} instead of {other}", ast.Constant(other)
            for other, kind in pieces.kinds.items():
                if kind is int:
                    yield 2.5, f"{number} instead of {other}", ast.Name(other, ast.Load())
        case ast.UnaryOp(ast.USub(), operand):
            yield 0, "its sign is wrong", operand
        case ast.For(_, order):
            yield (1, "the loop runs in the wrong order: reversed is missing",
                   changed(node, iter=ast.Call(ast.Name("reversed", ast.Load()), [order], [])))
        case ast.AugAssign():
            yield from augmented_edits(node)
        case ast.Assign([ast.Name(id="__result__")], ast.Tuple(items)):
            for order in itertools.permutations(items):
                if order != tuple(items) and len(items) < 5:
                    yield (1.0, "the results are returned in another order",
                           changed(node, value=ast.Tuple([*order], ast.Load())))
        case ast.Assign([target], value) if not isinstance(target, ast.Tuple):
            yield 0, "its sign is wrong", changed(node, value=negative(value))
            if isinstance(target, ast.Subscript) or getattr(target, "id", None) in pieces.kinds:
                yield 1, "= instead of +=: it overwrites what was there before", ast.copy_location(
                    ast.AugAssign(target, ast.Add(), value), node)
            if isinstance(target, ast.Subscript):
                yield 0, REPEATS, added_at(node)
        case ast.Assign([ast.Tuple(targets)]):
            for message, order in exchanged(targets):
                yield 1, message, changed(node, targets=[ast.Tuple(order, ast.Store())])
            called = [each.id for each in getattr(node.value, "args", []) if isinstance(each, ast.Name)]
            for i, name in itertools.product(range(len(targets)), called):
                order = [*targets[:i], ast.Name(name, ast.Store()), *targets[i + 1:]]
                yield (1.2, f"result {i + 1} of `{text(node.value)}` is not assigned to {name}",
                       changed(node, targets=[ast.Tuple(order, ast.Store())]))
        case ast.Subscript(value, ast.Constant(int())):
            yield (2, f"{text(node)} is only one entry: the sum over axis 0 is missing",
                   ast.parse(f"({text(value)}).sum(axis=0)", mode="eval").body)
        case ast.Dict(values=values):
            for message, order in exchanged(values):
                yield 1.2, message, changed(node, values=order)
        case ast.IfExp(_, body, orelse):
            yield 6, "the two cases of the condition are swapped", changed(node, body=orelse, orelse=body)
        case ast.Constant(str(key)):
            for other in ("weight", "bias", "c_fc", "c_proj", "c_attn", "ln_1", "ln_2", "attn", "mlp", "wte", "wpe"):
                yield 6, f"uses {key!r} instead of {other!r}", ast.Constant(other)


def augmented_edits(node):
    """The edits of `x += y` and its like."""
    text = ast.unparse(node.value)
    sign = f"the term {text} has the wrong sign"
    message, other = {ast.Add: (sign, ast.Sub), ast.Sub: (sign, ast.Add),
                      ast.Mult: (f"multiplied by {text} instead of divided", ast.Div),
                      ast.Div: (f"divided by {text} instead of multiplied", ast.Mult)}.get(type(node.op), (None, None))
    if other:
        yield 0, message, changed(node, op=other())
    if isinstance(node.op, ast.Add):
        yield 1, "+= instead of =: it adds to what was there before", ast.copy_location(
            ast.Assign([node.target], node.value), node)
        if isinstance(node.target, ast.Subscript):
            yield 0, REPEATS, added_at(node)


def added_at(node):
    """`x[i] += y` or `x[i] = y` as np.add.at(x, i, y)."""
    [target] = [node.target] if isinstance(node, ast.AugAssign) else node.targets
    call = changed(ast.parse("np.add.at()", mode="eval").body, args=[target.value, target.slice, node.value])
    return ast.copy_location(ast.Expr(call), node)


def call_edits(node):
    """The edits of a call: of a reduction, of a transposition, and of the order of the arguments."""
    text = ast.unparse
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    of_module = isinstance(node.func, ast.Attribute) and text(node.func.value) == "np"
    if name in ("sum", "mean"):
        yield from reduction_edits(node, name, of_module)
    elif name in ("swapaxes", "transpose") and not of_module:
        yield 1, f"{text(node.func.value)} should not be transposed", node.func.value
    if of_module and len(node.args) == 1 and not node.keywords:
        yield 2, f"{text(node.func)} does not belong there", node.args[0]
        for other in FUNCTIONS:
            yield 3, f"{text(node.func)} instead of np.{other}", changed(node, func=changed(node.func, attr=other))
    for message, order in exchanged(node.args[:5]):
        yield 4, message, changed(node, args=order + node.args[5:])


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
    yield (1, "extra axis of length 1 (keepdims?)" if kept else "keepdims=True is missing",
           call(name, axis, not kept))
    for right in AXES:
        if str(right) != axis:
            wrong = f"axis={right} is missing" if axis == "None" else f"axis {axis} instead of axis {right}"
            yield 1.2, wrong, call(name, str(right), kept)


def insertions(node, pieces, is_all):
    """Yield (rank, message, replacement) for each factor or term that may be missing at a node.

    is_all: whether the node is all that a statement assigns.
    """
    is_module = getattr(node, "id", None) in ("np", "math", "ops", "layers")
    if isinstance(node, ast.Constant | ast.Tuple | ast.List | ast.Dict | ast.Starred | ast.Slice) or is_module:
        return
    # A term is missing in a sum; anywhere else it is less likely. What neither the package's line has nor counts
    # something gives the numbers by accident: it may only be a factor, or a term of a sum.
    is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)
    for text, value, rank in pieces.values:
        yield rank, f"the factor {text} is missing", ast.BinOp(node, ast.Mult(), value)
        # x / x gives the numbers by accident, and so do the powers.
        if rank < 5 and "**" not in text and not names_in(node) & {*re.findall(r"[^\W\d]\w*", text)}:
            yield rank + 0.2, f"the division by {text} is missing", ast.BinOp(node, ast.Div(), value)
        if rank == 5 and not (is_sum or is_all):
            continue
        at = rank + (0.1 if is_sum or is_all else 2.0)
        yield at, f"the term {text} is missing", ast.BinOp(node, ast.Add(), value)
        yield at, f"the term {text} is missing: it must be subtracted", ast.BinOp(node, ast.Sub(), value)
    for number in pieces.numbers:
        yield 2.8, f"the factor {number} is missing", ast.BinOp(ast.Constant(number), ast.Mult(), node)
        yield 2.9, f"the term {number} is missing", ast.BinOp(ast.Constant(number), ast.Add(), node)
        yield 2.9, f"it must be subtracted from {number}", ast.BinOp(ast.Constant(number), ast.Sub(), node)
    yield 0.5, f"the sign of {ast.unparse(node)} is wrong", negative(node)
    if not isinstance(node, ast.Name):
        for name in sorted(pieces.likely - pieces.kinds.keys()):
            if not name.isidentifier() or name.startswith("d"):     # what the learner has no line for
                continue
            yield (6.6 if is_all else 4.9, f"uses {ast.unparse(node)} instead of {name}",
                   ast.Name(hidden(name), ast.Load()))
        for name, kind in pieces.kinds.items():
            if kind in (np.ndarray, "number"):
                yield (6.5 if is_all else 4.5 if name in pieces.likely else 4.7,
                       f"uses {ast.unparse(node)} instead of {name}", ast.Name(name, ast.Load()))


def rebracketed(node):
    """Yield `a * (b - c)` for `a * b - c`, at each place where the brackets can open."""
    lefts, inner = [], node.left
    while isinstance(inner, ast.BinOp):
        lefts.append(inner)
        inner = inner.left
    for depth, each in enumerate(lefts):
        # `each` is x op y: what follows y up to the end of the node goes into the brackets.
        rest = each.right
        for outer in [*reversed(lefts[:depth]), node]:
            rest = changed(outer, left=rest)
        yield changed(each, right=rest)


def is_trivial(statement):
    """Whether a statement computes x / x or x - x, which gives the numbers by accident."""
    return any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Sub)
               and ast.dump(node.left) == ast.dump(node.right) for node in ast.walk(statement))


def transposed(node):
    """(message, the node with its last two axes swapped; one that is transposed already, without that)."""
    match node:
        case ast.Attribute(value, "T") | ast.Call(ast.Attribute(value, "swapaxes")):
            return f"{ast.unparse(value)} should not be transposed", value
    swapped = ast.Call(ast.Attribute(node, "swapaxes", ast.Load()), [ast.Constant(-1), ast.Constant(-2)], [])
    return f"{ast.unparse(node)} should be transposed", swapped
