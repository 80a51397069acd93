"""Studying the gradients: the per-line check, the page, the exercises; and `check`, for notebooks and scripts."""

import ast
import contextlib
import sys
import types
from collections.abc import Callable

from npgpt.errors import UserError
from npgpt.study.gradcheck.source import parsed
from npgpt.study.judge.judge import judge, new_seed
from npgpt.study.judge.outcome import Solution
from npgpt.study.judge.report import Report, report_html, report_text
from npgpt.study.lessons.table import lesson_named


class Check:
    """The verdict on a backward, as `check` returns it: `right`, and `report` with everything that was found.

    Its `repr` is the verdict as text; in a notebook it is a table.
    """

    def __init__(self, title: str, report: Report):
        self.title, self.report = title, report

    @property
    def right(self) -> bool:
        return self.report.right

    def __repr__(self) -> str:
        return report_text(self.report, self.title)

    def _repr_html_(self) -> str:
        return report_html(self.report, self.title)


def check(layer: str, backward: Callable, seed: int | None = None) -> Check:
    """Check a backward of your own, for example `check("layernorm", my_backward)`.

    layer: its name in `npgpt exercise`; backward: a callable with the package's arguments `(dy, cache)` (and `ops` for
    a layer that calls other layers) and the package's order of results. It runs in this process, in many random cases
    on small float64 arrays; seed: repeats those of another check. Returns a `Check`, which a notebook and the REPL
    show; a script prints it. Without the function's source (in a plain REPL, or for a lambda) only its results are
    compared. Raises UserError for an unknown layer, or if `backward` cannot be called.
    """
    lesson_named(layer)           # for an unknown layer this raises
    if not callable(backward):
        raise UserError(f"{layer} needs a function, not {type(backward).__name__}")
    tree = None
    if isinstance(backward, types.FunctionType):
        with contextlib.suppress(OSError, TypeError, ValueError, SyntaxError, IndexError):     # there is no source
            tree = parsed(backward)
    file = getattr(getattr(backward, "__code__", None), "co_filename", "")
    solution = Solution(backward, tree if isinstance(tree, ast.FunctionDef) else None, [], file)
    name = getattr(backward, "__name__", type(backward).__name__)
    checked = Check(f"{name}, a backward of {layer}", judge(layer, solution, new_seed() if seed is None else seed))
    if not hasattr(sys, "ps1"):         # a script does not show the value of an expression
        print(checked)
    return checked
