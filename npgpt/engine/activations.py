"""Look inside a model: run the lesson's own lines, and record or edit every array that they name.

The files of the layers and of the transformer are loaded a second time, with hooks: after each line that assigns a
name, that copy calls `seen` (in a forward) or `graded` (in a backward), which may replace the array.
"""

import ast
import difflib
import fnmatch
import functools
import inspect
from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np

from npgpt import layers
from npgpt.arrays import library_of, table
from npgpt.checks import as_floats, require, shown
from npgpt.engine.sources import run_again
from npgpt.errors import UserError
from npgpt.model import transformer
from npgpt.model.block import GPT2

# The caches in transformer.py whose layers have another prefix than the cache's name: code -> code of the prefix.
PREFIXES = {"attention": "''", "block": "f'h.{i}'", "blocks[i]": "f'h.{i}'"}


class Arrays(dict[str, np.ndarray]):
    """A dict of arrays that is shown as a table."""

    __repr__, _repr_html_ = table("mean |x|", lambda self, name: (
        self[name].shape, self[name].dtype, f"{float(abs(self[name]).mean()):.4g}"))


class Activations(Arrays):
    """The arrays of a forward by name, such as "h.3.attn.att". grads: their gradients by the same names.

    A name is the layer's prefix, as in the names of parameters, and a variable that its forward assigns once; `x` is
    what a layer is given. Gradients that a fused backward skips are left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.grads = Arrays()


class Hooks(ast.NodeTransformer):
    """Insert calls of `seen` and `graded` after the assignments of a syntax tree, for each name that is assigned once.

    The names in a layer that is called get the name of its cache as prefix: the second result of a forward, the second
    argument of a backward. prefixes: of some caches another one, as in PREFIXES.
    """

    def __init__(self, prefixes):
        self.prefixes, self.names, self.hook = prefixes, (), ""

    def visit_FunctionDef(self, node):
        kind = node.name.rpartition("_")[2]
        if kind not in ("forward", "backward"):
            return node
        stored = [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
        first = [each.arg for each in node.args.args[:1] if each.arg not in stored]
        self.hook, self.names = "seen" if kind == "forward" else "graded", {*first, *stored}
        self.names -= {name for name in stored if stored.count(name) > 1}
        self.generic_visit(node)
        node.body[:0] = self.hooks(first, node)
        return node

    def visit_Assign(self, node):
        call, names = node.value, [each.id for target in node.targets for each in ast.walk(target)
                                   if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
        if isinstance(call, ast.Call) and (function := ast.unparse(call.func)).endswith(("_forward", "_backward")):
            pair = getattr(node.targets[0], "elts", ()) if self.hook == "seen" else call.args[:2]
            cache = ast.unparse(pair[1]) if len(pair) == 2 else ""
            names = [name for name in names if name != cache]       # that of dropout is an array, its mask
            prefix = self.prefixes.get(cache, repr(cache))
            call.func = located(ast.parse(f"inside({prefix}, {function})", mode="eval").body, node)
        return [node, *self.hooks(names, node)]

    def hooks(self, names, node):
        return [located(ast.parse(f"{name} = {self.hook}({name!r}, {name})").body[0], node)
                for name in names if name in self.names]


def located(tree, node):
    """Return the tree with the line numbers of a node, so that tracebacks show the lesson's lines."""
    for each in ast.walk(tree):
        ast.copy_location(each, node)
    return tree


@functools.cache
def hooked():
    """Return the code of the layers' files and of the transformer's, with the hooks."""
    modules = {inspect.getmodule(getattr(layers, name)) for name in layers.__all__} - {None} | {transformer}
    return [compile(Hooks(PREFIXES if each is transformer else {}).visit(ast.parse(inspect.getsource(each))),
                    each.__file__, "exec") for each in modules]


