"""`npgpt learn` in a pseudo-terminal: what it shows, what the keys do, and another day."""

import ast
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
from npgpt.study.exercises.exercise import notes_of, package_statements
from npgpt.study.exercises.mathematics import derivation_text, formula_text, read_text
from npgpt.study.exercises.path import CORE, MORE, WHOLE, Step, reset, unsolved
from npgpt.study.exercises.progress import Progress
from npgpt.study.lessons.table import LESSONS, lesson_named
from tests.helpers.runs import refused
from tests.study.judge.solutions import solved

pty = pytest.importorskip("pty")  # not on Windows
termios = pytest.importorskip("termios")
LINEAR = lesson_named("linear")
RIGHT = solved(LINEAR, 1)
FIRST, BUG = Step("linear", "level 1"), Step("linear", "bug 1")
AFTER = Step("gelu_tanh", "level 1")
# what is pressed, and the number of the exercise; what is skipped comes again at the end
KEYS = (
    r"p 4, 99999\n 5, 0\n 5, 7\np 6, 1\np 1, n 6, 7\nn 8, 1\x1b\n 5, 26\nn 5, "
    rf"{len(WHOLE)}\nnn 6"
)
DAY = r"""
see |  4 of 26 | dv is the gradient | exercises/linear-level1.py in your editor, and begin with line
press w | dweight[0,2] = rows[0,0]·dy_rows[0,2] + | rows.T @ dy_rows, the only order that fits
save rows.T @ dy_rows => -(rows.T @ dy_rows) | ratio -1 | The central | the first wrong line is
press hhhh | hint 1 of 4: its sign is wrong | formula: dweight = rowsᵀ dy_rows | 4: The answer:
remove | exercises/linear-level1.py is missing: save it again, or press r to reset it\n
save y_rows = rows => y_rows = 2.0 * rows | solved: press n | Why: weight[i, j] | linear_forward in
press \n | linear level 3 | Open exercises/linear-level3.py |  5 of
press l | linear         x 5 level 1 > 6 level 3   7 bug\n
"""
FORMULAS = r"""
\left( \frac{x}{\sqrt{2 \pi}} \right)\,e^{-x^2/2} | (x/√(2 π)) e^(-x²/2)
\sum_{t=0}^{T-1} \delta_{v\,\mathrm{idx}_{bt}} | ∑_(t=0)^(T-1) δ[v,idx[b,t]]
\mathrm{wte}_{\mathrm{idx}_{bt},\,c} | wte[idx[b,t],c]
"""
MARKUP = r"(?m)[\\{}$]|^>|^(line|level|hint|why|mistake|known):|_[^\w(]|\( | \)"
PATIENCE = 60  # seconds, for a busy machine


class Terminal:
    """A process of `npgpt learn` in its own terminal."""

    def __init__(self, request):
        self.here, self.there = pty.openpty()
        self.before, self.shown = termios.tcgetattr(self.there), ""
        path = str(Path(learn.__file__).parents[2])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "npgpt", "learn"],
            start_new_session=True,
            stdin=self.there,
            stdout=self.there,
            stderr=self.there,
            env={**os.environ, "TERM": "dumb", "COLUMNS": "200", "PYTHONPATH": path},
        )
        request.addfinalizer(self.process.kill)

    def wait(self, *texts, keys=""):
        """Press keys; read until all texts and then the line of keys were shown."""
        os.write(self.here, keys.encode(errors="surrogateescape"))
        deadline = time.monotonic() + PATIENCE
        while not (
            all(text in self.shown for text in texts) and self.shown.rstrip().endswith("q quit")
        ):
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
    note_solved(WHOLE[: WHOLE.index(FIRST)])
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

    learn = Terminal(request)  # another day
    learn.wait("linear level 3", "dv is the gradient", "Linear layer. Open")
    learn.process.send_signal(signal.SIGTSTP)
    assert os.WIFSTOPPED(os.waitpid(learn.process.pid, os.WUNTRACED)[1])
    assert termios.tcgetattr(learn.there) == learn.before
    learn.process.send_signal(signal.SIGCONT)
    learn.wait("linear level 3")
    learn.wait("linear         x 5", keys="\x1b[A\udce9l")  # an arrow, and no UTF-8, do nothing
    assert learn.ended(signal.SIGINT) == 0
    assert "linear-level3.py is kept: npgpt learn goes on" in os.read(learn.here, 65536).decode()


def test_reset_hunt_and_end(folder, capsys):
    note_solved([step for step in WHOLE if step.layer != "linear"])
    file, bug = folder / FIRST.file, folder / BUG.file
    said = played(folder, lambda: save(file, "mine = 1\n"), "r", "y", at=FIRST).body
    assert f"{file} was reset; your text is in {file}.bak" in said
    assert f"reset {file} to its beginning? y/n" in capsys.readouterr().out
    assert "one line of its backward is wrong. Correct it" in played(folder, "p", at=AFTER).body[0]
    right = RIGHT.replace(", level 1", ", bug 1")
    assert "begin with line" in played(folder, lambda: save(bug, right), "n", at=BUG).body[0]
    said = played(
        folder,
        lambda: save(file, f"{RIGHT}\nprint('hello')\n"),
        lambda: Progress(folder).tried("linear level 3", True),
        "\n",
        at=FIRST,
    ).body
    assert "exercises are solved" in said[0] and f"--backward {folder}" in said[1]
    assert "hello" in capsys.readouterr().out


