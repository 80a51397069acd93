"""Study the gradients: the per-line check, the page, the exercises.

For notebooks and scripts:

- `case`: a layer with arrays to try it on
- `check`: the verdict on a backward of it
- `train`: a training run with such backwards
- `verify`: the same check for functions or a layer of your own
- `check_block`, `check_grads`: the gradients of a block, and of a whole model
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from npgpt.api import GPT
from npgpt.checks import MOST_SEED, check_whole, require
from npgpt.errors import UserError
from npgpt.model.block import read_block
from npgpt.model.config import GPTConfig
from npgpt.study.exercises.exercise import Exercise, Step, step_named
from npgpt.study.exercises.progress import Progress, folder_here
from npgpt.study.gradcheck.along import GradCheck, block_gradients, model_gradients
from npgpt.study.gradcheck.own import Verified, check_own
from npgpt.study.gradcheck.pictures import Arrays
from npgpt.study.gradcheck.truth import Case, cases
from npgpt.study.gradcheck.verdicts import OK
from npgpt.study.judge.hints import next_hint
from npgpt.study.judge.judge import Judgement, judge, new_seed
from npgpt.study.judge.outcome import Solution, solution_of
from npgpt.study.judge.own_backward import train as train
from npgpt.study.judge.report import Report, report_text
from npgpt.study.lessons.own_make import pair_in_memory
from npgpt.study.lessons.own_state import generators_kept
from npgpt.study.lessons.setting import PLAIN
from npgpt.study.lessons.table import lesson_named

__all__ = [
    "Check",
    "GradCheck",
    "Verified",
    "case",
    "check",
    "check_block",
    "check_grads",
    "train",
    "verify",
]


def case(layer: str) -> Case:
    """Return a layer with small float64 arrays, new ones at each call.

    Parameters
    ----------
    layer : str
        A name in `npgpt exercise`, such as "layernorm"; or "my_layer.py:swish".

    Returns
    -------
    Case
        inputs: name -> array; dy, cache: the arguments of the backward; results: the true
        gradients of the inputs, {"dx": array, …}; gradients: those of all variables,
        {"dxhat": [array], …}; forward, backward: the functions; show(): pictures of the arrays.

    Raises
    ------
    UserError
        For an unknown layer.
    """
    return Case(layer, PLAIN)


class Check:
    """The verdict on a backward; printed as a report.

    Attributes
    ----------
    right : bool
        Whether every gradient is the true one.
    report : Report
        All that was found.
    """

    def __init__(
        self,
        title: str,
        exercise: Exercise,
        solution: Solution,
        report: Report,
        folder: Path | None,
    ):
        self.title = title
        self.exercise = exercise
        self.solution = solution
        self.report = report
        self.folder = folder
        self.not_saved = Progress(None)

    @property
    def right(self) -> bool:
        return self.report.right

    def show(self, name: str) -> Arrays:
        """Return the gradient that your lines compute, the true one, and their difference.

        They are of the first random case in which it is wrong.

        Parameters
        ----------
        name : str
            The gradient's name, such as "dx".

        Returns
        -------
        Arrays
            yours, true, and difference if the shapes are equal.

        Raises
        ------
        UserError
            If no line of yours computes it.
        """
        found = []
        for each in cases(self.exercise.layer, self.report.seed):
            judgement = Judgement(self.solution, each)
            for line in judgement.lines:
                if line.name == name and line.line not in self.report.to_do:
                    found.append((line.verdict == OK, *judgement.values[line.place]))
        if not found:
            raise UserError(f"no line computes a gradient called {name} yet")
        _, given, right = min(found, key=lambda each: each[0])
        arrays = Arrays(yours=np.asarray(given), true=np.asarray(right))
        if np.shape(given) == np.shape(right):
            arrays["difference"] = given - right
        return arrays

    def hint(self) -> str:
        """Return a hint on the first line that is wrong, or still to be written.

        Each call returns the next hint. With a level they are counted as in `npgpt learn`.

        Returns
        -------
        str
        """
        # Read the file again: another process may have changed it.
        progress = Progress(self.folder) if self.folder else self.not_saved
        return next_hint(self.exercise, progress, 0, self.report)

    def __repr__(self) -> str:
        return report_text(self.report, self.title)


def check(
    layer: str, backward: Callable, seed: int | None = None, level: int | str | None = None
) -> Check:
    """Check a backward of your own, for example `check("layernorm", my_backward)`.

    It runs in this process, in many random cases on small float64 arrays. A notebook and the REPL
    show the verdict; a script prints it.

    Parameters
    ----------
    layer : str
        A name in `npgpt exercise`, or "my_layer.py:swish".
    backward : callable
        Takes the package's arguments `(dy, cache)` (and `ops` for a layer that calls other layers)
        and returns the gradients in the package's order. A line with `...` is still to be written.
        Without its source (in a plain REPL, or for a lambda) only its results are compared.
    seed : int, optional
        Of the random cases: repeats those of another check.
    level : {1, 2, 3, "long"}, optional
        Of an exercise: the verdict is saved in exercises/progress.json, as by `npgpt learn` (in a
        folder called exercises: in progress.json).

    Returns
    -------
    Check

    Raises
    ------
    UserError
        For an unknown layer or level, or if `backward` cannot be called.
    """
    lesson_named(layer)  # raises for an unknown layer
    if not callable(backward):
        raise UserError(f"{layer} needs a function, not {type(backward).__name__}")
    step = Step(layer, "level 3") if level is None else step_named(layer, level)
    name = getattr(backward, "__name__", type(backward).__name__)
    solution, text = solution_of(step.lesson, backward)
    report = judge(layer, solution, new_seed() if seed is None else seed)
    folder = None if level is None else folder_here()
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        Progress(folder).tried(step.name, report.right)
    exercise = Exercise(layer, step.what, Path(name), text)
    return shown(Check(f"{name}, a backward of {layer}", exercise, solution, report, folder))


def verify(
    forward: Callable,
    backward: Callable | None = None,
    *,
    constants: dict | None = None,
    **inputs: Any,
) -> Verified:
    """Verify a pair of functions, or a layer, of your own line by line.

    Each line whose gradient is called dv, grad_v or the like for a variable v is checked: to 30
    digits if mpmath is installed and the lines can compute with its numbers. A notebook and the
    REPL show the verdict; a script prints it.

    Parameters
    ----------
    forward : callable or object
        Takes the inputs and may return a cache. Or an object with the methods forward and backward:
        its arrays that have a gradient are drawn at random, in copies of it.
    backward : callable, optional
        Takes a gradient of each result, and what the forward takes, assigns or returns under the
        same names. Without it, `forward` returns a loss and the gradients.
    constants : dict, optional
        Arguments that have no gradient: name -> value.
    **inputs : array or dict of arrays
        The forward's other arguments, by name. A dict holds parameters.

    Returns
    -------
    Verified

    Raises
    ------
    UserError
        Without the functions' source, without a floating array, or if two equal runs differ.
        What the functions raise is raised, too.

    Examples
    --------
    >>> npgpt.study.verify(swish_forward, swish_backward, x=x)
    >>> npgpt.study.verify(RMSNorm(6), x=np.ones((2, 3, 6))).right
    """
    with generators_kept():
        return shown(check_own(pair_in_memory(forward, backward, inputs, constants or {})))


def check_block(block: Any, config: GPTConfig | None = None, seed: int | None = None) -> GradCheck:
    """Check the backward of a block: the gradients of its input and of each parameter.

    All is computed in float64. A gradient is right to 1e-7, which finds a single entry that is
    wrong by 1%. A parameter of which the backward returns no gradient is not wrong: it must be
    frozen. A script prints the verdict.

    Parameters
    ----------
    block : str, module or object
        A file, or what has the functions parameters, forward and backward, as for `GPT`.
    config : GPTConfig, optional
        Of the model that is checked; dropout and a mask are also tried. By default small ones in
        which all sizes differ, also without biases and not causal if the block runs so.
    seed : int, optional
        Of the random weights, input and upstream gradient, all of unit scale. By default a new one
        each time, so that every check sees other numbers.

    Returns
    -------
    GradCheck
        right, wrong (name -> in which case) and errors, relative to the norm of the gradient.

    Raises
    ------
    UserError
        For a block that does not run, or whose results do not fit.

    Examples
    --------
    >>> npgpt.study.check_block("my_block.py").right
    """
    require("block", block, block is not None, "a file, a module or an object")
    require("config", config, isinstance(config, GPTConfig | None), "a GPTConfig, or None")
    check_whole("seed", seed, 0, MOST_SEED, or_none=True)
    return shown(block_gradients(read_block(block), config, seed))


def check_grads(
    model: GPT,
    idx: ArrayLike,
    targets: ArrayLike,
    mask: ArrayLike | None = None,
    seed: int | None = None,
) -> GradCheck:
    """Check the gradients of a model's loss: of `loss_and_grads`, and of `backward`.

    It takes about fifteen forwards for each parameter, and forty if its gradient is wrong: use a
    small model. A script prints the verdict.

    Parameters
    ----------
    model : GPT
        Not changed. Its float64 copy is checked, because float32 is not exact enough.
    idx, targets : array of int, shape (B, T)
        As in `GPT.loss_and_grads`.
    mask : array, optional
        As in `GPT.loss_and_grads`. There is no dropout.
    seed : int, optional
        Of the random directions in which each parameter is moved; by default a new one.

    Returns
    -------
    GradCheck
        As of `check_block`, with the same tolerance, 1e-7.

    Raises
    ------
    UserError
        As `loss_and_grads` does.

    Examples
    --------
    >>> npgpt.study.check_grads(GPT(config, block=MyBlock()), idx, targets).wrong
    """
    require("model", model, isinstance(model, GPT), "a GPT")
    check_whole("seed", seed, 0, MOST_SEED, or_none=True)
    return shown(model_gradients(model, idx, targets, mask, seed))


def shown(found):
    """Print the verdict in a script, which does not show the value of an expression."""
    if not hasattr(sys, "ps1"):
        print(found)
    return found
