"""Look inside a model: run the lesson's own lines, and record or edit every array that they name.

The files of the layers and of the transformer are loaded a second time. After each line that assigns a name of NAMES,
that copy calls `seen` (in a forward) or `graded` (in a backward), which may replace the array.
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
from npgpt.arrays import library_of
from npgpt.checks import as_floats, check, shown
from npgpt.display import table
from npgpt.errors import UserError
from npgpt.model import transformer
from npgpt.model.block import GPT2

# A layer -> the public names that its forward assigns; the gradients, and arrays computed again, of its backward; and
# the parts of the model that it calls, in the forward's order, each with its layer. ("=attention" adds no part.)
NAMES = {
    "linear": ("x rows y", "dy rows drows dx"), "head": ("x rows logits", "dlogits rows drows dx"),
    "lora": ("x rows low update y_rows y", "dy rows dy_rows dupdate dlow drows dx"), "dropout": ("x y", "dy dx"),
    "gelu_tanh": ("x inner tanh y", "dy dtanh dinner dx"), "gelu_exact": ("x phi y", "dy dx"),
    "layernorm": ("x mean centred var rstd xhat", "dxhat dx"), "embedding": ("token position x", "dx dtoken dposition"),
    "attention": ("q scores scaled masked largest exps total att kept mix",
                  "dmix kept dkept dv datt dmasked dscaled dscores dq dk"),
    "mlp": ("x hidden active y", "dy dactive dhidden dx", "c_fc=linear gelu=gelu c_proj=linear"),
    "self_attention": ("x qkv heads q k v mix merged y", "dy dmerged dmix dq dk dv dheads dqkv dx",
                       "c_attn=linear =attention c_proj=linear"),
    "block": ("x norm_1 attended dropped_1 x_mid norm_2 mlp_out dropped_2 x_out",
              "dx_out ddropped_2 dmlp_out dnorm_2 dx_mid ddropped_1 dattended dnorm_1 dx",
              "ln_1=layernorm attn=self_attention drop_1=dropout ln_2=layernorm mlp=mlp drop_2=dropout"),
    "gpt": ("head_weight head_bias mask logits", "dlogits dhead_weight dhead_bias",
            "embedding=embedding ln_e=layernorm drop=dropout h.{}=block ln_f=layernorm head=head")}


class Arrays(dict[str, np.ndarray]):
    """A dict of arrays that is shown as a table."""

    __repr__, _repr_html_ = table("mean |x|", lambda self, name: (
        self[name].shape, self[name].dtype, f"{float(abs(self[name]).mean()):.4g}"))


class Activations(Arrays):
    """The arrays of a forward by name, such as "h.3.attn.att". grads: their gradients by the same names.

    A name is the layer's place among the parameters and the name in its lines; `x` is what a layer is given. NAMES says
    which lines; gradients that a shortcut of the backward skips are left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.grads = Arrays()


class ReadOnly(np.ndarray):
    """A view that cannot be written to: its memory may be a parameter's, or the backward needs it."""

    def __setitem__(self, key, value):
        if not self.flags.writeable:
            raise UserError("activations are read-only, because parameters and backward use their memory: change a "
                            "copy, activation.copy(), or use edit=")
        super().__setitem__(key, value)

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **named):
        """Compute with plain arrays; as an `out`, also in `activation *= 2`, a view must be writable."""
        for each in out:
            if isinstance(each, ReadOnly):
                each[...] = each
        named |= {"out": tuple(map(plain, out))} if out else {}
        return getattr(ufunc, method)(*map(plain, inputs), **named)


def read_only(array):
    """Return a read-only view of an array."""
    view = array.view(ReadOnly)
    view.flags.writeable = False
    return view


def plain(value):
    """Return an array as NumPy's own class; any other value unchanged."""
    return value.view(np.ndarray) if isinstance(value, np.ndarray) else value


