"""Which small edit makes a wrong line right? The edit says what the mistake is.

The learner's function runs statement by statement. Each small edit of a statement is tried on the learner's own values,
until the results are the true ones. So a mistake is only named if its correction gives the true numbers.
"""

import ast
import dataclasses
import functools
import itertools
import re

import numpy as np

from npgpt.study.exercises.findings import Finding, Rank
from npgpt.study.exercises.walk import RESULT, stored_names
from npgpt.study.gradcheck.source import names_in

EDITS, LOOP_EDITS = 6000, 2500      # how many are tried at most, and in a function with a loop, which takes longer
NUMBERS = (-0.5, 0.5, 1.0, 2.0, 3.0)
AXES = (-1, 0, 1, (0, 1), 2, (0, 1, 2), -2, None)
# Other arguments of these could fill the memory: in a loop, np.outer(dx, …) makes an ever larger dx.
ALLOCATE = {"zeros", "ones", "empty", "full", "eye", "tile", "repeat", "outer", "kron", "tensordot"}
CLIP = {"maximum", "minimum", "clip"}       # with other arguments they give 1, or 0, by accident
FUNCTIONS = ("exp", "log", "sqrt", "sin", "cos", "tanh")
text = ast.unparse


def repairs(walk, window, whole, others, is_right, terms):
    """Yield (rank, line, finding, edits) for each edit that makes the results of a `Walk` right,
    likeliest first.

    window: numbers of statements, the likeliest first; whole: those that are swapped too; others:
    those whose right sides may be swapped with them; is_right(names): whether the walk ended well;
    terms(statement): text -> value of the parts of the package's line, which may be missing in the
    learner's; edits: as `Walk.run` takes them.
    """
    tries = []
    for nearness, i in enumerate(window):
        pieces = Pieces(walk.before[i], walk.globals, terms(walk.statements[i]), walk.statements[i])
        tries += [(rank, nearness, line, finding, {i: statement})
                  for rank, line, finding, statement in edited(walk.statements[i], pieces)]
    tries += swaps(walk, whole, others)
    tries.sort(key=lambda each: each[:2])
    for rank, _, line, finding, edits in tries[:LOOP_EDITS if walk.has_loop else EDITS]:
        after = None if any(map(is_trivial, edits.values())) else walk.run(min(edits), edits)
        if after is not None and is_right(after):
            yield rank, line, finding, edits


# A repair of a kind, made in right code, is a mistake of this kind; its operands are the other way round.
MISTAKES = {
    "extra factor": "factor",
    "extra division": "division",
    "extra term": "term",
    "extra call": "call",
    "transposed": "not transposed",
    "not transposed": "transposed",
    "keepdims": "keepdims missing",
    "multiplied": "divided",
    "divided": "multiplied",
} | {
    kind: kind
    for kind in (
        "sign",
        "term sign",
        "part sign",
        "matmul order",
        "swapped",
        "results order",
        "loop order",
        "reduction",
        "axis",
        "instead",
        "uses",
    )
}


def mistakes(walk):
    """Yield (number of the statement, line, finding, statement) of each small mistake in a `Walk`, from its end."""
    for i, (statement, names) in reversed([*enumerate(zip(walk.statements, walk.before, strict=False))]):
        for _, line, finding, new in edited(statement, Pieces(names, walk.globals, {}, statement)):
            kind = MISTAKES.get(finding.kind)
            if kind and i > 0 and (kind != "uses" or RESULT not in stored_names(new)):      # 0 unpacks the cache
                yield i, line, dataclasses.replace(finding, kind=kind, operands=finding.operands[::-1]), new


def swaps(walk, window, others):
    """Yield the edits that swap the right sides of two lines."""
    statements = walk.statements
    simple = [i for i in others if isinstance(statements[i], ast.Assign)
              and RESULT not in stored_names(statements[i])]
    for i, j in itertools.combinations(simple, 2):
        a, b = statements[i], statements[j]
        # lines of other kinds are not mistaken for each other
        if (i in window or j in window) and type(a.value) is type(b.value):
            yield (Rank.LINES_SWAPPED, 0, a.lineno, Finding("lines swapped", [], [b.lineno]),
                   {i: changed(a, value=b.value), j: changed(b, value=a.value)})


