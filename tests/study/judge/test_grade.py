"""`npgpt exercise grade`: a table, CSV and JSON; what is not judged is said, and accidents are one
row each.
"""

import json
from pathlib import Path

import pytest

from npgpt.study.judge.grade import grade
from npgpt.study.lessons.table import lesson_named
from tests.helpers.runs import refused
from tests.study.judge.solutions import solved

LINEAR = solved(lesson_named("linear"), 3)
BEFORE = "import os, sys, time\nfrom pathlib import Path\n"
ACCIDENTS = {  # what a hand-in does after the right function -> its verdict and mistake
    "empty all files": (
        "for each in Path('class').rglob('*.py'): each.write_text('')",
        "right",
        "",
    ),
    "exit": ("sys.exit()", "error", "SystemExit"),
    "end": ("os._exit(0)", "error", "ended its process (exit code 0)"),
    "kill": ("os.kill(os.getpid(), 9)", "error", "signal 9"),
    "loop": ("while True: pass", "error", "endless loop"),
    "print": ("while True: print('x' * 65536)", "error", "File too large"),
    "take memory": ("np.ones(1 << 33)", "error", "Memory"),
}


def hand_in(student, text, file="mine.py", encoding="utf-8"):
    path = Path("class", student, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_an_accident_is_one_row(capfd):
    for name, (code, *_) in ACCIDENTS.items():
        hand_in(name, f"{LINEAR}\n{BEFORE}{code}\n")
    rows, others = grade("class", 3, 4.0)
    assert {row.student for row in rows} == {*ACCIDENTS} and others == []
    for row in rows:
        _, verdict, mistake = ACCIDENTS[row.student]
        assert row.verdict == verdict and mistake in row.mistake, row
    assert "x" not in capfd.readouterr().err


def test_the_table_the_csv_file_and_the_autograders(npgpt):
    """Of several hand-ins of an exercise the last counts. A spreadsheet takes no cell for a formula."""
    hand_in("=1+1", LINEAR.replace("drows = dy_rows", "drows = -dy_rows") + "print('hello')")
    hand_in("=1+1", "# npgpt exercise: linear, level 3\n!", "a.py")
    hand_in("bob", "# npgpt exercise: linear, level 3\n(")
    hand_in(
        "bob",
        "# npgpt exercise: dropout, level 1\ndef dropout_backward(dy, cache):\n    dx = ...\n",
        "b.py",
    )
    code, out, err = npgpt("exercise", "grade", "class", "--out", "grades.csv", "--json", "results.json", "--seed", 5)
    assert (code, err) == (0, "") and out == """\
      dropout level 1  linear level 3  right
=1+1  -                wrong 40        0
bob   unfinished       error           0

all in the same random cases (--seed 5)
"""
    assert Path("grades.csv").read_text() == """\
student,exercise,verdict,line,gradient,mistake,remarks
'=1+1,dropout level 1,missing,,,,
'=1+1,linear level 3,wrong,40,drows,its sign is wrong,handed in more than once: =1+1/mine.py counts
bob,dropout level 1,unfinished,3,,,
bob,linear level 3,error,,,line 2: '(' was never closed,
"""
    assert json.loads(Path("results.json").read_text())["tests"][1] == {
        "name": "=1+1: linear level 3", "score": 0, "max_score": 1, "status": "failed", "output":
        "wrong, line 40, drows, its sign is wrong, handed in more than once: =1+1/mine.py counts"}
    code, out, _ = npgpt("exercise", "grade", "class/bob", "--json", "results.json")  # one student
    assert out.split("\n")[1].startswith("bob  unfinished")
    assert json.loads(Path("results.json").read_text())["tests"][0]["name"] == "dropout level 1"


def test_what_is_not_judged_is_said(npgpt):
    hand_in("a", LINEAR + "\n# npgpt exercise: chain, level 1\n", "MINE.PY")
    for file, text in {
        "a.ipynb": "{}",
        "a.zip": "",
        "__MACOSX/mine.py": LINEAR,
        ".mine.py": LINEAR,
        "my.txt": "",
        "gelu.py": "# npgpt exercise: gelu_tanh, long way\n",
        "my.py": "1",
        "own.py": "# npgpt exercise: affine of ../affine.py, level 3\n",
    }.items():
        hand_in("b", text, file)
    hand_in("b", LINEAR, encoding="utf-16")
    hand_in("__MACOSX", "", "a.py")
    _, out, _ = npgpt("exercise", "grade", "class", "--out", "grades.csv", "--seed", 5)
    said = """\
b/a.ipynb: a notebook: hand in a .py file
b/a.zip: an archive: unpack it
b/gelu.py: gelu_tanh has no long way
b/mine.py: not UTF-8 but UTF-16: save it as UTF-8
b/my.py: is not an exercise file, because its first line does not say which exercise it is
b/my.txt: no .py file
b/own.py: on a layer in a file of one's own: npgpt exercise check judges it""".split("\n")
    macos = [f"{folder}__MACOSX: what macOS adds to an archive" for folder in ("", "b/")]
    assert out.split("\n")[1:3] == ["a  right           1", "b  -               0"]
    assert out.split("\n")[5:-1] == [f"not judged: {each}" for each in [macos[0], macos[1], *said]]
    first, second = Path("grades.csv").read_text().split("\n")[1:3]
    assert first.endswith('"line 45 begins another exercise, which is not judged"')
    assert "; ".join([macos[1], *said]) in second


def test_what_cannot_be_graded_is_refused_before_anything_runs(npgpt):
    refused(npgpt("exercise", "grade", "class"), "class: no exercise was handed in")
    hand_in("alice", "open('ran', 'w')")
    refused(npgpt("exercise", "grade", "class"), "alice/mine.py: is not an exercise file")
    hand_in("alice", LINEAR + "open('ran', 'w')")
    for flag in ("--out", "--json"):
        refused(npgpt("exercise", "grade", "class", flag, "no/file"), "no/file cannot be written", flag)
    hand_in("", LINEAR)  # a template
    refused(
        npgpt("exercise", "grade", "class"),
        "class/mine.py is beside the students' folders: move it away",
    )
    assert not Path("ran").exists()