class Looks(ast.NodeTransformer):
    """Add the calls of `seen` and `graded` to a syntax tree, and to each call of a layer its place in the model.

    Raises UserError if a function does not assign or call what NAMES says.
    """

    def __init__(self, file):
        self.file, self.names, self.made, self.called = file, (), [], []

    def visit_FunctionDef(self, node):
        layer, _, kind = node.name.rpartition("_")
        if layer not in NAMES or kind not in ("forward", "backward"):
            return node
        self.look, order = ("seen", 1) if kind == "forward" else ("graded", -1)
        parts = [part.split("=") for part in "".join(NAMES[layer][2:]).split()][::order]
        loop = "".join(ast.unparse(each.target) for each in ast.walk(node) if isinstance(each, ast.For))
        self.parts = iter([repr(part) + f".format({loop})" * ("{" in part) for part, _ in parts])
        self.names, self.made, self.called = NAMES[layer][order < 0].split(), [], []
        self.generic_visit(node)
        node.body[:0] = self.looks([each.arg for each in node.args.args[:1] if each.arg not in self.made], node)
        wrong = [f"assign `{name}` once" for name in self.names if self.made.count(name) != 1]
        if self.called != [called for _, called in parts]:
            wrong.append(f"call {', '.join(called for _, called in parts) or 'no layer'}")
        if wrong:
            raise UserError(f"{self.file}: {node.name} must {wrong[0]}, for the public names of run_with_cache: after "
                            "a renaming, change NAMES of npgpt/model/activations.py too")
        return node

    def visit_Assign(self, node):
        call, names = node.value, [each.id for target in node.targets for each in ast.walk(target)
                                   if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
        if isinstance(call, ast.Call) and (function := ast.unparse(call.func)).endswith(("_forward", "_backward")):
            self.called.append(function.rpartition(".")[2].rpartition("_")[0])
            call.func = placed(ast.parse(f"inside({self.part(node)}, {function})", mode="eval").body, node)
        return [node, *self.looks(names, node)]

    def part(self, node):
        """Return the code of the name of the part that an assignment calls."""
        return next(self.parts, "0")

    def looks(self, names, node):
        names = [name for name in names if name in self.names]
        self.made += names
        return [placed(ast.parse(f"{name} = {self.look}({name!r}, {name})").body[0], node) for name in names]


class OwnLooks(Looks):
    """The same for the file of a block: the names are all that a function assigns once.

    A part is called as its cache, the second result of a forward and the second argument of a backward. The gradient of
    v is the whole one if the backward calls it dv.
    """

    def visit_FunctionDef(self, node):
        kind = node.name.rpartition("_")[2]
        if kind not in ("forward", "backward"):
            return node
        stored = [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
        first = [each.arg for each in node.args.args[:1] if each.arg not in stored]
        self.look, self.names = "seen" if kind == "forward" else "graded", {*first, *stored}
        self.names -= {name for name in stored if stored.count(name) > 1}
        self.generic_visit(node)
        node.body[:0] = self.looks(first, node)
        return node

    def part(self, node):
        places = getattr(node.targets[0], "elts", ()) if self.look == "seen" else node.value.args[:2]
        return repr(ast.unparse(places[1]) if len(places) == 2 else "")


def placed(tree, node):
    """Give a tree the place of a node in its file, so that tracebacks show the lesson's lines; return it."""
    for each in ast.walk(tree):
        ast.copy_location(each, node)
    return tree


@functools.cache
def compiled():
    """Return the code of the layers' files and of the transformer's, with these calls added."""
    modules = {inspect.getmodule(getattr(layers, name)) for name in layers.__all__} - {None} | {transformer}
    return [compile(Looks(f"{each.__name__.replace('.', '/')}.py").visit(ast.parse(inspect.getsource(each))),
                    each.__file__, "exec") for each in modules]


class Looking:
    """Run a forward and its backward, and record their arrays.

    config: the model's; the attribute has the block to run. edit: name -> a function of an array that returns another.
    Raises UserError for an edit that is not a mapping of functions.
    """

    def __init__(self, config, edit=None, names=("*",)):
        edit = {} if edit is None else edit
        check("edit", edit, isinstance(edit, Mapping), 'names and functions, such as {"h.0.attn.mix": function}')
        for name, function in edit.items():
            check(f"edit[{shown(name)}]", function, callable(function), "a function of the array")
        right = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        check("names", names, right, 'a list of names, such as ["h.*.attn.att"]')
        self.edit, self.names, self.activations, self.place = edit, names, Activations(), ""
        looks = {"seen": self.seen, "graded": self.graded, "inside": self.inside}
        lines, block = {**looks}, config.block
        for code in compiled():
            exec(code, lines)
        self.ops = SimpleNamespace(**lines)         # the table of operations, and gpt_forward and gpt_backward
        own = block.again(OwnLooks(block.file), looks, lines) if block != GPT2 else ()
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
        """Run `gpt_backward`. Raises UserError if an edited array's gradient is one that a shortcut skips."""
        dp = self.ops.gpt_backward(dlogits, cache, ops)
        for name in self.edited.keys() - self.undone:
            near = [each for each in self.undone if each.rpartition(".")[0] == name.rpartition(".")[0]]
            raise UserError(f"backward cannot undo an edit of {name}: a shortcut skips its gradient; "
                            f"edit {', '.join(near)}")
        return dp

    def inside(self, part, function):
        """Wrap the function of a part of the model: the names in it begin with the part's."""
        def run(*arguments, **named):
            before = self.place
            self.place += f"{part}." if part else ""
            try:
                return function(*arguments, **named)
            finally:
                self.place = before

        return run

    def seen(self, name, value):
        """Record an array that a forward assigned, edited if there is an edit for it; return it."""
        name = self.place + name
        if not getattr(value, "ndim", 0) or value.dtype.kind != "f":
            return value
        if name in self.edit and name not in self.edited:       # a caller may give a callee's array the same name
            new = as_floats(f"the edited {name}", self.edit[name](value.copy()), value.dtype, library_of(value))
            check(f"the shape of the edited {name}", new.shape, new.shape == value.shape, str(value.shape))
            self.edited[name] = new, (new != value).any(axis=-1, keepdims=True)
            value = new
        self.made[name] = True
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.names):
            self.activations[name] = read_only(value) if isinstance(value, np.ndarray) else value
        return value

    def graded(self, name, value):
        """Record a gradient that a backward assigned; return it, with 0 in rows that an edit changed.

        An array that the backward recomputes is the edited one.
        """
        variable = self.place + name[1:]
        if name[0] == "d" and variable in self.made:
            self.undone.add(variable)
            if variable in self.activations:
                self.activations.grads.setdefault(variable, value)
            return np.where(self.edited[variable][1], 0.0, value) if variable in self.edited else value
        return self.edited[self.place + name][0] if self.place + name in self.edited else value
