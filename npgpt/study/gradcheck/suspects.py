"""Where the mistake of a wrong gradient can be: in its line, or in one before it that is not
verified.
"""

import ast
import dataclasses

import numpy as np

from npgpt.study.gradcheck.flow import statements_read
from npgpt.study.gradcheck.source import names_in, names_of, targets
from npgpt.study.gradcheck.verdicts import OK, ROUNDED, WRONG


@dataclasses.dataclass
class Checked:
    """A gradient "dv" and the line of the backward that makes it; is_input: of an input."""

    name: str
    line: int | None
    verdict: str
    is_input: bool = False


class Suspects:
    """The lines of a backward that a wrong line depends on, up to those whose gradients are right.

    tree: of the backward
    spelling: name in the code -> "dv"
    checks: the `Checked` lines
    forward_values, backward_values: the last values of their variables; a line that unpacks the
        cache is right if its values are those of the forward
    returned: "dv" of a result -> its code in the last `return`, which does not depend on the others
    """

    def __init__(self, tree, spelling, checks, forward_values, backward_values, returned):
        nodes = [*ast.walk(tree)]
        returns = [node.lineno for node in nodes if isinstance(node, ast.Return)]
        self.last = max(returns, default=None)
        self.results = {}  # "dv" -> names that it is computed from in the last `return`
        for name, code in returned.items():
            words = names_in(ast.parse(code))
            self.results[name] = {spelling.get(each, each) for each in words}
        loops = [node for node in nodes if isinstance(node, ast.For | ast.While)]
        self.loops = [range(node.lineno, node.end_lineno + 1) for node in loops]
        # A `return` in a loop ends it in its first turn.
        self.ends = {line for line in returns for loop in self.loops if line in loop}
        self.appends = {}  # line -> the list that it extends
        for node in nodes:
            match node:
                case ast.Call(ast.Attribute(owner, "append" | "insert" | "extend")):
                    self.appends[node.lineno] = ast.unparse(owner)
        right = {each.line for each in checks if each.verdict in (OK, ROUNDED)}
        right -= {each.line for each in checks if each.verdict == WRONG}
        # In another turn of a loop a line may be wrong.
        repeated = {line for loop in self.loops for line in loop}
        self.verified = {line for line in right if line and line not in repeated}
        self.checks = {each.line: each for each in checks}
        self.made = {}  # name -> lines that assign it, or fill a part of it, and are not right
        self.reads = {}  # line -> names

        def gradients(names):
            roots = {name.partition(".")[0] for name in names}
            return {spelling.get(each, each) for each in roots}

        for node, changes, reads in statements_read(tree):
            changes, self.reads[node.lineno] = gradients(changes), gradients(reads)
            if node.lineno in self.verified:
                continue
            if is_unpacked(node.value):
                names = names_of(targets(node))
                known = [
                    name
                    for name in names
                    if is_known(name, backward_values.get(name), forward_values)
                ]
                changes -= {spelling.get(name, name) for name in known}
            for name in changes:
                self.made.setdefault(name, set()).add(node.lineno)

    def readers(self, check):
        """Return the lines with a gradient that is computed from that of a variable."""
        return {
            line
            for line in self.checks
            if line and line > (check.line or 0) and check.name in self.reads.get(line, ())
        }

    def is_other(self, check):
        """Return whether all that is computed from a variable's gradient is right, so that it is
        another value.
        """
        readers = self.readers(check)
        return bool(readers) and readers <= self.verified

    def of(self, check):
        """Return the lines that can hold the mistake of a wrong gradient."""
        line = check.line
        reads = dict(self.reads)
        if line == self.last and check.name in self.results:
            reads[line] = self.results[check.name]
        found, left = {line}, [line]
        # With a right reader it may be another value, and the mistake where it is used.
        while check and not check.is_input and self.readers(check) & self.verified:
            wrong = min(self.readers(check) - self.verified, default=None)
            found |= {wrong or line}
            check = self.checks.get(wrong)
        found |= {each for each, name in self.appends.items() if name == self.appends.get(line)}
        while left:
            at = left.pop()
            ends = [loop[-1] for loop in self.loops if at in loop]
            last = max(ends, default=at)
            found |= {line for loop in self.loops if at in loop for line in self.ends & {*loop}}
            before = set().union(*(self.made.get(name, ()) for name in reads.get(at, ())))
            new = {line for line in before - found if line <= last}
            found |= new
            left += new
        return found


def is_unpacked(value):
    """Return whether an expression only reads a stored value: `cache`, `self.x`, `cache["x"]`,
    `x.shape`.
    """
    while True:
        match value:
            case ast.Attribute(inner) | ast.Subscript(inner, ast.Constant(str())):
                value = inner
            case _:
                return isinstance(value, ast.Name)


def is_known(name, value, known):
    """Return whether a value is the forward's of that name; under another name, that of any of its
    variables.
    """

    def same(one, other):
        if isinstance(one, tuple | list) and isinstance(other, tuple | list):
            return len(one) == len(other) and all(map(same, one, other))
        kinds = np.ndarray | np.generic | int | float
        if isinstance(one, kinds) and isinstance(other, kinds):
            return np.array_equal(one, other)
        return type(one) is type(other) and not isinstance(one, dict) and one == other

    others = [known[name]] if name in known else known.values()
    return any(same(value, each) for each in others)
