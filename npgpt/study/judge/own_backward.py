"""Train with the learner's own backward functions: `npgpt train --backward FOLDER`.

The exercise files in the folder are checked first, each in a process with limits
(`child.run_child`). Then they are loaded into this process, because training calls their functions
in every step. There the code runs as the user, without limits, and the check does not make it safe:
do not train with files of people whom you do not trust.
"""

import contextlib
import dataclasses
import os
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
from npgpt.errors import BackwardError, NotFiniteError, UserError, describe, raised_at
from npgpt.files import run_python
from npgpt.model import transformer
from npgpt.model.config import GPTConfig
from npgpt.model.parameters import flatten, nest
from npgpt.model.variants import model_backward
from npgpt.study.exercises.exercise import Step, levels_of, read_exercise
from npgpt.study.gradcheck.pictures import Losses
from npgpt.study.judge.child import TIME_LIMIT, run_child
from npgpt.study.judge.outcome import solution_of
from npgpt.study.lessons.table import LAYERS
from npgpt.training.options import TrainOptions
from npgpt.training.trainer import Trainer

TRAINED = [name for name in LAYERS if name != "lora"]  # by `train`: LoRA freezes the other weights


@dataclasses.dataclass(frozen=True)
class Backwards:
    """All backward functions that training may call.

    functions: by name, the learner's in `files` (by layer), or the package's.
    """

    folder: Path
    files: dict[str, Path]
    functions: dict[str, Callable]

    def summary(self):
        """Say in one line whose functions train a model."""
        return (
            f"backward: {len(self.files)} of {len(LAYERS)} functions are yours, from {self.folder} "
            f"({', '.join(self.files)})"
        )