class Pieces:
    """What an edit may insert into a line.

    kinds: name -> type of all variables so far, and of those of the statement's loops; floating: the names of arrays
    and numbers; values: (text, node, rank) of what can be a factor, a term or a divisor; numbers: those of the
    package's line and a few that are often forgotten; likely: the texts of the package's line.
    """

    def __init__(self, names, outer, terms, statement):
        numbers = {term: value for term, value in terms.items() if re.fullmatch(r"[\d.e-]+", term)}
        self.numbers = sorted({*NUMBERS, *numbers.values()})
        self.likely = set(terms) - set(numbers)
        own = {name: value for name, value in names.items() if name not in outer
               or isinstance(value, float) and not name.startswith("__")}
        self.kinds = {name: "number" if isinstance(value, float | np.floating) else type(value)
                      for name, value in own.items()}
        for node in ast.walk(statement):
            if isinstance(node, ast.For | ast.comprehension):
                self.kinds |= dict.fromkeys(stored_names(node.target), int)
        counts = {value: name for name, value in own.items() if type(value) is int and value > 1}
        self.floating = [name for name, kind in self.kinds.items() if kind in (np.ndarray, "number")]
        self.values = [(term, expression(hidden(term)), Rank.MISSING) for term in terms if term not in numbers]
        self.values += [(name, expression(name), Rank.MISSING_OTHER) for name in self.floating
                        if name not in self.likely]
        self.values += [(term, expression(term), Rank.MISSING_COUNT) for term in counts.values()]


def hidden(term):
    """Return the name of the variable that holds the value of a package's term in the learner's walk."""
    return f"__{term.encode().hex()}__"


def edited(node, pieces, line=None, is_value=False):
    """Yield (rank, line, finding, edited copy) for each edit of a node or of a node below it."""
    line = node.lineno if isinstance(node, ast.stmt) else line
    missing = insertions(node, pieces, is_value == "all") if is_value else ()
    for rank, kind, operands, new in itertools.chain(edits(node, pieces), missing):
        yield rank, line, Finding(kind, [*map(str, operands)]), new
    called = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
    if getattr(node, "arg", None) == "out" or called in ALLOCATE | CLIP:
        return
    for field, child in ast.iter_fields(node):
        if isinstance(node, ast.Call) and field == "func" and not isinstance(child, ast.Attribute) \
                or isinstance(child, ast.Name) and (isinstance(child.ctx, ast.Store) or field == "test"):
            continue
        values = field in ("value", "left", "right", "body", "orelse", "args", "elts", "values")
        if isinstance(node, ast.Assign):
            values = "all" if field == "value" else False
        parts = child if isinstance(child, list) else [child]
        for i, part in reversed([*enumerate(parts)]):       # of a loop the last line first: it is nearer to the result
            for rank, at, finding, new in edited(part, pieces, line, isinstance(part, ast.expr) and values) \
                    if isinstance(part, ast.AST) else ():
                news = [*parts[:i], new, *parts[i + 1:]] if isinstance(child, list) else new
                yield rank, at, located(finding, node, field, part), changed(node, **{field: news})


def located(finding, node, field, part):
    """Add the location of a node's part to a finding about the part."""
    if finding.where:
        return finding
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and field == "right":
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add | ast.Sub):
            return dataclasses.replace(finding, where=text(part))
        kind = {"factor": "division", "extra factor": "extra division"}.get(finding.kind, finding.kind)
        return dataclasses.replace(finding, kind=kind)
    if isinstance(node, ast.Call) and field == "args" and not isinstance(part, ast.Name):
        return dataclasses.replace(finding, where=text(node))       # the sentence does not say where it is
    return finding


