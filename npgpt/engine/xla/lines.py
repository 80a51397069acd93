"""The lesson's lines for XLA: JAX traces them on abstract arrays, and XLA compiles the trace."""

import ast
import functools
import inspect
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import jax
import jax.numpy as jnp
import numpy

from npgpt import layers
from npgpt.engine.ops import table
from npgpt.engine.sources import run_again
from npgpt.engine.watch import located
from npgpt.model import transformer


class Spelled(ast.NodeTransformer):
    """Rewrite what XLA's arrays lack: writing to one makes a new one, and a @ b calls `matmul`
    below.
    """

    def generic_visit(self, node):
        super().generic_visit(node)
        match node:
            case ast.BinOp(a, ast.MatMult(), b):
                return spelled(node, "np.matmul({}, {})", a, b)
            case ast.Call():
                node.keywords = [each for each in node.keywords if each.arg != "like"]
            case ast.Assign([ast.Subscript(ast.Name() as array, index)], x):
                return item_set(node, array, index, x)
            case ast.AugAssign(ast.Subscript(ast.Name() as array, index), operation, x):
                return item_set(node, array, index, ast.BinOp(node.target, operation, x))
            case ast.Expr(
                ast.Call(ast.Attribute(ast.Attribute(_, "add"), "at"), [array, index, x])
            ):
                return spelled(node, "{0} = {0}.at[{1}].add({2})", array, index, x)
            case ast.Expr(ast.Call(ast.Attribute(_, "put_along_axis"), [array, index, x], [axis])):
                text = "{0} = np.put_along_axis({0}, {1}, {2}, {3}, inplace=False)"
                return spelled(node, text, array, index, x, axis)
        return node

    def visit_Import(self, node):  # NumPy is given
        names = [each for each in node.names if each.name != "numpy"]
        return ast.copy_location(ast.Import(names) if names else ast.Pass(), node)

    def visit_ImportFrom(self, node):
        module = re.sub(r"^scipy\b", "jax.scipy", node.module or "")
        return ast.copy_location(ast.ImportFrom(module, node.names, node.level), node)


def item_set(node, array, index, x):
    """Return the tree that sets an item of an array or of a dict."""
    where = ast.Subscript(ast.Attribute(ast.Name("np"), "s_"), index)
    return spelled(node, "{0} = set_in({0}, {1}, {2})", array, where, x)


def spelled(node, text, *parts):
    """Return the tree of a text with the code of some parts, with a node's line numbers."""
    tree = ast.parse(text.format(*map(ast.unparse, parts))).body[0]
    return located(tree.value if isinstance(tree, ast.Expr) else tree, node)


def set_in(array, index, x):
    """Set an item of a dict or a list in place, or return another array with it."""
    if not isinstance(array, jax.Array):
        array[index] = x
    elif getattr(index, "dtype", None) == jnp.bool_ and jnp.ndim(x) == 0:  # y[y < 0] = 0
        where = index.reshape(index.shape + (1,) * (array.ndim - index.ndim))
        array = jnp.where(where, jnp.asarray(x, array.dtype), array)
    else:
        array = array.at[index].set(x)
    return array


def loaded_again(module, np):
    """Load a module a second time, with another NumPy."""
    path = inspect.getsourcefile(module)
    tree = Spelled().visit(ast.parse(Path(path).read_text(encoding="utf-8")))
    again = ModuleType(f"{module.__name__} by XLA")
    again.np, again.set_in = np, set_in
    code = compile(ast.fix_missing_locations(tree), path, "exec")
    exec(code, vars(again))  # tracebacks show the lesson's lines
    return again


def rounded(dtype, a):
    """Round an array to what a matmul reads."""
    return a.astype(jnp.bfloat16) if dtype == "bfloat16" else a


def matmul(dtype, a, b):
    """Compute a @ b of float arrays; "tf32" and "bfloat16" round the factors and sum in float32."""
    if dtype == "bfloat16":
        return jnp.matmul(rounded(dtype, a), rounded(dtype, b), preferred_element_type=jnp.float32)
    tf32 = jax.lax.DotAlgorithmPreset.TF32_TF32_F32
    return jnp.matmul(a, b, precision=tf32 if dtype == "tf32" else jax.lax.Precision.HIGHEST)


def lines(dtype, block):
    """Return the lesson for XLA: its operations, the transformer, the block's functions."""
    np = SimpleNamespace(**{**vars(jnp), "matmul": functools.partial(matmul, dtype)})
    again = {}
    for module in {inspect.getmodule(getattr(layers, name)) for name in layers.__all__} - {None}:
        again |= vars(loaded_again(module, np))
    ops = table(**{name: again[name] for name in layers.__all__})
    gpt = loaded_again(transformer, np)
    names = {"np", *(name for name, value in block.forward.__globals__.items() if value is numpy)}
    functions = run_again(
        block, Spelled(), {**dict.fromkeys(names, np), "set_in": set_in}, again | vars(gpt)
    )
    return ops, gpt, functions
