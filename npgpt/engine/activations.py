"""Look inside a model: run the lesson's own lines, and record or edit every array that they name.

Each function runs with its lines watched (watch.py). After a line that assigns a name, `seen` is
called in a forward, which may replace the array, and `graded` in a backward.
"""

import ast
import difflib
import functools
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from npgpt import layers
from npgpt.arrays import library_of, table
from npgpt.checks import as_floats, require, shown
from npgpt.engine.watch import Watch, is_watched, located, tree_in_file, watched
from npgpt.errors import UserError
from npgpt.model import transformer

# The caches in transformer.py whose layers have another prefix than the cache's name: code -> code of the prefix.
PREFIXES = {"attention": "''", "block": "f'h.{i}'", "blocks[i]": "f'h.{i}'"}
LESSON = transformer.__file__, *map(str, Path(layers.__file__).parent.glob("*.py"))


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


class Layers(Watch):
    """Watch lines, and call each layer through `__layer__`, which is told the layer's prefix."""

    def __init__(self, prefixes):
        self.prefixes = prefixes

    def visit_Assign(self, node):
        if cache := cache_of(node):
            self.through(node.value, self.prefixes.get(cache, repr(cache)))
        return super().visit_Assign(node)

    def visit_Call(self, node):
        if is_layer(node):
            self.through(node, "''")
        return self.generic_visit(node)

    def through(self, call, prefix):
        text = f"__layer__({prefix}, {ast.unparse(call.func)})"
        call.func = located(ast.parse(text), call).body[0].value


GPT, OWN = Layers(PREFIXES), Layers({})


def is_layer(node):
    """Return whether a tree is the call of a layer's function."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("_forward", "_backward"))


def cache_of(node):
    """Return the code of a layer's cache; "" if an assignment calls no layer.

    It is the second result in `y, cache = x_forward(…)`, and the second argument in
    `dx = x_backward(dy, cache)`.
    """
    if not is_layer(node.value):
        return ""
    is_forward = ast.unparse(node.value.func).endswith("forward")
    pair = getattr(node.targets[0], "elts", ()) if is_forward else node.value.args[:2]
    return ast.unparse(pair[1]) if len(pair) == 2 else ""


@functools.lru_cache(1024)
def names_in(code):
    """Return the line of a function's `def`, and the names of its arrays.

    They are two sets: its first argument, and what its lines assign once. A cache is not among
    them: that of dropout is an array, its mask.
    """
    tree = tree_in_file(code)
    nodes = [*ast.walk(tree)]
    names = [each for each in nodes if isinstance(each, ast.Name)]
    stored = [each.id for each in names if isinstance(each.ctx, ast.Store)]
    first = {each.arg for each in tree.args.args[:1]} - {*stored}
    caches = {cache_of(each) for each in nodes if isinstance(each, ast.Assign)}
    return tree.lineno, first, {name for name in stored if stored.count(name) == 1} - caches


class Looking:
    """Run a forward and its backward, and record their arrays.

    config: the model's; the attribute has the block to run.
    edit: name -> a function of an array that returns another.
    keep: whether to keep the arrays.
    Raises UserError for an edit that is not a mapping of functions.
    """

    def __init__(self, config, edit=None, keep=False):
        edit = {} if edit is None else edit
        require("edit", edit, isinstance(edit, Mapping), 'names and functions, such as {"h.0.attn.mix": function}')
        for name, function in edit.items():
            require(f"edit[{shown(name)}]", function, callable(function), "a function of the array")
        self.edit, self.keep, self.activations, self.prefix = edit, keep, Activations(), ""
        block = config.block
        self.files = {*block.texts, *LESSON}
        ops = {name: self.looked_into(getattr(layers, name)) for name in layers.__all__}
        self.ops = SimpleNamespace(**ops)
        functions = self.looked_into(block.forward), self.looked_into(block.backward)
        self.config = config.with_block(*functions)

    def looked_into(self, function):
        """Return a copy of a layer's function that is watched; any other function as it is."""
        code = getattr(function, "__code__", None)
        if code is None or code.co_filename not in self.files or is_watched(code):
            return function
        hook = self.seen if code.co_name.endswith("forward") else self.graded
        line, first, names = names_in(code)

        def watch(at, name, value):
            return hook(name, value) if name in (first if at == line else names) else value

        visitor = GPT if code.co_filename == transformer.__file__ else OWN
        return watched(function, watch, visitor=visitor, __layer__=self.inside)

    def gpt_forward(self, *arguments):
        """Run `gpt_forward`. Raises UserError for a name that no array has, or an edit whose result does not fit."""
        self.made, self.undone = set(), set()  # names of arrays; of those whose gradients were seen
        self.edited = {}  # name -> the new array, and which rows it changed
        result = self.looked_into(transformer.gpt_forward)(*arguments)
        for name in self.edit.keys() - self.edited.keys():
            near = difflib.get_close_matches(str(name), self.made, 3) or sorted(self.made)[:3]
            raise UserError(f"this model has no array {shown(name)}, but {', '.join(near)}")
        return result

    def gpt_backward(self, dlogits, cache, ops):
        """Run `gpt_backward`. Raises UserError if an edited array's gradient is one that a fused gradient skips."""
        dp = self.looked_into(transformer.gpt_backward)(dlogits, cache, ops)
        for name in self.edited.keys() - self.undone:
            layer = name.rpartition(".")[0]
            near = [each for each in self.undone if each.rpartition(".")[0] == layer]
            raise UserError(f"backward cannot undo an edit of {name}: a fused gradient skips it; edit "
                            f"{', '.join(near)}")
        return dp

    def inside(self, prefix, function):
        """Wrap a layer's function: the names in it begin with the prefix."""
        function = self.looked_into(function)

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
        self.made.add(name)
        if self.keep:
            self.activations[name] = kept = value.view()
            if isinstance(kept, np.ndarray):            # its memory may be a parameter's, and the backward needs it
                kept.flags.writeable = False
        return value

    def graded(self, name, value):
        """Record a gradient that a backward assigned; return it, with 0 in rows that an edit changed.

        An array that the backward recomputes is the edited one.
        """
        variable = self.prefix + name[1:]
        if name[0] != "d" or variable not in self.made:
            return self.edited.get(self.prefix + name, [value])[0]
        self.undone.add(variable)
        if self.keep:
            self.activations.grads.setdefault(variable, value)
        if variable in self.edited:
            return np.where(self.edited[variable][1], 0.0, value)
        return value
