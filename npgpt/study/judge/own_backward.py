"""Train with the learner's own backward functions: `npgpt train --backward FOLDER`.

The exercise files in the folder are checked first, each in a process with limits (`child.run_child`), also on the
config of the model that is to be trained. Then they are loaded into this process, because training calls their
functions in every step. There the code runs as the user, without limits, and the check does not make it safe: do not
train with files of people whom you do not trust.
"""

import dataclasses
import inspect
import traceback
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from npgpt import layers
from npgpt.display import HIDE_BARS, tqdm
from npgpt.engine.ops import table
from npgpt.engine.reference import ReferenceEngine
from npgpt.engine.threads import available_cores
from npgpt.errors import BackwardError, UserError
from npgpt.files import read_bytes
from npgpt.model import transformer
from npgpt.model.parameters import flatten, nest
from npgpt.study.exercises.exercise import LEVELS, blanks_left, read_exercise
from npgpt.study.gradcheck.lessons import lessons
from npgpt.study.judge.child import run_child
from npgpt.study.judge.outcome import describe, raised_at

TIME_LIMIT = 20.0       # seconds for the check of one file


@dataclasses.dataclass(frozen=True)
class Backwards:
    """All backward functions that training may call.

    folder: of the learner's files; files: layer -> the learner's file, if there is one; functions: layer -> function,
    the learner's or else the package's.
    """

    folder: Path
    files: dict[str, Path]
    functions: dict[str, Callable]

    def called(self, config):
        """The layers whose backward is the learner's, and is called by a model."""
        return [layer for layer in self.files if layer not in uncalled(config)]

    def summary(self, config):
        """One line about whose functions train a model."""
        ours = [layer for layer in self.functions if layer not in self.files]
        yours = f" ({', '.join(self.files)})" if ours else ""
        return (f"backward: {len(self.files)} of {len(self.functions)} functions are yours{yours}, from {self.folder}"
                + (f"; npgpt's own: {', '.join(ours)}" if ours else "")
                + f"; this model does not call {', '.join(uncalled(config))}")


def uncalled(config):
    """The layers that a model does not have: one of the two GELUs, and those that the transformer does not name."""
    named = {name for each in vars(transformer).values() if inspect.isfunction(each) for name in each.__code__.co_names}
    other = "gelu_exact" if config.activation == "gelu_tanh" else "gelu_tanh"
    return [layer for layer in lessons() if layer == other
            or layer not in ("gpt", "cross_entropy") and f"{layer}_backward" not in named]


def exercise_files(folder):
    """layer -> its exercise files in a folder, by their names, higher levels first; UserError if there are none."""
    there = {path.name: path for path in Path(folder).iterdir()}
    names = {layer: [f"{layer}-level{level}.py" for level in reversed(LEVELS)] for layer in lessons()}
    found = {layer: [there[name] for name in names[layer] if name in there] for layer in names}
    found = {layer: paths for layer, paths in found.items() if paths}
    if not found:
        raise UserError(f"{folder} has no exercise on a layer: `npgpt exercise linear` writes one, "
                        f"{Path(folder) / 'linear-level1.py'}")
    return found


def read_backwards(folder, files):
    """Check and load the `Backwards`. files: what `exercise_files` found; of each layer, the highest right one is used.

    If a layer has only unfinished files, the package's function is used. Raises UserError if a layer has a
    wrong file and no right one, and if no layer is left.
    """
    with ThreadPoolExecutor(available_cores()) as pool:         # each check is a separate process
        checks = pool.map(lambda layer: right_file(layer, files[layer]), files)
        found = dict(zip(files, tqdm(checks, "checking your functions", len(files), leave=False, disable=HIDE_BARS),
                         strict=True))
    right = {layer: path for layer, path in found.items() if path is not None}
    if not right:
        raise UserError(f"no exercise on a layer is finished in {folder}: continue with npgpt learn {folder}")
    names = {layer: load(path) for layer, path in right.items()}
    return Backwards(Path(folder), right, linked(names))


def right_file(layer, paths):
    """The first of a layer's files that is right; None if all are unfinished. Raises UserError for a wrong one."""
    wrong = []
    for path in paths:
        try:
            exercise = read_exercise(path)
            if exercise.lesson.name != layer:
                raise UserError(f"{path} is an exercise on {exercise.lesson.name}, not on {layer}")
            if blanks_left(exercise):
                continue
            check_right(exercise, run_child(exercise, TIME_LIMIT))
        except UserError as error:
            wrong.append(str(error))
        else:
            for problem in wrong:
                tqdm.write(f"{problem}: {path} is used")
            return path
    if wrong:
        raise UserError(f"{wrong[0]}; see npgpt exercise check {paths[0]}, or move the file away: then npgpt's own "
                        f"{layer}_backward is used")
    return None


