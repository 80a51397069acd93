"""Find which lines of a forward each line of its backward undoes, from the names that the lines
read and assign.

A backward line that reads dy and assigns dx undoes the forward lines on the paths from x to y. The
gradient of v is called dv, a part of it dv_…, that of p["ln"]["weight"] dln_weight or dp["ln"].
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
    """The flow of gradients in a pair of functions. If the gradients have other names, it may find
    nothing.

    undone: line of the backward -> {line of the forward that it undoes: its code}, in order; code:
    the code of each line of the forward. A version of a variable is (name, number of the statement
    that assigns it; -1 for an argument).
    """

    def __init__(self, forward, backward):
        source = read_source(forward)
        self.code = {
            line: re.sub(r"(^|\s+)#.*", "", text).strip()
            for line, text in enumerate(source.lines, source.first)
        }
        spelling = spelled(forward, backward)
        self.forward = statements_read(parsed(forward))
        self.backward = statements_read(parsed(backward), spelling)
        arguments, given = ([*inspect.signature(each).parameters] for each in (forward, backward))
        given = [spelling.get(each, each) for each in given]
        self.known = {*arguments}.union(*(changes | reads for _, changes, reads in self.forward))
        self.upstream = {}  # the gradient of what the forward returns
        if given and self.forward:
            self.upstream[given[0]] = self.forward[-1][2]
        # An argument that gets no gradient is a constant, such as a mask, even if it is changed
        # first.
        flows = self.known.difference(arguments)
        flows = flows.union(*(self.variables(changes) for _, changes, _ in self.backward))
        now = {}
        self.links = []  # the versions that each statement of the forward reads and makes
        for i, (_, changes, reads) in enumerate(self.forward):
            read = {(name, now.get(name, -1)) for name in reads & flows}
            now |= dict.fromkeys(changes, i)
            self.links.append((read, {(name, i) for name in changes}))
        undone = [set() for _ in self.backward]
        for number, ways in self.found_shares():
            undone[number] |= ways
        self.add_sums(undone)
        self.add_helpers(undone, {*given[1:]})
        self.undone = {}
        for (node, _, _), numbers in zip(self.backward, undone, strict=True):
            lines = sorted(self.forward[i][0].lineno for i in numbers)
            self.undone[node.lineno] = {line: self.code[line] for line in lines}

    def add_sums(self, undone):
        """Let a line that adds parts of a gradient undo what the lines of its parts undo."""
        for number, (_, changes, reads) in enumerate(self.backward):
            made = self.variables(changes)
            parts = {name for name in reads if self.variables([name]) & made}
            if undone[number]:
                parts -= {f"d{name}" for name in made}
            for i, (_, earlier, _) in enumerate(self.backward[:number]):
                if earlier & parts:
                    undone[number] |= undone[i]

    def add_helpers(self, undone, caches):
        """Let a line that makes a helper, or an array to fill, undo what its first reader does.

        caches: the backward's arguments but the upstream gradient.
        """
        for number, (_, changes, reads) in reversed([*enumerate(self.backward)]):
            if undone[number] or not reads or reads & caches or changes & self.known:
                continue
            for i, (_, _, later) in enumerate(self.backward[number:], number):
                if undone[i] and later & changes:
                    undone[number] = undone[i]
                    break

    def variables(self, names):
        """Return the forward's variables whose gradients, or parts of them, have these names in the
        backward.
        """
        found = set()
        for name in names:
            if name in self.upstream:
                found |= self.upstream[name]
            elif name not in self.known:
                fit = [each for each in self.known if is_part(name, each)]
                found |= {max(fit, key=len, default=None)} - {None}
        return found

    def found_shares(self):
        """Return [(number of a backward statement, numbers of forward statements that it undoes),
        …].
        """
        found = []
        inside = {}  # a helper -> the gradients in it
        at = dict.fromkeys(self.known, len(self.forward))  # the last version with a gradient
        for number, (_, changes, reads) in enumerate(self.backward):
            read = {name for each in reads for name in inside.get(each, {each})}
            inside |= {name: read for name in changes if not self.variables([name])}
            ends = {(v, k) for v in self.variables(read) for k in range(-1, at[v] + 1)}
            for v in self.variables(changes):
                for k in range(at[v], -2, -1):
                    if self.ways((v, k), ends, ends):
                        found.append((number, (v, k), ends))
                        at[v] = k if f"d{v}" in changes else at[v]
                        break
        shares = []
        for number, version, ends in found:
            stops = ends.union(*(each[2] for each in found if each[1] == version))
            uses = self.ways(version, ends, stops)
            alike = [each[0] for each in found if each[1:] == (version, ends)]
            if len(uses) == len(alike):  # a part for each use, the first part for the last use
                uses = dict([[*uses.items()][alike.index(number)]])
            shares += [(number, ways) for ways in uses.values()]
        return shares

    def ways(self, version, ends, stops):
        """Find the paths from a version to `ends` that do not pass through `stops`.

        Return {number of a statement that reads the version: numbers of all statements on its
        paths}, the last first.
        """
        found = {}
        for i, (_, makes) in reversed([*enumerate(self.links)]):
            later = [ways for k, ways in found.items() if self.links[k][0] & makes - stops]
            if makes & ends or later:
                found[i] = {i}.union(*later)
        return {i: ways for i, ways in found.items() if version in self.links[i][0]}


def undone(lesson, line):
    """Return {line of the forward: its code} of what a line of a lesson's backward undoes.

    A line of users' code must have a right gradient for that.
    """
    is_proved = lesson.proved is None or line in lesson.proved
    return Flow(lesson.forward, lesson.backward).undone.get(line, {}) if is_proved else {}


def is_part(name, variable):
    """Return whether a gradient or a part of it is called so: "dx", "dx_1", "dp_attn.bias"."""
    variable = re.escape(variable.removeprefix("p.").replace(".", "_"))
    return re.fullmatch(rf"d(p_)?{variable}(_.*|\d*)", name.replace(".", "_"))


def statements_read(tree, spelling=None):
    """Return (tree, names that it changes, names that it reads) for each statement of a function's
    tree with a value.

    `self.x` is called x. spelling: name in the code -> name that is returned.
    """

    def spelled(names):
        return {(spelling or {}).get(each, each) for each in names}

    tree = Selfless().visit(copy.deepcopy(tree))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    nodes.sort(key=lambda node: node.lineno)
    return [
        (node, spelled(changed(node)), spelled(names_read(node)))
        for node in nodes
        if getattr(node, "value", None)
    ]


def path(node):
    """Return the name of an array or of a part of a tree: "x" for `x[0]`, "p.attn" for
    `p["attn"][i]`; or "".
    """
    return re.sub(r"\['(\w+)'\]", r".\1", re.match(r"(\w+(\['\w+'\])*)?", ast.unparse(node))[0])


def changed(statement):
    """Return the names that a statement assigns, and those of arrays that it fills, as in
    `np.add.at(dwte, …)`.
    """
    targets = []
    match statement:
        case ast.Assign(targets):
            pass
        case (
            ast.AugAssign(first)
            | ast.AnnAssign(first)
            | ast.Expr(ast.Call(ast.Attribute(), [first, _, *_]))
        ):
            targets = [first]
    return {path(part) for each in targets for part in getattr(each, "elts", [each])} - {""}


def names_read(node):
    """Return the names whose values a statement or an expression reads; `x.shape` and `len(x)` do
    not read x.
    """
    found = set()
    parts = ast.iter_child_nodes(node)
    match node:
        case (
            ast.Name(ctx=ast.Store())
            | ast.Attribute(attr="shape" | "dtype" | "size")
            | ast.keyword(arg="like")
            | ast.Call(
                func=ast.Name("len") | ast.Attribute(attr="full_like" | "zeros_like" | "ones_like")
            )
        ):
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
