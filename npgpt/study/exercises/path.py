"""The path of `npgpt learn`: every exercise, in the order in which they are best done; and an exercise's file."""

import dataclasses
import functools
import os
from pathlib import Path

from npgpt.files import make_folder, read_bytes, write_atomically
from npgpt.study.exercises.bugs import bug_layers, bug_text
from npgpt.study.exercises.exercise import LAYERS, level_text, levels_of, read_title
from npgpt.study.gradcheck.lessons import basics, basics_and_lessons

BUG_SEED = 1


@dataclasses.dataclass(frozen=True)
class Step:
    """An exercise. layer: the name of its lesson; what: "level 2" or "bug 7"."""

    layer: str
    what: str

    @property
    def name(self):
        """As in the list of progress."""
        return f"{self.layer} {self.what}"

    @property
    def is_bug(self):
        return self.what.startswith("bug")

    @property
    def file(self):
        """The name of its file."""
        return f"{self.layer}-{self.what.replace(' ', '')}.py"

    def text(self, path):
        """The initial text of its file; path: what the header calls it."""
        text = bug_text if self.is_bug else level_text
        return text(basics_and_lessons()[self.layer], int(self.what.split()[1]), path)


@functools.cache
def path_of(layer):
    """The steps of a layer: its levels, then a bug to be found. In lesson 0: one line, then all lines that compute."""
    if layer in basics():
        return [Step(layer, f"level {level}") for level in levels_of(layer)[:2]]
    bugs = [f"bug {BUG_SEED}"] if layer in bug_layers() else []
    return [Step(layer, what) for what in (*(f"level {level}" for level in levels_of(layer)), *bugs)]


def whole_path():
    """All steps, in order."""
    return [step for layer in LAYERS for step in path_of(layer)]


def unsolved(progress):
    """The steps that are not solved yet, in order."""
    return [step for step in whole_path() if "solved" not in progress.entry(step.name)]


def write_step(step, path):
    """Write a step's file with its initial text."""
    make_folder(path.parent)
    write_atomically(path, step.text(path).encode("utf-8", "replace"))


def is_untouched(step, path):
    """Whether a step's file still has its initial text."""
    return read_bytes(path) == step.text(path).encode("utf-8", "replace")


def reset(step, path):
    """Reset a step's file to its initial text. Returns the copy that keeps the learner's text, or None without one."""
    copy = None
    if os.path.lexists(path) and not is_untouched(step, path) and read_bytes(path).strip():
        copy = path.with_name(path.name + ".bak")
        write_atomically(copy, read_bytes(path))
    write_step(step, path)
    return copy


def step_of(path):
    """The step of a learner's file, by its first line. Raises UserError and OSError as `read_title` does."""
    layer, what, _ = read_title(Path(path))
    return Step(layer, what)