def edits(node, pieces):
    """Yield (rank, kind, operands, replacement) for each small edit of a node itself, not of those below it."""
    for new in rebracketed(node) if isinstance(node, ast.BinOp) else ():
        yield Rank.BRACKETS, "brackets", [text(new)], new
    if value := transposed(node):
        yield Rank.SHAPE, "not transposed", [text(value)], value
    match node:
        case ast.BinOp(left, ast.Mult() | ast.Div() as op, right):
            a, b, divided = text(left), text(right), isinstance(op, ast.Div)
            yield (Rank.SIGN, "divided" if divided else "multiplied", [b],
                   changed(node, op=ast.Mult() if divided else ast.Div()))
            yield Rank.EXTRA, "extra division" if divided else "extra factor", [b], left
            yield Rank.EXTRA, "extra factor", [a], right
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            a, b, added = text(left), text(right), isinstance(op, ast.Add)
            yield Rank.SIGN, "term sign", [b], changed(node, op=ast.Sub() if added else ast.Add())
            yield Rank.EXTRA, "extra term", [b], left
            yield Rank.EXTRA, "extra term", [a], right if added else negative(right)
        case ast.BinOp(left, ast.MatMult(), right):
            yield Rank.SHAPE, "matmul order", [], changed(node, left=right, right=left)
            for field, old in ("left", left), ("right", right):
                if not transposed(old):
                    new = changed(expression("x.swapaxes(-1, -2)"), func=ast.Attribute(old, "swapaxes", ast.Load()))
                    yield Rank.SHAPE, "transposed", [text(old)], changed(node, **{field: new})
        case ast.Call():
            yield from call_edits(node)
        case ast.Name(name, ast.Load()):
            for other, kind in pieces.kinds.items():
                if other not in (name, "_") and kind == pieces.kinds.get(name):
                    rank = Rank.CACHE if kind not in (np.ndarray, "number") else \
                        Rank.NAME if other in pieces.likely else Rank.OTHER_NAME
                    yield rank, "uses", [name, other], expression(other)
        case ast.Constant(float(number)):
            for other in pieces.numbers:
                yield Rank.COUNT, "instead", [number, other], ast.Constant(other)
            for other, kind in pieces.kinds.items():
                yield Rank.NAME if kind == "number" else Rank.PART, "uses", [number, other], expression(other)
        case ast.Constant(int(number)) if type(number) is int:
            counts = [name for name, kind in pieces.kinds.items() if kind is int]
            for other in map(str, [*counts, number + 1, number - 1]):
                yield Rank.COUNT, "instead", [number, other], expression(other)
        case ast.For(_, order):
            backwards = ast.Call(expression("reversed"), [order], [])
            yield Rank.SHAPE, "loop order", [], changed(node, iter=backwards)
        case ast.AugAssign():
            yield from augmented_edits(node, pieces)
        case ast.Assign([ast.Name(id="__result__")], ast.Tuple(items)):
            for order in itertools.permutations(items) if len(items) < 5 else ():
                yield Rank.SHAPE, "results order", [], changed(node, value=ast.Tuple([*order], ast.Load()))
        case ast.Assign([target], value) if not isinstance(target, ast.Tuple):
            yield Rank.SIGN, "sign", [], changed(node, value=negative(value))
            if isinstance(target, ast.Subscript) or pieces.kinds.get(getattr(target, "id", None)) is np.ndarray:
                yield Rank.SHAPE, "overwrites", [], ast.copy_location(ast.AugAssign(target, ast.Add(), value), node)
            if isinstance(target, ast.Subscript):
                yield Rank.SIGN, "repeats", [], added_at(node)
        case ast.Assign([ast.Tuple(targets)]):
            for names, order in exchanged(targets):
                yield Rank.SHAPE, "swapped", names, changed(node, targets=[ast.Tuple(order, ast.Store())])
            called = [each.id for each in getattr(node.value, "args", []) if isinstance(each, ast.Name)]
            for i, name in itertools.product(range(len(targets)), called):
                order = [*targets[:i], ast.Name(name, ast.Store()), *targets[i + 1:]]
                yield (Rank.AXIS, "not assigned", [i + 1, text(node.value), name],
                       changed(node, targets=[ast.Tuple(order, ast.Store())]))
        case ast.Dict(values=values):
            for names, order in exchanged(values):
                yield Rank.AXIS, "swapped", names, changed(node, values=order)


def augmented_edits(node, pieces):
    """Yield the edits of an augmented assignment, `x += y`."""
    for rank, kind, operands, new in edits(ast.BinOp(node.target, node.op, node.value), pieces):
        if operands == [text(node.value)] and new is not node.target:
            yield rank, kind, operands, changed(node, op=new.op)
    if isinstance(node.op, ast.Add) and isinstance(node.target, ast.Subscript):
        yield Rank.SIGN, "repeats", [], added_at(node)


def added_at(node):
    """Return `np.add.at(x, i, y)` for `x[i] += y` or `x[i] = y`."""
    [target] = [node.target] if isinstance(node, ast.AugAssign) else node.targets
    call = changed(expression("np.add.at()"), args=[target.value, target.slice, node.value])
    return ast.copy_location(ast.Expr(call), node)


