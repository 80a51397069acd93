"""Where the mistake of a wrong gradient can be: in its line, or in a line before it that no right
gradient vouches for.
"""

import ast

from npgpt.study.gradcheck.flow import statements_read
from npgpt.study.gradcheck.source import parsed


class Suspects:
    """The lines of a backward that a wrong line depends on, up to those whose gradients are right.

    spelling: name in the code -> "dv"; verified: lines whose gradients are right.
    """

    def __init__(self, backward, spelling, verified):
        self.made = {}  # name -> lines that assign it, or fill a part of it
        self.reads = {}  # line -> names
        for node, changes, reads in statements_read(backward):
            changes = {name.partition(".")[0] for name in changes}
            if not is_unpacked(node.value) and node.lineno not in verified:
                self.reads[node.lineno] = {
                    spelling.get(name.partition(".")[0], name.partition(".")[0]) for name in reads
                }
                for name in changes:
                    self.made.setdefault(spelling.get(name, name), set()).add(node.lineno)
        loops = [
            node for node in ast.walk(parsed(backward)) if isinstance(node, ast.For | ast.While)
        ]
        self.loops = [(node.lineno, node.end_lineno) for node in loops]

    def of(self, line):
        """Return the first and the last line of those that can hold the mistake of a wrong line."""
        found, left = {line}, [line]
        while left:
            at = left.pop()
            last = max([end for first, end in self.loops if first <= at <= end], default=at)
            new = {
                each
                for name in self.reads.get(at, ())
                for each in self.made.get(name, ())
                if each <= last
            } - found
            found |= new
            left += new
        return min(found), max(found)


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
