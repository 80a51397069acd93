"""Find forward and backward passes in users' files: pairs of functions, classes, losses
with their gradients.

`x_forward` and `x_backward`, also with a word after it (`x_forward_naive`), `forward_x`, or x and
`x_backward`; a backward may have no forward of its own ending. A class has two methods, `forward`
and `backward` or names like these. A function `x_loss` may return the loss and its gradients.
"""

import ast
import dataclasses
import functools
import importlib
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import FunctionType, ModuleType

from npgpt.engine.sources import tree_of
from npgpt.engine.watch import tree_in_file
from npgpt.files import read_python, run_python
from npgpt.study.gradcheck.source import returned_value
from npgpt.study.lessons.own_state import STANDARD

BACK = "backward", "bwd", "backprop", "bprop"
WORD = re.compile(rf"(.*?)_?(forward|fwd|fprop|{'|'.join(BACK)})((?:_\w+)?)")
FORWARDS = """
forward forward_pass fprop fwd forward_prop feed_forward feedforward _forward
__call__ calculate compute loss propagate forward_propagation forward_propagate
""".split()
BACKWARDS = """
backward backward_pass bprop bwd backprop backward_prop back_prop _backward
back_propagation backpropagation backward_propagation backward_propagate gradient
grad
""".split()
DEEPER = 2  # folders above a package, for the relative imports of what it imports


@dataclasses.dataclass(frozen=True)
class Found:
    """A pair of functions (or one function twice), or a class, with the names of the forward and
    the backward.
    """

    name: str
    forward: str
    backward: str
    owner: type | None = None

    @property
    def is_made(self):
        """Whether it is called on an object, which its class has to make."""
        return bool(self.owner) and not isinstance(vars(self.owner).get(self.forward), staticmethod)

    def functions(self, names):
        """Return the forward and the backward. names: of the file."""
        words = self.forward, self.backward
        return [getattr(self.owner, each) if self.owner else names[each] for each in words]


def split_name(name):
    """Return what stands before and after "forward" or "backward" in a function's name, and that
    word or "".
    """
    match = WORD.fullmatch(name)
    return (match[1], match[3], match[2]) if match else (name, "", "")


def returns_several(function):
    """Return whether a function's last `return` has a comma: of a loss and its gradients."""
    return isinstance(returned_value(tree_in_file(function.__code__)), ast.Tuple)


def passes_in(names):
    """Return all `Found` in a file that has run. names: of it."""
    own = {
        name: each
        for name, each in names.items()
        if isinstance(each, FunctionType | type) and each.__module__ == names["__name__"]
    }
    split = {name: split_name(name) for name, each in own.items() if not isinstance(each, type)}
    found = []
    for backward, (start, end, word) in split.items():
        forwards = [
            name
            for name, (first, last, kind) in split.items()
            if kind not in BACK and first == start and (start or last == end)
        ]
        if word in BACK and forwards:
            forward = min(forwards, key=lambda name: split[name][1] != end)
            is_taken = any(each.forward == forward for each in found)
            name = "".join(split[backward if is_taken else forward][:2]).strip("_")
            found.append(Found(name or forward, forward, backward))
    pairs = {name for each in found for name in (each.forward, each.backward)}
    for name, each in own.items():
        if isinstance(each, type) and all(methods := methods_of(each)):
            found.append(Found(name, *methods, each))
        elif name in split.keys() - pairs and re.search(r"(^|_)loss(_|$)", name):
            found += [Found(name, name, name)] * returns_several(each)
    return found


def methods_of(owner):
    """Return the names of a class's forward and backward; None for one that it lacks, or that only
    raises.
    """

    def is_written(name):
        function = getattr(owner, name, None)
        tree = tree_of(function.__code__) if isinstance(function, FunctionType) else None
        return tree and not all(
            isinstance(each, ast.Raise | ast.Pass)
            or isinstance(getattr(each, "value", 0), ast.Constant)
            for each in tree.body
        )

    return [next(filter(is_written, names), None) for names in (FORWARDS, BACKWARDS)]


@functools.lru_cache
def run_file(path):
    """Run a file as its package would. Return its names, and the `Found` in it."""
    tree = read_python(path)[1]
    names = run_python(path, import_folders(Path(path), tree))[1]
    return names, passes_in(names)


def import_folders(path, tree):
    """Let a file import modules beside it, in its package, and in the folders above it; return its
    package's name.
    """
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    level = max((getattr(node, "level", 0) for node in nodes), default=0)
    modules = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    modules += [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    root, *_ = folders = path.resolve().parents
    for first in {name.partition(".")[0] for name in modules} - STANDARD:
        there = [each for each in map(str, folders) if PathFinder.find_spec(first, [each])]
        sys.path[:0] = there[:1]
    package = []
    while (
        (root / "__init__.py").is_file()
        or level
        and len(package) < level + DEEPER
        and "." not in root.name
    ):
        package.insert(0, root.name)
        root = root.parent
    sys.path[:0] = [str(root)] * bool(package)
    for i in range(len(package) if level else 0):
        name = ".".join(package[: i + 1])
        try:
            importlib.import_module(name)
        except Exception:  # the file may not need what fails
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = [str(root.joinpath(*package[: i + 1]))]
    return ".".join(package)
