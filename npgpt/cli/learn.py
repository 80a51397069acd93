"""Learn backprop: one exercise after the other, each checked whenever you save its file.

It shows what is done, writes the next exercise's file, and watches it. Keys give a hint, the list, or the study page at
the line in question. Another day it goes on where you were. For single steps there is `npgpt exercise`.
"""

import argparse
import contextlib
import dataclasses
import io
import os
import shutil
import sys
import textwrap
import webbrowser
from collections.abc import Callable
from pathlib import Path

from npgpt.cli import study
from npgpt.cli.exercise import TIME_LIMIT, check_time_limit, judged, reset_text
from npgpt.cli.keys import ENTER, REDRAW, single_keys
from npgpt.errors import UserError, one_line
from npgpt.study.exercise import FOLDER, LAYERS, read_exercise
from npgpt.study.hints import key_in_question, next_hint, package_line
from npgpt.study.lessons import basics_and_lessons
from npgpt.study.path import Step, is_untouched, path_of, unsolved, whole_path, write_step
from npgpt.study.progress import Progress
from npgpt.study.report import Report
from npgpt.study.source import read_source
from npgpt.study.watch import settled_state, state

POLL = 0.2          # seconds between two looks at the file
KEYS = "h hint   n next   l list   r reset   o open the page   c check   q quit"
BAR = 10            # characters
CLEAR, BOLD, GREEN, REVERSE, PLAIN = "\x1b[2J\x1b[H", "\x1b[1m", "\x1b[32m", "\x1b[7m", "\x1b[0m"


@dataclasses.dataclass
class Session:
    """What `npgpt learn` knows between two keys."""

    folder: Path
    seconds: float                      # how long a solution may run
    read_key: Callable
    skipped: set = dataclasses.field(default_factory=set)           # steps, for this session only
    step: Step | None = None            # the present one; None when all are solved
    report: Report | None = None        # the verdict on its file as it was last saved
    seen: tuple | None = None           # the state of the file that was last judged
    body: list[str] = dataclasses.field(default_factory=list)       # the paragraphs on the screen

    @property
    def file(self):
        return self.folder / self.step.file

    @property
    def solved(self):
        return self.report is not None and self.report.right


def add_arguments(parser):
    parser.add_argument("folder", nargs="?", default=FOLDER, metavar="FOLDER",
                        help=f"where your files and progress.json are; by default {FOLDER}")
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT, metavar="SECONDS",
                        help=f"how long a solution may run; by default {TIME_LIMIT:g}")


def run(args):
    check_time_limit(args.time_limit)
    Progress(args.folder)       # damaged: say so before anything is shown
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("learn needs a terminal, to read single keys: without one use npgpt exercise (see "
                        "npgpt exercise --help)")
    with contextlib.suppress(KeyboardInterrupt), single_keys() as read_key:
        learn(Session(Path(args.folder), args.time_limit, read_key))


def learn(session):
    """Show the list and the first exercise, then answer keys and saved files until the end."""
    attempt(session, begin)
    while session.step is not None:
        key = session.read_key(POLL)
        if key == "q":
            return
        if key == REDRAW:
            draw(session)
        elif key in ACTIONS:
            attempt(session, ACTIONS[key])
        elif state(session.file) != session.seen:
            attempt(session, judge_saved)


def attempt(session, action):
    """Do something, and draw the screen; what goes wrong is said in one line."""
    try:
        action(session)
    except UserError as error:
        session.body.append(str(error))
    except OSError as error:
        session.body.append(one_line(f"{error.filename}: {error.strerror}" if error.strerror else error))
    except ImportError as error:        # a layer that needs SciPy
        session.body.append(one_line(error))
    draw(session)


def begin(session):
    """Choose the first exercise, show the list, and what there is of a solution."""
    try:
        go_on(session)
    finally:
        session.body.insert(0, table(Progress(session.folder), session.step))


def go_on(session):
    """Go to the next exercise that is neither solved nor skipped; skip the present one if it is not solved."""
    left = unsolved(Progress(session.folder))
    if session.step in left:
        session.skipped.add(session.step)
    if session.skipped.issuperset(left):        # begin again with what was skipped
        session.skipped = {session.step} if len(left) > 1 else set()
    step = next((step for step in left if step not in session.skipped), None)
    arrive(session, step)


def go_on_if_solved(session):
    if session.solved:
        go_on(session)


def arrive(session, step):
    """Make a step the present one: write its file if there is none, and judge what the learner has written there."""
    session.step, session.report, session.seen = step, None, None
    if step is None:
        session.body = [f"All {len(whole_path())} exercises are solved. Now train GPT-2 with your own gradients:",
                        f"    npgpt train --backward {session.folder}"]
        return
    session.body = [task(session)]
    new = not os.path.lexists(session.file)
    if new:
        write_step(step, session.file)
    session.seen = state(session.file)
    if not new and not is_untouched(step, session.file):
        judge(session)


