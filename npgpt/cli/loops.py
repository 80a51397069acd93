"""npgpt info --loops: a layer's lines beside the loops that they become."""

import ast
import itertools

import numpy as np

from npgpt.engine.cpu import cpu_kernels
from npgpt.errors import UserError

WIDTH = 64      # of a lesson's line


def show_loops(name):
    """Print a layer's forward and backward, each line beside the loop that it became, or NumPy. Raises UserError."""
    cpu_kernels("numba")            # or it says what to install
    from npgpt.engine.loops.lines import compile_lines
    from npgpt.engine.loops.segment import Segment
    from npgpt.study.lessons.table import chosen_lessons

    lesson, = chosen_lessons(name)
    if lesson.is_composite:
        raise UserError(f"{name} calls other layers: choose one that does not, such as layernorm")
    forward, backward = compile_lines(lesson.forward), compile_lines(lesson.backward)
    y, cache = lesson.run_forward(lesson.inputs, forward)
    lesson.run_backward(np.ones_like(y), cache, backward)

    def parts(of):
        for each in of:
            if isinstance(each, Segment):
                yield from parts(each.parts)
            else:
                yield each if isinstance(each, tuple) else ([each], None)

    for function in (forward, backward):
        print(f"{function.__name__}:")
        for lines, loop in parts(function.segments()):
            lines = [text for line in lines if not is_docstring(line) for text in ast.unparse(line).splitlines()]
            beside = loop.splitlines() if loop else ["NumPy"] * len(lines)
            for left, right in itertools.zip_longest(lines, beside, fillvalue=""):
                print(f"    {left:<{WIDTH}} | {right}".rstrip())
        print()


def is_docstring(line):
    return isinstance(line, ast.Pass) or isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
