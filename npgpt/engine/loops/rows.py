"""Successive lines of a lesson as one loop over rows. A row is what lies along the last axis.

Lines are read into nodes: values, and what they are computed from. A value varies over the rows, over the columns, over
both, or is a number. A mean, sum or maximum along a row is known after a pass over its columns, so each value belongs
to a pass. A cheap value of an earlier pass is computed again; another one is stored.
"""

import ast
from dataclasses import dataclass

import numpy as np

try:
    from scipy.special import erf
except ImportError:
    erf = None

PART, FULL = 1, 2       # rows of an array: one for several of the loop's, such as a mask for all heads; one for each
CHEAP = 3               # operations that another pass may repeat
OPERATORS = {ast.Add: "({} + {})", ast.Sub: "({} - {})", ast.Mult: "({} * {})", ast.Div: "({} / {})", ast.USub: "(-{})",
             ast.Lt: "({} < {})", ast.LtE: "({} <= {})", ast.Gt: "({} > {})", ast.GtE: "({} >= {})",
             ast.Eq: "({} == {})", ast.NotEq: "({} != {})"}
SQUARE, WHERE = "({0} * {0})", "({1} if {0} else {2})"
FUNCTIONS = {np.exp: "exp({})", np.tanh: "tanh({})", erf: "erf({})", np.sqrt: "np.sqrt({})", np.log: "np.log({})",
             np.abs: "abs({})", np.square: SQUARE, np.maximum: "maximum({}, {})", np.where: WHERE}
COSTS = {"({} / {})": 4, "exp({})": 9, "tanh({})": 9, "erf({})": 9, "np.sqrt({})": 9, "np.log({})": 9}     # others: 1
REDUCTIONS = {"sum": ("0", "add"), "mean": ("0", "add"), "max": ("-np.inf", "maximum")}     # their begin and step
RESERVED = {*"n N c C np real exp tanh erf abs maximum add range".split()}                  # in a loop


class UnfitError(Exception):
    """A line that NumPy runs."""


@dataclass(eq=False)
class Node:
    """A value of the lines.

    rows: 0, PART or FULL; columns: whether it varies over them; template: how it is computed from its arguments, None
    for an array that the loop gets; stage: the pass in which it is known; kind: "f", "b", or "i" of an index;
    reduction: "sum", "mean" or "max" along a row, "rows" for a sum over all rows, "take" for one value of each row;
    home: the caller's array that it is written to; put: (index, value), which is written to the row at its end.
    """

    rows: int
    columns: bool
    template: str | None = None
    arguments: tuple = ()
    stage: int = 0
    kind: str = "f"
    reduction: str = ""
    name: str = ""
    home: str = ""
    put: tuple = ()