def judge_saved(session):
    """Judge the file that was just saved."""
    session.seen = settled_state(session.file)
    check(session)


def check(session):
    """Judge the file, on a new screen."""
    session.body = []
    if session.seen is None and state(session.file) is None:
        raise UserError(f"{session.file} is gone: save it again, or press r to have it as it was at first")
    judge(session)


def judge(session):
    """Judge the file, and add the verdict to the screen, below what the learner's code has printed."""
    session.report = None
    print("checking ...", flush=True)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            session.report, text = judged(session_exercise(session), Progress(session.folder), session.seconds)
    finally:
        session.body += printed.getvalue().splitlines()
    session.body.append(text)
    if session.solved:
        session.body.append(style(GREEN, "solved: press n or Enter for the next exercise"))


def session_exercise(session):
    """The present exercise as the learner has saved it. UserError if the file is that of another one."""
    exercise = read_exercise(session.file)
    if exercise.name != session.step.name:
        raise UserError(f"{session.file}: its first line names another exercise, {exercise.name}: press r to reset it")
    return exercise


def give_hint(session):
    session.body.append(next_hint(session_exercise(session), Progress(session.folder), session.seconds,
                                  session.report))


def show_list(session):
    session.body = [table(Progress(session.folder), session.step), task(session)]


def ask_reset(session):
    """Reset the file if the learner says yes."""
    session.body.append(f"reset {session.file} to its beginning? y/n")
    draw(session)
    key = None
    while key in (None, REDRAW):
        key = session.read_key(POLL)
    if key != "y":
        session.body.append("it stays as it is")
        return
    said = reset_text(session.step, session.file)
    session.report, session.seen = None, state(session.file)
    session.body = [task(session), said]


def open_page(session):
    """Show the study page in the browser, at the line that is missing or wrong. The page is written if there is none.
    """
    page = session.folder / "study.html"
    if not page.exists():
        print(f"writing {page}, which takes some seconds ...", flush=True)
        study.run(argparse.Namespace(layer="all", checkpoint=None, prompt=study.PROMPT, out=str(page), open=False))
    address = f"{page.resolve().as_uri()}#{anchor(session)}"
    session.body.append(address)
    if not webbrowser.open(address):
        session.body.append("no browser was found here: open this address in yours")


def anchor(session):
    """The place on the page: the line of the backward that is missing or wrong, its answer hidden; or the layer."""
    lesson = basics_and_lessons()[session.step.layer]
    if session.step.is_bug:             # which line it is must be found
        return lesson.name
    try:
        exercise = session_exercise(session)
    except (UserError, OSError):
        return lesson.name
    key = key_in_question(exercise, session.report)
    line = package_line(lesson, key) if key else read_source(lesson.backward).first
    return f"{lesson.name}:b{line}:predict"


ACTIONS = {"h": give_hint, "n": go_on, ENTER: go_on_if_solved, "l": show_list, "r": ask_reset, "o": open_page,
           "c": check}


def draw(session):
    """Clear the terminal and print the screen."""
    solved = len(whole_path()) - len(unsolved(Progress(session.folder)))
    done = BAR * solved // len(whole_path())
    title = f"npgpt learn  [{'#' * done}{'-' * (BAR - done)}] {solved} of {len(whole_path())}"
    if session.step is not None:
        title += f"   {session.step.name}: {basics_and_lessons()[session.step.layer].title}"
    keys = [style(BOLD, KEYS)] if session.step is not None else []
    print(style(CLEAR, "") + "\n\n".join([style(BOLD, title), *map(wrapped, session.body), *keys]), flush=True)


def wrapped(paragraph):
    """A sentence in lines that fit the terminal; what has lines already stays."""
    width = shutil.get_terminal_size().columns
    fits = "\n" in paragraph or len(paragraph) <= width
    return paragraph if fits else textwrap.fill(paragraph, width, break_long_words=False, break_on_hyphens=False)


def task(session):
    """What to do, in less than 80 characters: with the list it fits a terminal of 24 lines."""
    what = "one line is wrong: correct it" if session.step.is_bug else "replace each `...` in your editor"
    return f"{session.file}: {what} and save"


def table(progress, present):
    """The list of exercises: a row for each layer with its steps; x: solved, >: the present one."""
    rows = []
    for layer in LAYERS:
        rows.append(f"{layer:<16}" + "   ".join(mark(progress, step, present) for step in path_of(layer)))
    return "\n".join(rows)


def mark(progress, step, present):
    """A step in the list: "x 1", "> 2", ". bug"."""
    word = "bug" if step.is_bug else step.what.split()[1]
    if step == present:
        return style(REVERSE, f"> {word}")
    return style(GREEN, f"x {word}") if "solved" in progress.entry(step.name) else f". {word}"


def style(code, text):
    """A text in a style, or as it is if the terminal or the user wants none."""
    if os.environ.get("TERM") == "dumb" or "NO_COLOR" in os.environ and code != CLEAR:
        return text
    return code + text + (PLAIN if text else "")
