"""What the page in which one edits asks of its server: checks, numbers that move, texts, and a run that trains.

Each request is a JSON object from a browser. Everything in it is validated; what is wrong raises UserError.
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
from npgpt.study.exercises.exercise import levels_of, read_exercise
from npgpt.study.exercises.path import Step, is_untouched
from npgpt.study.exercises.progress import Progress
from npgpt.study.gradcheck.check import check
from npgpt.study.gradcheck.lessons import basics_and_lessons
from npgpt.study.gradcheck.source import read_source
from npgpt.study.gradcheck.trace import recording
from npgpt.study.judge.child import run_child
from npgpt.study.judge.report import summary as verdict_of
from npgpt.study.page.edits import edited
from npgpt.study.page.long_way import ways
from npgpt.study.page.steps import Steps, digits, known_truth, summary, traced_pass
from npgpt.study.page.tiny_run import TinyRun
from npgpt.study.page.whole_model import shown, study_model

SECONDS = 10.0          # that a check may take, and that a request waits for others
MOST_VALUE = 100.0      # of an input that is moved: no layer overflows
CURVE = np.linspace(-1.0, 1.0, 41).tolist()         # around the value
LIKELIEST = 10          # next tokens


class Live:
    """The actions of the page: `actions`, path -> function. folder: of the exercises."""

    def __init__(self, folder, model, tokenizer, description):
        self.folder, self.model, self.tokenizer, self.description = Path(folder), model, tokenizer, description
        self.lessons = basics_and_lessons()
        self.lines, self.own = functools.cache(self.gradient_lines), functools.cache(self.own_record)
        self.run = TinyRun()
        self.checking, self.reading = threading.Lock(), threading.Lock()    # one check at a time; one use of the model
        self.actions = {"/check": self.check, "/progress": self.progress, "/move": self.move, "/text": self.text,
                        "/train": self.train}

    def lesson(self, request):
        return self.lessons[field(request, "layer", str, "a layer", self.lessons.__contains__)]

    def check(self, request):
        """The verdict on a backward with edited lines, and their arrays; a level that is solved is noted."""
        lesson = self.lesson(request)
        source = read_source(lesson.backward)
        starts = {str(each.first) for each in source.statements}
        level = field(request, "level", int, f"0, or a level of {lesson.name}",
                      lambda level: level == 0 or level in levels_of(lesson.name))
        edits = field(request, "edits", dict, "texts by the first line of a statement",
                      lambda edits: edits.keys() <= starts and all(isinstance(text, str) for text in edits.values()))
        edits = {int(line): re.sub("\r\n?", "\n", text) for line, text in edits.items() if text.strip() or not level}
        with in_turn(self.checking), tempfile.TemporaryDirectory() as folder:
            return self.judged(lesson, level, edits, Path(folder) / f"{lesson.name}.py")

    def judged(self, lesson, level, edits, path):
        """What `check` answers. path: of the file that is checked."""
        exercise, output = edited(lesson, level, edits, path), io.StringIO()
        write_atomically(path, exercise.text.encode("utf-8", "replace"))

        def own(line):
            return exercise.lines.get(line)

        def told(text):
            """A text of the judge with the package's lines in place of the file's."""
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
        """For each name that a line assigns, there or in the package: the arrays, and their difference."""
        given = {each.name: each.value for each in record if each.line == line}
        known = known_truth(layer)
        true = {f"d{each.name}": gradient for each, gradient in zip(known.variables, known.gradients, strict=True)
                if gradient is not None and f"d{each.name}" in given}
        true |= {each.name: each.value for each in self.own(layer) if each.line == line or each.name in given}
        return [{"name": name, "given": optional(given.get(name)), "true": optional(true.get(name)),
                 "difference": optional(difference(given.get(name), true.get(name)))} for name in {**true, **given}]

    def own_record(self, layer):
        """What the package's backward assigns."""
        known = known_truth(layer)
        with recording([known.lesson.backward]) as record:
            known.lesson.run_backward(known.dy, known.cache)
        return record

    def solved(self, lesson, level, edits):
        """Note a solved exercise, write its file unless the learner has one, and return its name."""
        step = Step(lesson.name, f"level {level}")
        path = self.folder / step.file
        make_folder(self.folder)
        if not path.exists() or is_untouched(step, path):
            write_atomically(path, edited(lesson, level, edits, path).text.encode("utf-8", "replace"))
        Progress(self.folder).tried(step.name, True)
        return step.name

    def progress(self, request):
        """The names of the exercises that are solved."""
        entries = Progress(self.folder).entries
        return {"solved": [name for name, entry in entries.items() if "solved" in entry]}

    def gradient_lines(self, layer):
        """For each way of a layer: variable -> the line of the backward that its gradient comes from."""
        return [{each.variable: each.backward_line for each in check(way, known=known_truth(layer))}
                for way in ways(self.lessons[layer])]

    def move(self, request):
        """A layer's pass with one entry of an input changed: all arrays, the loss, its slope and a curve around it."""
        lesson = self.lesson(request)
        array = lesson.inputs[field(request, "name", str, "an input", lesson.inputs.__contains__)]
        name, index = request["name"], tuple(field(request, "index", list, "of numbers", lambda index: all(
            type(each) is int for each in index)))
        if len(index) != array.ndim or not all(0 <= i < n for i, n in zip(index, array.shape, strict=True)):
            raise UserError(f'"index" must be in an array of shape {array.shape}')
        value = float(field(request, "value", (int, float), f"a number from {-MOST_VALUE:g} to {MOST_VALUE:g}",
                            lambda value: abs(value) <= MOST_VALUE))
        known = known_truth(lesson.name)

        def moved(value):
            changed = array.copy()
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
        """The model on a text, as the page shows it, and what is likely to come next."""
        text = field(request, "text", str, "a text")
        with in_turn(self.reading):
            study = study_model(self.model, self.tokenizer, text, self.description)
            ids = self.tokenizer.encode(text).astype(np.int64)
            logits, _ = self.model.forward(ids[None])
        weights = np.exp(logits[0, -1].astype(np.float64) - logits[0, -1].max())
        best = np.argsort(-weights)[:LIKELIEST]
        return study.data | {
            "next": [[shown(self.tokenizer.decode([i])), digits(weights[i] / weights.sum())] for i in best]}

    def train(self, request):
        """What the tiny run has done since a step."""
        return self.run.since(field(request, "since", int, "a step", lambda step: step >= 0))


@contextlib.contextmanager
def in_turn(lock):
    """Hold a lock. Raises UserError if others keep it for too long."""
    if not lock.acquire(timeout=SECONDS):
        raise UserError("earlier requests are still running: wait for them to end")
    try:
        yield
    finally:
        lock.release()


def field(request, name, kind, wanted, is_valid=lambda value: True):
    """A field of a request. Raises UserError unless it is of that kind, and valid."""
    value = request.get(name)
    if isinstance(value, bool) or not isinstance(value, kind) or not is_valid(value):
        raise UserError(f'"{name}" must be {wanted}')
    return value


def key(line):
    """What the page calls a line of the backward."""
    return None if line is None else f"b{line}"


def difference(given, true):
    """Theirs minus the true one, or None."""
    return None if given is None or true is None or np.shape(given) != np.shape(true) else given - true


def optional(array):
    return None if array is None else summary(array)