class Lines:
    """The nodes of successive statements. values: of the names that they read; names: of their module."""

    def __init__(self, values, names):
        floats = [each for each in values.values() if isinstance(each, np.ndarray) and each.ndim and each.size
                  and each.dtype.isnative and each.dtype in (np.float32, np.float64)]
        if not floats:
            raise UnfitError
        lead = max(floats, key=lambda each: (each.size, each.ndim))         # the loop is over its rows
        self.shape, self.dtype, self.values, self.module = lead.shape, lead.dtype, values, names
        self.used, self.numbers, self.before, self.closed = RESERVED | {*values}, {}, [], False
        self.env = {name: self.argument(name, value) for name, value in values.items()}

    def argument(self, name, value):
        """Return an array's node, UnfitError if it does not fit into the loop; another value as it is."""
        if not isinstance(value, np.ndarray) or not value.ndim:
            return value
        *leading, columns = (1,) * (len(self.shape) - value.ndim) + value.shape
        rows = FULL if value.shape[:-1] == self.shape[:-1] else PART if max(leading, default=1) > 1 else 0
        fits = (len(leading) + 1 == len(self.shape) and value.dtype.isnative and columns in (1, self.shape[-1])
                and all(size in (1, whole) for size, whole in zip(leading, self.shape, strict=False))
                and (value.dtype == self.dtype or value.dtype.kind in "biu"))
        columns, kind = columns == self.shape[-1], value.dtype.kind.replace("u", "i")
        return Node(rows, columns, kind=kind, name=name) if fits and (rows or columns) else UnfitError

    def unique(self, name):
        """Return a name for a variable of the loop."""
        found = next(each for each in (name, *(f"{name}_{i}" for i in range(2, 999))) if each not in self.used)
        self.used.add(found)
        return found

    def value(self, tree):
        """Return the value of an expression: a Node, a number, None or a bool. Raises UnfitError."""
        leaves = {each.id: self.env.get(each.id, self.module.get(each.id)) for each in ast.walk(tree)
                  if isinstance(each, ast.Name)}
        simple = ast.Name | ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop | ast.expr_context
        if all(isinstance(each, simple) for each in ast.walk(tree)) and all(map(is_number, leaves.values())):
            try:
                return eval(compile(ast.Expression(tree), "number", "eval"), {}, leaves)
            except ArithmeticError:
                raise UnfitError from None
        match tree:
            case ast.Name(name) if self.env.get(name, UnfitError) is not UnfitError:
                return self.env[name]
            case ast.IfExp(test, body, orelse):
                return self.value(body if self.test(test) else orelse)
            case ast.BinOp(left, ast.Pow(), ast.Constant(2)):
                return self.combined(SQUARE, left)
            case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]) if type(op) in OPERATORS:
                return self.combined(OPERATORS[type(op)], left, right)
            case ast.UnaryOp(op, operand) if type(op) in OPERATORS:
                return self.combined(OPERATORS[type(op)], operand)
            case ast.Call(ast.Attribute(ast.Name("np"), name), arguments, keywords) if self.module.get("np") is np:
                if name == "take_along_axis":
                    return self.taken(arguments, keywords)
                if name in REDUCTIONS:
                    return self.reduced(name, *arguments, keywords=keywords)
                return self.called(getattr(np, name, None), arguments, keywords)
            case ast.Call(ast.Name(name), arguments, keywords):
                return self.called(self.env.get(name), arguments, keywords)
            case ast.Call(ast.Attribute(x, name), arguments, keywords) if name in REDUCTIONS:
                return self.reduced(name, x, *arguments, keywords=keywords)
        raise UnfitError

    def node(self, tree):
        """Return the node of an expression, an array or a number."""
        value = self.value(tree)
        if isinstance(value, Node) and value.reduction != "rows":           # which is known after the loop
            return value
        if not is_number(value) or np.result_type(self.dtype, value) != self.dtype:
            raise UnfitError
        if isinstance(tree, ast.Constant):
            return Node(0, False, f"real({tree.value!r})")
        code = ast.unparse(tree)
        self.numbers.setdefault(code, code if isinstance(tree, ast.Name) else self.unique("number"))
        self.used.add(self.numbers[code])
        return Node(0, False, self.numbers[code])

    def combined(self, template, *trees):
        """Return the node of an elementwise operation."""
        nodes = tuple(map(self.node, trees))
        rows, columns = max(each.rows for each in nodes), any(each.columns for each in nodes)
        if not (rows or columns) or [each.kind for each in nodes] != ["f" if template != WHERE or i else "b"
                                                                      for i in range(len(nodes))]:
            raise UnfitError
        kind = "b" if any(sign in template for sign in "<>=!") else "f"
        return Node(rows, columns, template, nodes, max(each.stage for each in nodes), kind)

    def called(self, function, arguments, keywords):
        """Return the node of a call of one of FUNCTIONS."""
        template = FUNCTIONS.get(function) if callable(function) else None
        if template is None or keywords or len(arguments) != {np.where: 3, np.maximum: 2}.get(function, 1):
            raise UnfitError
        node = self.combined(template, *arguments)
        if function is np.log and node.columns:             # NumPy's has vector instructions
            raise UnfitError
        return node

    def reduced(self, name, tree, *axis, keywords):
        """Return the node of a mean, sum or maximum along the rows, or of a sum over all rows."""
        ndim = len(self.shape)
        try:
            match tree:
                case ast.Call(ast.Attribute(x, "reshape"), [ast.UnaryOp(ast.USub(), ast.Constant(1)), last], []):
                    if eval(compile(ast.Expression(last), "size", "eval"), self.module, self.values) == self.shape[-1]:
                        tree, ndim = x, 2                   # x.reshape(-1, C).sum(axis=0)
            options = {"axis": None, "keepdims": False, **{each.arg: ast.literal_eval(each.value) for each in keywords}}
            axes = {each % ndim for each in np.ravel([*map(ast.literal_eval, axis)] or options["axis"]).tolist()}
        except (ValueError, TypeError, NameError, AttributeError, IndexError):
            raise UnfitError from None
        x = self.node(tree)
        if not (x.rows == FULL and x.columns and x.kind == "f" and len(options) == 2):
            raise UnfitError
        if axes == {ndim - 1} and options["keepdims"] is True:
            return Node(FULL, False, "", (x,), x.stage + 1, reduction=name)
        if name == "sum" and axes == {*range(ndim - 1)} and axes and options["keepdims"] is False:
            return Node(0, True, "", (x,), x.stage, reduction="rows")
        raise UnfitError

    def taken(self, arguments, keywords):
        """Return the node of np.take_along_axis(x, index, axis=-1), one value of each row."""
        if len(arguments) != 2 or [ast.unparse(each) for each in keywords] != ["axis=-1"]:
            raise UnfitError
        x, index = self.node(arguments[0]), self.index(arguments[1])
        if x.rows != FULL or not x.columns:
            raise UnfitError
        return Node(FULL, False, "", (x, index), x.stage, reduction="take")

    def index(self, tree):
        node = self.value(tree)
        if not isinstance(node, Node) or (node.rows, node.columns, node.kind) != (FULL, False, "i"):
            raise UnfitError
        return node

    def test(self, tree):
        """Return a condition on bools and on what may be None, which is known when the loop is made."""
        match tree:
            case ast.Compare(ast.Name(name), [ast.Is() | ast.IsNot() as op], [ast.Constant(None)]) if name in self.env:
                return (self.env[name] is None) == isinstance(op, ast.Is)
            case ast.UnaryOp(ast.Not(), operand):
                return not self.test(operand)
            case ast.Name(name) if isinstance(self.env.get(name), bool):
                return self.env[name]
        raise UnfitError

    def read(self, statement):
        """Read a statement. Raises UnfitError, and then nothing has changed."""
        before = dict(self.env), dict(self.numbers), list(self.before)
        try:
            self.execute(statement)
        except UnfitError:
            self.env, self.numbers, self.before = before
            raise

    def execute(self, statement):
        if self.closed:
            raise UnfitError
        match statement:
            case ast.Assign([ast.Name(name)], tree):
                self.bind(name, tree)
            case ast.AugAssign(ast.Name(name), op, tree) if type(op) in OPERATORS:
                old, new = self.env.get(name), self.combined(OPERATORS[type(op)], ast.Name(name, ast.Load()), tree)
                given = isinstance(old, Node) and old.template is None
                if not isinstance(old, Node) or (new.rows, new.columns) != (old.rows, old.columns) or (
                        new.rows != FULL or given and not old.columns):
                    raise UnfitError
                new.home, new.name = old.name if given else old.home, self.unique(name)
                self.replace(old, new)
            case ast.If(test, body, orelse):
                for each in body if self.test(test) else orelse:
                    self.execute(each)
            case ast.Expr(ast.Call(ast.Attribute(ast.Name("np"), "put_along_axis"), [ast.Name(name), index, value],
                                   [ast.keyword("axis", axis)])) if ast.unparse(axis) == "-1":
                old, index, value = self.env.get(name), self.index(index), self.node(value)
                if not isinstance(old, Node) or not old.template or old.home or (old.rows, old.columns) != (FULL, True) \
                        or value.columns or value.kind != "f":
                    raise UnfitError
                self.replace(old, Node(FULL, True, "{}", (old,), old.stage, put=(index, value)))
                self.closed = True          # nothing in this loop reads it again
            case _:
                raise UnfitError

    def replace(self, old, new):
        """Give its new value to all names of an array that is written to."""
        self.env |= {name: new for name, value in self.env.items() if value is old}

    def bind(self, name, tree):
        value = self.value(tree)
        if isinstance(value, Node):
            if value.template is not None and value.rows != FULL and value.reduction != "rows" or value.kind != "f":
                raise UnfitError            # the result would have another shape than the loop's arrays
            value.name = value.name or self.unique(name)
        elif is_number(value):
            if name in self.env:            # the call of the loop reads its earlier value, too
                raise UnfitError
            self.before.append(f"{name} = {ast.unparse(tree)}")
        self.env[name] = value