class Looking:
    """Run a forward and its backward, and record their arrays.

    config: the model's; the attribute has the block to run. edit: name -> a function of an array that returns another.
    Raises UserError for an edit that is not a mapping of functions.
    """

    def __init__(self, config, edit=None, names=("*",)):
        edit = {} if edit is None else edit
        require("edit", edit, isinstance(edit, Mapping), 'names and functions, such as {"h.0.attn.mix": function}')
        for name, function in edit.items():
            require(f"edit[{shown(name)}]", function, callable(function), "a function of the array")
        right = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        require("names", names, right, 'a list of names, such as ["h.*.attn.att"]')
        self.edit, self.names, self.activations, self.prefix = edit, names, Activations(), ""
        hooks = {"seen": self.seen, "graded": self.graded, "inside": self.inside}
        lines, block = {**hooks}, config.block
        for code in hooked():
            exec(code, lines)
        self.ops = SimpleNamespace(**lines)         # the table of operations, and gpt_forward and gpt_backward
        own = run_again(block, Hooks({}), hooks, lines) if block != GPT2 else ()
        self.config = config.with_block(*own or (lines["block_forward"], lines["block_backward"]))

    def forward(self, *arguments):
        """Run `gpt_forward`. Raises UserError for a name that no array has, or an edit whose result does not fit."""
        self.made, self.undone, self.edited = {}, set(), {}     # arrays of the forward; those whose gradients were seen
        result = self.ops.gpt_forward(*arguments)
        unknown = [name for name in self.names if not fnmatch.filter(self.made, name)]
        for name in [*(self.edit.keys() - self.edited.keys()), *unknown]:
            near = difflib.get_close_matches(str(name), self.made, 3) or list(self.made)[:3]
            raise UserError(f"this model has no array {shown(name)}, but {', '.join(near)}")
        return result

    def backward(self, dlogits, cache, ops):
        """Run `gpt_backward`. Raises UserError if an edited array's gradient is one that a fused gradient skips."""
        dp = self.ops.gpt_backward(dlogits, cache, ops)
        for name in self.edited.keys() - self.undone:
            near = [each for each in self.undone if each.rpartition(".")[0] == name.rpartition(".")[0]]
            raise UserError(f"backward cannot undo an edit of {name}: a fused gradient skips it; edit "
                            f"{', '.join(near)}")
        return dp

    def inside(self, prefix, function):
        """Wrap a layer's function: the names in it begin with the prefix."""
        def run(*arguments, **named):
            before = self.prefix
            self.prefix += f"{prefix}." if prefix else ""
            try:
                return function(*arguments, **named)
            finally:
                self.prefix = before

        return run

    def seen(self, name, value):
        """Record an array that a forward assigned, edited if there is an edit for it; return it."""
        name = self.prefix + name
        if not getattr(value, "ndim", 0) or value.dtype.kind != "f":
            return value
        if name in self.edit and name not in self.edited:       # a caller may give a callee's array the same name
            new = as_floats(f"the edited {name}", self.edit[name](value.copy()), value.dtype, library_of(value))
            require(f"the shape of the edited {name}", new.shape, new.shape == value.shape, str(value.shape))
            self.edited[name] = new, (new != value).any(axis=-1, keepdims=True)
            value = new
        self.made[name] = True
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.names):
            self.activations[name] = kept = value.view()
            if isinstance(kept, np.ndarray):            # its memory may be a parameter's, and the backward needs it
                kept.flags.writeable = False
        return value

    def graded(self, name, value):
        """Record a gradient that a backward assigned; return it, with 0 in rows that an edit changed.

        An array that the backward recomputes is the edited one.
        """
        variable = self.prefix + name[1:]
        if name[0] == "d" and variable in self.made:
            self.undone.add(variable)
            if variable in self.activations:
                self.activations.grads.setdefault(variable, value)
            return np.where(self.edited[variable][1], 0.0, value) if variable in self.edited else value
        return self.edited[self.prefix + name][0] if self.prefix + name in self.edited else value
