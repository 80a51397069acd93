"""The source of a loop over rows, from the nodes of its lines.

A cheap value of an earlier pass is computed again. Another one is stored: where a result will be, or in its own row.
"""

import ast

from npgpt.engine.loops.trace import FULL, PART, Traced, UnfitError

CHEAP = 3               # operations that another pass may repeat
COSTS = {"({} / {})": 4, "exp({})": 9, "tanh({})": 9, "erf({})": 9, "np.sqrt({})": 9, "np.log({})": 9}     # others: 1
ALONG = {"sum": ("0", "add"), "mean": ("0", "add"), "max": ("-np.inf", "maximum")}      # a row: begin and step
RESERVED = "n N c C np real exp tanh erf abs maximum add range".split()


def loop_of(trace, needed, dying):
    """Return the source of a loop that computes names of a trace, the statements that call it, and name -> result.

    needed: the names; dying: names of arrays that nobody reads later, so that a result may take their place.
    """
    values = {name: value for name, value in trace.names.items() if isinstance(value, Traced) and value.node}
    given = trace.given                                     # node -> name of an argument
    homes = {value.home: value.node for value in trace.cells if value.node not in given}      # what is written to
    ends = list({value.node: 0 for name, value in values.items() if name in needed} | dict.fromkeys(homes.values(), 0))
    nodes = []                                              # all that the ends need, each after its arguments

    def gather(node):
        for each in () if node in nodes else (*node.arguments, *node.put):
            gather(each)
        nodes.extend([] if node in nodes else [node])

    for node in ends:
        gather(node)
    names, used = {}, {*RESERVED, *given.values()}          # node -> its variable
    for node in nodes:
        name = node.name or node.reduction
        if node in given or not name:
            names[node] = name
        else:
            names[node] = next(each for each in (name, *(f"{name}_{i}" for i in range(2, 99))) if each not in used)
            used.add(names[node])

    # What is stored, and which pass reads what.
    whole = [node.arguments[0] if node.put else node for node in ends]
    whole = [node for node in whole if node not in given and node.rows and node.columns]
    rows = {node: "" for node in whole} | {node: name for name, node in homes.items()}      # node -> name of its row
    passes, last_read = range(1 + max((node.stage for node in nodes), default=0)), {}

    def cost(node):
        if node in given:
            return 99 * (given[node] in homes)              # it is overwritten
        return sum(map(cost, node.arguments), COSTS.get(node.template, bool(node.arguments)))

    def note(node, stage, may_store=True):
        """Note what a pass reads to compute a value, and what has to be stored for it."""
        if node.columns and node.stage < stage and (node in rows or may_store and cost(node) > CHEAP):
            rows.setdefault(node, "")
            last_read.setdefault(node, stage)               # passes come from the last to the first
        elif node.columns and node in given:
            last_read.setdefault(node, stage)
        elif node.columns:
            for each in node.arguments:
                note(each, stage, may_store)

    for stage in reversed(passes):
        for node in nodes:
            if node.reduction and node.stage - (node.reduction in ALONG) == stage:
                note(node.arguments[0], stage, node.reduction != "take")
        for node in [each for each in rows if each.stage == stage]:
            for each in node.arguments or [node]:
                note(each, stage)
    sums = [node for node in nodes if node.reduction == "rows"]
    arrays = [node for node in nodes if node in given and (node in last_read or node.rows and not node.columns)]
    arrays.sort(key=lambda node: (node.kind != "f", -node.rows - node.columns))
    if not arrays or (arrays[0].rows, arrays[0].columns, arrays[0].kind) != (FULL, True, "f") or homes and any(
            node.reduction == "take" for node in nodes):
        raise UnfitError
    for node in whole:
        for old in [each for each in last_read if each in given]:
            if not rows[node] and given[old] in dying and old not in ends and old.rows == FULL and (
                    last_read[old] <= node.stage and given[old] not in rows.values()):
                rows[node] = given[old]
    if not any(rows.values()) and sum(bool(node.arguments) for node in nodes) < 2:          # NumPy has such a loop
        raise UnfitError
    new = [node for node in whole if not rows[node]]
    rows |= {node: names[node] or f"row_{i}" for i, node in enumerate(new)}
    scratch = []
    for i, node in enumerate([node for node in rows if not rows[node]]):        # where a later result will be?
        free = [rows[end] for end in whole if end.stage >= last_read[node] and all(
            last_read[each] <= node.stage for each in last_read if given.get(each, rows.get(each)) == rows[end])]
        scratch += [] if free else [node]
        rows[node] = free[0] if free else f"{names[node]}_{i}_row"
    ones = [node for node in ends if node not in given and node.rows and not node.columns]

    def code(node, stage, at="c"):
        """Return the expression of a value in a column; one that has a name becomes a line, once in a pass."""
        if node in rows and node.stage < stage:
            return f"{rows[node]}[{at}]"
        if node in given or names[node] and not node.columns:
            return f"{names[node]}[{at}]" if node.columns else names[node]
        if (node, at) not in known:
            known[node, at] = node.template.format(*(operand(each, node, stage, at) for each in node.arguments))
            if names[node]:
                body.append(f"{pad}{names[node]}_{at} = {known[node, at]}")
                known[node, at] = f"{names[node]}_{at}"
        return known[node, at]

    def operand(node, of, stage, at="c"):
        """Return the expression of an argument; a number is computed in double precision before it meets an array."""
        number = not (node.rows or node.columns) and (of.rows or of.columns)
        return f"real({code(node, stage, at)})" if number else code(node, stage, at)

    body, pad = [], "        "
    for stage in passes:
        known = {}
        for node in [node for node in nodes if node.stage == stage and node not in given]:
            if node.columns or not node.rows:
                continue
            if node.reduction == "mean":
                body.append(f"{pad}{names[node]} = {names[node]} / real(C)")
            elif node.reduction == "take":
                body.append(f"{pad}{names[node]} = {code(node.arguments[0], stage, names[node.arguments[1]])}")
            elif names[node] and not node.reduction:
                value = node.template.format(*(operand(each, node, stage) for each in node.arguments))
                body.append(f"{pad}{names[node]} = {value}")
        along = [node for node in nodes if node.stage == stage + 1 and node.reduction in ALONG]
        body += [f"{pad}{names[node]} = real({ALONG[node.reduction][0]})" for node in along]
        begin, pad = len(body), pad + "    "
        lines = []
        for node in along:
            lines.append(f"{names[node]} = {ALONG[node.reduction][1]}({names[node]}, {code(node.arguments[0], stage)})")
        for node in sums:
            lines += [f"{names[node]}[c] += {code(node.arguments[0], stage)}"] if node.stage == stage else []
        stores = [node for node in rows if node.stage == stage]
        stores.sort(key=lambda node: rows[node] in homes)       # what is overwritten is read before
        lines += [f"{rows[node]}[c] = {code(node, stage)}" for node in stores]
        body += [pad + line for line in lines]
        pad = pad[4:]
        if lines:
            body.insert(begin, f"{pad}for c in range(np.uint64(C)):")
    for node in [node for node in nodes if node.put]:
        index, value = node.put
        body.append(f"{pad}{rows[node.arguments[0]]}[{names[index]}] = {operand(value, node, 0)}")
    body += [f"{pad}all_{names[node]}[n, 0] = {names[node]}" for node in ones]

    # How it is called: what is cut into blocks of rows, then the rest. Elementwise lines see all rows as one.
    by_row = [names[node] for node in arrays if node.rows == FULL] + [rows[node] for node in new] + [
        names[node] for node in ones]
    parts = [names[node] for node in arrays if node.rows == PART]
    columns = [names[node] for node in arrays if not node.rows]
    numbers = [names[node] for node in nodes if node in given and not (node.rows or node.columns)]
    one_row = not (parts or columns or sums or ones or len(passes) > 1 or any(not node.columns for node in arrays))
    head = [f"N, C = all_{by_row[0]}.shape", *(f"{rows[node]} = np.empty(C, real)" for node in scratch),
            "for n in range(N):"]
    for node in arrays:
        if node.rows:
            at = "n" if node.rows == FULL else f"{names[node]}_at[n]"
            head.append(f"    {names[node]} = all_{names[node]}[{at}{'' if node.columns else ', 0'}]")
            if node.kind == "i":
                head += [f"    if {names[node]} < 0:", f"        {names[node]} += C",
                         f"    if not 0 <= {names[node]} < C:", "        raise IndexError"]
    head += [f"    {rows[node]} = all_{rows[node]}[n]" for node in new]
    parameters = [*(f"all_{name}" for name in by_row), *(f"{name}_at" for name in parts),
                  *(f"all_{name}" for name in parts), *columns, *numbers, *(names[node] for node in sums)]
    source = "\n".join([f"def loop({', '.join(parameters)}):", *(f"    {line}" for line in head), *body])
    source = ast.unparse(ast.parse(source))                 # without needless parentheses

    call, plain = [f"shape = {by_row[0]}.shape"], f"    return plain({', '.join(trace.arguments)})"
    if homes:
        call += [f"if not alone([{', '.join(homes)}], [{', '.join(names[node] for node in arrays)}]):", plain]
    call += [f"{name}_at = row_numbers({name}.shape, shape)" for name in parts]
    view = "as_row" if one_row else "as_rows"
    call += [f"all_{names[node]} = {view if node.rows else 'as_vector'}({names[node]})" for node in arrays]
    call += [f"all_{rows[node]} = np.empty_like(all_{by_row[0]})" for node in new]
    call += [f"all_{names[node]} = np.empty_like(all_{by_row[0]}[:, :1])" for node in ones]
    first = [*(f"all_{name}" for name in by_row), *(f"{name}_at" for name in parts)]
    then = [*(f"all_{name}" for name in parts + columns), *numbers]
    others = "".join(f"{each}, " for each in then)
    cut = f"over_blocks(loop, ({', '.join(first)},), ({others}), {len(sums)}, {one_row:d})"
    if sums:
        call.append(f"{', '.join(names[node] for node in sums)}, = {cut}")
    else:
        call.append(f"loop({', '.join(first + then)}) if free_cores() == 1 else {cut}")
    if any(node.kind == "i" for node in arrays):            # NumPy raises its own error
        call[-1:] = ["try:", f"    {call[-1]}", "except IndexError:", plain]
    results = {}
    for name in needed:
        value = trace.names[name]
        if not isinstance(value, Traced):
            results[name] = repr(value) if value is None or isinstance(value, bool) else name
        elif value.home:
            results[name] = value.home
        elif value.node.reduction == "rows":
            results[name] = names[value.node]
        elif value.node.columns:
            results[name] = f"all_{rows[value.node.arguments[0] if value.node.put else value.node]}.reshape(shape)"
        else:
            results[name] = f"all_{names[value.node]}.reshape(*shape[:-1], 1)"
    return source, call, results