def test_the_end_of_the_core(folder):
    """An exercise counts for its parts: the long way for its steps, a level for lower ones."""
    hard = {"layernorm": "long way", "gpt": "level 1", "self_attention": "level 2"}
    easy = [step for step in CORE if step.layer not in hard]
    note_solved([*easy, *(Step(*each) for each in hard.items()), Step("layernorm", "level 3")])
    assert [step for step in unsolved(Progress(folder)) if step in CORE] == []
    assert played(folder).step == MORE[0]  # the next day
    note_solved(CORE[:-1])
    said = played(folder, "n", at=CORE[-1]).body
    assert f"All {len(CORE)} exercises of the core" in said[0] and f"{len(MORE)} more" in said[-1]


def test_without_a_terminal_it_is_one_line(npgpt):
    refused(npgpt("learn"), "learn needs a terminal", "npgpt exercise")
    assert not os.path.exists("exercises")


def test_it_begins_where_it_ended(folder):
    assert played(folder, at=Step("linear", "level 3")).step.level == 3  # 1 is not solved
    note_solved(WHOLE[:2], at="linear level 9")  # an exercise of another version
    assert played(folder).step == WHOLE[2]
    note_solved(WHOLE, at="linear level 1")
    assert played(folder).step is None


def mathematics_of(folder, step, *pressed):
    """All pages that m shows, one text each; the first one comes again after the last."""
    shown = []

    def keys():
        yield from pressed
        for _ in range(10):
            yield "m"
            shown.append([*session.body])
        yield "q"

    Progress(folder).arrived(step.name)
    left = keys()
    session = learn.Session(folder, 20.0, lambda seconds: next(left))
    learn.learn(session)
    number = shown.index(shown[0], 1)
    assert all(f"page {i} of {number}" in body[-1] for i, body in enumerate(shown[:number], 1))
    return ["\n\n".join(body) for body in shown[:number]]


def test_the_mathematics_of_the_line_in_question(folder, monkeypatch):
    """In pages that fit the terminal: first the idea, the code last."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    *idea, code = mathematics_of(folder, FIRST)
    text = "\n".join(idea)
    assert "The gradient of weight:\n\n" in text and "    dweight = rowsᵀ dy_rows" in text
    assert "dbias[j] =" not in text and "rows.T @ dy_rows" not in text
    assert "    dweight = rows.T @ dy_rows\nThat is `rows.T @ dy_rows`: (n_in, N) times" in code
    pages = mathematics_of(folder, Step("layernorm", "level 1"))
    for page in (*pages, *idea, code):
        assert screen.wrapped(page, 80).count("\n") < 24 - 5
    said = re.findall("The gradient of (\\w+):", " ".join(pages))
    assert said == "rstd var centred mean x".split()
    (folder / FIRST.file).write_text(RIGHT.replace("dy_rows @ weight.T", "-(dy_rows @ weight.T)"))
    assert "The gradient of rows:" in "\n".join(mathematics_of(folder, FIRST, "c"))
    # a bug hunt must not say which line
    assert not re.search(r"The gradient of \w+:", "\n".join(mathematics_of(folder, BUG)))
    assert "no worked example" in played(folder, "w", at=BUG).body[-1]


@pytest.mark.parametrize("name", LESSONS)
def test_every_derivation_becomes_text(name):
    """The idea does not say the code, which comes at last."""
    for what in ["long way"] * bool(LESSONS[name].long_way) + ["level 3"]:
        lesson = Step(name, what).lesson
        (whole, none), lines = derivation_text(lesson), package_statements(lesson)
        assert not none
        sections = re.findall("(?m)^## (.*)$", read_text(lesson))
        for key in [*notes_of(lesson), *(f"d{section}" for section in sections)]:
            idea, code = derivation_text(lesson, [key])
            assert len(idea) > len(whole)
            formulas = re.sub("`[^`]*`", "code", "\n".join(idea + code))
            assert not re.search(MARKUP, formulas)
            assert formulas.count("(") == formulas.count(")")
            assert formulas.count("[") == formulas.count("]")
            line = re.sub(r"\s", "", ast.unparse(lines[key])) if key in lines else ""
            for quoted in re.findall("`([^`]*[(*@+][^`]*)`", " ".join(idea)):
                assert re.sub(r"\s", "", quoted) not in line, key


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
        file.write_text(" \n")  # an emptied file
    assert kept.read_text() == mine


@pytest.mark.parametrize("row", KEYS.split(", "))
def test_keys_go_to_an_exercise(folder, row):
    """From the ninth, linear level 1; those before it are solved, those after it are not."""
    pressed, _, number = row.rpartition(" ")
    session = played(folder, *pressed.encode().decode("unicode_escape"))
    assert session.step == WHOLE[int(number) - 1]
    assert ("there is no exercise" in session.body[-1]) == (r"0\n" in row or r"99\n" in row)


def test_long_lines_are_wrapped():
    text = f"  a bb ccc\n\x1b[1m123 5678\x1b[0m\na\tb\nab{screen.UNBROKEN}cd 12345"
    assert screen.wrapped(text, 8) == "  a bb\n  ccc\n\x1b[1m123 5678\x1b[0m\na\nb\nab cd\n12345"
