"""`npgpt learn` in a pseudo-terminal: what it shows, what the keys do, and that it continues another day."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from npgpt.cli import learn, screen
from npgpt.errors import UserError
from npgpt.study.exercises.mathematics import derivation_text, formula_text, read_notes, read_text
from npgpt.study.exercises.path import Step, reset, unsolved, whole_path
from npgpt.study.exercises.progress import Progress
from npgpt.study.gradcheck.source import read_source
from npgpt.study.lessons.table import LESSONS, lesson_named
from tests.helpers.runs import refused
from tests.study.judge.solutions import solved

pty = pytest.importorskip("pty")            # not on Windows
termios = pytest.importorskip("termios")
LINEAR = lesson_named("linear")
RIGHT = solved(LINEAR, 1)
FIRST, BUG = Step("linear", "level 1"), Step("linear", "bug 1")
PATIENCE = 60           # seconds, for a busy machine


class Terminal:
    """A process of `npgpt learn` in its own terminal."""

    def __init__(self, request):
        self.here, self.there = pty.openpty()
        self.before, self.shown = termios.tcgetattr(self.there), ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "npgpt", "learn"], stdin=self.there, stdout=self.there, stderr=self.there,
            start_new_session=True, env={**os.environ, "TERM": "dumb", "COLUMNS": "200",
                                         "PYTHONPATH": str(Path(learn.__file__).parents[2])})
        request.addfinalizer(self.process.kill)

    def wait(self, *texts, end="q quit"):
        """Read until all texts and then the line of keys were shown. Returns what was shown since the last wait.

        end: the end of a question that is shown instead of the keys, or "".
        """
        deadline = time.monotonic() + PATIENCE
        while not (all(text in self.shown for text in texts) and self.shown.rstrip().endswith(end)):
            assert time.monotonic() < deadline, self.shown
            if select.select([self.here], [], [], 0.02)[0]:
                self.shown += os.read(self.here, 65536).decode().replace("\r\n", "\n")
        shown, self.shown = self.shown, ""
        assert "Traceback" not in shown, shown
        return shown

    def press(self, key, *texts, end="q quit"):
        os.write(self.here, key.encode(errors="surrogateescape"))
        return self.wait(*texts, end=end)

    def ended(self):
        """The exit code; the terminal must be as it was."""
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
    """A session after some keys, and "q"; a function among them is called. at: the exercise where it begins."""
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
    file, done = folder / "linear-level1.py", len(whole_path()) - len(unsolved(Progress(folder)))
    learn = Terminal(request)
    shown = learn.wait(f"{done} of {len(whole_path())}", "dv is the gradient of v.")
    line = file.read_text().split("dweight = ...")[0].count("\n") + 1
    assert f"Open {file} in your editor, and begin with line {line}: replace `...`" in shown
    file.write_text(RIGHT.replace("rows.T @ dy_rows", "-(rows.T @ dy_rows)"))
    learn.wait(
        "dweight",
        "ratio -1",
        "The central difference measures",
        f"the first wrong line is {line}\n",
    )
    learn.press("hh", "hint 1 of 4: its sign is wrong", "hint 2 of 4: look at the forward's line")
    file.unlink()
    learn.wait(f"{file} is missing: save it again, or press r to reset it\n")
    save(file, RIGHT.replace("y_rows = rows @ weight", "y_rows = 2.0 * rows @ weight"))
    shown = learn.wait("solved: press n", "the linear_forward in this file differs from npgpt's: the judge calls")
    assert "missing" not in shown
    learn.press("\n", "linear level 2", f"Open {folder}/linear-level2.py", f"{done + 1} of")
    learn.press("l", "linear         x 9 level 1 >10 level 2  11 level 3  12 bug\n")
    learn.process.terminate()
    assert learn.ended() == 143

    learn = Terminal(request)               # another day
    learn.wait("linear level 2", "dv is the gradient", "Linear layer. Open")
    learn.process.send_signal(signal.SIGTSTP)
    assert os.WIFSTOPPED(os.waitpid(learn.process.pid, os.WUNTRACED)[1])
    assert termios.tcgetattr(learn.there) == learn.before
    learn.process.send_signal(signal.SIGCONT)
    learn.wait("linear level 2")
    learn.press("\x1b[A\udce9l", "linear         x 9")        # an arrow key, and a byte that is not UTF-8, do nothing
    learn.process.send_signal(signal.SIGINT)
    assert learn.ended() == 0


@pytest.mark.slow
def test_reset_hunt_and_end(folder, capsys):
    note_solved([step for step in whole_path() if step not in (FIRST, BUG)])
    file, bug = folder / FIRST.file, folder / BUG.file
    said = played(folder, lambda: save(file, file.read_text() + "mine = 1\n"), "r", "y").body
    assert f"{file} was reset; your text is in {file}.bak" in said
    assert f"reset {file} to its beginning? y/n" in capsys.readouterr().out
    assert "one line of its backward is wrong. Correct it, and save" in played(folder, "n").body[0]
    right = "\n".join([bug.read_text().split("\ndef linear_backward")[0], *read_source(LINEAR.backward).lines, ""])
    assert "begin with line" in played(folder, lambda: save(bug, right), "n").body[0]
    solution = RIGHT.replace("    return", "    print('from the solution')\n    return")
    said = played(folder, lambda: save(file, solution), "\n").body
    assert "exercises are solved" in said[0] and f"--backward {folder}" in said[1]
    assert "from the solution" in capsys.readouterr().out


def test_without_a_terminal_it_is_one_line(npgpt):
    refused(npgpt("learn"), "learn needs a terminal", "npgpt exercise")
    assert not os.path.exists("exercises")


def test_it_begins_where_it_ended(folder):
    assert played(folder, at=Step("linear", "level 3")).step.level == 3         # although level 1 is not solved
    note_solved(whole_path()[:2], at="linear level 9")          # an exercise of another version
    assert played(folder).step == whole_path()[2]
    with pytest.raises(UserError, match='progress.json is damaged'):
        played(folder, lambda: note_solved([], at=1), "l")
    note_solved(whole_path(), at="linear level 1")
    assert played(folder).step is None


def test_the_mathematics_of_the_line_in_question(folder):
    body = played(folder, "m", at=FIRST).body
    section = body.index("The gradient of weight:")
    assert body[:section] == derivation_text(LINEAR) and "    dweight = rowsᵀ dy_rows" in body[section:]
    assert not any("dbias[j] =" in each for each in body)
    (folder / FIRST.file).write_text(RIGHT.replace("dy_rows @ weight.T", "-(dy_rows @ weight.T)"))
    assert "The gradient of rows:" in played(folder, "m", "c", "m").body
    (folder / FIRST.file).write_text("")
    assert played(folder, "m").body == derivation_text(LINEAR)
    assert played(folder, "m", at=BUG).body == derivation_text(LINEAR)      # it must not say which line
    layernorm = played(folder, "m", at=Step("layernorm", "long way"))
    assert "The gradient of rstd:" in layernorm.body


@pytest.mark.parametrize("name", LESSONS)
def test_every_derivation_becomes_text(name):
    text = read_text(LESSONS[name])
    for key in [None, *read_notes(LESSONS[name]), *read_notes(LESSONS[name], long=True),
                *re.findall("^## (.*)$", text, re.MULTILINE)]:
        key = f"d{key}" if key and f"## {key}\n" in text else key
        shown = derivation_text(LESSONS[name], key)
        assert len(shown) > len(derivation_text(LESSONS[name])) or key is None
        formulas = re.sub("`[^`]*`", "code", "\n".join(shown))
        assert not re.search(r"[\\{}$]|^(line|level|hint|mistake|known):|_[^\w(]|\( | \)", formulas, re.MULTILINE)
        assert all(formulas.count(a) == formulas.count(b) for a, b in ("()", "[]"))


def test_a_derivation_may_have_a_byte_order_mark(tmp_path):
    (tmp_path / "mine.md").write_text("\ufeffWith words.", encoding="utf-8")
    assert read_text(SimpleNamespace(derivation=tmp_path / "mine.md")) == "With words."


@pytest.mark.parametrize(("latex", "text"), [
    (r"\left( \frac{x}{\sqrt{2 \pi}} \right)\,e^{-x^2/2}", "(x/√(2 π)) e^(-x²/2)"),
    (r"\sum_{t=0}^{T-1} \delta_{v\,\mathrm{idx}_{bt}}\,\mathrm{wte}_{\mathrm{idx}_{bt},\,c}",
     "∑_(t=0)^(T-1) δ[v,idx[b,t]] wte[idx[b,t],c]"),
])
def test_a_formula_as_text(latex, text):
    assert formula_text(latex) == text


def test_what_is_kept_by_a_reset_is_not_lost_by_another(folder):
    file, mine = folder / FIRST.file, RIGHT.replace("linear, level 1", "linear, level 2")
    file.write_text(mine)
    assert "its first line names another exercise, linear level 2: press r to reset" in played(folder).body[-1]
    kept = reset(FIRST, file)
    assert reset(FIRST, file) is None
    file.write_text(" \n")
    assert reset(FIRST, file) is None       # an emptied file
    assert kept.read_text() == mine


@pytest.mark.parametrize(
    ("pressed", "number"),
    [
        ("p", 8),
        ("99999\n", 9),
        ("0\n", 9),
        ("7\np", 6),
        ("1\np", 1),
        ("n", 10),
        ("7\nn", 9),
        ("1\x1b\n", 9),
        (f"{len(whole_path())}\nnn", 10),  # what is skipped comes again at the end
    ],
)
def test_keys_go_to_an_exercise(folder, pressed, number):
    """From the ninth exercise, linear level 1; those before it are solved, those after it are not."""
    session = played(folder, *pressed)
    assert session.step == whole_path()[number - 1]
    assert ("there is no exercise" in session.body[-1]) == (pressed in ("0\n", "99999\n"))


def test_long_lines_are_wrapped():
    text = f"  a bb ccc\n\x1b[1m123 5678\x1b[0m\na\tb\nab{screen.UNBROKEN}cd 12345"
    assert screen.wrapped(text, 8) == "  a bb\n  ccc\n\x1b[1m123 5678\x1b[0m\na\nb\nab cd\n12345"
