"""Learn backprop: one exercise after the other, each checked whenever you save its file.

It writes the next exercise's file and watches it. The verdict says where the first mistake is, and
what shows it; what the mistake is comes with the hints. The next time it continues where you
stopped. `npgpt exercise` does single steps.
"""

import contextlib
import functools
import io
import os
import re
import sys
import time
from pathlib import Path

from npgpt.cli.exercise import CENTRAL_DIFFERENCE, add_time_limit_argument, judged
from npgpt.cli.keys import ENTER, REDRAW, single_keys
from npgpt.cli.screen import GREEN, REVERSE, UNBROKEN, pages, show, style
from npgpt.errors import UserError, one_line
from npgpt.study.exercises.exercise import FOLDER, Step, read_exercise, read_title
from npgpt.study.exercises.mathematics import derivation_text
from npgpt.study.exercises.path import CORE, MORE, WHOLE, is_untouched, reset, unsolved, write_step
from npgpt.study.exercises.progress import Progress
from npgpt.study.exercises.worked import worked
from npgpt.study.gradcheck.verdicts import WRONG
from npgpt.study.judge.hints import answer, key_in_question, main_key, next_hint
from npgpt.study.judge.report import Report
from npgpt.study.lessons.table import LESSON_0

POLL = 0.2  # seconds between two looks at the file
SETTLING = 0.05  # seconds in which a file that an editor is writing changes again
KEYS = (
    "h_hint  m_mathematics  w_worked_example  n_next  p_previous  NUMBER_Enter:_go_to_it  "
    "l_list  r_reset  c_check  q_quit"
).replace("_", UNBROKEN)
GRADIENT = (
    "dv is the gradient of v. It has the shape of v, and each entry says how fast the loss changes "
    "with that entry of v: d(loss)/d(v)."
)
BAR = 10  # characters
DIGITS = [*"0123456789"]


class Session:
    """What `npgpt learn` knows between two keys.

    folder: of the files. seconds: how long a solution may run. read_key: as in `keys`.
    """

    step: Step | None = None  # the present one; None when all are solved
    report: Report | None = None  # the verdict on its file as it was last saved
    seen: tuple | None = None  # the state of the file that was last judged
    explained = False  # whether it was said what a central difference is
    page = 0  # of the mathematics, which is shown next

    def __init__(self, folder, seconds, read_key):
        self.folder = folder
        self.seconds = seconds
        self.read_key = read_key
        self.body = []  # the paragraphs on the screen

    @property
    def progress(self):
        return Progress(self.folder)

    @property
    def file(self):
        return self.folder / self.step.file

    @property
    def solved(self):
        return self.report is not None and self.report.right


def add_arguments(parser):
    parser.add_argument(
        "folder",
        nargs="?",
        default=FOLDER,
        metavar="FOLDER",
        help=f"where your files and progress.json are; by default {FOLDER}",
    )
    add_time_limit_argument(parser)


def run_learn(args):
    Progress(args.folder)  # damaged: say so before anything is shown
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError(
            "learn needs a terminal, to read single keys: without one use npgpt exercise (see "
            "npgpt exercise --help)"
        )
    with single_keys() as read_key:
        session = Session(Path(args.folder), args.time_limit, read_key)
        with contextlib.suppress(KeyboardInterrupt):
            learn(session)
        if session.step and not session.solved:
            print(f"{session.file} is kept: npgpt learn goes on there")


def learn(session):
    """Show the first exercise, then answer keys and saved files until the end."""
    attempt(session, begin)
    while session.step is not None:
        key = session.read_key(POLL)
        if key == "q":
            return
        if key == REDRAW:
            draw_screen(session)
        elif key in ACTIONS and (key != ENTER or session.solved):
            attempt(session, ACTIONS[key])
        elif key is None and file_state(session.file) != session.seen:
            attempt(session, judge_saved)


def attempt(session, action):
    """Do something, and draw the screen; an error is one line on it."""
    if action is not show_mathematics and session.page:
        session.page = 0
        session.body = []
    try:
        action(session)
    except OSError as error:
        session.body.append(one_line(f"{error.filename}: {error.strerror}"))
    except (UserError, ImportError) as error:  # ImportError: a layer that needs SciPy
        session.body.append(one_line(error))
    draw_screen(session)


