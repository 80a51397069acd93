"""The path of `npgpt learn`: all exercises in order, and their files."""

import functools
import os

from npgpt.errors import UserError
from npgpt.files import read_bytes, write_atomically
from npgpt.study.exercises.bugs import bug_layers, bug_text
from npgpt.study.exercises.exercise import Step, level_text, levels_of
from npgpt.study.lessons.table import LESSON_0, LESSONS


@functools.cache
def path_of(layer):
    """Return the steps of a layer: its levels, then a bug; in lesson 0 two levels."""
    steps = [Step(layer, what) for what in levels_of(layer)]
    if layer in LESSON_0:
        return steps[:2]
    return steps + [Step(layer, "bug 1")] * (layer in bug_layers())


def whole_path():
    """Return all steps, in order."""
    return [step for layer in LESSONS for step in path_of(layer)]


def unsolved(progress):
    """Return the steps that are not solved yet, in order."""
    return [step for step in whole_path() if "solved" not in progress.entry(step.name)]


def initial(step, path):
    """Return the initial bytes of a step's file; path: what its header calls it."""
    text = bug_text if step.is_bug else level_text
    return text(step.lesson, step.level, path).encode("utf-8", "replace")


def write_step(step, path, new=False):
    """Write a step's file with its initial text. new: raise UserError if it exists."""
    if new and os.path.lexists(path):
        raise UserError(f"{path} exists: choose another name with --out, or delete it")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, initial(step, path))


def is_untouched(step, path):
    """Return whether a step's file still has its initial text."""
    return read_bytes(path) == initial(step, path)


def reset(step, path):
    """Reset a step's file. Return the path of a copy of the learner's text, or None."""
    text = read_bytes(path) if os.path.lexists(path) else b""
    copy = None
    if text.strip() and text != initial(step, path):
        copy = path.with_name(path.name + ".bak")
        write_atomically(copy, text)
    write_step(step, path)
    return copy
