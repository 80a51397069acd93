"""`npgpt exercise grade`: a table, CSV and JSON; what is not judged is said, and accidents are one
row each.
"""

import re
from pathlib import Path

import pytest

from npgpt.study.judge.grade import grade
from tests.study.judge.solutions import changed, each_of, play

SESSIONS = r"""
# the table, the CSV file and the autograders
class/=1+1/mine.py = linear | drows = dy_rows => print('hello')\n    drows = -dy_rows
class/=1+1/a.py : # npgpt exercise: linear, level 3\n!
class/bob/mine.py : # npgpt exercise: linear, level 3\n(
class/bob/b.py : # npgpt exercise: dropout, level 1\ndef dropout_backward(dy, cache):\n    dx = ...
$ exercise grade class --out grades.csv --json results.json --seed 5
        dropout level 1  linear level 3  right\n=1+1  -                wrong 62        0\n\
bob   unfinished       error           0\n\nall in the same random cases (--seed 5)\n
  not hello
$ show grades.csv
  student,exercise,verdict,line,gradient,mistake,remarks\n'=1+1,dropout level 1,missing,,,,\n\
'=1+1,linear level 3,wrong,62,drows,its sign is wrong,\
handed in more than once: =1+1/mine.py counts\nbob,dropout level 1,unfinished,3,,,\n\
bob,linear level 3,error,,,line 2: '(' was never closed,\n
$ show results.json
  "name": "=1+1: linear level 3",\n   "score": 0,\n   "max_score": 1,\n   "status": "failed",\n\
   "output": "wrong, line 62, drows, its sign is wrong, \
handed in more than once: =1+1/mine.py counts"
$ exercise grade class/bob --json results.json
  bob  unfinished
$ show results.json
  "tests": [\n  {\n   "name": "dropout level 1",\n   "score": 0

# what is not judged is said
class/a/MINE.PY = linear
class/a/MINE.PY ~ return dx, dweight, dbias => return dx, dweight, dbias\n\
# npgpt exercise: chain, level 1
class/b/a.ipynb : {}
class/b/a.zip :
class/b/__MACOSX/mine.py = linear
class/b/.mine.py = linear
class/b/my.txt :
class/b/gelu.py : # npgpt exercise: gelu_tanh, long way
class/b/my.py : 1
class/b/own.py : # npgpt exercise: affine of ../affine.py, level 3
class/__MACOSX/a.py :
$ exercise grade class --out grades.csv --seed 5
  \na  right           1\nb  -               0\n
  not MACOSX
  \nnot judged: b/a.ipynb: a notebook: hand in a .py file
  \nnot judged: b/a.zip: an archive: unpack it
  \nnot judged: b/gelu.py: gelu_tanh has no long way
  \nnot judged: b/my.py: is not an exercise file: its first line does not say which
  \nnot judged: b/my.txt: no .py file
  \nnot judged: b/own.py: on a layer in a file of one's own: npgpt exercise check judges it
  not b/.mine.py
$ show grades.csv
  begins another exercise, which is not judged"
  b/a.ipynb: a notebook: hand in a .py file; b/a.zip: an archive

# what cannot be graded is refused before anything runs
class/bob/a.txt :
2$ exercise grade class
  class: no exercise was handed in
class/alice/mine.py : open('ran', 'w')
2$ exercise grade class
  alice/mine.py: is not an exercise file
class/alice/mine.py : # npgpt exercise: linear, level 3\nopen('ran', 'w')
2$ exercise grade class --out no/file
  no/file cannot be written
  --out
2$ exercise grade class --json no/file
  no/file cannot be written
  --json
class/mine.py = linear
2$ exercise grade class
  class/mine.py is beside the students' folders: move it away
2$ exercise grade ran
  ran
"""
# what a hand-in does after the right function | its verdict | its mistake
ACCIDENTS = """
for each in Path('class').rglob('*.py'): each.write_text('') | right |
sys.exit() | error | SystemExit
os._exit(0) | error | ended its process (exit code 0)
os.kill(os.getpid(), 9) | error | signal 9
while True: pass | error | endless loop
while True: print('x' * 65536) | error | File too large
np.ones(1 << 33) | error | Memory
"""


@each_of(SESSIONS)
def test_a_session(session, npgpt, train):
    play(session, npgpt, train)
    assert not Path("ran").exists()


@pytest.mark.slow
def test_an_accident_is_one_row(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    accidents = [re.split(r" \| ?", line) for line in ACCIDENTS.strip().split("\n")]
    for i, (code, *_) in enumerate(accidents):
        Path(f"class/{i}").mkdir(parents=True)
        text = f"{changed('linear')[0]}\nimport os, sys, time\nfrom pathlib import Path\n{code}\n"
        Path(f"class/{i}/mine.py").write_text(text)
    rows, others = grade("class", 3, 4.0)
    assert len(rows) == len(accidents) and others == []
    for row in rows:
        _, verdict, mistake = accidents[int(row.student)]
        assert row.verdict == verdict and mistake in row.mistake, row
    assert "x" not in capfd.readouterr().err
