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


class Spelled(ast.NodeTransformer):
    """Replace a @ b by np.matmul(a, b), which is `matmul` below: it sets the precision."""

    def visit_BinOp(self, node):
        self.generic_visit(node)
        if not isinstance(node.op, ast.MatMult):
            return node
        matmul = ast.Attribute(ast.Name("np", ast.Load()), "matmul", ast.Load())
        return ast.Call(matmul, [node.left, node.right], [])


def loaded_again(module, np):
    """Load a module a second time, with another NumPy."""
    path = inspect.getsourcefile(module)
    source = Path(path).read_text(encoding="utf-8").replace("import numpy as np", "")
    tree = Spelled().visit(ast.parse(source.replace("from scipy.", "from jax.scipy.")))
    again = ModuleType(f"{module.__name__} by XLA")
    again.np = np
    exec(compile(ast.fix_missing_locations(tree), path, "exec"), vars(again))       # tracebacks show the lesson's lines
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


def lines(dtype):
    """Return the lesson for XLA: its table of operations, the transformer, and AdamW's update."""
    np = SimpleNamespace(**{**vars(jnp), "matmul": functools.partial(matmul, dtype)})
    again = {}
    for module in {inspect.getmodule(getattr(layers, name)) for name in layers.__all__} - {None}:
        again |= vars(loaded_again(module, np))
    ops = table(**{name: again[name] for name in layers.__all__})
    return ops, loaded_again(transformer, np), loaded_again(update, np)
