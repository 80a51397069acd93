"""The actions behind the live page: check edited lines, change a number, run the model on a text, train.

Each takes the JSON object of a request and returns that of the answer. Only the page has the token, so a request with a
missing or invalid field is a bug, which the server reports. UserError is for what a user may type.
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
from npgpt.files import make_folder, write_atomically
from npgpt.study.exercises.exercise import read_exercise
from npgpt.study.exercises.path import Step, is_untouched
from npgpt.study.exercises.progress import Progress
from npgpt.study.gradcheck.check import check
from npgpt.study.gradcheck.lessons import basics_and_lessons
from npgpt.study.gradcheck.trace import recording
from npgpt.study.judge.child import run_child
from npgpt.study.judge.report import summary as verdict_of
from npgpt.study.page.edits import edited
from npgpt.study.page.long_way import ways
from npgpt.study.page.steps import Steps, known_truth, summary, traced_pass
from npgpt.study.page.tiny_run import TinyRun
from npgpt.study.page.whole_model import study_model

SECONDS = 10.0          # limit of a check, and of the wait for other requests
CURVE = np.linspace(-1.0, 1.0, 41).tolist()         # around the value


class Live:
    """The page's actions: `actions`, path -> function. folder: of the exercises."""

    def __init__(self, folder, model, tokenizer, description):
        self.folder, self.model, self.tokenizer, self.description = Path(folder), model, tokenizer, description
        self.lessons = basics_and_lessons()
        self.lines, self.own = functools.cache(self.gradient_lines), functools.cache(self.own_record)
        self.run = TinyRun()
        self.checking, self.reading = threading.Lock(), threading.Lock()    # one check at a time; one use of the model
        self.actions = {"/check": self.check, "/progress": self.progress, "/move": self.move, "/text": self.text,
                        "/train": self.train}

    def check(self, request):
        """Judge a backward with edited lines, and return their arrays; record a solved level."""
        lesson, level = self.lessons[request["layer"]], request["level"]
        edits = {int(line): text for line, text in request["edits"].items() if text.strip() or not level}
        with in_turn(self.checking), tempfile.TemporaryDirectory() as folder:
            return self.judged(lesson, level, edits, Path(folder) / f"{lesson.name}.py")

    def judged(self, lesson, level, edits, path):
        """Return the answer of `check`. path: of the file that is checked."""
        exercise, output = edited(lesson, level, edits, path), io.StringIO()
        write_atomically(path, exercise.text.encode("utf-8", "replace"))

        def own(line):
            return exercise.lines.get(line)

        def told(text):
            """Replace the file's line numbers in a text of the judge by the package's."""
            return text and re.sub(r"\bline (\d+)", lambda found: f"line {own(int(found[1])) or found[1]}", text)

        answer = {"first": None, "lines": [], "arrays": {}, "output": "", "solved": None, "seed": 0}
        try:
            with contextlib.redirect_stderr(output):
                report = run_child(read_exercise(path), SECONDS)
        except UserError as error:
            said = str(error).replace(" (--time-limit gives it longer)", "")        # not here
            where, text = re.fullmatch(rf"{re.escape(str(path))}(?:, line (\d+))?:? ?(.*)", said).groups()
            line = own(int(where)) if where else None
            return answer | {"verdict": "error", "text": (f"line {line}: " if line else "") + told(text),
                             "first": key(line), "output": output.getvalue()}
        lines = [dataclasses.replace(each, line=own(each.line), diagnosis=told(each.diagnosis),
                                     evidence=told(each.evidence)) for each in report.lines]
        faults = [dataclasses.replace(each, line=own(each.line), message=told(each.message),
                                      diagnosis=told(each.diagnosis)) for each in report.faults]
        report = dataclasses.replace(report, lines=lines, faults=faults, notes=[*map(told, report.notes)],
                                     to_do=[own(line) for line in report.to_do])
        text = [verdict_of(report)]
        text += [each for fault in faults for each in (fault.message, fault.diagnosis) if each] + report.notes
        record = [dataclasses.replace(each, line=own(each.line)) for each in report.record]
        return answer | {
            "verdict": "right" if report.right else "unfinished" if report.sound else "wrong",
            "text": "\n".join(text), "first": key(report.first), "output": output.getvalue(),
            "lines": [{"line": key(each.line), "name": each.name, "verdict": each.verdict, "evidence": each.evidence,
                       "diagnosis": each.diagnosis} for each in lines],
            "arrays": {key(line): self.arrays(lesson.name, line, record) for line in edits},
            "solved": self.solved(lesson, level, edits) if report.right and level and exercise.complete else None,
            "seed": report.seed}

    def arrays(self, layer, line, record):
        """Return the learner's and the true array, and their difference, for each name that a line assigns."""
        given = {each.name: each.value for each in record if each.line == line}
        known = known_truth(layer)
        true = {f"d{each.name}": gradient for each, gradient in zip(known.variables, known.gradients, strict=True)
                if gradient is not None and f"d{each.name}" in given}
        true |= {each.name: each.value for each in self.own(layer) if each.line == line or each.name in given}
        return [{"name": name, "given": optional(given.get(name)), "true": optional(true.get(name)),
                 "difference": optional(difference(given.get(name), true.get(name)))} for name in {**true, **given}]

    def own_record(self, layer):
        """Return the assignments of the package's backward."""
        known = known_truth(layer)
        with recording([known.lesson.backward]) as record:
            known.lesson.run_backward(known.dy, known.cache)
        return record

    def solved(self, lesson, level, edits):
        """Record a solved exercise, write its file unless the learner has one, and return its name."""
        step = Step(lesson.name, f"level {level}")
        path = self.folder / step.file
        make_folder(self.folder)
        if not path.exists() or is_untouched(step, path):
            write_atomically(path, edited(lesson, level, edits, path).text.encode("utf-8", "replace"))
        Progress(self.folder).tried(step.name, True)
        return step.name

    def progress(self, request):
        """Return the names of the solved exercises."""
        entries = Progress(self.folder).entries
        return {"solved": [name for name, entry in entries.items() if "solved" in entry]}

    def gradient_lines(self, layer):
        """Map each variable to the backward's line that computes its gradient, for each form of the backward."""
        return [{each.variable: each.backward_line for each in check(way, known=known_truth(layer))}
                for way in ways(self.lessons[layer])]

    def move(self, request):
        """Change one entry of a layer's input: return all arrays, the loss, its slope, and the curve around it."""
        lesson, name, index = self.lessons[request["layer"]], request["name"], tuple(request["index"])
        value, known = float(request["value"]), known_truth(request["layer"])

        def moved(value):
            changed = lesson.inputs[name].copy()
            changed[index] = value
            return dataclasses.replace(lesson, inputs=lesson.inputs | {name: changed})

        def loss(value):
            inputs = moved(value).inputs
            return float((known.dy * lesson.run_forward(inputs)[0]).sum())

        there = moved(value)
        passes = []
        for way, lines in zip(ways(there), self.lines(lesson.name), strict=True):
            steps = Steps(way, traced_pass(way, known, lines))
            passes.append({"steps": steps.steps, "arrays": steps.arrays})
        slope = there.run_backward(known.dy, there.run_forward(there.inputs)[1])[f"d{name}"][index]
        return {"ways": passes, "loss": loss(value), "slope": float(slope),
                "curve": [[round(value + step, 6), loss(value + step)] for step in CURVE]}

    def text(self, request):
        """Run the model on a text, and return the data of `ModelStudy`."""
        with in_turn(self.reading):
            return study_model(self.model, self.tokenizer, request["text"], self.description).data

    def train(self, request):
        """Return the progress of the tiny run since a step."""
        return self.run.since(request["since"])


@contextlib.contextmanager
def in_turn(lock):
    """Hold a lock. Raises UserError if it stays taken for too long."""
    if not lock.acquire(timeout=SECONDS):
        raise UserError("earlier requests are still running: wait until they finish")
    try:
        yield
    finally:
        lock.release()


def key(line):
    """Return the page's name for a line of the backward."""
    return None if line is None else f"b{line}"


def difference(given, true):
    """Return the learner's array minus the true one, or None if they cannot be subtracted."""
    return None if given is None or true is None or np.shape(given) != np.shape(true) else given - true


def optional(array):
    return None if array is None else summary(array)
