"""Train with the learner's own backward functions: `npgpt train --backward FOLDER`.

The exercise files in the folder are checked first, each in a process with limits (`child.run_child`), also on the
config of the model that is to be trained. Then they are loaded into this process, because training calls their
functions in every step. There the code runs as the user, without limits, and the check does not make it safe: do not
train with files of people whom you do not trust.
"""

import contextlib
import dataclasses
import functools
import os
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from npgpt.api import GPT
from npgpt.checks import check_choice, check_whole
from npgpt.data.corpora import pydocs_text
from npgpt.data.tokenizers import make_tokenizer
from npgpt.display import HIDE_BARS, tqdm
from npgpt.engine.ops import table
from npgpt.engine.reference import ReferenceEngine
from npgpt.engine.threads import available_cores
from npgpt.engine.update import NotFiniteError
from npgpt.errors import BackwardError, UserError, describe, raised_at
from npgpt.files import run_python
from npgpt.model import transformer
from npgpt.model.config import GPTConfig
from npgpt.model.parameters import flatten, nest
from npgpt.study.exercises.exercise import blanks_left, read_exercise
from npgpt.study.exercises.path import path_of
from npgpt.study.gradcheck.pictures import Losses
from npgpt.study.judge.child import TIME_LIMIT, run_child
from npgpt.study.judge.outcome import solution_of
from npgpt.study.lessons.table import LAYERS
from npgpt.training import loop
from npgpt.training.options import TrainOptions

TRAINED = [name for name in LAYERS if name != "lora"]       # by `train`: LoRA freezes the other weights


@dataclasses.dataclass(frozen=True)
class Backwards:
    """All backward functions that training may call.

    files: layer -> the learner's file; functions: name of a backward -> function, the learner's or else the package's.
    """

    folder: Path
    files: dict[str, Path]
    functions: dict[str, Callable]

    def summary(self, config):
        """One line about whose functions train a model."""
        return (f"backward: {len(self.files)} of {len(LAYERS)} functions are yours, from {self.folder} "
                f"({', '.join(self.files)}); this model does not call {', '.join(uncalled(config))}")


def uncalled(config):
    """The layers that a model does not call: the other GELU, and those that GPT-2 has not, such as LoRA."""
    called = {"cross_entropy_backward", "gpt_backward", "block_backward"}.union(
        *(each.__code__.co_names for each in vars(transformer).values() if isinstance(each, types.FunctionType)))
    other = "gelu_exact" if config.activation == "gelu_tanh" else "gelu_tanh"
    return [name for name in LAYERS if name == other or f"{name}_backward" not in called]


@contextlib.contextmanager
def blaming(folder, files):
    """Turn whatever the learner's code raises, or makes npgpt raise, into a BackwardError with its file and line.

    files: the innermost first, as in learning order. Without a line of theirs, what the command reports itself remains.
    """
    try:
        yield
    except BaseException as error:          # also SystemExit
        places = [f"{file}, line {line}" for file in files if (line := raised_at(error, file))]
        if isinstance(error, KeyboardInterrupt) or not places and isinstance(error, UserError | OSError | MemoryError):
            raise
        places.append(f"{folder}: npgpt cannot use what your functions have returned or changed")
        raise BackwardError(f"{places[0]}: {describe(error)}") from None


def read_backwards(folder):
    """Check and load the `Backwards` in a folder: of each layer the highest level that is right, else the package's.

    Raises UserError if a layer has a wrong file and no right one, if no layer is left, or if a file cannot be loaded.
    """
    there = os.listdir(folder)
    steps = {layer: [step for step in reversed(path_of(layer)) if not step.is_bug] for layer in LAYERS}
    files = {layer: [Path(folder, step.file) for step in steps[layer] if step.file in there] for layer in steps}
    with ThreadPoolExecutor(available_cores()) as pool:         # each check is a separate process
        found = pool.map(right_file, files, files.values())
        found = tqdm(found, "checking your functions", len(files), leave=False, disable=HIDE_BARS)
        right = {layer: path for layer, path in zip(files, found, strict=True) if path}
    if not right:
        raise UserError(f"no exercise on a layer is finished in {folder}: do some with npgpt learn {folder}")
    with blaming(folder, right.values()):
        return Backwards(Path(folder), right, linked({layer: run_python(path)[1] for layer, path in right.items()}))


def right_file(layer, paths):
    """The first of a layer's files that is right; None if all are unfinished. Raises UserError for a wrong one."""
    wrong = []
    for path in paths:
        try:
            exercise = read_exercise(path)
            if exercise.layer != layer:
                raise UserError(f"{path} is an exercise on {exercise.layer}, not on {layer}")
            if not blanks_left(exercise):
                check_right(exercise)
                for problem in wrong:
                    tqdm.write(f"{problem}: {path} is used")
                return path
        except UserError as error:
            wrong.append(error)
    if wrong:
        raise UserError(f"{wrong[0]}; see npgpt exercise check {paths[0]}, or move the file away: then npgpt's own "
                        f"{layer}_backward is used")


