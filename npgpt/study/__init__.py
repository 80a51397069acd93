"""Studying the gradients: the per-line check, the page, the exercises.

For notebooks and scripts: `verify` for a pair of functions of one's own, `check` for a backward of npgpt's layers.
"""

import ast
import contextlib
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from npgpt.errors import UserError
from npgpt.study.gradcheck.check import WRONG, LineCheck, best_check
from npgpt.study.gradcheck.measure import truth
from npgpt.study.gradcheck.source import parsed
from npgpt.study.gradcheck.tables import table_html, table_text
from npgpt.study.judge.judge import judge, new_seed
from npgpt.study.judge.outcome import Solution
from npgpt.study.judge.report import Report, report_html, report_text
from npgpt.study.lessons.own import Pair, pair_of
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


class Arrays(dict[str, np.ndarray]):
    """A gradient, the true one, and their difference; shown as a table of all values."""

    def __repr__(self) -> str:
        return "\n".join(f"{name}\n{array}" for name, array in self.items())


class Verified:
    """What `verify` found: `right`; `lines`, a `LineCheck` for each variable; `remark`: why it is float64, or "".

    It shows itself as a table, also in a notebook.
    """

    def __init__(self, pair: Pair, lines: list[LineCheck], remark: str):
        self.pair, self.lines, self.remark = pair, lines, remark

    @property
    def right(self) -> bool:
        return all(each.verdict != WRONG for each in self.lines)

    def show(self, name: str) -> Arrays:
        """Return the gradient "dx" of an input x: yours, the true one by central differences in float64, and their
        difference. Raises UserError for another name.
        """
        known = truth(self.pair)
        given = self.pair.run_backward(known.dy, known.cache)
        if name not in given:
            raise UserError(f"there is no result {name}: choose one of {', '.join(given)}")
        true, yours = known.inputs[name[1:]], np.asarray(given[name])
        comparable = yours.shape == true.shape
        return Arrays({"yours": yours, "true": true} | ({"difference": yours - true} if comparable else {}))

    def __repr__(self) -> str:
        return "\n".join([table_text(self.lines), *[f"  {self.remark}"] * bool(self.remark)])

    def _repr_html_(self) -> str:
        return table_html(self.lines)


def verify(forward: Callable, backward: Callable | None = None, *, constants: dict | None = None,
           **inputs: Any) -> Verified:
    """Verify a pair of functions of your own line by line: `verify(swish_forward, swish_backward, x=x, beta=beta)`.

    forward: returns the result and a cache, or several results and a cache; backward: takes a gradient of each result
    and the cache, and returns a gradient of each floating array among the inputs; without it, forward returns a loss
    and the gradients. inputs: by the names of the forward's arguments; constants: those that have no gradient. Each
    line whose gradient is called dv for a variable v is checked, to 30 digits if mpmath is installed and the lines can
    compute with its numbers. Returns a `Verified`, which a notebook and the REPL show; a script prints it. Raises
    UserError without the functions' source, or without a floating array; and what the functions raise.
    """
    backward = backward or forward
    arrays = {name: np.array(value, np.float64) for name, value in inputs.items()
              if isinstance(value, np.ndarray) and value.dtype.kind == "f"}
    if not arrays:
        raise UserError("verify needs an array of floating numbers: verify(f_forward, f_backward, x=np.ones(3))")
    try:
        pair = pair_of(forward, backward, list(arrays), shapes={}, inputs=arrays, constants={
            **{name: value for name, value in inputs.items() if name not in arrays}, **(constants or {})})
    except (OSError, TypeError, SyntaxError):
        raise UserError("verify reads the functions' lines: define them by def, in a file or a notebook") from None
    found = Verified(pair, *best_check(pair))
    if not hasattr(sys, "ps1"):
        print(found)
    return found
