"""Write the source of a loop over rows from the graph of its lines.

A cheap value of an earlier pass is recomputed. Another one is stored, in the row of a later result or in a row of its
own.
"""

import ast

from npgpt.engine.loops.trace import FULL, PART, Traced, UnfitError

CHEAP = 3               # operations that another pass may repeat
COSTS = {"({} / {})": 4, "exp({})": 9, "tanh({})": 9, "erf({})": 9, "np.sqrt({})": 9, "np.log({})": 9}     # others: 1
ALONG = {"sum": ("0", "add"), "mean": ("0", "add"), "max": ("-np.inf", "maximum")}      # a row: begin and step
RESERVED = "n N c C np real exp tanh erf abs maximum add range".split()


class Loop:
    """A loop that computes some names of a trace.

    needed: these names; donated: names of arrays that nobody reads later: a result may overwrite them. Raises
    UnfitError if NumPy should run the lines.
    """

    def __init__(self, trace, needed, donated):
        self.trace, self.needed, self.given = trace, needed, trace.given        # given: node -> name of an argument
        self.homes = {each.home: each.node for each in trace.cells if each.node not in self.given}      # written to
        values = [value for name, value in trace.names.items() if name in needed and isinstance(value, Traced)]
        self.ends = list(dict.fromkeys([*(each.node for each in values if each.node), *self.homes.values()]))
        self.nodes = []                                     # all that the ends need, each after its arguments
        for node in self.ends:
            self.gather(node)
        self.name_nodes()
        self.sums = [node for node in self.nodes if node.reduction == "rows"]
        self.ones = [node for node in self.ends if node not in self.given and node.rows and not node.columns]
        self.passes = range(1 + max((node.stage for node in self.nodes), default=0))
        self.choose_rows(donated)

    def gather(self, node):
        for each in () if node in self.nodes else (*node.arguments, *node.put):
            self.gather(each)
        self.nodes.extend([] if node in self.nodes else [node])

    def name_nodes(self):
        """Give each node that has a name a variable of its own."""
        self.names, used = {}, {*RESERVED, *self.given.values()}
        for node in self.nodes:
            name = node.name or node.reduction
            if name and node not in self.given:
                name = next(each for each in (name, *(f"{name}_{i}" for i in range(2, 99))) if each not in used)
                used.add(name)
            self.names[node] = name

    # What is stored, and where.

    def choose_rows(self, donated):
        """Choose what is stored: node -> name of its row, in `rows`; and the arrays that the loop gets."""
        whole = [node for node in map(stored_as, self.ends) if node not in self.given and node.rows and node.columns]
        self.rows = dict.fromkeys(whole, "") | {node: name for name, node in self.homes.items()}
        self.last_read = {}                                 # node -> the last pass that reads it
        for stage in reversed(self.passes):
            for node in self.nodes:
                if node.reduction and node.stage - (node.reduction in ALONG) == stage:
                    self.note(node.arguments[0], stage, node.reduction != "take")
            for node in [each for each in self.rows if each.stage == stage]:
                for each in node.arguments or [node]:
                    self.note(each, stage)
        self.arrays = [node for node in self.nodes if node in self.given
                       and (node in self.last_read or node.rows and not node.columns)]
        self.arrays.sort(key=lambda node: (node.kind != "f", -node.rows - node.columns))
        lead = [(node.rows, node.columns, node.kind) for node in self.arrays[:1]]
        if lead != [(FULL, True, "f")] or self.homes and any(node.reduction == "take" for node in self.nodes):
            raise UnfitError
        for node in whole:
            for old, last in self.last_read.items():
                if not self.rows[node] and self.given.get(old) in donated and old not in self.ends and (
                        old.rows == FULL and last <= node.stage and self.given[old] not in self.rows.values()):
                    self.rows[node] = self.given[old]
        if not any(self.rows.values()) and sum(bool(node.arguments) for node in self.nodes) < 2:
            raise UnfitError                                # NumPy has loops of one operation
        self.new = [node for node in whole if not self.rows[node]]
        self.rows |= {node: self.names[node] or f"row_{i}" for i, node in enumerate(self.new)}
        self.scratch = []
        for node in [node for node in self.rows if not self.rows[node]]:        # where a later result will be?
            free = [self.rows[end] for end in whole if end.stage >= self.last_read[node] and all(
                last <= node.stage for each, last in self.last_read.items()
                if self.rows[end] in (self.given.get(each), self.rows.get(each)))]
            self.scratch += [] if free else [node]
            self.rows[node] = free[0] if free else f"{self.names[node]}_{len(self.scratch)}_row"

    def note(self, node, stage, may_store=True):
        """Note which rows a pass reads to compute a value, and which values must be stored for it; last pass first."""
        if node.columns and node.stage < stage and (node in self.rows or may_store and self.cost(node) > CHEAP):
            self.rows.setdefault(node, "")
            self.last_read.setdefault(node, stage)
        elif node.columns and node in self.given:
            self.last_read.setdefault(node, stage)
        elif node.columns:
            for each in node.arguments:
                self.note(each, stage, may_store)

    def cost(self, node):
        """Return how many operations it takes to recompute a value."""
        if node in self.given:
            return 99 * (self.given[node] in self.homes)    # it is overwritten
        return sum(map(self.cost, node.arguments), COSTS.get(node.template, bool(node.arguments)))

    # The source.

    def source(self):
        lines = self.begin()
        for stage in self.passes:
            lines += self.pass_over(stage)
        for node in self.nodes:
            if node.put:
                index, value = node.put
                lines.append(f"{self.rows[stored_as(node)]}[{self.names[index]}] = {self.operand(value, node, 0)}")
        lines += [f"all_{self.names[node]}[n, 0] = {self.names[node]}" for node in self.ones]
        first, then = self.parameters()
        sums = [self.names[node] for node in self.sums]
        then = [name.removeprefix("all_") if name[4:] in self.columns() else name for name in then]
        head = [f"def loop({', '.join(first + then + sums)}):", f"    N, C = {first[0]}.shape",
                *(f"    {self.rows[node]} = np.empty(C, real)" for node in self.scratch), "    for n in range(N):"]
        text = "\n".join(head + ["        " + line for line in lines])
        return ast.unparse(ast.parse(text))                 # without needless parentheses

    def begin(self):
        lines = []
        for node in self.arrays:
            name, at = self.names[node], "n" if node.rows == FULL else f"{self.names[node]}_at[n]"
            lines += [f"{name} = all_{name}[{at}{'' if node.columns else ', 0'}]"] if node.rows else []
            if node.kind == "i":
                lines += [f"if {name} < 0: {name} += C", f"if not 0 <= {name} < C: raise IndexError"]
        return lines + [f"{self.rows[node]} = all_{self.rows[node]}[n]" for node in self.new]

    def pass_over(self, stage):
        """Return the lines of a pass: the values of the whole row that are known before it, then its columns."""
        self.known, self.lines = {}, []                     # what has been computed in this pass; the lines so far
        for node in self.nodes:
            name = self.names[node]
            if node.stage != stage or node in self.given or node.columns or not node.rows or not name:
                continue
            if node.reduction == "mean":
                self.lines.append(f"{name} = {name} / real(C)")
            elif node.reduction == "take":
                self.lines.append(f"{name} = {self.code(node.arguments[0], stage, self.names[node.arguments[1]])}")
            elif not node.reduction:
                self.lines.append(f"{name} = {self.filled(node, stage)}")
        along = [node for node in self.nodes if node.stage == stage + 1 and node.reduction in ALONG]
        before = self.lines + [f"{self.names[node]} = real({ALONG[node.reduction][0]})" for node in along]
        self.lines, ends = [], []
        for node in along:
            name, step = self.names[node], ALONG[node.reduction][1]
            ends.append(f"{name} = {step}({name}, {self.code(node.arguments[0], stage)})")
        ends += [f"{self.names[node]}[c] += {self.code(node.arguments[0], stage)}" for node in self.sums
                 if node.stage == stage]
        stores = [node for node in self.rows if node.stage == stage]
        stores.sort(key=lambda node: self.rows[node] in self.homes)             # what is overwritten is read before
        ends += [f"{self.rows[node]}[c] = {self.code(node, stage)}" for node in stores]
        return before + ["for c in range(np.uint64(C)):"] * bool(ends) + ["    " + line for line in self.lines + ends]

    def code(self, node, stage, at="c"):
        """Return the expression of a value in a column; one that has a name becomes a line, once in a pass."""
        name = self.names[node]
        if node in self.rows and node.stage < stage:
            return f"{self.rows[node]}[{at}]"
        if node in self.given or name and not node.columns:
            return f"{name}[{at}]" if node.columns else name
        if (node, at) not in self.known:
            self.known[node, at] = text = self.filled(node, stage, at)
            if name:
                self.lines.append(f"{name}_{at} = {text}")
                self.known[node, at] = f"{name}_{at}"
        return self.known[node, at]

    def filled(self, node, stage, at="c"):
        return node.template.format(*(self.operand(each, node, stage, at) for each in node.arguments))

    def operand(self, node, of, stage, at="c"):
        """Return the expression of an argument; a number is computed in double precision before it meets an array."""
        number = not (node.rows or node.columns) and (of.rows or of.columns)
        return f"real({self.code(node, stage, at)})" if number else self.code(node, stage, at)

    # The call.

    def columns(self):
        return [self.names[node] for node in self.arrays if not node.rows]

    def parameters(self):
        """Return the names of what is cut into blocks of rows, and of the other arguments."""
        parts = [self.names[node] for node in self.arrays if node.rows == PART]
        first = [self.names[node] for node in self.arrays if node.rows == FULL] + [
            self.rows[node] for node in self.new] + [self.names[node] for node in self.ones]
        numbers = [self.names[node] for node in self.nodes if node in self.given and not (node.rows or node.columns)]
        return ([f"all_{name}" for name in first] + [f"{name}_at" for name in parts],
                [f"all_{name}" for name in parts + self.columns()] + numbers)

    def call(self):
        """Return the statements that call the loop. If all lines are elementwise, all rows are one row."""
        first, then = self.parameters()
        one_row = all(node.rows == FULL and node.columns for node in self.arrays) and not (
            self.sums or self.ones or len(self.passes) > 1)
        arrays, names, plain = [self.names[node] for node in self.arrays], self.names, self.trace.arguments
        lines, plain = [f"shape = {arrays[0]}.shape"], f"    return plain({', '.join(plain)})"
        if self.homes:
            lines += [f"if not alone([{', '.join(self.homes)}], [{', '.join(arrays)}]):", plain]
        for node in self.arrays:
            view = "-1" if not node.rows else "1, -1" if one_row else f"-1, {names[node]}.shape[-1]"
            lines += [f"{names[node]}_at = row_numbers({names[node]}.shape, shape)"] if node.rows == PART else []
            lines.append(f"all_{names[node]} = contiguous({names[node]}, {view})")
        lines += [f"all_{self.rows[node]} = np.empty_like({first[0]})" for node in self.new]
        lines += [f"all_{names[node]} = np.empty_like({first[0]}[:, :1])" for node in self.ones]
        others = "".join(f"{each}, " for each in then)
        run = f"over_blocks(loop, ({', '.join(first)},), ({others}), {len(self.sums)}, {one_row:d})"
        if self.sums:
            run = f"{', '.join(names[node] for node in self.sums)}, = {run}"
        else:
            run = f"loop({', '.join(first + then)}) if free_cores() == 1 else {run}"
        if any(node.kind == "i" for node in self.arrays):   # NumPy raises its own error
            return [*lines, "try:", f"    {run}", "except IndexError:", plain]
        return [*lines, run]

    def results(self):
        return {name: self.result(name, self.trace.names[name]) for name in self.needed}

    def result(self, name, value):
        if not isinstance(value, Traced):
            return repr(value) if value is None or isinstance(value, bool) else name
        if value.home or value.node.reduction == "rows":
            return value.home or self.names[value.node]
        if value.node.columns:
            return f"all_{self.rows[stored_as(value.node)]}.reshape(shape)"
        return f"all_{self.names[value.node]}.reshape(*shape[:-1], 1)"


def stored_as(node):
    """Return the node whose row holds a value: where one column is replaced, that is the row of all others."""
    return node.arguments[0] if node.put else node