def call_edits(node):
    """Yield the edits of a call: other reductions, functions, another order of the arguments."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    of_module = isinstance(node.func, ast.Attribute) and text(node.func.value) == "np"
    if name in ("sum", "mean"):
        yield from reduction_edits(node, name, of_module)
    if node.args and isinstance(node.args[0], ast.Name) or of_module and len(node.args) == 1:
        yield Rank.EXTRA, "extra call", [text(node.func)], node.args[0]
        for other in FUNCTIONS if of_module and not node.keywords else ():
            yield (Rank.MISSING, "instead", [text(node.func), f"np.{other}"],
                   changed(node, func=changed(node.func, attr=other)))
    for names, order in exchanged(node.args[:5]):
        yield Rank.NAME, "swapped", names, changed(node, args=order + node.args[5:])


def reduction_edits(node, name, of_module):
    """Yield the edits of a sum or mean: other axes, with or without keepdims, a mean for a sum."""
    given = {each.arg: each.value for each in node.keywords}
    axis = text(given.get("axis", [*node.args[of_module:], ast.Constant(None)][0]))
    kept = text(given.get("keepdims", ast.Constant(False))) == "True"

    def call(name, axis, kept):
        return changed(node, func=changed(node.func, attr=name), args=node.args[:of_module], keywords=[
            ast.keyword("axis", expression(axis)), ast.keyword("keepdims", ast.Constant(kept))])

    other = "mean" if name == "sum" else "sum"
    yield Rank.SIGN, "reduction", [name, other], call(other, axis, kept)
    yield Rank.SHAPE, "keepdims" if kept else "keepdims missing", [], call(name, axis, not kept)
    for right in map(str, AXES):
        if right != axis:
            kind, operands = ("axis missing", [right]) if axis == "None" else ("axis", [axis, right])
            yield Rank.AXIS, kind, operands, call(name, right, kept)


def insertions(node, pieces, is_all):
    """Yield the edits that insert a factor or a term at a node. is_all: it is all that a statement assigns."""
    is_module = getattr(node, "id", None) in ("np", "math", "ops", "layers")
    if isinstance(node, ast.Constant | ast.Tuple | ast.List | ast.Dict | ast.Starred | ast.Slice) or is_module:
        return
    # What neither the package's line has nor counts something gives the numbers by accident:
    # it is no divisor.
    is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)
    for term, value, rank in pieces.values:
        yield rank, "factor", [term], ast.BinOp(node, ast.Mult(), value)
        # x / x gives the numbers by accident, and so do the powers.
        if rank != Rank.MISSING_OTHER and "**" not in term and not names_in(node) & {*re.findall(r"[^\W\d]\w*", term)}:
            yield rank, "division", [term], ast.BinOp(node, ast.Div(), value)
        if rank != Rank.MISSING_COUNT and (is_sum or is_all or rank == Rank.MISSING):
            yield rank, "term", [term], ast.BinOp(node, ast.Add(), value)
            yield rank, "subtraction", [term], ast.BinOp(node, ast.Sub(), value)
    for number in pieces.numbers:
        for kind, operator in (("factor", ast.Mult()), ("term", ast.Add()), ("subtracted from", ast.Sub())):
            if (kind, number) != ("factor", 1.0):
                yield Rank.MISSING_NUMBER, kind, [number], ast.BinOp(ast.Constant(number), operator, node)
    if not isinstance(node, ast.UnaryOp):
        yield Rank.PART_SIGN, "part sign", [text(node)], negative(node)
    if not isinstance(node, ast.Name):
        far = Rank.FAR if is_all else Rank.PART
        for name in pieces.floating:
            yield far, "uses", [text(node), name], expression(name)


def rebracketed(node):
    """Yield `a * (b - c)` for `a * b - c`, with the opening bracket at each possible location."""
    lefts, inner = [], node.left
    while isinstance(inner, ast.BinOp):
        lefts.append(inner)
        inner = inner.left
    for depth, each in enumerate(lefts):
        # `each` is x op y: what follows y up to the end goes into the brackets, of y if it is a
        # call.
        is_call = isinstance(each.right, ast.Call) and len(each.right.args) == 1
        rest = each.right.args[0] if is_call else each.right
        for outer in [*reversed(lefts[:depth]), node]:
            rest = changed(outer, left=rest)
        yield changed(each, right=changed(each.right, args=[rest]) if is_call else rest)


def changed(node, **fields):
    """Return a shallow copy of a node with other fields."""
    return ast.copy_location(type(node)(**{**dict(ast.iter_fields(node)), **fields}), node)


@functools.cache
def expression(text):
    """Return the tree of an expression."""
    return ast.parse(text, mode="eval").body


def negative(node):
    return ast.UnaryOp(ast.USub(), node)


def exchanged(nodes):
    """Yield (the texts of two nodes, all nodes with these two swapped) for every two."""
    for i, j in itertools.combinations(range(len(nodes)), 2):
        order = list(nodes)
        order[i], order[j] = nodes[j], nodes[i]
        yield [ast.unparse(nodes[i]), ast.unparse(nodes[j])], order


def is_trivial(statement):
    """Whether a statement computes x / x or x - x, which gives the numbers by accident."""
    return any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Sub)
               and text(node.left) == text(node.right) for node in ast.walk(statement))


def transposed(node):
    """Return the x of `x.T`, `x.swapaxes(…)` or `x.transpose(…)`; None for another node."""
    match node:
        case ast.Attribute(value, "T") | ast.Call(ast.Attribute(value, "swapaxes" | "transpose")):
            return value
