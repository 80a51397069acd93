"""Find which lines of a forward each line of its backward undoes, from the names that the lines read and assign.

A backward line that reads dy and assigns dx undoes the forward lines on the paths from x to y. The gradient of v is
called dv, a part of it dv_…, that of p["ln"]["weight"] dln_weight or dp["ln"].
"""

import ast
import copy
import functools
import inspect
import re

from npgpt.study.gradcheck.source import Selfless, parsed, read_source
from npgpt.study.gradcheck.spelling import spelled


@functools.cache
class Flow:
    """The flow of gradients in a pair of functions. If the gradients have other names, it may find nothing.

    undone: line of the backward -> {line of the forward that it undoes: its code}, in order; code: the code of each
    line of the forward. A version of a variable is (name, number of the statement that assigns it; -1 for an argument).
    """

    def __init__(self, forward, backward):
        source = read_source(forward)
        self.code = {i: re.sub(r"(^|\s+)#.*", "", text).strip() for i, text in enumerate(source.lines, source.first)}
        arguments, given = ([*inspect.signature(each).parameters] for each in (forward, backward))
        self.forward = statements_read(parsed(forward))
        names = spelled(forward, backward)
        self.backward = [
            (
                node,
                {names.get(each, each) for each in changes},
                {names.get(each, each) for each in reads},
            )
            for node, changes, reads in statements_read(parsed(backward))
        ]
        given = [names.get(each, each) for each in given]
        self.known = {*arguments}.union(*(changes | reads for _, changes, reads in self.forward))
        self.upstream = {name: reads for name in given[:1] for _, _, reads in self.forward[-1:]}    # what it returns
        # An argument that gets no gradient is a constant, such as a mask, even if it is changed first.
        flows = self.known.difference(arguments).union(*(self.variables(changes) for _, changes, _ in self.backward))
        now = {}
        self.links = []         # the versions that each statement of the forward reads and makes
        for i, (_, changes, reads) in enumerate(self.forward):
            self.links.append(({(name, now.get(name, -1)) for name in reads & flows}, {(name, i) for name in changes}))
            now |= dict.fromkeys(changes, i)
        shares = self.found_shares()
        lines = [set() for _ in self.backward]
        for number, ways in shares:
            lines[number] |= ways
        for number, (_, changes, reads) in enumerate(self.backward):        # a sum of parts
            made = self.variables(changes)
            parts = {name for name in reads if self.variables([name]) & made} - {f"d{v}" for v in made if lines[number]}
            lines[number].update(*(lines[i] for i in range(number) if self.backward[i][1] & parts))
        for number, (_, changes, reads) in reversed([*enumerate(self.backward)]):       # a helper, an array to fill
            if not lines[number] and reads and not reads & {*given[1:]} and not changes & self.known:
                lines[number] = next((lines[i] for i in range(number, len(lines))
                                      if lines[i] and self.backward[i][2] & changes), set())
        self.undone = {node.lineno: {line: self.code[line] for line in sorted(self.forward[i][0].lineno for i in found)}
                       for (node, _, _), found in zip(self.backward, lines, strict=True)}

    def variables(self, names):
        """Return the forward's variables whose gradients, or parts of them, have these names in the backward."""
        found = set()
        for name in names:
            fit = [each for each in self.known if name not in self.known and re.fullmatch(
                rf"d(p_)?{re.escape(each.removeprefix('p.').replace('.', '_'))}(_.*|\d*)", name.replace(".", "_"))]
            found |= self.upstream.get(name, {max(fit, key=len)} if fit else set())
        return found

    def found_shares(self):
        """Return [(number of a backward statement, numbers of forward statements that it undoes), …]."""
        found = []
        inside = {}                                             # a helper -> the gradients in it
        at = dict.fromkeys(self.known, len(self.forward))       # the last version with a gradient
        for number, (_, changes, reads) in enumerate(self.backward):
            read = {name for each in reads for name in inside.get(each, {each})}
            inside |= {name: read for name in changes if not self.variables([name])}
            ends = {(v, k) for v in self.variables(read) for k in range(-1, at[v] + 1)}
            for v in self.variables(changes):
                k = next((k for k in range(at[v], -2, -1) if self.ways((v, k), ends, ends)), None)
                found += [(number, (v, k), ends)] if k is not None else []
                at[v] = k if k is not None and f"d{v}" in changes else at[v]
        shares = []
        for number, version, ends in found:
            uses = self.ways(version, ends, ends.union(*(each[2] for each in found if each[1] == version)))
            alike = [each[0] for each in found if each[1:] == (version, ends)]
            if len(uses) == len(alike):         # a part for each use, the first part for the last use
                uses = dict([[*uses.items()][alike.index(number)]])
            shares += [(number, ways) for ways in uses.values()]
        return shares

    def ways(self, version, ends, stops):
        """Find the paths from a version to `ends` that do not pass through `stops`.

        Return {number of a statement that reads the version: numbers of all statements on its paths}, the last first.
        """
        found = {}
        for i, (_, makes) in reversed([*enumerate(self.links)]):
            later = [ways for k, ways in found.items() if self.links[k][0] & makes - stops]
            if makes & ends or later:
                found[i] = {i}.union(*later)
        return {i: ways for i, ways in found.items() if version in self.links[i][0]}


def undone(lesson, line):
    """Return {line of the forward: its code} of what a line of a lesson's backward undoes.

    That a line of other people's code does so must be proved: its gradient is right.
    """
    is_proved = lesson.proved is None or line in lesson.proved
    return Flow(lesson.forward, lesson.backward).undone.get(line, {}) if is_proved else {}


def statements_read(tree):
    """Return (tree, names that it changes, names that it reads) for each statement of a function's
    tree with a value.

    `self.x` is called x.
    """
    tree = Selfless().visit(copy.deepcopy(tree))
    nodes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and getattr(node, "value", None)
    ]
    return [(node, changed(node), names_read(node)) for node in sorted(nodes, key=lambda node: node.lineno)]


def path(node):
    """Return the name of an array or of a part of a tree: "x" for `x[0]`, "p.attn" for `p["attn"][i]`; or ""."""
    return re.sub(r"\['(\w+)'\]", r".\1", re.match(r"(\w+(\['\w+'\])*)?", ast.unparse(node))[0])


def changed(statement):
    """Return the names that a statement assigns, and those of arrays that it fills, as in `np.add.at(dwte, …)`."""
    targets = []
    match statement:
        case ast.Assign(targets):
            pass
        case ast.AugAssign(first) | ast.AnnAssign(first) | ast.Expr(ast.Call(ast.Attribute(), [first, _, *_])):
            targets = [first]
    return {path(part) for each in targets for part in getattr(each, "elts", [each])} - {""}


def names_read(node):
    """Return the names whose values a statement or an expression reads; `x.shape` and `len(x)` do not read x."""
    found = set()
    parts = ast.iter_child_nodes(node)
    match node:
        case (ast.Name(ctx=ast.Store()) | ast.Attribute(attr="shape" | "dtype" | "size") | ast.keyword(arg="like")
              | ast.Call(func=ast.Name("len") | ast.Attribute(attr="full_like" | "zeros_like" | "ones_like"))):
            return found
        case ast.Name() | ast.Subscript(slice=ast.Constant(str())):
            found = {path(node)}
        case ast.AugAssign(target):
            found = {path(target)}
        case ast.Call(ast.Name(), arguments, keywords):
            parts = [*arguments, *keywords]
        case ast.Return(ast.Tuple([first, *_])):
            parts = [first]
    return found.union(*map(names_read, parts))