def check_right(exercise, config=None):
    """Raise UserError, with the line, if an exercise is not right; config: of a model, for one more case."""
    report = run_child(exercise, TIME_LIMIT, config=config)
    if not report.right:
        line = f", line {report.first}" if report.first else ""
        raise UserError(f"{exercise.path}{line}: {exercise.layer}_backward is not right {report.case}".rstrip())


def linked(names):
    """Name of a backward -> the function that training calls. names: layer -> its file's, which are changed here.

    Whichever of them calls another by its name, `mlp_backward(…)` in a block's backward, gets the learner's. The
    package's modules stay as they are: the file whose functions call others is run a second time.
    """
    again, functions, instead = run_python(transformer.__file__)[1], {}, {}
    for layer, lesson in LAYERS.items():
        name = lesson.backward.__name__
        functions[name] = instead[id(lesson.backward)] = names.get(layer, {name: lesson.backward} | again)[name]
    again.update({name: function for name, function in functions.items() if name in again})
    for each in names.values():
        each.update({name: instead[id(value)] for name, value in each.items() if id(value) in instead})
    return functions


class OwnBackwardEngine(ReferenceEngine):
    """The reference engine with other backward functions, on a CPU."""

    def __init__(self, params, threads, backwards):
        super().__init__(params, threads)
        self.backwards, self.gpt_backward, self.ops = backwards, self.own_backward, table(**backwards.functions)
        self.config = params.config.with_block(transformer.block_forward, backwards.functions["block_backward"])

    def run(self, idx, targets, rng, count, mask):
        with blaming(self.backwards.folder, self.backwards.files.values()):
            return super().run(idx, targets, rng, count, mask)

    def own_backward(self, dlogits, cache, ops):
        """Return the tree of gradients of the learner's or the package's `gpt_backward`, each a new array."""
        grads = flatten(self.backwards.functions["gpt_backward"](dlogits, cache, ops))
        for name, shape in self.params.shapes.items():
            if np.shape(grads.get(name)) != shape:
                has = f"has shape {np.shape(grads[name])}, not {shape}" if name in grads else "is missing"
                raise BackwardError(f"the gradient of {name} {has}: one of the functions in {self.backwards.folder} is "
                                    "wrong for this model")
        return nest({name: np.asarray(grads[name]).astype(self.params.dtype, casting="same_kind")
                     for name in self.params})


def train(*functions: Callable, steps: int = 100) -> Losses | None:
    """Train a small GPT-2 with npgpt's functions, and again with backwards of your own, such as layernorm_backward.

    They run in this process; the text is that of Python's help, so no network is needed. Returns the losses of each
    step, up to one that is not finite; a notebook shows them as curves. None, and says why in one line, if a function
    has a `...` still to be written, or fails. Raises UserError for a function that is no backward of a layer in GPT-2.
    """
    known, given = {LAYERS[name].backward.__name__: LAYERS[name] for name in TRAINED}, {}
    check_whole("steps", steps, 2)
    for each in functions:
        name: str = getattr(each, "__name__", "")
        check_choice("a function to train with", name or each, [*known])
        if solution_of(known[name], each)[0].to_do:
            print(f"{name} is still to be written")
            return None
        given[known[name].name] = each
    tokenizer = make_tokenizer("char", text := pydocs_text())
    tokens = tokenizer.encode(text)
    config = GPTConfig(vocab_size=tokenizer.vocab_size, block_size=32, n_layer=2, n_head=2, n_embd=64,
                       dropout=0.1 * ("dropout" in given),
                       activation="gelu" if "gelu_exact" in given else "gelu_tanh")
    options = TrainOptions(max_iters=steps, batch_size=8, warmup_iters=min(20, steps // 2), learning_rate=4e-3)
    losses = Losses({"npgpt's": [], "yours": []})
    for whose, own in zip(losses, ({}, given), strict=True):
        model = GPT(config, threads=1)
        backwards = Backwards(Path(), {layer: Path(each.__code__.co_filename) for layer, each in own.items()},
                              linked({layer: {each.__name__: each} for layer, each in own.items()}))
        model.use_engine(OwnBackwardEngine(model.params, 1, backwards))
        try:
            losses[whose] += tqdm(loop.train(model, tokens, options), whose, steps, leave=False, disable=HIDE_BARS)
        except NotFiniteError as error:
            print(f"after {len(losses[whose])} steps {error}")
        except BackwardError as error:
            print(functools.reduce(lambda text, each: text.replace(each.__code__.co_filename, each.__name__),
                                   functions, str(error)))
            return None
    return losses


def use(backwards, model):
    """Let a model train with the `Backwards`. Raises UserError if one is wrong with its config, but for the width."""
    if model.params.frozen:
        raise UserError("--backward trains every parameter: leave --freeze and --lora out")
    exercises = [read_exercise(path) for layer, path in backwards.files.items() if LAYERS[layer].is_composite]
    with ThreadPoolExecutor(available_cores()) as pool:
        list(pool.map(lambda exercise: check_right(exercise, model.config), exercises))
    model.use_engine(OwnBackwardEngine(model.params, model.engine.threads, backwards))
