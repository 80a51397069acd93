"""The actions behind the live page: judge edited lines, run the model on a text.

Each takes the JSON object of a request, and returns that of the answer. Only the page sends
requests, so a missing or invalid field is a bug, which the server reports as such. Raises UserError
for what a user may type.
"""

import contextlib
import io
import threading

from npgpt.errors import UserError
from npgpt.study.judge.child import run_child
from npgpt.study.page.edits import answer_of, edited, renumbered, view_name, views_of
from npgpt.study.page.whole_model import study_model

SECONDS = 10.0  # limit of a check


class Live:
    """The page's actions: `actions`, path -> function. lessons: those on the page."""

    def __init__(self, lessons, model, tokenizer, description):
        self.views = {view_name(view): view for each in lessons for view in views_of(each)}
        self.model = model
        self.tokenizer = tokenizer
        self.description = description
        self.checking = threading.Lock()  # one check at a time
        self.reading = threading.Lock()  # one use of the model
        self.actions = {"/check": self.judge_edit, "/text": self.text}

    def judge_edit(self, request):
        """Judge a backward with edited lines."""
        edits = {int(line[1:]): text for line, text in request["edits"].items()}
        exercise, own_lines = edited(self.views[request["layer"]], edits)
        output = io.StringIO()
        try:
            with self.checking, contextlib.redirect_stderr(output):
                answer = answer_of(run_child(exercise, SECONDS), own_lines, edits)
        except UserError as error:
            said = str(error).removeprefix(str(exercise.path)).lstrip(":, ")
            said = renumbered(said.replace(" (--time-limit gives it longer)", ""), own_lines)
            answer = {"verdict": "error", "text": said, "first": None, "lines": [], "arrays": {}}
        return answer | {"output": output.getvalue()}

    def text(self, request):
        """Run the model on a text: see `study_model`."""
        with self.reading:
            return study_model(self.model, self.tokenizer, request["text"], self.description)
