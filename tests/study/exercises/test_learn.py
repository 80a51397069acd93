"""`npgpt learn` in a pseudo-terminal: what it shows, what the keys do, and another day."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from npgpt.cli import learn, screen
from npgpt.errors import UserError
from npgpt.study.exercises.mathematics import derivation_text, formula_text, read_notes, read_text
from npgpt.study.exercises.path import Step, reset, whole_path
from npgpt.study.exercises.progress import Progress
from npgpt.study.lessons.table import LESSONS, lesson_named
from tests.helpers.runs import refused
from tests.study.judge.solutions import solved

pty = pytest.importorskip("pty")            # not on Windows
termios = pytest.importorskip("termios")
LINEAR = lesson_named("linear")
RIGHT = solved(LINEAR, 1)
FIRST, BUG = Step("linear", "level 1"), Step("linear", "bug 1")
# what is pressed, and the number of the exercise; what is skipped comes again at the end
KEYS = (r"p 8, 99999\n 9, 0\n 9, 7\np 6, 1\np 1, n 10, 7\nn 9, 1\x1b\n 9, "
        rf"{len(whole_path())}\nnn 10")
DAY = r"""
see |  8 of | dv is the gradient | exercises/linear-level1.py in your editor, and begin with line
save rows.T @ dy_rows => -(rows.T @ dy_rows) | ratio -1 | The central | the first wrong line is
press hh | hint 1 of 4: its sign is wrong | hint 2 of 4: look at the forward's line
remove | exercises/linear-level1.py is missing: save it again, or press r to reset it\n
save y_rows = rows => y_rows = 2.0 * rows | solved: press n | linear_forward in this file differs
press \n | linear level 2 | Open exercises/linear-level2.py |  9 of
press l | linear         x 9 level 1 >10 level 2  11 level 3  12 bug\n
"""
FORMULAS = r"""
\left( \frac{x}{\sqrt{2 \pi}} \right)\,e^{-x^2/2} | (x/√(2 π)) e^(-x²/2)
\sum_{t=0}^{T-1} \delta_{v\,\mathrm{idx}_{bt}} | ∑_(t=0)^(T-1) δ[v,idx[b,t]]
\mathrm{wte}_{\mathrm{idx}_{bt},\,c} | wte[idx[b,t],c]
"""
MARKUP = r"(?m)[\\{}$]|^(line|level|hint|mistake|known):|_[^\w(]|\( | \)"
PATIENCE = 60           # seconds, for a busy machine


class Terminal:
    """A process of `npgpt learn` in its own terminal."""

    def __init__(self, request):
        self.here, self.there = pty.openpty()
        self.before, self.shown = termios.tcgetattr(self.there), ""
        path = str(Path(learn.__file__).parents[2])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "npgpt", "learn"], start_new_session=True,
            stdin=self.there, stdout=self.there, stderr=self.there,
            env={**os.environ, "TERM": "dumb", "COLUMNS": "200", "PYTHONPATH": path})
        request.addfinalizer(self.process.kill)

    def wait(self, *texts, keys=""):
        """Press keys; read until all texts and then the line of keys were shown."""
        os.write(self.here, keys.encode(errors="surrogateescape"))
        deadline = time.monotonic() + PATIENCE
        while not (all(text in self.shown for text in texts)
                   and self.shown.rstrip().endswith("q quit")):
            assert time.monotonic() < deadline, self.shown
            if select.select([self.here], [], [], 0.02)[0]:
                self.shown += os.read(self.here, 65536).decode().replace("\r\n", "\n")
        assert "Traceback" not in self.shown, self.shown
        self.shown = ""

    def ended(self, number):
        """The exit code after a signal; the terminal must be as it was."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        assert termios.tcgetattr(self.there) == self.before
        return code


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of exercises; all exercises before linear are solved."""
    monkeypatch.chdir(tmp_path)
    Path("exercises").mkdir()
    note_solved(whole_path()[:whole_path().index(FIRST)])
    return Path("exercises")


def note_solved(steps, **more):
    entries = {step.name: {"solved": "2025-01-02", "tries": 1, "hints": {}} for step in steps}
    Path("exercises/progress.json").write_text(json.dumps({"exercises": entries, **more}))


def save(path, text):
    """Save as many editors do: a new file replaces the old one."""
    Path("new").write_text(text)
    os.replace("new", path)


def played(folder, *pressed, at=None):
    """A session that begins at an exercise, after some keys and "q"; functions are called."""
    if at:
        Progress(folder).arrived(at.name)
    pressed = [*pressed]

    def read_key(seconds):
        key = pressed.pop(0) if pressed else "q"
        return key() if callable(key) else key

    session = learn.Session(folder, 20.0, read_key)
    learn.learn(session)
    return session


@pytest.mark.usefixtures("ctrl_c")
def test_from_the_start_to_another_day(request, folder):
    learn, file = Terminal(request), folder / FIRST.file
    for row in DAY.strip().split("\n"):
        what, *texts = row.replace(r"\n", "\n").split(" | ")
        verb, _, rest = what.partition(" ")
        if verb == "remove":
            file.unlink()
        elif verb == "save":
            save(file, RIGHT.replace(*rest.split(" => ")))
        learn.wait(*texts, keys=rest * (verb == "press"))
    assert learn.ended(signal.SIGTERM) == 143

    learn = Terminal(request)               # another day
    learn.wait("linear level 2", "dv is the gradient", "Linear layer. Open")
    learn.process.send_signal(signal.SIGTSTP)
    assert os.WIFSTOPPED(os.waitpid(learn.process.pid, os.WUNTRACED)[1])
    assert termios.tcgetattr(learn.there) == learn.before
    learn.process.send_signal(signal.SIGCONT)
    learn.wait("linear level 2")
    learn.wait("linear         x 9", keys="\x1b[A\udce9l")  # an arrow, and no UTF-8, do nothing
    assert learn.ended(signal.SIGINT) == 0


def test_reset_hunt_and_end(folder, capsys):
    note_solved([step for step in whole_path() if step not in (FIRST, BUG)])
    file, bug = folder / FIRST.file, folder / BUG.file
    said = played(folder, lambda: save(file, "mine = 1\n"), "r", "y").body
    assert f"{file} was reset; your text is in {file}.bak" in said
    assert f"reset {file} to its beginning? y/n" in capsys.readouterr().out
    assert "one line of its backward is wrong. Correct it" in played(folder, "n").body[0]
    right = RIGHT.replace(", level 1", ", bug 1")
    assert "begin with line" in played(folder, lambda: save(bug, right), "n").body[0]
    said = played(folder, lambda: save(file, f"{RIGHT}\nprint('hello')\n"), "\n").body
    assert "exercises are solved" in said[0] and f"--backward {folder}" in said[1]
    assert "hello" in capsys.readouterr().out


def test_without_a_terminal_it_is_one_line(npgpt):
    refused(npgpt("learn"), "learn needs a terminal", "npgpt exercise")
    assert not os.path.exists("exercises")


def test_it_begins_where_it_ended(folder):
    assert played(folder, at=Step("linear", "level 3")).step.level == 3     # 1 is not solved
    note_solved(whole_path()[:2], at="linear level 9")          # an exercise of another version
    assert played(folder).step == whole_path()[2]
    with pytest.raises(UserError, match="progress.json is damaged"):
        played(folder, lambda: note_solved([], at=1), "l")
    note_solved(whole_path(), at="linear level 1")
    assert played(folder).step is None


def test_the_mathematics_of_the_line_in_question(folder):
    whole = "\n".join(derivation_text(LINEAR))
    text = "\n".join(played(folder, "m", at=FIRST).body).removeprefix(whole)
    assert "The gradient of weight:" in text and "    dweight = rowsᵀ dy_rows" in text
    assert "dbias[j] =" not in text
    (folder / FIRST.file).write_text(RIGHT.replace("dy_rows @ weight.T", "-(dy_rows @ weight.T)"))
    assert "The gradient of rows:" in played(folder, "m", "c", "m").body
    # a bug hunt must not say which line
    assert "\n".join(played(folder, "m", at=BUG).body) == whole


@pytest.mark.parametrize("name", LESSONS)
def test_every_derivation_becomes_text(name):
    lesson = LESSONS[name]
    whole, sections = derivation_text(lesson), re.findall("(?m)^## (.*)$", read_text(lesson))
    notes = read_notes(lesson) | read_notes(lesson, long=True)
    for key in [*notes, *(f"d{section}" for section in sections)]:
        shown = derivation_text(lesson, key)
        assert len(shown) > len(whole)
        formulas = re.sub("`[^`]*`", "code", "\n".join(shown))
        assert not re.search(MARKUP, formulas)
        for a, b in "()", "[]":
            assert formulas.count(a) == formulas.count(b)


def test_a_formula_as_text():
    for row in FORMULAS.strip().split("\n"):
        latex, text = row.split(" | ")
        assert formula_text(latex) == text


def test_what_is_kept_by_a_reset_is_not_lost_by_another(folder):
    file, mine = folder / FIRST.file, solved(LINEAR, 2)
    file.write_text(mine)
    assert "names another exercise, linear level 2: press r to" in played(folder).body[-1]
    kept = reset(FIRST, file)
    for _ in range(2):
        assert reset(FIRST, file) is None
        file.write_text(" \n")          # an emptied file
    assert kept.read_text() == mine


@pytest.mark.parametrize("row", KEYS.split(", "))
def test_keys_go_to_an_exercise(folder, row):
    """From the ninth, linear level 1; those before it are solved, those after it are not."""
    pressed, _, number = row.rpartition(" ")
    session = played(folder, *pressed.encode().decode("unicode_escape"))
    assert session.step == whole_path()[int(number) - 1]
    assert ("there is no exercise" in session.body[-1]) == (r"0\n" in row or r"99\n" in row)


def test_long_lines_are_wrapped():
    text = f"  a bb ccc\n\x1b[1m123 5678\x1b[0m\na\tb\nab{screen.UNBROKEN}cd 12345"
    assert screen.wrapped(text, 8) == "  a bb\n  ccc\n\x1b[1m123 5678\x1b[0m\na\nb\nab cd\n12345"
