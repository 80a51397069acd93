"""Write the source of a loop over rows from the graph of its lines.

A cheap value of an earlier pass is recomputed. Another one is stored, in the row of a later result
or in a row of its own. In a column, all values of a pass are computed before any of them is stored.

The variable of a user's name `x` is `x_` here, and what the loop derives from it `x_all`, `x_at`,
`x_row` or `x_c`. No name of the loop's own ends with "_", so none is a user's.
"""

import collections
import itertools

from npgpt.engine.loops.statements import in_user
from npgpt.engine.loops.trace import FULL, PART, Number, Traced, UnfitError, literal

CHEAP = 3  # operations that another pass may repeat
COSTS = {
    "({} / {})": 4,
    "exp({})": 9,
    "tanh({})": 9,
    "erf({})": 9,
    "np.sqrt({})": 9,
    "np.log({})": 9,
}  # others: 1
# A reduction along a row: its begin and its step.
ALONG = {
    "sum": ("0", "add"),
    "mean": ("0", "add"),
    "max": ("-np.inf", "maximum"),
}


class Loop:
    """A loop that computes some names of a trace.

    needed: these names; donated: names of arrays that nobody reads later: a result may overwrite
    them. Raises UnfitError if NumPy should run the lines.
    """

    def __init__(self, trace, needed, donated):
        self.trace, self.given = trace, trace.given         # given: node -> name of an argument
        written = [each for each in trace.cells if each.node not in self.given]
        self.homes = {each.home: each.node for each in written}     # arguments that are written to
        self.needed = {name: trace.names[name] for name in needed}
        values = [each for each in self.needed.values() if isinstance(each, Traced) and each.node]
        ends = [each.node for each in values if not each.node.is_number]
        self.ends = list(dict.fromkeys([*ends, *self.homes.values()]))
        self.nodes = []         # all that the results need, each after its arguments
        self.numbers = []       # of these, what is computed from numbers alone, and literals
        for node in [*self.ends, *(each.node for each in values)]:
            self.gather(node)
        self.sums = [node for node in self.nodes if node.reduction == "rows"]
        self.ones = [
            node for node in self.ends if node not in self.given and node.rows and not node.columns
        ]
        self.passes = range(1 + max((node.stage for node in self.nodes), default=0))
        others = {*self.given, *self.homes.values()}
        rows = [node for node in self.ends if node.rows and node.columns]
        self.new = [node for node in rows if node not in others]
        self.costs = {}         # how many operations it takes to recompute a value
        for node in self.nodes:
            own = COSTS.get(node.template, bool(node.arguments))
            before = sum(self.costs.get(each, 0) for each in node.arguments)
            self.costs[node] = 0 if node in self.given else min(99, before + own)
        self.choose_stored()
        self.name_nodes()
        self.choose_arrays()
        self.choose_rows(donated)

    def gather(self, node):
        into = self.numbers if node.is_number else self.nodes
        if node not in into:
            for each in node.arguments:
                self.gather(each)
            into.append(node)

    def name_nodes(self):
        """Give each node that becomes a variable a name of its own; a number, its variable or code.
        """
        self.names, used = {}, {*self.trace.values}
        for node in self.nodes:
            name = node.name or node.reduction or "stored" * (node in self.stored)
            if name and node not in self.given:
                others = (f"{name}_{i}" for i in itertools.count(2))
                name = next(each for each in itertools.chain([name], others) if each not in used)
                used.add(name)
            self.names[node] = name
        for i, node in enumerate(self.numbers):
            if node in self.given:
                self.names[node] = f"{node.name}_"
            else:
                self.names[node] = f"number{i}" if node.arguments else node.template

    # What is stored, and where.

    def choose_stored(self):
        """Choose which values are stored, for passes after their own. Results always are."""
        self.stored = {*self.new, *self.homes.values()}
        self.last_read = {}     # of each array and each stored value: the last pass that reads it
        passes = collections.defaultdict(set)       # that need the value of a node in a column
        for node in reversed(self.nodes):
            needed = passes[node]
            last = max(needed, default=-1)
            if last > node.stage and node not in self.given and self.costs[node] > CHEAP:
                self.stored.add(node)
            if needed and node in self.given or node in self.stored and last > node.stage:
                self.last_read[node] = last
            if node in self.stored:
                needed = {node.stage}
            if node.reduction:
                needed = {node.stage - (node.reduction in ALONG)}
            for each in node.arguments:
                if each.columns:
                    passes[each] |= needed

    def choose_arrays(self):
        """Choose the arrays that the loop gets: the first is whole, and has the loop's dtype."""
        given = [node for node in self.nodes if node in self.given]
        self.arrays = [each for each in given if each in self.last_read or not each.columns]
        self.arrays.sort(key=lambda node: (node.kind != "f", -node.rows - node.columns))
        lead = [(node.rows, node.columns, node.kind) for node in self.arrays[:1]]
        with_index = any(node.kind == "i" for node in self.arrays)
        if lead != [(FULL, True, "f")] or self.homes and with_index:
            raise UnfitError
        for node in self.given:
            home = self.homes.get(self.given[node])
            if home and (node not in self.arrays or self.last_read[node] > home.stage):
                raise UnfitError  # it would be read after it was overwritten

    def choose_rows(self, donated):
        """Choose where each stored value is: node -> name of its row, in `rows`."""
        self.rows = {node: f"{name}_row" for name, node in self.homes.items()}
        free_from = {}  # of a result: the first pass that may write other values to its row
        for node in self.new:
            free = [old for old in self.last_read if self.given.get(old) in donated
                    and old.rows == FULL and old.kind == "f" and old not in self.ends
                    and self.last_read[old] <= node.stage
                    and f"{self.given[old]}_row" not in self.rows.values()]
            old = free[0] if free else None
            self.rows[node] = f"{self.names[node] if old is None else self.given[old]}_row"
            free_from[node] = 0 if old is None else self.last_read[old]
        self.made = [node for node in self.new if self.rows[node] == f"{self.names[node]}_row"]
        operations = sum(bool(each.arguments) for each in self.nodes)
        if len(self.made) == len(self.new) and not self.homes and operations < 2:
            raise UnfitError                            # NumPy has loops of one operation
        self.scratch = []
        for node in [node for node in self.nodes if node in self.stored and node not in self.rows]:
            last = self.last_read[node]
            self.rows[node] = f"{self.names[node]}_row"
            for end, first in free_from.items():
                if first <= node.stage and last <= end.stage:
                    free_from[end] = last
                    self.rows[node] = self.rows[end]
                    break
            else:
                self.scratch.append(node)

    # The source.

    def source(self):
        lines = self.begin()
        for stage in self.passes:
            lines += self.pass_over(stage)
        lines += [f"{self.names[node]}_all[n, 0] = {self.variable(node)}" for node in self.ones]
        first, then = self.parameters()
        sums = [f"{self.names[node]}_sums" for node in self.sums]
        head = [
            f"def loop({', '.join(first + then + sums)}):",
            f"    N, C = {first[0]}.shape",
            *(f"    {self.rows[node]} = np.empty(C, real)" for node in self.scratch),
            "    for n in range(N):",
        ]
        return "\n".join(head + ["        " + line for line in lines])

    def variable(self, node):
        return f"{self.names[node]}_"

    def row(self, node):
        """Return the name of the row of an array that the loop gets; a result may be in it, too."""
        return f"{self.names[node]}_row"

    def begin(self):
        lines = []
        for node in self.arrays:
            name, at = self.names[node], "n" if node.rows == FULL else f"{self.names[node]}_at[n]"
            if node.rows and node.columns:
                lines.append(f"{self.row(node)} = {name}_all[{at}]")
            elif node.rows:
                lines.append(f"{self.variable(node)} = {name}_all[{at}, 0]")
            if node.kind == "i":
                lines += [
                    f"if {self.variable(node)} < 0: {self.variable(node)} += C",
                    f"if not 0 <= {self.variable(node)} < C: raise IndexError",
                ]
        return lines + [f"{self.rows[node]} = {self.names[node]}_all[n]" for node in self.made]

    def pass_over(self, stage):
        """Return the lines of a pass: the values of the whole row that are known before it, then
        its columns.
        """
        self.known, self.lines = {}, []  # what has been computed in this pass; the lines so far
        for node in self.nodes:
            name = self.names[node]
            if node.stage != stage or node in self.given or node.columns or not name:
                continue
            if node.reduction == "mean":
                self.lines.append(f"{name}_ = {name}_ / real(C)")
            elif node.reduction == "take":
                x, index = node.arguments
                self.lines.append(f"{name}_ = {self.code(x, stage, self.variable(index))}")
            elif not node.reduction:
                self.lines.append(f"{name}_ = {self.filled(node, stage)}")
        along = [node for node in self.nodes if node.stage == stage + 1 and node.reduction in ALONG]
        before = self.lines + [
            f"{self.variable(node)} = real({ALONG[node.reduction][0]})" for node in along
        ]
        self.lines, ends = [], []
        for node in along:
            name, step = self.variable(node), ALONG[node.reduction][1]
            ends.append(f"{name} = {step}({name}, {self.code(node.arguments[0], stage)})")
        ends += [
            f"{self.names[node]}_sums[c] += {self.code(node.arguments[0], stage)}"
            for node in self.sums
            if node.stage == stage
        ]
        ends += [
            f"{self.rows[node]}[c] = {self.code(node, stage)}"
            for node in self.rows
            if node.stage == stage
        ]
        return (
            before
            + ["for c in range(np.uint64(C)):"] * bool(ends)
            + ["    " + line for line in self.lines + ends]
        )

    def code(self, node, stage, at="c"):
        """Return the expression of a value in a column; one that has a name becomes a line, once in
        a pass.
        """
        name = self.names[node]
        if node in self.rows and node.stage < stage:
            return f"{self.rows[node]}[{at}]"
        if node in self.given:
            return f"{self.row(node)}[{at}]" if node.columns else self.variable(node)
        if name and not node.columns:
            return self.variable(node)
        if (node, at) not in self.known:
            self.known[node, at] = text = self.filled(node, stage, at)
            if name:
                taken = "c" if at == "c" else f"take{len(self.known)}"
                self.lines.append(f"{name}_{taken} = {text}")
                self.known[node, at] = f"{name}_{taken}"
        return self.known[node, at]

    def filled(self, node, stage, at="c"):
        return node.template.format(*(self.operand(each, stage, at) for each in node.arguments))

    def operand(self, node, stage, at="c"):
        """Return the expression of an argument; a number comes in double precision."""
        return f"real({self.names[node]})" if node.is_number else self.code(node, stage, at)

    # The call.

    def parameters(self):
        """Return the names of what is cut into blocks of rows, and of the other arguments."""
        parts = [self.names[node] for node in self.arrays if node.rows == PART]
        columns = [self.row(node) for node in self.arrays if not node.rows]
        first = [f"{self.names[node]}_all" for node in self.arrays if node.rows == FULL]
        first += [f"{self.names[node]}_all" for node in self.made + self.ones]
        return first + [f"{name}_at" for name in parts], [
            f"{name}_all" for name in parts
        ] + columns + self.read_numbers()

    def read_numbers(self):
        """Return the names of the numbers that the loop reads, without literals."""
        read = {each for node in self.nodes for each in node.arguments if each.is_number}
        return [
            self.names[node]
            for node in self.numbers
            if node in read and (node.arguments or node in self.given)
        ]

    def call(self):
        """Return the statements that call the loop. If all lines are elementwise, all rows are one
        row.
        """
        first, then = self.parameters()
        one_row = all(node.rows == FULL and node.columns for node in self.arrays) and not (
            self.sums or self.ones or len(self.passes) > 1
        )
        arrays = [f"{self.names[node]}_" for node in self.arrays]
        lines, plain = (
            [f"shape = {arrays[0]}.shape"],
            f"    return plain({', '.join(in_user(self.trace.values))})",
        )
        for node in self.numbers:
            if node.arguments:
                made = node.template.format(*(self.names[each] for each in node.arguments))
                lines.append(f"{self.names[node]} = {made}")
        whole = [f"{self.names[node]}_" for node in self.arrays if node.rows == FULL]
        if len(self.trace.shape) > 1:
            lines += [f"if not in_order({', '.join(whole)}):", plain]
        if self.homes:
            lines += [
                f"if not alone([{', '.join(in_user(self.homes))}], [{', '.join(arrays)}]):",
                plain,
            ]
        for node, array in zip(self.arrays, arrays, strict=True):
            name, view = (
                self.names[node],
                "-1" if not node.rows else "1, -1" if one_row else f"-1, {array}.shape[-1]",
            )
            lines += [f"{name}_at = row_numbers({array}.shape, shape)"] if node.rows == PART else []
            lines.append(f"{name}_{'all' if node.rows else 'row'} = contiguous({array}, {view})")
        lines += [f"{self.names[node]}_all = np.empty_like({first[0]})" for node in self.made]
        lines += [
            f"{self.names[node]}_all = np.empty_like({first[0]}[:, :1])" for node in self.ones
        ]
        numbers = self.read_numbers()
        then = [f"float({each})" if each in numbers else each for each in then]
        others = "".join(f"{each}, " for each in then)
        run = f"over_blocks(loop, ({', '.join(first)},), ({others}), {len(self.sums)}, {one_row:d})"
        if self.sums:
            run = f"{', '.join(f'{self.names[node]}_sums' for node in self.sums)}, = {run}"
        else:
            run = f"loop({', '.join(first + then)}) if free_cores() == 1 else {run}"
        if any(node.kind == "i" for node in self.arrays):  # NumPy raises its own error
            return [*lines, "try:", f"    {run}", "except IndexError:", plain]
        return [*lines, run]

    def results(self):
        return {name: self.result(value) for name, value in self.needed.items()}

    def result(self, value):
        """Return the expression of a result, after the call."""
        if isinstance(value, Number):
            return self.names[value.node]
        if value is None or type(value) in (bool, int, float):      # the loop's key has it
            return literal(value)
        if not isinstance(value, Traced):
            for name, given in self.trace.values.items():
                if given is value:
                    return f"{name}_"
            raise UnfitError
        if value.home:
            return f"{value.home}_"
        name = self.names[value.node]
        if value.node.reduction == "rows":
            return f"{name}_sums"
        if value.node.columns:
            return f"{self.rows[value.node].removesuffix('_row')}_all.reshape(shape)"
        return f"{name}_all.reshape(*shape[:-1], 1)"
