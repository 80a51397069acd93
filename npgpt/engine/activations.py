"""Look inside a model: run the lesson's own lines, and record or edit every array that they name.

Each function runs with its lines watched (watch.py). After a line that assigns a name, a forward
calls `record`, which may replace the array, and a backward calls `record_gradient`.

A cache may hold an edited array, and a backward may read it for two reasons: for the gradients of
what was computed from it, which need the new array, and for the gradient of what it was computed
from, which needs the old one. So such an array gets a backward of its own: first all lines run with
the new array, and no gradient passes it; then with the old one, from its gradient alone. Gradients
add up, because a backward is linear.
"""

import ast
import difflib
import functools
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from npgpt import layers
from npgpt.arrays import broadcasts, library_of, table
from npgpt.checks import as_floats, require, shown
from npgpt.engine.watch import Watch, is_watched, located, tree_in_file, watched
from npgpt.errors import UserError
from npgpt.model import transformer
from npgpt.model.parameters import parameter_shapes
from npgpt.model.variants import model_backward

# The caches in transformer.py whose layers have another prefix than the cache's name: code -> code
# of the prefix.
PREFIXES = {"attention": "''", "block": "f'h.{i}'", "blocks[i]": "f'h.{i}'"}
# Functions that write to their first argument, and methods that write to their array.
WRITING = {"at", "copyto", "place", "put", "putmask", "put_along_axis", "fill_diagonal"}
WRITING_METHODS = {"fill", "sort", "partition", "resize"}
LESSON = transformer.__file__, *map(str, Path(layers.__file__).parent.glob("*.py"))


class Arrays(dict[str, np.ndarray]):
    """A dict of arrays that is shown as a table."""

    def row(self, name):
        array = self[name]
        return array.shape, array.dtype, f"{float(abs(array).mean()):.4g}"

    __repr__ = table("mean |x|", row)


class Activations(Arrays):
    """The arrays of a forward by name, such as "h.3.attn.att". grads: their gradients by the same
    names.

    A name is the layer's prefix, as in the names of parameters, and a variable that its forward
    assigns once; `x` is what a layer is given. Gradients that a fused backward skips are left out.
    That of an edited array is the gradient of the new array.
    """

    def __init__(self) -> None:
        super().__init__()
        self.grads = Arrays()


class WatchLayers(Watch):
    """Watch lines, and call each layer through `__layer__`, which gets the layer's prefix.

    prefixes: the code of a cache -> the code of its layer's prefix, where that is not its name.
    """

    def __init__(self, prefixes):
        self.prefixes = prefixes

    def visit_Assign(self, node):
        if cache := cache_of(node):
            self.call_with_prefix(node.value, self.prefixes.get(cache, repr(cache)))
        return super().visit_Assign(node)

    def visit_Call(self, node):
        if is_layer(node):
            self.call_with_prefix(node, "''")
        return self.generic_visit(node)

    def call_with_prefix(self, call, prefix):
        text = f"__layer__({prefix}, {ast.unparse(call.func)})"
        call.func = located(ast.parse(text), call).body[0].value


GPT = WatchLayers(PREFIXES)
OWN = WatchLayers({})


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
def watched_names(code):
    """Return the line of a function's `def`, and the names of its arrays.

    They are two sets: its first argument, and what its lines assign once, if nothing is written
    to it. A cache is not among them: that of dropout is an array, its mask.
    """
    tree = tree_in_file(code)
    stored, written, caches = [], set(), set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(name, ast.Store()):
                stored.append(name)
            case ast.Assign():
                caches.add(cache_of(node))
        written.add(getattr(written_to(node), "id", None))
    arguments = [each.arg for each in tree.args.args if each.arg != "self"]
    first = {*arguments[:1]} - {*stored} - written
    return (
        tree.lineno,
        first,
        {name for name in stored if stored.count(name) == 1} - written - caches,
    )


def written_to(node):
    """Return the tree of the array to which an expression writes in place, or None."""
    match node:
        case ast.Subscript(value, ctx=ast.Store()) | ast.keyword("out", value):
            return value
        case ast.Call(ast.Attribute(_, name), [array, *_]) if name in WRITING:
            return array
        case ast.Call(ast.Attribute(array, name)) if name in WRITING_METHODS:
            return array
    return None


class Change(NamedTuple):
    """A changed array.

    old, new: the array before and after.
    undo: a function, the gradient of the new array -> that of the old one.
    """

    old: Any
    new: Any
    undo: Any