@contextlib.contextmanager
def blaming(folder, files):
    """Turn what the learner's code raises, or makes npgpt raise, into a BackwardError.

    files: the innermost first.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit
        places = [f"{file}, line {line}" for file in files if (line := raised_at(error, file))]
        if not places and isinstance(error, UserError | OSError | MemoryError):
            raise
        places.append(f"{folder}: npgpt cannot use what your functions have returned or changed")
        raise BackwardError(f"{places[0]}: {describe(error)}") from None


def read_backwards(folder):
    """Verify and load the `Backwards` in a folder.

    Of each layer it is the highest level that is finished, or the package's. Raises UserError if
    one of them is wrong, if no layer is finished, or if a file cannot be loaded.
    """
    files = {}
    for layer in LAYERS:
        files[layer] = [Path(folder, Step(layer, each).file) for each in levels_of(layer)[::-1]]
    with ThreadPoolExecutor(available_cores()) as pool:  # each check is a separate process
        found = pool.map(right_file, files, files.values())
        found = tqdm(found, "checking your functions", len(files), False, disable=HIDE_BARS)
        right = {layer: path for layer, path in zip(files, found, strict=True) if path}
    if not right:
        os.listdir(folder)  # raises without a folder
        raise UserError(
            f"no exercise on a layer is finished in {folder}: do some with npgpt learn {folder}"
        )
    names = {layer: run_python(path)[1] for layer, path in right.items()}
    return Backwards(Path(folder), right, linked(names))


def right_file(layer, paths):
    """Return the first finished file of a layer, or None.

    Raises UserError, with the line, if it is wrong.
    """
    for path in filter(os.path.lexists, paths):
        try:
            exercise = read_exercise(path)
            if exercise.layer != layer:
                raise UserError(f"{path} is an exercise on {exercise.layer}, not on {layer}")
            if exercise.blanks:
                continue
            report = run_child(exercise, TIME_LIMIT)
            if report.right:
                return path
            line = f", line {report.first}" if report.first else ""
            raise UserError(f"{path}{line}: {layer}_backward is not right {report.case}".rstrip())
        except UserError as error:
            raise UserError(
                f"{error}; see npgpt exercise check {path}, or move the file away: then npgpt's "
                f"own {layer}_backward is used"
            ) from None
    return None


def linked(names):
    """Return name of a backward -> the function that training calls.

    names: layer -> the names of its file, changed here. A backward that calls another by name, such
    as `mlp_backward(…)`, gets the learner's. The package's modules do not change: the file whose
    functions call others is run a second time.
    """
    again = run_python(transformer.__file__)[1]
    functions = {}
    instead = {}
    for layer, lesson in LAYERS.items():
        name = lesson.backward.__name__
        known = names.get(layer, {name: lesson.backward} | again)
        functions[name] = instead[id(lesson.backward)] = known[name]
    again.update((name, function) for name, function in functions.items() if name in again)
    for each in names.values():
        each.update((name, instead.get(id(value), value)) for name, value in [*each.items()])
    return functions


class OwnBackwardEngine(ReferenceEngine):
    """The reference engine with other backward functions, on a CPU."""

    def __init__(self, params, threads, backwards):
        super().__init__(params, threads)
        self.backwards = backwards
        self.model_backward = self.own_backward
        self.ops = table(**backwards.functions)
        self.config = params.config.with_block(
            transformer.block_forward, backwards.functions["block_backward"]
        )

    def loss_and_grads(self, *arguments):
        with blaming(self.backwards.folder, self.backwards.files.values()):
            return super().loss_and_grads(*arguments)

    def own_backward(self, dlogits, cache, ops):
        """Return the gradients of the learner's or the package's `gpt_backward` as new arrays."""
        lesson, dtype = self.backwards.functions["gpt_backward"], self.params.dtype
        grads = flatten(model_backward(dlogits, cache, ops, lesson))
        made = {}
        for name, shape in self.params.shapes.items():
            made[name] = np.asarray(grads[name]).astype(dtype, casting="same_kind").reshape(shape)
        return nest(made)


def train(*functions: Callable, steps: int = 100) -> Losses | None:
    """Train a small GPT-2 with npgpt's functions, and again with backwards of your own.

    They run in this process. The text is that of Python's help, so no network is needed.

    Parameters
    ----------
    *functions : callable
        Backwards of layers, called as npgpt's: `layernorm_backward`.
    steps : int, at least 2

    Returns
    -------
    Losses or None
        The loss of each step, up to one that is not finite. None, and one line that says why, if a
        function has a `...` still to be written, or fails.

    Raises
    ------
    UserError
        For a function that is no backward of a layer in GPT-2.
    """
    known = {LAYERS[name].backward.__name__: LAYERS[name] for name in TRAINED}
    given = {}
    check_whole("steps", steps, 2)
    for each in functions:
        name: str = getattr(each, "__name__", "")
        check_choice("a function to train with", name or each, [*known])
        if solution_of(known[name], each)[0].to_do:
            print(f"{name} is still to be written")
            return None
        given[known[name].name] = each
    text = pydocs_text()
    tokenizer = make_tokenizer("char", text)
    tokens = tokenizer.encode(text)
    config = GPTConfig(
        vocab_size=tokenizer.vocab_size,
        block_size=32,
        n_layer=2,
        n_head=2,
        n_embd=64,
        dropout=0.1 * ("dropout" in given),
        activation="gelu" if "gelu_exact" in given else "gelu_tanh",
    )
    warmup = min(20, steps // 2)
    options = TrainOptions(max_iters=steps, batch_size=8, warmup_iters=warmup, learning_rate=4e-3)
    losses = Losses({"npgpt's": [], "yours": []})
    for whose, own in zip(losses, ({}, given), strict=True):
        files = {layer: Path(each.__code__.co_filename) for layer, each in own.items()}
        names = {layer: {each.__name__: each} for layer, each in own.items()}
        model = GPT(config, threads=1)
        train_with(Backwards(Path(), files, linked(names)), model)
        trainer = Trainer(model, tokens, None, options)
        try:
            for _ in tqdm(range(steps), whose, leave=False, disable=HIDE_BARS):
                losses[whose].append(trainer.train_step()["loss"])
        except NotFiniteError as error:
            print(f"after {len(losses[whose])} steps {error}")
        except BackwardError as error:
            said = str(error)
            for each in functions:
                said = said.replace(each.__code__.co_filename, each.__name__)
            print(said)
            return None
    return losses


def train_with(backwards, model):
    """Let a model train with the `Backwards`.

    Raises UserError if some of its parameters are frozen.
    """
    if model.params.frozen:
        raise UserError("--backward trains every parameter: leave --freeze out")
    model.use_engine(OwnBackwardEngine(model.params, model.engine.threads, backwards))
