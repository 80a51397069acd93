"""`npgpt exercise` and `npgpt study` of a layer in a file of one's own: CS231n's."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from npgpt import load
from npgpt.study.exercises.exercise import Step
from npgpt.study.gradcheck.source import read_source
from npgpt.study.page.live import Live
from tests.study.judge.solutions import each_of, play

HERE = Path(__file__).parents[3] / "tools/examples/cs231n"
NEEDED = "jinja2", "pygments", "latex2mathml", "scipy"
SESSIONS = r"""
# exercises are judged and hinted
$ exercise affine.py --level 2
$ show exercises/affine-affine-level2.py
  # npgpt exercise: affine of ../affine.py, level 2\n
   ...\n
exercises/mine.py = affine.py:affine 2
$ exercise check exercises/mine.py
  right: every gradient is the true one, in 13 cases
exercises/mine.py = affine.py:affine 2 | np.sum(dout, axis=0) => np.mean(dout, axis=0)
1$ exercise check exercises/mine.py
  the first wrong line is {line}\n

# its derivation gives levels and hints
affine.md : Flat.\n\n## w\n\nline: dw\nlevel: 1\nhint: a matmul of rows\n
$ exercise affine.py affine --out mine.py
$ show mine.py
  dw = ...\n
$ exercise check mine.py --hint
  hint 1 of 2: a matmul of rows\n
affine.md : ## w\n\nlevel: 1\nmistake: none\n
2$ exercise affine.py --out other.py
  affine.md: a note is damaged: KeyError: 'hint'

# what is no layer of one's own is refused in a line
affine.py ~ dout.dot\(w.T\) => dout.dot(w.T) * 2
2$ exercise affine.py
  affine.py, line 22: drows is not right
2$ exercise softmax_loss.py
  a pair softmax_loss_forward and softmax_loss_backward is
2$ study softmax_loss.py
  a pair softmax_loss_forward and softmax_loss_backward is needed
mine.py : # npgpt exercise: affine of affine.py, level 3\n
2$ exercise check mine.py
  is not right
mine.py : # npgpt exercise: affine of gone.py, level 3\n
2$ exercise check mine.py
  gone.py: No such file
"""


@pytest.fixture(autouse=True)
def examples(npgpt):
    shutil.copytree(HERE, ".", dirs_exist_ok=True)


@each_of(SESSIONS)
def test_a_session(session, npgpt, train):
    play(session, npgpt, train)


@pytest.mark.skipif(not all(map(importlib.util.find_spec, NEEDED)), reason="makes the study page")
def test_the_page_of_a_layer(npgpt):
    play("$ study affine.py --out page.html", npgpt, None)
    body, _ = Path("page.html").read_text().split("<body")[1].split("<script>", 1)
    assert "npgpt study affine.py --open" in body and "WRONG" not in body
    lesson = Step("affine.py:affine", "").lesson
    live = Live([lesson], *load("tiny"), "a model")
    [statement] = [each for each in read_source(lesson.backward).statements if "dw" in each.targets]
    line = f"b{statement.first}"
    for text, verdict in ((statement.text, "right"), (f"{statement.text} * 2", "wrong")):
        answer = live.judge_edit({"layer": "affine", "edits": {line: text}})
        assert answer["verdict"] == verdict
