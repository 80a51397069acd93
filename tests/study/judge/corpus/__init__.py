"""What learners write: right solutions in other forms, and the mistakes that people make.

The messages that are expected were written before the code that judges the solutions.
"""

import ast
import inspect
import textwrap

from npgpt.study.gradcheck.lessons import basics_and_lessons
from tests.study.judge.corpus import attention, basics, composites, embedding, gelu, layernorm, linear, lora, loss
from tests.study.judge.corpus.solution import Solution

SOLUTIONS = [solution for module in (basics, linear, gelu, layernorm, loss, embedding, attention, composites, lora)
             for solution in module.SOLUTIONS]

__all__ = ["SOLUTIONS", "Solution", "source"]


def source(solution):
    """The source of a solution's function, without a docstring."""
    text = inspect.getsource(basics_and_lessons()[solution.layer].backward)
    if solution.body is not None:
        return text[:text.index("\n") + 1] + textwrap.indent(textwrap.dedent(solution.body).strip("\n") + "\n", "    ")
    for old, new in solution.edits:
        if text.count(old) != 1:
            raise ValueError(f"{solution.layer}, {solution.name}: {old!r} occurs {text.count(old)} times")
        text = text.replace(old, new)
    lines = text.splitlines(keepends=True)
    docstring = ast.parse(text).body[0].body[0]
    return "".join(lines[:docstring.lineno - 1] + lines[docstring.end_lineno:])