class ForwardTrace:
    """Run a forward and its backward, and record their arrays.

    config: the model's; the attribute has the block to run.
    edit: name -> a function of an array that returns another, or a pair (array, backward).
    add: name -> an array to be added, after the edit.
    keep: whether to keep the arrays.
    Raises UserError for an edit that is not a mapping of functions, and for an array to be added
    that has a parameter's name.
    """

    def __init__(self, config, edit=None, add=None, keep=False):
        functions = 'names and functions, such as {"h.0.attn.mix": function}'
        require("edit", edit, isinstance(edit, Mapping | None), functions)
        arrays = 'names and arrays, such as {"h.0.x_out": v}'
        require("add", add, isinstance(add, Mapping | None), arrays)
        self.edit, self.add, self.keep = edit or {}, dict(add or {}), keep
        for name, function in self.edit.items():
            require(f"edit[{shown(name)}]", function, callable(function), "a function of the array")
        for name in self.add.keys() & parameter_shapes(config).keys():
            raise UserError(
                f"add: {name} is also a parameter, and backward returns one gradient "
                "of each name: give the array in the block another name"
            )
        self.activations = Activations()
        self.prefix = ""
        block = config.block
        self.files = {*block.texts, *LESSON}
        ops = {name: self.watched_copy(getattr(layers, name)) for name in layers.__all__}
        self.ops = SimpleNamespace(**ops)
        self.config = config.with_block(*map(self.watched_copy, (block.forward, block.backward)))

    def watched_copy(self, function):
        """Return a copy of a layer's function that is watched; any other function as it is."""
        code = getattr(function, "__code__", None)
        if code is None or code.co_filename not in self.files or is_watched(code):
            return function
        is_forward = code.co_name.endswith("forward")
        hook = self.record if is_forward else self.record_gradient
        line, first, names = watched_names(code)

        def watch(at, name, value):
            return hook(name, value) if name in (first if at == line else names) else value

        visitor = GPT if code.co_filename == transformer.__file__ else OWN
        copy = watched(function, watch, visitor=visitor, __layer__=self.with_prefix)

        def backward(*arguments, **named):
            self.read |= {self.prefix + each for each in names}
            return copy(*map(self.recalled, arguments), **named)

        return copy if is_forward else backward

    def gpt_forward(self, *arguments):
        """Run `gpt_forward`. Raises UserError for a name that no array has, or an edit whose result
        does not fit.
        """
        self.made = set()  # names of arrays
        self.several = set()  # those that several arrays have
        self.edited = {}  # name -> its `Change`, in the forward's order
        self.read = set()  # names of changed arrays that their own backwards read
        self.passing = {*self.add}  # names of edits that a gradient passes
        self.now = {}  # name -> the old or the new array, which backwards read
        result = self.watched_copy(transformer.gpt_forward)(*arguments)
        for name in (self.edit.keys() | self.add.keys()) - self.edited.keys():
            near = difflib.get_close_matches(str(name), self.made, 3) or sorted(self.made)[:3]
            raise UserError(f"this model has no array {shown(name)}, but {', '.join(near)}")
        return result

    def backward(self, dlogits, cache, ops, flatten):
        """Return the gradients of the parameters, and of what was added, by name.

        flatten: of the `Parameters`.
        Raises UserError if no gradient can pass through an edit.
        """
        for name in self.several:
            raise UserError(f"backward cannot undo an edit of {name}: several arrays have its name")
        self.activations.grads.clear()
        self.waiting = [*self.edited]  # names whose gradients have not passed

        def run_backward(dlogits, through):
            self.undone, self.through = set(), through
            for name, change in self.edited.items():  # what a backward may read
                self.now[name] = change.old if name == through else change.new
            lesson = self.watched_copy(transformer.gpt_backward)
            return flatten(model_backward(dlogits, cache, ops, lesson))

        grads = run_backward(dlogits, None)
        for name in self.edited.keys() - self.undone:
            layer, _, variable = name.rpartition(".")
            near = [each for each in self.undone if each.rpartition(".")[0] == layer]
            hint = f"; edit {', '.join(near)}" if near else ""
            raise UserError(
                f"backward cannot undo an edit of {name}: a fused gradient skips it, or no single "
                f"line assigns d{variable}{hint}"
            )
        for name in reversed(self.edited):
            if name in self.waiting:
                more = run_backward(np.zeros_like(dlogits), name)
                grads = {each: grads[each] + gradient for each, gradient in more.items()}
        for name, vector in self.add.items():
            gradient = summed_to(self.activations.grads[name], vector.shape)
            grads[name] = gradient.astype(vector.dtype)
        return grads

    def with_prefix(self, prefix, function):
        """Wrap a layer's function: the names in it begin with the prefix."""
        function = self.watched_copy(function)

        def call(*arguments, **named):
            before = self.prefix
            self.prefix += f"{prefix}." if prefix else ""
            try:
                return function(*arguments, **named)
            finally:
                self.prefix = before

        return call

    def record(self, name, value):
        """Record an array that a forward assigned, changed if there is an edit; return it."""
        name = self.prefix + name
        if not getattr(value, "ndim", 0) or value.dtype.kind != "f":
            return value
        if name in self.edited:  # a caller may give a callee's array the same name
            if value is not self.edited[name].new:
                self.several.add(name)
        elif name in self.edit or name in self.add:
            self.edited[name] = self.changed(name, value)
            value = self.edited[name].new
        self.made.add(name)
        if self.keep:
            self.activations[name] = kept = value.view()
            if isinstance(kept, np.ndarray):  # the backward or a parameter may need its memory
                kept.flags.writeable = False
        return value

    def changed(self, name, old):
        """Return the `Change` of an array. Raises UserError for one that does not fit."""
        new, undo = old, lambda gradient: gradient
        if name in self.edit:
            new, undo = call_edit(self.edit[name], old.copy()), None
            require(f"the edited {name}", new, new is not None, "an array: end with `return x`")
            if isinstance(new, tuple):
                right = len(new) == 2 and callable(new[1])
                require(f"the edited {name}", new, right, "an array, or a pair (array, backward)")
                new, undo = new
                self.passing.add(name)
            new = checked_copy(f"the edited {name}", new, old)
            constant = (new != old).any(axis=-1, keepdims=True)
            undo = undo or (lambda gradient: np.where(constant, 0.0, gradient))
        if name in self.add:
            xp, title = library_of(old), f"add[{shown(name)}]"
            vector = self.add[name] = xp.asarray(self.add[name])
            floats = f"floats of a shape that broadcasts to {old.shape}"
            right = broadcasts(vector.shape, old.shape) and vector.dtype.kind == "f"
            require(title, f"{vector.shape} {vector.dtype}", right, floats)
            new = new + as_floats(title, vector, old.dtype, xp)
        return Change(old, new, undo)

    def record_gradient(self, name, value):
        """Record a gradient that a backward assigned; return what passes on to the unchanged array.

        That is 0 until the gradient of the new array is complete: one that its layer's backward
        reads waits for a backward of its own, with the old array, and so does what comes before it
        in the forward. An array that the backward computes again is the one that it may read.
        """
        variable = self.prefix + name[1:]
        if name[0] != "d" or variable not in self.made:
            return self.now.get(self.prefix + name, value)
        if variable in self.undone:  # a caller's name for the same gradient
            return value
        self.undone.add(variable)
        grads = self.activations.grads
        if self.keep or variable in self.edited:
            grads[variable] = grads.get(variable, 0.0) + value
        if variable not in self.waiting:  # not edited, or it has passed: then this is 0
            return value
        later = self.waiting[self.waiting.index(variable) :]
        if self.read.intersection(later) - {self.through}:
            return np.zeros_like(value)
        self.waiting.remove(variable)
        old = call_edit(self.edited[variable].undo, grads[variable].copy())
        return checked_copy(f"the gradient that the edit of {variable} returns", old, value)

    def recalled(self, value):
        """Return what a backward is given, perhaps a cache, with the arrays that it may read."""
        if type(value) is tuple:
            return tuple(each if type(each) is tuple else self.recalled(each) for each in value)
        for name, change in self.edited.items():
            if value is change.new:
                if name.rpartition(".")[0] == self.prefix[:-1]:
                    self.read.add(name)
                return self.now.get(name, value)
        return value


def call_edit(function, array):
    """Call a function of an edit. No block is blamed for what it raises."""
    try:
        return function(array)
    except Exception as error:
        error.in_edit = True
        raise


def checked_copy(name, value, like):
    """Return a copy of what an edit returned, as floats.

    Raises UserError for another shape than that of `like`.
    """
    new = as_floats(name, value, like.dtype, library_of(like))
    require(f"the shape of {name}", new.shape, new.shape == like.shape, str(like.shape))
    return new.copy()


def summed_to(array, shape):
    """Sum over the axes along which an array of this shape was broadcast."""
    sizes = (1,) * (array.ndim - len(shape)) + shape
    axes = tuple(axis for axis, size in enumerate(sizes) if size == 1)
    return array.sum(axis=axes, keepdims=True).reshape(shape)
