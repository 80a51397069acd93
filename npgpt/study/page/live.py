"""The actions behind the live page: judge edited lines, change a number, run the model on a text, train.

Each takes the JSON object of a request, and returns that of the answer. Only the page sends requests, so a missing or
invalid field is a bug, which the server reports as such. Raises UserError for what a user may type.
"""

import contextlib
import dataclasses
import functools
import io
import re
import tempfile
import threading
from pathlib import Path

import numpy as np

from npgpt.errors import UserError
from npgpt.files import write_atomically
from npgpt.study.exercises.exercise import Step, read_exercise
from npgpt.study.exercises.path import is_untouched, path_of
from npgpt.study.exercises.progress import Progress
from npgpt.study.gradcheck.check import check_lesson
from npgpt.study.gradcheck.measure import weighted_sum
from npgpt.study.gradcheck.trace import Recorded
from npgpt.study.judge.child import run_child
from npgpt.study.judge.report import summary as verdict_of
from npgpt.study.lessons.table import LESSONS, lesson_named
from npgpt.study.page.edits import asked_lines, edited
from npgpt.study.page.steps import Steps, gradients_of, known_truth, summary, ways
from npgpt.study.page.tiny_run import TinyRun
from npgpt.study.page.whole_model import study_model

SECONDS = 10.0          # limit of a check
CURVE = np.linspace(-1.0, 1.0, 41).tolist()         # around the value


