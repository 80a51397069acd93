"""The actions behind the live page: judge edited lines, run the model on a text.

Each takes the JSON object of a request, and returns that of the answer. Only the page sends requests, so a missing or
invalid field is a bug, which the server reports as such. Raises UserError for what a user may type.
"""

import contextlib
import dataclasses
import io
import re
import tempfile
import threading
from pathlib import Path

from npgpt.errors import UserError
from npgpt.files import write_atomically
from npgpt.study.exercises.exercise import read_exercise
from npgpt.study.judge.child import run_child
from npgpt.study.judge.report import summary as verdict_of
from npgpt.study.page.edits import edited, view_name, views_of
from npgpt.study.page.steps import summary
from npgpt.study.page.whole_model import study_model

SECONDS = 10.0          # limit of a check


class Live:
    """The page's actions: `actions`, path -> function. lessons: those on the page."""

    def __init__(self, lessons, model, tokenizer, description):
        self.views = {view_name(view): view for each in lessons for view in views_of(each)}
        self.model = model
        self.tokenizer = tokenizer
        self.description = description
        self.checking = threading.Lock()        # one check at a time
        self.reading = threading.Lock()         # one use of the model
        self.actions = {"/check": self.judge_edit, "/text": self.text}

    def judge_edit(self, request):
        """Judge a backward with edited lines."""
        lesson = self.views[request["layer"]]
        edits = {int(line[1:]): text for line, text in request["edits"].items()}
        with self.checking, tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{lesson.name}.py"
            output = io.StringIO()
            text, own_lines = edited(lesson, edits, path)
            write_atomically(path, text.encode("utf-8", "replace"))
            try:
                with contextlib.redirect_stderr(output):
                    report = renumbered(run_child(read_exercise(path), SECONDS), own_lines)
            except UserError as error:
                said = str(error).removeprefix(str(path)).lstrip(":, ")
                said = said.replace(" (--time-limit gives it longer)", "")          # not here
                return {"verdict": "error", "text": renumbered(said, own_lines), "first": None,
                        "lines": [], "arrays": {}, "output": output.getvalue()}
        given = {(each.line, each.name): each.value for each in report.record}
        arrays = {key(line): [] for line in edits}
        for (line, name), value in given.items():
            if line in edits:
                arrays[key(line)].append({"name": name, "given": summary(value)})
        errors = [each for each in report.wrong if not each.name]
        messages = [str(each) for error in errors for each in (*error.evidence, *error.mistakes)]
        return {
            "verdict": "right" if report.right else "unfinished" if report.sound else "wrong",
            "text": re.sub(r" \(--seed \d+\)", "", "\n".join([verdict_of(report), *messages, *report.notes])),
            "first": key(report.first), "output": output.getvalue(),
            "lines": [{"line": key(each.line), "name": each.name, "verdict": each.verdict,
                       "said": [*map(str, [*each.mistakes, *each.evidence])]}
                      for each in report.lines if each.name],
            "arrays": arrays}

    def text(self, request):
        """Run the model on a text: see `study_model`."""
        with self.reading:
            return study_model(self.model, self.tokenizer, request["text"], self.description)


def renumbered(value, lines, field=None):
    """Replace line numbers by the package's, `lines`, in a text of the judge or in all parts of a `Report`."""
    if isinstance(value, str):
        return re.sub(r"\bline (\d+)", lambda found: f"line {lines.get(int(found[1]), found[1])}", value)
    if isinstance(value, list):
        return [renumbered(each, lines, field) for each in value]
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(value, **{name: renumbered(each, lines, name) for name, each in vars(value).items()})
    if field in ("line", "lines", "since", "until", "to_do"):   # of an `if`: its first statement
        return next((lines[each] for each in sorted(lines) if value and each >= value), None)
    return value


def key(line):
    """Return the page's name for a line of the backward."""
    return None if line is None else f"b{line}"
