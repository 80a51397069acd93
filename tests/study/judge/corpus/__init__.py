"""What learners write: right solutions in other forms, and the mistakes that people make."""

import ast
import inspect
import textwrap

from npgpt.study.exercises.exercise import key_of, statements
from npgpt.study.lessons.table import lesson_named
from tests.study.judge.corpus import attention, basics, composites, embedding, gelu, layernorm, linear, lora, loss

SOLUTIONS = {layer: solutions
             for module in (basics, linear, gelu, layernorm, loss, embedding, attention, composites, lora)
             for layer, solutions in module.SOLUTIONS.items()}


def source(layer, solution):
    """The source of a solution's function, without docstring and comments, which quote lines of code."""
    text = inspect.getsource(lesson_named(layer).backward)
    body = solution.body or next((each.body for each in SOLUTIONS[layer] if each.name == solution.of), None)
    if body:
        text = text[:text.index("\n") + 1] + textwrap.indent(textwrap.dedent(body).strip("\n") + "\n", "    ")
    else:
        docstring = ast.parse(text).body[0].body[0]
        lines = text.splitlines(keepends=True)
        lines = lines[:docstring.lineno - 1] + lines[docstring.end_lineno:]
        text = "".join(line for line in lines if not line.strip().startswith("#"))
    for change in solution.changes:
        old, new = (statement_of(text, change), change) if isinstance(change, str) else change
        if text.count(old) != 1:
            raise ValueError(f"{layer}, {solution.name}: {old!r} occurs {text.count(old)} times")
        text = text.replace(old, new)
    return text


def statement_of(text, change):
    """The statement of a function's text that assigns the same names as another."""
    key = key_of(ast.parse(change).body[0])
    [found] = [each for each in statements(ast.parse(text).body[0]) if key_of(each) == key]
    return ast.get_source_segment(text, found)