def begin(session):
    """Explain what dv is, and show the last exercise that was open, or the first unsolved one."""
    try:
        progress = session.progress
        there = [step for step in WHOLE if step.name == progress.at]
        arrive(session, there[0]) if there and unsolved(progress) else go_on(session)
    finally:
        if session.step:
            session.body.insert(0, GRADIENT)


def go_on(session):
    """Go to the next unsolved exercise; after the last one, start over. It ends with the core."""
    left = unsolved(session.progress)
    steps = CORE if session.step in CORE else WHOLE
    at = steps.index(session.step) + 1 if session.step else 0
    arrive(session, next((step for step in steps[at:] + steps[:at] if step in left), None))


def go_back(session):
    number = WHOLE.index(session.step)
    if not number:
        raise UserError("this is the first exercise")
    arrive(session, WHOLE[number - 1])


def go_to(session, typed):
    """Read the rest of a number, and go to its exercise; a key that is no digit cancels."""
    while (key := ask(session, f"go to exercise {typed}_ (Enter)")) in DIGITS:
        typed += key
    if key != ENTER:
        return
    if not 0 < int(typed) <= len(WHOLE):
        raise UserError(f"there is no exercise {typed}: their numbers are 1 to {len(WHOLE)}")
    arrive(session, WHOLE[int(typed) - 1])


def ask(session, question):
    """Show a question instead of the keys, and return the key that answers it."""
    key = REDRAW
    while key in (None, REDRAW):
        if key == REDRAW:
            draw_screen(session, question)
        key = session.read_key(POLL)
    return key


def arrive(session, step):
    """Open an exercise: write its file if there is none, and judge it if it was changed."""
    session.step = step
    session.report = session.seen = None
    session.body = []
    if step is None:
        more = unsolved(session.progress)
        which = f"{len(CORE)} exercises of the core" if more else f"{len(WHOLE)} exercises"
        session.body = [
            f"All {which} are solved. Now train GPT-2 with your own gradients:",
            f"    npgpt train --backward {session.folder}",
        ]
        session.body += [f"npgpt learn goes on with {len(more)} more to practise."] * bool(more)
        return
    if not os.path.lexists(session.file):
        write_step(step, session.file)
    session.body = [task(session)]
    session.seen = file_state(session.file)
    session.progress.arrived(step.name)
    if step.is_reading or not is_untouched(step, session.file):
        judge(session)


