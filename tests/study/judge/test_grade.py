"""`npgpt exercise grade`: whatever a hand-in does, it spoils only its own row, and nothing of it is left."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import npgpt as package
from npgpt.study.exercises.exercise import Step, preamble
from npgpt.study.exercises.findings import Finding
from npgpt.study.exercises.path import initial
from npgpt.study.judge.child import Answer
from npgpt.study.judge.grade import grade
from npgpt.study.judge.outcome import to_json
from npgpt.study.judge.report import Fault, Report
from npgpt.study.lessons.table import lesson_named
from tests.helpers.runs import refused
from tests.study.judge.corpus import SOLUTIONS, source
from tests.study.judge.solutions import solved

HERE = Path(__file__).parents[3]
LINEAR = solved(lesson_named("linear"), 3)
BEFORE = "import contextlib, os, sys, tempfile, time\nfrom pathlib import Path\n"
ZEROS = "linear_backward = lambda dy, cache: (0 * cache[0], 0 * cache[1], 0 * cache[1][0] if cache[2] else None)\n"
LEAVE = "for _ in range(20):\n    if os.fork() == 0:\n        os.setsid(); time.sleep(300); os._exit(0)\n"
FORGE = "for fd in range(64):\n    with contextlib.suppress(OSError): os.write(fd, FORGED.encode())\nos._exit(0)"
HOSTILE = {         # what a hand-in does after the right function -> its verdict and mistake
    "kill the parent": ("os.kill(os.getppid(), 9); time.sleep(60)", "error", "signal 9"),
    "kill the group": ("os.killpg(0, 9)", "error", "signal 9"),
    "leave children": (LEAVE, "right error", ""),       # error: a user other than root may not fork there
    "leave a dead parent's": (LEAVE + "os.kill(os.getppid(), 9); time.sleep(60)", "error", ""),
    "all files": ("for each in Path(CLASS).rglob('*.py'): each.write_text('')", "right", ""),
    "change npgpt": ("import npgpt; Path(npgpt.__file__).with_name('spoiled').touch()", "right", ""),
    "print": ("print('hello', file=sys.stderr)", "right", ""),
    "leave files": ("tempfile.NamedTemporaryFile(delete=False); Path('here').mkdir(0)", "right", ""),
    "loop": ("while True: pass", "error", "endless loop"),
    "sleep": ("time.sleep(300)", "error", "has not ended"),
    "exit": ("sys.exit()", "error", "SystemExit"),
    "flood": ("while True: os.write(1, b'x' * 65536)", "error", "File too large"),
    "take memory": ("np.ones(1 << 33)", "error", "Memory"),
    "forge": (FORGE, "error", "disturbed"),
    "forge nonsense": (FORGE, "error", "no kind"),
    "change NumPy": (ZEROS + "np.abs = lambda *_: np.zeros(1)", "wrong", ""),
    "change the judge": (ZEROS + "sys.modules['npgpt.study.judge.judge'].compared = lambda *_: 'ok'", "error",
                         "disturbed"),
    "call the answer": ("from npgpt.layers import linear_backward", "right", "")}
FORGED = {"forge": [], "forge nonsense": [Fault(Finding("no kind"), 1)]}


def hand_in(student, text, file="mine.py"):
    path = Path("class", student, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def left(folder):
    """The processes whose files for a while are, or were, in a folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            found += [each.parent.name] * (f"TMPDIR={folder}".encode() in each.read_bytes())
    return found


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary files go: when a test ends nothing is left there, and no process that had them there."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert left(folder) == [] == os.listdir(folder)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends what has left its process group")
def test_a_class_of_30(temporary, capfd):
    expected = {}
    for name, (code, verdict, mistake) in HOSTILE.items():
        forged = Answer(Report("", [], FORGED.get(name, []), [], [], []))
        code = code.replace("FORGED", repr(json.dumps(forged, default=to_json) + "\n"))
        code = code.replace("CLASS", repr(os.path.abspath("class")))
        hand_in(name, f"{LINEAR}\n{BEFORE}{code}\n")
        expected[name] = verdict, mistake
    for layer in ("layernorm", "attention", "cross_entropy", "mlp"):
        chosen = [each for each in SOLUTIONS[layer] if each.says is None][:layer != "mlp"]
        for solution in chosen + [each for each in SOLUTIONS[layer] if each.says and each.key is None][:2]:
            student = f"{layer}, {solution.name}"
            hand_in(student, f"# npgpt exercise: {layer}, level 1\n{preamble(lesson_named(layer))}\n\n\n"
                    + source(layer, solution))
            expected[student] = ("wrong", solution.says) if solution.says else ("right", "")
    hand_in("unfinished", initial(Step("linear", "level 2"), Path("mine.py")).decode())
    expected["unfinished"] = "unfinished", ""
    start = time.monotonic()
    rows, others = grade("class", [], 3, 8.0)
    print(f"{len(expected)} students: {time.monotonic() - start:.0f} s")
    done = {row.student: row for row in rows if row.verdict != "missing"}
    for student, (verdict, mistake) in expected.items():
        assert done[student].verdict in verdict.split() and mistake in done[student].mistake, done[student]
    assert done["call the answer"].remarks.startswith("uses npgpt's own linear_backward; ")
    assert len(done) == 30 and others == [] and capfd.readouterr().err == ""
    assert not Path(package.__file__).with_name("spoiled").exists()


