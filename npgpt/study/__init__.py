"""Studying the gradients: the per-line check, the page, the exercises; and `check`, for notebooks."""

import ast
import inspect

from npgpt.errors import UserError
from npgpt.study.exercise import LAYERS
from npgpt.study.judge import judge
from npgpt.study.lessons import basics_and_lessons
from npgpt.study.report import report_html, report_text
from npgpt.study.source import parsed


class Check:
    """The verdict on a backward, as `check` returns it: `right`, and `report` with everything that was found.

    Its `repr` is the verdict as text; in a notebook it is a table.
    """

    def __init__(self, title, report):
        self.title, self.report = title, report

    @property
    def right(self):
        return self.report.right

    def __repr__(self):
        return report_text(self.report, self.title)

    def _repr_html_(self):
        return report_html(self.report, self.title)


def check(layer, backward):
    """Check a backward of your own, for example `check("layernorm", my_backward)`.

    layer: what `npgpt exercise` calls it; backward: a function that takes what the package's takes, `(dy, cache)` (and
    `ops` for a layer that calls other layers), and returns the gradients in the same order. It runs in this process,
    several times, on small float64 arrays. Returns a `Check`. Raises UserError for a layer that does not exist, and for
    a function whose source cannot be read (write it to a file, or in a notebook's cell).
    """
    if layer not in LAYERS:
        raise UserError(f'there is no layer "{layer}": choose one of {", ".join(LAYERS)}')
    wanted = inspect.signature(basics_and_lessons()[layer].backward)
    try:
        given, tree = inspect.signature(backward), parsed(backward)
    except (OSError, TypeError, ValueError, SyntaxError):
        raise UserError("the function's source cannot be read: define it in a file or in a notebook's cell") from None
    if not isinstance(tree, ast.FunctionDef) or len(given.parameters) != len(wanted.parameters):
        raise UserError(f"{layer} needs a function of {wanted}")
    return Check(f"{backward.__name__}, a backward of {layer}", judge(layer, backward, tree))