def file_state(path):
    """Return what a save changes: time, size or inode of a file; None without a file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def judge_saved(session):
    """Judge the file that was just saved, once the editor has ended writing it."""
    while session.seen != (now := file_state(session.file)):
        session.seen = now
        time.sleep(SETTLING)
    judge_afresh(session)


def judge_afresh(session):
    if file_state(session.file) is not None:
        session.body = []
        judge(session)


def judge(session):
    """Judge the file, and add the verdict to the screen, below what the code has printed."""
    session.report = None
    print("checking ...", flush=True)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            exercise = session_exercise(session)
            session.report, text = judged(exercise, session.progress, session.seconds)
    finally:
        if said := printed.getvalue():
            session.body.append(said.rstrip())
    session.body.append(text)
    if session.report.is_measured and not session.step.is_bug and not session.explained:
        session.explained = True
        session.body.append(CENTRAL_DIFFERENCE)
    if session.solved:
        session.body.append(style(GREEN, "solved: press n or Enter for the next exercise"))


def session_exercise(session):
    """Return the present exercise as saved.

    Raises UserError if its first line is missing, or that of another exercise.
    """
    try:
        found = read_title(session.file)
        if found != session.step:
            raise UserError(f"{session.file}: its first line names another exercise, {found.name}")
    except UserError as error:
        raise UserError(f"{error}: press r to reset it") from None
    return read_exercise(session.file)


def give_hint(session):
    hint = next_hint(session_exercise(session), session.progress, session.seconds, session.report)
    if hint not in session.body:  # the last one stays
        session.body.append(hint)


def show_mathematics(session):
    """Show the next page of a derivation: the idea and the formulas, at last the code."""
    lesson, key = session.step.lesson, line_in_question(session)
    idea, code = derivation_text(lesson, [key])
    shown = pages(idea)
    if key:
        more = [each for each in code if not re.fullmatch("That is `[^`]*`.", each)]
        shown.append(["In code:", "\n".join([f"    {answer(lesson, key)}", *more])])
    at, last = session.page % len(shown), len(shown) - 1
    following = "the code" if key and at == last - 1 else "the next page"
    end = f"page {at + 1} of {len(shown)}" + f": press m again for {following}" * (at < last)
    session.body = [*shown[at], end]
    session.page = at + 1


def show_worked(session):
    """Show the line in question with numbers, and the shapes of its arrays."""
    key = line_in_question(session)
    lines = worked(session.step, key) if key else []
    if not lines:
        raise UserError("there is no worked example here")
    session.body = [
        "The line with small arrays; the numbers are rounded to two digits.",
        "\n".join(lines),
    ]


def line_in_question(session):
    """Return the key of the line that is missing or wrong, or that a solved exercise is about.

    In a bug hunt it is "": it must not say which line.
    """
    if session.step.is_bug and not session.solved:
        return ""
    key = ""
    with contextlib.suppress(UserError, OSError):  # of a file that is damaged or missing
        exercise = session_exercise(session)
        key = main_key(exercise) if session.solved else key_in_question(exercise, session.report)
    if not key and session.report:  # the learner's steps are not the package's
        key = next((line.name for line in session.report.lines if line.verdict == WRONG), "")
    return key


def show_list(session):
    """Show the exercises by number, a row for each layer; x: solved, >: the present one."""
    left = unsolved(session.progress)
    rows = {}
    for number, step in enumerate(WHOLE, 1):
        is_rule = step.layer in LESSON_0
        what = step.layer if is_rule else "bug" if step.is_bug else step.what
        entry = list_entry(f"{number:>2} {what}", step == session.step, step not in left)
        row = rows.setdefault("rules" if is_rule else step.layer, [])
        row += ["+"] * (step in MORE and "+" not in row) + [entry]
    lines = [f"{name:<15}" + " ".join(row) for name, row in rows.items()]
    session.body = ["\n".join(lines), "After a + comes more practice."]


def ask_reset(session):
    if ask(session, f"reset {session.file} to its beginning? y/n") != "y":
        session.body.append("not reset")
        return
    copy = reset(session.step, session.file)
    kept = f"; your text is in {copy}" if copy else ""
    session.report = None
    session.seen = file_state(session.file)
    session.body = [task(session), f"{session.file} was reset{kept}"]


ACTIONS = {
    "h": give_hint,
    "m": show_mathematics,
    "w": show_worked,
    "n": go_on,
    ENTER: go_on,
    "p": go_back,
    "l": show_list,
    "r": ask_reset,
    "c": judge_afresh,
    **{digit: functools.partial(go_to, typed=digit) for digit in DIGITS},
}


def draw_screen(session, question=KEYS):
    """Show the progress in one line, the paragraphs, and the keys or a question."""
    is_more = session.step in MORE
    steps = MORE if is_more else CORE
    n = len(steps)
    solved = n - len(unsolved(session.progress, steps))
    bar = "#" * (BAR * solved // n)
    title = f"npgpt learn  [{bar:-<{BAR}}] {solved} of {n}" + " more" * is_more
    if session.step is None:
        return show(title, session.body, None)
    if file_state(session.file) is None:
        question = f"{session.file} is missing: save it again, or press r to reset it\n{question}"
    show(f"{title}   {session.step.name}", session.body, question)


def task(session):
    begin = f"{session.step.lesson.title}. Open {session.file} in your editor"
    if session.step.is_reading:
        return f"{begin}, and read it; m shows its mathematics."
    if session.step.is_bug:
        said = "one line of its backward is wrong. Correct it, and save: the verdict appears here."
        return f"{begin}: {said}"
    with contextlib.suppress(UserError, OSError):  # the verdict says why
        if left := read_exercise(session.file).blanks:
            replace = "replace `...` with code (w shows such a line with numbers)"
            begin += f", and begin with line {left[0].lineno}: {replace}"
    return f"{begin}. Whenever you save it, the verdict appears here."


def list_entry(text, is_present, is_solved):
    """Return an exercise in the list: "x 9 level 1", ">10 level 3", " 12 bug"."""
    if is_present:
        return style(REVERSE, f">{text}")
    return style(GREEN, f"x{text}") if is_solved else f" {text}"