def check_right(exercise, report):
    """Raise UserError, with the line, if a report says that an exercise is not right."""
    if not report.right:
        line = f", line {report.first}" if report.first else ""
        raise UserError(f"{exercise.path}{line}: {exercise.lesson.backward.__name__} is not right"
                        + (f" {report.case}" if report.case else ""))


def load(path):
    """Run a file in this process: a dict of its names. Raises UserError, with the line, if that raises something."""
    names = {"__name__": "exercise", "__file__": str(path)}
    try:
        exec(compile(read_bytes(path), str(path), "exec"), names)
    except (Exception, SystemExit) as error:
        line = raised_at(error, path)
        raise UserError(f"{path}{f', line {line}' if line else ''}: {describe(error)}") from None
    return names


def linked(names):
    """layer -> the function that training calls. names: layer -> the names of the learner's file, which are changed.

    Whichever of them calls another by its name, `mlp_backward(…)` in a block's backward, gets the learner's. The
    package's modules stay as they are: those of its functions that call others are copied, with other globals.
    """
    package = {layer: lesson.backward for layer, lesson in lessons().items()}
    copied = dict(vars(transformer))
    functions = {}
    for layer, backward in package.items():
        if layer in names:
            functions[layer] = names[layer][backward.__name__]
        elif backward.__module__ == transformer.__name__:
            functions[layer] = types.FunctionType(backward.__code__, copied, backward.__name__)
        else:
            functions[layer] = backward
    instead = {id(backward): functions[layer] for layer, backward in package.items()}
    for each in (copied, *names.values()):
        each.update({name: instead[id(value)] for name, value in each.items() if id(value) in instead})
    return functions


class OwnBackwardEngine(ReferenceEngine):
    """The reference engine with other backward functions, on a CPU."""

    def __init__(self, params, threads, backwards):
        super().__init__(params, threads)
        self.backwards, self.gpt_backward = backwards, self.own_backward
        functions = {f"{layer}_backward": function for layer, function in backwards.functions.items()}
        self.ops = table(**{name: function for name, function in functions.items() if hasattr(layers, name)})

    @property
    def where(self):
        return f"{super().where}, backward functions from {self.backwards.folder}"

    def run(self, idx, targets, rng, count, mask):
        try:
            return super().run(idx, targets, rng, count, mask)
        except (Exception, SystemExit) as error:
            place = place_in(error, self.backwards.files.values())
            if place is None:
                raise
            raise BackwardError(f"{place}: {describe(error)}") from None

    def own_backward(self, dlogits, cache, ops):
        """Return the tree of gradients of the learner's or the package's `gpt_backward`, each a new array."""
        grads = flatten(self.backwards.functions["gpt"](dlogits, cache, ops))
        for name, shape in self.params.shapes.items():
            if np.shape(grads.get(name)) != shape:
                has = f"has shape {np.shape(grads[name])}, not {shape}" if name in grads else "is missing"
                raise BackwardError(f"the gradient of {name} {has}: one of the functions in {self.backwards.folder} is "
                                    "wrong for this model")
        return nest({name: np.array(grads[name], self.params.dtype) for name in self.params})


def place_in(error, files):
    """ "FILE, line N" of the last call in one of the files that led to an exception, or None."""
    calls = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    places = [f"{file}, line {line}" for file, line in calls if file in map(str, files)]
    return places[-1] if places else None


def use(backwards, model):
    """Let a model train with the `Backwards`.

    Those that depend on the config are checked on that of the model, which is only made narrower. Raises UserError,
    with the line, for the first that is wrong there.
    """
    if model.params.frozen:
        raise UserError("--backward trains every parameter: leave --freeze and --lora out")
    exercises = [read_exercise(path) for layer, path in backwards.files.items() if lessons()[layer].is_composite]
    with ThreadPoolExecutor(available_cores()) as pool:
        reports = pool.map(lambda exercise: run_child(exercise, TIME_LIMIT, config=model.config), exercises)
        for exercise, report in zip(exercises, reports, strict=True):
            check_right(exercise, report)
    model.use_engine(OwnBackwardEngine(model.params, model.engine.threads, backwards))
