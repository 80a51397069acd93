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
    there, mine: the last values of the forward's and of the backward's variables; a line that
        unpacks the cache is right if its values are those that the forward knew
    returned: "dv" of a result -> its code in the last `return`, which does not depend on the others
    """

    def __init__(self, tree, spelling, checks, there, mine, returned):
        returns = [node for node in ast.walk(tree) if isinstance(node, ast.Return)]
        self.last = max((node.lineno for node in returns), default=None)
        self.results = {
            name: {spelling.get(each, each) for each in names_in(ast.parse(code))}
            for name, code in returned.items()
        }
        loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While)]
        self.loops = [(node.lineno, node.end_lineno) for node in loops]
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self.appends = {node.lineno: ast.unparse(node.func).rpartition(".")[0] for node in calls
                        if getattr(node.func, "attr", "") in ("append", "insert", "extend")}
        wrong = {each.line for each in checks if each.verdict == WRONG}
        right = {each.line for each in checks if each.verdict in (OK, ROUNDED)}
        self.verified = right - wrong
        # in another turn of a loop a line may be wrong
        self.verified = {line for line in self.verified if line and not any(
            first <= line <= end for first, end in self.loops)}
        self.checks = {each.line: each for each in checks}
        self.made = {}  # name -> lines that assign it, or fill a part of it, and are not right
        self.reads = {}  # line -> names
        for node, changes, reads in statements_read(tree):
            changes, reads = (
                {spelling.get(root, root) for root in (name.partition(".")[0] for name in names)}
                for names in (changes, reads)
            )
            self.reads[node.lineno] = reads
            if node.lineno in self.verified:
                continue
            names = names_of(targets(node)) if is_unpacked(node.value) else ()
            known = {
                spelling.get(name, name) for name in names if is_known(name, mine.get(name), there)
            }
            for name in changes - known:
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
        return bool(self.readers(check)) and self.readers(check) <= self.verified

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
            last = max([end for first, end in self.loops if first <= at <= end], default=at)
            new = {
                each
                for name in reads.get(at, ())
                for each in self.made.get(name, ())
                if each <= last
            } - found
            found |= new
            left += new
        return found


def is_unpacked(value):
    """Return whether an expression only names what is there: `cache`, `self.x`, `cache["x"]`,
    `x.shape`.
    """
    while (
        isinstance(value, ast.Attribute)
        or isinstance(value, ast.Subscript)
        and isinstance(getattr(value.slice, "value", None), str)
    ):
        value = value.value
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

    return any(same(value, each) for each in ([known[name]] if name in known else known.values()))