def is_number(value):
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) or (
        isinstance(value, np.ndarray) and not value.ndim)


def loop_of(lines, needed, dying):
    """Return the source of a loop that computes names of `lines`, the statements that call it, and name -> result.

    needed: the names; dying: names of arrays that nobody reads later, so that a result may take their place.
    """
    ends = list({node: 0 for name, node in lines.env.items() if isinstance(node, Node) and (name in needed or node.home)})
    nodes = []                      # all that the ends need, each after its arguments

    def gather(node):
        for each in () if node in nodes else (*node.arguments, *node.put):
            gather(each)
        nodes.extend([] if node in nodes else [node])

    for node in ends:
        gather(node)
    for node in nodes:
        node.name = node.name or (lines.unique(node.reduction) if node.reduction else "")
    homes = {node.home for node in ends if node.home}
    whole = [node.arguments[0] if node.put else node for node in ends]      # results with rows and columns
    whole = [node for node in whole if node.template is not None and node.rows and node.columns]
    row = {node: node.home for node in whole}               # what is stored -> the name of its row, "" if it gets a new one
    last_read, stages = {}, range(1 + max((node.stage for node in nodes), default=0))

    def cost(node):
        if node.template is None:
            return 99 * (node.name in homes)
        return sum(map(cost, node.arguments), COSTS.get(node.template, bool(node.arguments)))

    def note(node, stage, may_store=True):
        """Note what a pass reads to compute a value, and what has to be stored for it."""
        if node.columns and node.stage < stage and (node in row or may_store and cost(node) > CHEAP):
            row.setdefault(node, "")
        elif node.columns and node.template is None:
            last_read[node] = max(stage, last_read.get(node, 0))
        elif node.columns:
            for each in node.arguments:
                note(each, stage, may_store)

    for stage in reversed(stages):
        for node in nodes:
            if node.reduction and node.stage - (node.reduction in REDUCTIONS) == stage:
                note(node.arguments[0], stage, node.reduction != "take")
        for node in [each for each in row if each.stage == stage]:
            for each in node.arguments or [node]:
                note(each, stage)
    arrays = [node for node in nodes if node.template is None and (node in last_read or not node.columns)]
    arrays.sort(key=lambda node: -node.rows - node.columns)
    sums = [node for node in nodes if node.reduction == "rows"]
    if not arrays or arrays[0].rows + arrays[0].columns < FULL + 1 or homes and any(node.put for node in nodes):
        raise UnfitError
    for node in whole:
        for old in last_read:
            if not row[node] and old.name in dying and old not in ends and old.name not in row.values() and (
                    old.rows == FULL and last_read[old] <= node.stage):
                row[node] = old.name
    if not any(row.values()) and sum(bool(node.arguments) for node in nodes) < 2:       # NumPy has such a loop
        raise UnfitError
    new = [node for node in whole if not row[node]]
    row |= {node: node.name if node in new else lines.unique(node.name or "row") for node in row if not row[node]}
    scalars = [node for node in ends if node.template is not None and node.rows and not node.columns]
    flat = not sums and all(node.rows == FULL and node.columns for node in nodes if node.name)

    def code(node, stage, at="c"):
        """Return the expression of a value in a column; one that has a name becomes a line, once in a pass."""
        if node.name and not node.columns:
            return node.name
        if node.template is None and node not in row or node in row and node.stage < stage:
            return f"{row.get(node, node.name)}[{at}]"
        if node.template is None:
            return f"{node.name}[{at}]"
        if (node, at) not in known:
            text = node.template.format(*(code(each, stage, at) for each in node.arguments))
            if node.name:
                body.append(f"{pad}{node.name}_{at} = {text}")
            known[node, at] = f"{node.name}_{at}" if node.name else text
        return known[node, at]

    body, pad = [], "    " if flat else "        "
    for stage in stages:
        known = {}
        for node in [node for node in nodes if node.stage == stage and not node.columns and node.name and node.rows
                     and node.template is not None]:
            if node.reduction == "take":
                value = code(node.arguments[0], stage, node.arguments[1].name)
            elif node.reduction:
                value = f"{node.name} / real(C)"
            else:
                value = node.template.format(*(code(each, stage) for each in node.arguments))
            body += [f"{pad}{node.name} = {value}"] if node.reduction not in ("sum", "max") else []
        along = [node for node in nodes if node.stage == stage + 1 and node.reduction in REDUCTIONS]
        body += [f"{pad}{node.name} = real({REDUCTIONS[node.reduction][0]})" for node in along]
        begin, pad = len(body), pad + "    "
        for node in along:
            value = code(node.arguments[0], stage)
            body.append(f"{pad}{node.name} = {REDUCTIONS[node.reduction][1]}({node.name}, {value})")
        for node in sums:
            if node.stage == stage:
                value = code(node.arguments[0], stage)
                body.append(f"{pad}{node.name}[c] += {value}")
        values = [(row[node], code(node, stage)) for node in row if node.stage == stage]
        body += [f"{pad}{name}[c] = {value}" for name, value in values]
        pad = pad[4:]
        if len(body) > begin:
            body.insert(begin, f"{pad}for c in range(np.uint64(C)):")
    body += [f"{pad}{row[node.arguments[0]]}[{node.put[0].name}] = {code(node.put[1], 0)}" for node in nodes if node.put]
    body += [f"{pad}all_{node.name}[n, 0] = {node.name}" for node in scalars]

    every, at = "" if flat else "all_", {FULL: "[n]", PART: "_at[n]"}
    made = [row[node] for node in new] + [node.name for node in scalars]
    by_rows = [node.name for node in arrays if node.rows == FULL] + made
    parts = [node.name for node in arrays if node.rows == PART]
    vectors = [node.name for node in arrays if not node.rows]
    numbers = {text: name for text, name in lines.numbers.items() if any(node.template == name for node in nodes)}
    first = [every + name for name in by_rows] + [f"{name}_at" for name in parts]
    then = [every + name for name in parts] + vectors
    parameters = ", ".join([*first, *then, *numbers.values(), *(node.name for node in sums)])
    if flat:
        head = [f"    C = {by_rows[0]}.size"]
    else:
        head = [f"    N, C = all_{by_rows[0]}.shape",
                *(f"    {row[node]} = np.empty(C, real)" for node in row if node not in whole), "    for n in range(N):"]
        for node in arrays:
            if node.rows:
                where = "n" if node.rows == FULL else f"{node.name}_at[n]"
                head.append(f"        {node.name} = all_{node.name}[{where}{'' if node.columns else ', 0'}]")
        head += [f"        {row[node]} = all_{row[node]}[n]" for node in new]
    source = "\n".join([f"def loop({parameters}):", *head, *body])

    refuse = [f"not alone(({', '.join(sorted(homes))},), ({', '.join(node.name for node in arrays)},))"] if homes else []
    refuse += [f"not within({node.name}, C)" for node in arrays if node.kind == "i"]
    call = [f"shape, C = {by_rows[0]}.shape, {by_rows[0]}.shape[-1]"]
    call += [f"if {' or '.join(refuse)}:\n    return plain({', '.join(lines.values)})"] if refuse else []
    call += lines.before
    call += [f"{name}_at = row_numbers({name}.shape, shape)" for name in parts]
    call += [f"all_{node.name} = {'flat' if flat or not node.rows else 'by_row'}({node.name})" for node in arrays]
    call += [f"all_{row[node]} = np.empty_like(all_{by_rows[0]})" for node in new]
    call += [f"all_{node.name} = np.empty_like(all_{by_rows[0]}[:, :1])" for node in scalars]
    cut = "".join([*(f"all_{name}, " for name in by_rows), *(f"{name}_at, " for name in parts)])
    given = "".join([*(f"all_{name}, " for name in parts + vectors), *(f"real({text}), " for text in numbers)])
    call.append("".join(f"{node.name}, " for node in sums) + "= " * bool(sums)
                + f"over_blocks(loop, ({cut}), ({given}), {len(sums)})")
    results = {}
    for name in needed:
        node = lines.env[name]
        if not isinstance(node, Node):
            results[name] = repr(node) if node is None or isinstance(node, bool) else name
        elif node.template is None or node.home or not node.rows:
            results[name] = node.home or node.name
        elif node.columns:
            results[name] = f"all_{row[node.arguments[0] if node.put else node]}.reshape(shape)"
        else:
            results[name] = f"all_{node.name}.reshape(*shape[:-1], 1)"
    return source, call, results
