"""The lesson's lines for XLA: JAX traces them on abstract arrays, and XLA compiles the trace."""

import ast
import functools
import inspect
from pathlib import Path
from types import ModuleType, SimpleNamespace

import jax
import jax.numpy as jnp

from npgpt import layers
from npgpt.engine import update
from npgpt.engine.ops import table
from npgpt.model import transformer
from npgpt.model.activations import imported_again, placed
from npgpt.model.block import source_of


class Spelled(ast.NodeTransformer):
    """Spell what XLA's arrays lack: writing to one makes a new one, and a @ b is `matmul` below."""

    def generic_visit(self, node):
        super().generic_visit(node)
        match node:
            case ast.BinOp(a, ast.MatMult(), b):
                return spelled(node, "np.matmul({}, {})", a, b)
            case ast.Call():
                node.keywords = [each for each in node.keywords if each.arg != "like"]
            case ast.Assign([ast.Subscript(ast.Name() as array, index)], x) if not isinstance(index, ast.Constant):
                return spelled(node, "{0} = {0}.at[{1}].set({2})", array, index, x)     # a constant is a dict's key
            case ast.Expr(ast.Call(ast.Attribute(ast.Attribute(_, "add"), "at"), [array, index, x])):
                return spelled(node, "{0} = {0}.at[{1}].add({2})", array, index, x)
            case ast.Expr(ast.Call(ast.Attribute(_, "put_along_axis"), [array, index, x], [axis])):
                new = "{0} = np.put_along_axis({0}, {1}, {2}, {3}, inplace=False)"
                return spelled(node, new, array, index, x, axis)
        return node


def spelled(node, text, *parts):
    """Return the tree of a text with the code of some parts, at a node's place in its file."""
    tree = ast.parse(text.format(*map(ast.unparse, parts))).body[0]
    return placed(tree.value if isinstance(tree, ast.Expr) else tree, node)


def loaded_again(path, np, lesson):
    """Load a file a second time, with another NumPy, and other functions of the lesson, if it imports some."""
    source = source_of(path).replace("import numpy as np", "")
    tree = Spelled().visit(ast.parse(source.replace("from scipy.", "from jax.scipy.")))
    again = ModuleType(f"{Path(path).stem} by XLA")
    again.np = np
    exec(compile(ast.fix_missing_locations(tree), path, "exec"), vars(again))       # tracebacks show the lesson's lines
    vars(again).update(imported_again(vars(again), lesson))
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
    """Return the lesson for XLA: its table of operations, the transformer, the block's functions, AdamW's update."""
    np = SimpleNamespace(**{**vars(jnp), "matmul": functools.partial(matmul, dtype)})
    again = {}
    for module in {inspect.getmodule(getattr(layers, name)) for name in layers.__all__} - {None}:
        again |= vars(loaded_again(module.__file__, np, {}))
    ops = table(**{name: again[name] for name in layers.__all__})
    gpt = loaded_again(transformer.__file__, np, {})
    own = loaded_again(block.file, np, again | vars(gpt))
    return ops, gpt, block.functions_in(vars(own)), loaded_again(update.__file__, np, {})