def test_the_table_the_csv_file_and_the_autograders(npgpt, temporary):
    """Of several hand-ins of an exercise the last counts. A spreadsheet takes no cell for a formula."""
    hand_in("=1+1", LINEAR.replace("drows = dy_rows", "drows = -dy_rows") + "print('hello')")
    hand_in("=1+1", "# npgpt exercise: linear, level 3\n!", "a.py")
    hand_in("bob", "# npgpt exercise: linear, level 3\n(")
    hand_in("bob", "# npgpt exercise: gelu_tanh, long way\n", "gelu.py")
    Path("class/bob/link.py").symlink_to("gelu.py")
    code, out, err = npgpt("exercise", "grade", "class", "--out", "grades.csv", "--json", "results.json", "--seed", 5)
    assert (code, err) == (0, "") and out == """\
      gelu_tanh long way  linear level 3  right
=1+1  -                   wrong 40        0
bob   error               error           0

all in the same random cases (--seed 5); no exercises: bob/link.py
"""
    assert Path("grades.csv").read_text() == """\
student,exercise,verdict,line,gradient,mistake,remarks
'=1+1,gelu_tanh long way,missing,,,,
'=1+1,linear level 3,wrong,40,drows,its sign is wrong,handed in more than once: =1+1/mine.py counts
bob,gelu_tanh long way,error,,,gelu_tanh has no long way,
bob,linear level 3,error,,,line 2: '(' was never closed,
"""
    assert json.loads(Path("results.json").read_text())["tests"][1] == {
        "name": "=1+1: linear level 3", "score": 0, "max_score": 1, "status": "failed", "output":
        "wrong, line 40, drows, its sign is wrong, handed in more than once: =1+1/mine.py counts"}


def test_a_teachers_own_lesson_is_graded_and_no_file_that_a_title_names_runs(npgpt, temporary):
    affine = Path("affine.py")
    affine.write_text((HERE / "tools/examples/cs231n/affine.py").read_text())
    right = solved(lesson_named("affine.py:affine"), 3)
    Path("evil.py").write_text("open('ran', 'w')\n" + affine.read_text())
    hand_in("", right.replace("affine.py,", "../evil.py,"))
    assert "affine.py:affine" in npgpt("exercise", "--lessons", affine)[1]
    for flags, says in {("--lessons", affine): "right", (): "--lessons must name the file that has"}.items():
        code, out, err = npgpt("exercise", "grade", "class", "--json", "results.json", *flags)
        [test] = json.loads(Path("results.json").read_text())["tests"]
        assert (code, err) == (0, "") and says in test["output"] and "level 3" in test["name"] and test["score"] == (
            says == "right") and not Path("ran").exists() and out.split("\n")[1].startswith("class ")
    affine.write_text(affine.read_text().replace("dout.dot(w.T)", "2 * dout.dot(w.T)"))
    refused(npgpt("exercise", "grade", "class", "--lessons", affine), "affine.py, line 22: drows is not right")


def test_what_cannot_be_graded_is_refused_before_anything_runs(npgpt, temporary):
    refused(npgpt("exercise", "grade", "class"), "class: there is no such folder")
    hand_in("alice", "open('ran', 'w')")
    refused(npgpt("exercise", "grade", "class"), "class: nothing was handed in")
    hand_in("alice", LINEAR + "open('ran', 'w')")
    for flag in ("--out", "--json"):
        refused(npgpt("exercise", "grade", "class", flag, "no/file"), "no/file cannot be written", flag)
    assert not list(temporary.parent.rglob("ran"))


@pytest.mark.slow
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_all_at_once(temporary):
    for student in "abc":
        hand_in(student, f"# npgpt exercise: linear, level 3\nopen({os.path.abspath(student)!r}, 'w')\nwhile 1: pass")
    with subprocess.Popen([sys.executable, "-m", "npgpt", "exercise", "grade", "class"], stderr=subprocess.PIPE,
                          env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}) as caller:
        while caller.poll() is None and not (Path("a").exists() and Path("b").exists()):
            time.sleep(0.01)
        caller.send_signal(signal.SIGINT)
        assert caller.wait(5) == 130 and caller.stderr.read() == b"interrupted\n" and not Path("c").exists()
