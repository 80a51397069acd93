"""Write the source of a loop over rows from the graph of its lines.

A cheap value of an earlier pass is recomputed. Another one is stored in the row of a later result.
In a column, all values of a pass are computed before any of them is stored.

The variable of a user's name `x` is `x_` here, and what the loop derives from it `x_all`, `x_at`,
`x_row` or `x_c`. No name of the loop's own ends with "_", so none is a user's.
"""

import collections

from npgpt.engine.loops.statements import in_user
from npgpt.engine.loops.trace import FULL, Number, Traced, UnfitError, literal

CHEAP = 3  # operations that another pass may repeat
SLOW = "({} / {})", "exp({})", "tanh({})", "erf({})", "np.sqrt({})", "np.log({})"  # count as 4
# A reduction along a row: its begin and its step.
ALONG = {"sum": ("0", "add"), "mean": ("0", "add"), "max": ("-np.inf", "maximum")}


class Loop:
    """A loop that computes some names of a trace.

    needed: these names; donated: names of arrays that nobody reads later: a result may overwrite
    them. Raises UnfitError if NumPy should run the lines.
    """

    def __init__(self, trace, needed, donated):
        self.trace, self.given = trace, trace.given  # given: node -> name of an argument
        written = [each for each in trace.cells if each.node not in self.given]
        self.homes = {each.home: each.node for each in written}  # arguments that are written to
        self.needed = {name: value for name, value in trace.names.items() if name in needed}
        nodes = [each.node for each in self.needed.values() if getattr(each, "node", None)]
        ends = [node for node in nodes if not node.is_number]
        self.ends = list(dict.fromkeys([*ends, *self.homes.values()]))
        self.nodes = []  # all that the results need, each after its arguments
        self.numbers = {}  # expression before the call -> parameter
        for node in self.ends:
            self.gather(node)
        self.sums = [node for node in self.nodes if node.reduction == "rows"]
        self.passes = range(1 + max((node.stage for node in self.nodes), default=0))
        others = {*self.given, *self.homes.values()}
        made = [node for node in self.ends if node.rows and node not in others]
        self.ones = [node for node in made if not node.columns]
        self.new = [node for node in made if node.columns]
        self.choose_stored()
        self.name_nodes()
        self.choose_arrays()
        self.choose_rows(donated)

    def gather(self, node):
        if node.is_number and node.template is None:
            self.numbers.setdefault(node.name, f"number{len(self.numbers)}")
        if node not in self.nodes and not node.is_number:
            for each in node.arguments:
                self.gather(each)
            self.nodes.append(node)

    def name_nodes(self):
        """Name each node that becomes a variable."""
        taken = {*self.trace.values}
        for node in self.nodes:
            name = node.name or node.reduction or "stored" * (node in self.stored)
            if name and node not in self.given:
                while name in taken:
                    name += "_2"
                taken.add(name)
            node.name = name

    # What is stored, and where.

    def choose_stored(self):
        """Choose which values are stored, for passes after their own. Results always are."""
        costs = {}  # how many operations it takes to recompute a value
        for node in self.nodes:
            own = 4 if node.template in SLOW else len(node.arguments) > 0
            costs[node] = own + sum(costs.get(each, 0) for each in node.arguments)
        self.stored = {*self.new, *self.homes.values()}
        self.last_read = {}  # of each array and each stored value: the last pass that reads it
        passes = collections.defaultdict(set)  # that need the value of a node in a column
        for node in reversed(self.nodes):
            needed = passes[node]
            last = max(needed, default=-1)
            if last > node.stage and costs[node] > CHEAP:
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
        self.arrays = [
            node
            for node in self.nodes
            if node in self.given and (node in self.last_read or not node.columns)
        ]
        self.arrays.sort(key=lambda node: (node.kind != "f", -node.rows - node.columns))
        lead = [(node.rows, node.columns, node.kind) for node in self.arrays[:1]]
        if lead != [(FULL, True, "f")]:
            raise UnfitError
        for node in self.given:
            home = self.homes.get(self.given[node])
            if home and (node not in self.arrays or self.last_read[node] > home.stage):
                raise UnfitError  # it would be read after it was overwritten

    def choose_rows(self, donated):
        """Choose where each stored value is: node -> name of its row, in `rows`."""
        self.rows = {node: f"{name}_row" for name, node in self.homes.items()}
        self.made = []
        free_from = {}  # of a result: the first pass that may write other values to its row
        for node in self.new:
            free = [
                old
                for old in self.last_read
                if self.given.get(old) in donated
                and old.rows == FULL
                and old.kind == "f"
                and old not in self.ends
                and self.last_read[old] <= node.stage
                and f"{old.name}_row" not in self.rows.values()
            ]
            if not free:
                self.made.append(node)
            self.rows[node] = f"{[*free, node][0].name}_row"
            free_from[node] = self.last_read[free[0]] if free else 0
        for node in [node for node in self.nodes if node in self.stored and node not in self.rows]:
            last = self.last_read[node]
            for end, first in free_from.items():
                if first <= node.stage and last <= end.stage:
                    free_from[end] = last
                    self.rows[node] = self.rows[end]
                    break
            else:
                raise UnfitError

    # The source.

    def source(self):
        lines = self.begin()
        for stage in self.passes:
            lines += self.pass_over(stage)
        lines += [f"{node.name}_all[n, 0] = {node.name}_" for node in self.ones]
        first, then = self.parameters()
        sums = [f"{node.name}_sums" for node in self.sums]
        head = [
            f"def loop({', '.join([*first, *then, *self.numbers.values(), *sums])}):",
            f"    N, C = {first[0]}.shape",
            "    for n in range(N):",
        ]
        return "\n".join(head + ["        " + line for line in lines])

    def begin(self):
        lines = []
        for node in self.arrays:
            name, at = node.name, "n" if node.rows == FULL else f"{node.name}_at[n]"
            row = f"{name}_row = {name}_all[{at}]"
            lines.append(row if node.columns else f"{name}_ = {name}_all[{at}, 0]")
        return lines + [f"{self.rows[node]} = {node.name}_all[n]" for node in self.made]

    def pass_over(self, stage):
        """Return the lines of a pass: the values of the whole row that are known before it, then
        its columns.
        """
        self.known, self.lines = {}, []  # what has been computed in this pass; the lines so far
        for node in self.nodes:
            name = node.name
            if node.stage != stage or node in self.given or node.columns or not name:
                continue
            if node.reduction == "mean":
                self.lines.append(f"{name}_ = {name}_ / real(C)")
            elif not node.reduction:
                self.lines.append(f"{name}_ = {self.filled(node, stage)}")
        along = [node for node in self.nodes if node.stage == stage + 1 and node.reduction in ALONG]
        before = self.lines + [f"{node.name}_ = real({ALONG[node.reduction][0]})" for node in along]
        self.lines, ends = [], []
        for node in along:
            name, step = f"{node.name}_", ALONG[node.reduction][1]
            ends.append(f"{name} = {step}({name}, {self.code(node.arguments[0], stage)})")
        for node in self.sums:
            if node.stage == stage:
                ends.append(f"{node.name}_sums[c] += {self.code(node.arguments[0], stage)}")
        for node, row in self.rows.items():
            if node.stage == stage:
                ends.append(f"{row}[c] = {self.code(node, stage)}")
        if not ends:
            return before
        body = ["    " + line for line in self.lines + ends]
        return [*before, "for c in range(np.uint64(C)):", *body]

    def code(self, node, stage):
        """Return the expression of a value in a column; one that has a name becomes a line, once in
        a pass.
        """
        name = node.name
        if node in self.rows and node.stage < stage:
            return f"{self.rows[node]}[c]"
        if node in self.given and node.columns:
            return f"{name}_row[c]"
        if name and not node.columns:
            return f"{name}_"
        if node not in self.known:
            self.known[node] = text = self.filled(node, stage)
            if name:
                self.lines.append(f"{name}_c = {text}")
                self.known[node] = f"{name}_c"
        return self.known[node]

    def filled(self, node, stage):
        return node.template.format(*(self.operand(each, stage) for each in node.arguments))

    def operand(self, node, stage):
        """Return the expression of an argument; a number comes in double precision."""
        if node.is_number:
            return f"real({self.numbers.get(node.name, node.name)})"
        return self.code(node, stage)

    # The call.

    def parameters(self):
        """Return the names of what is cut into blocks of rows, and of what is not."""
        whole = [node.name for node in self.arrays if node.rows == FULL]
        others = [node.name for node in self.arrays if node.rows != FULL]
        made = [node.name for node in self.made + self.ones]
        cut = [f"{name}_all" for name in whole + made] + [f"{name}_at" for name in others]
        return cut, [f"{name}_all" for name in others]

    def call(self):
        """Return the statements that call the loop."""
        first, then = self.parameters()
        arrays = [f"{node.name}_" for node in self.arrays]
        whole = [f"{node.name}_" for node in self.arrays if node.rows == FULL]
        homes = in_user(self.homes)
        plain = f"    return plain({', '.join(in_user(self.trace.values))})"
        lines = [f"shape = {arrays[0]}.shape"]
        if len(self.trace.shape) > 1:
            lines += [f"if not in_order({', '.join(whole)}):", plain]
        if homes:
            lines += [f"if not alone([{', '.join(homes)}], [{', '.join(arrays)}]):", plain]
        for node, array in zip(self.arrays, arrays, strict=True):
            lines.append(f"{node.name}_all = as_rows({array})")
            if node.rows != FULL:
                lines.append(f"{node.name}_at = row_numbers({array}.shape, shape)")
        lines += [f"{node.name}_all = np.empty_like({first[0]})" for node in self.made]
        lines += [f"{node.name}_all = np.empty_like({first[0]}[:, :1])" for node in self.ones]
        then += [f"float({each})" for each in self.numbers]
        others = "".join(f"{each}, " for each in then)
        call = f"over_blocks(loop, ({', '.join(first)},), ({others}), {len(self.sums)})"
        if self.sums:
            return [*lines, f"{', '.join(f'{node.name}_sums' for node in self.sums)}, = {call}"]
        return [*lines, f"loop({', '.join(first + then)}) if free_cores() == 1 else {call}"]

    def result(self, value):
        """Return the expression of a result, after the call."""
        if isinstance(value, Number):
            return value.node.name
        if value is None or type(value) in (bool, int, float):  # the loop's key has it
            return literal(value)
        if not isinstance(value, Traced):
            for name, given in self.trace.values.items():
                if given is value:
                    return f"{name}_"
            raise UnfitError
        if value.home:
            return f"{value.home}_"
        name = value.node.name
        if value.node.reduction == "rows":
            return f"{name}_sums"
        if value.node.columns:
            return f"{self.rows[value.node].removesuffix('_row')}_all.reshape(shape)"
        return f"{name}_all.reshape(*shape[:-1], 1)"