class Live:
    """The page's actions: `actions`, path -> function. folder: of the exercises; lessons: those on the page."""

    def __init__(self, folder, model, tokenizer, description, lessons=None):
        self.keys = {each.name: each.key for each in lessons or LESSONS.values()}       # the page has the names
        self.folder, self.model, self.tokenizer, self.description = Path(folder), model, tokenizer, description
        self.run = TinyRun()
        self.checking, self.reading = threading.Lock(), threading.Lock()    # one check at a time; one use of the model
        self.actions = {"/check": self.judge_edit, "/progress": self.progress, "/move": self.move, "/text": self.text,
                        "/train": lambda request: self.run.since(request["since"])}

    def judge_edit(self, request):
        """Judge a backward with edited lines. shown: the lines of the level that the learner has asked to see."""
        lesson, level, shown = lesson_named(self.keys[request["layer"]]), request["level"], request["shown"]
        edits = {int(line[1:]): text for line, text in request["edits"].items()}
        with self.checking, tempfile.TemporaryDirectory() as folder:
            path, output = Path(folder) / f"{lesson.name}.py", io.StringIO()
            text, own_lines = edited(lesson, level, edits, path, [int(line[1:]) for line in shown])
            write_atomically(path, text.encode("utf-8", "replace"))
            try:
                with contextlib.redirect_stderr(output):
                    report = renumbered(run_child(read_exercise(path), SECONDS), own_lines)
            except UserError as error:
                said = str(error).removeprefix(str(path)).replace(" (--time-limit gives it longer)", "")    # not here
                number, text = re.fullmatch(r"(?:, line (\d+))?:? ?(.*)", said).groups()
                line = own_lines.get(int(number or 0))
                text = (f"line {line}: " if line else "") + renumbered(text, own_lines)
                return {"verdict": "error", "text": text, "first": key(line), "lines": [], "arrays": {},
                        "output": output.getvalue(), "solved": None}
        messages = [str(each) for fault in report.faults for each in (fault.what, *fault.mistakes)]
        solved = report.right and level and not shown and edits.keys() >= {*asked_lines(lesson, level)}
        return {
            "verdict": "right" if report.right else "unfinished" if report.sound else "wrong",
            "text": re.sub(r" \(--seed \d+\)", "", "\n".join([verdict_of(report), *messages, *report.notes])),
            "first": key(report.first), "output": output.getvalue(),
            "lines": [{"line": key(each.line), "name": each.name, "verdict": each.verdict,
                       "said": [*map(str, [*each.mistakes, *each.evidence])]} for each in report.lines],
            "arrays": {key(line): self.arrays(lesson.key, line, report.record) for line in edits},
            "solved": self.solved(lesson, level, edits) if solved else None}

    def arrays(self, layer, line, record):
        """Return the learner's array and the true one for each name that a line assigns; None for a missing one."""
        given = {each.name: each.value for each in record if each.line == line}
        known = known_truth(layer)
        true = {f"d{each.name}": gradient for each, gradient in zip(known.variables, known.gradients, strict=True)
                if gradient is not None and f"d{each.name}" in given}
        true |= {each.name: each.value for each in sorted(own_record(layer), key=lambda each: each.line == line)
                 if each.line == line or each.name in given}       # a name may have other values on other lines
        return [{"name": name, "given": summary(given[name]) if name in given else None,
                 "true": summary(true[name]) if name in true else None} for name in {**true, **given}]

    def solved(self, lesson, level, edits):
        """Record a solved exercise, write its file unless the learner has one, and return its name on the page."""
        step = Step(lesson.key, f"level {level}")
        path = self.folder / step.file
        self.folder.mkdir(parents=True, exist_ok=True)
        if not path.exists() or is_untouched(step, path):
            write_atomically(path, edited(lesson, level, edits, path)[0].encode("utf-8", "replace"))
        Progress(self.folder).tried(step.name, True)
        return f"{lesson.name} {step.what}"

    def progress(self, request):
        """Return the names of the solved exercises on the page."""
        progress = Progress(self.folder)
        return {"solved": [f"{name} {step.what}" for name, key in self.keys.items() for step in path_of(key)
                           if "solved" in progress.entry(step.name)]}

    def move(self, request):
        """Change one entry of a layer's input; return all arrays, the loss, its slope, and the curve around it."""
        lesson = lesson_named(self.keys[request["layer"]])
        name, index, value = request["name"], tuple(request["index"]), float(request["value"])
        known = known_truth(lesson.key)

        def moved(value):
            changed = lesson.inputs[name].copy()
            changed[index] = value
            return dataclasses.replace(lesson, inputs=lesson.inputs | {name: changed})

        def loss(value):
            y, _ = lesson.run_forward(moved(value).inputs)
            return float(weighted_sum(known.dy, y))

        there = moved(value)
        passes = [Steps(way, known, lines).data
                  for way, lines in zip(ways(there), gradient_lines(lesson.key), strict=True)]
        slope = gradients_of(there, known.dy, there.run_forward(there.inputs)[1])[f"d{name}"][index]
        return {"ways": passes, "loss": loss(value), "slope": float(slope),
                "curve": [[round(value + step, 6), loss(value + step)] for step in CURVE]}

    def text(self, request):
        """Run the model on a text: see `study_model`."""
        with self.reading:
            return study_model(self.model, self.tokenizer, request["text"], self.description)


@functools.cache
def own_record(layer):
    """Return the assignments of the package's backward."""
    known = known_truth(layer)
    backward = Recorded(known.lesson.backward)
    gradients_of(known.lesson, known.dy, known.cache, backward.function)
    return backward.record


@functools.cache
def gradient_lines(layer):
    """Map each variable to the backward's line that computes its gradient, for each form of the backward."""
    known = known_truth(layer)
    return [{each.variable: each.backward_line for each in check_lesson(way, known=known)}
            for way in ways(known.lesson)]


def renumbered(value, lines, field=None):
    """Replace line numbers by the package's, `lines`, in a text of the judge or in all parts of a `Report`."""
    if isinstance(value, str):
        return re.sub(r"\bline (\d+)", lambda found: f"line {lines.get(int(found[1]), found[1])}", value)
    if isinstance(value, list):
        return [renumbered(each, lines, field) for each in value]
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(value, **{name: renumbered(each, lines, name) for name, each in vars(value).items()})
    if field in ("line", "lines", "to_do"):         # of an `if` or a loop: its first statement
        return next((lines[each] for each in sorted(lines) if value and each >= value), None)
    return value


def key(line):
    """Return the page's name for a line of the backward."""
    return None if line is None else f"b{line}"
