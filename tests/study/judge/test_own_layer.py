"""`npgpt exercise` and `npgpt study` of a layer in a file of one's own: CS231n's, and files not as they say."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from npgpt import load
from npgpt.study.exercises.exercise import Step, levels_of
from npgpt.study.page.live import Live
from tests.helpers.runs import refused
from tests.study.gradcheck.cs231n import PLANTED
from tests.study.judge.solutions import solved

HERE = Path(__file__).parents[3] / "tools/examples/cs231n"
PAIRS = [each for each in PLANTED if not each[0].endswith(("loss.py", "net.py"))]
page = pytest.mark.skipif(any(importlib.util.find_spec(name) is None for name in (
    "jinja2", "pygments", "latex2mathml", "scipy")), reason="makes the study page")


@pytest.fixture
def own(npgpt):
    """own(file) -> a copy of an example, in the current folder; that of ReLU says the shape of x."""
    return lambda file: write(file, (HERE / file).read_text() + '\nLESSON = {"x": "4 5"}\n' * (file == "relu.py"))


def write(file, text):
    Path(file).write_text(text)
    return Path(file)


def test_exercises_are_judged_and_hinted(own, npgpt, monkeypatch):
    [(file, old, new, _, piece)] = [each for each in PAIRS if each[0] == "lstm_step.py"]
    key = f"{own(file)}:{file[:-3]}"
    what = levels_of(key)[-1]
    name = f"{file[:-3]}-{file[:-3]}-{what.replace(' ', '')}.py"
    assert npgpt("exercise", file, "--level", what[-1])[0] == 0
    begun = Path("exercises", name).read_text()
    assert (
        begun.startswith(f"# npgpt exercise: {file[:-3]} of ../{file}, {what}\n")
        and " ...\n" in begun
    )
    text = solved(Step(key, what).lesson, int(what[-1])).replace(f" of {file},", f" of ../{file},")
    monkeypatch.chdir("exercises")          # it is found from any folder
    code, out, _ = npgpt("exercise", "check", write(name, text))
    assert code == 0 and "right: every gradient is the true one, in 13 cases" in out
    wrong = text.replace(old, new)
    line = wrong[:wrong.index(piece)].count("\n") + 1
    code, out, _ = npgpt("exercise", "check", write(name, wrong))
    assert code == 1 and f"the first wrong line is {line}\n" in out


def test_its_derivation_gives_levels_and_hints(own, npgpt):
    own("affine.py").with_suffix(".md").write_text("Flat.\n\n## w\n\nline: dw\nlevel: 1\nhint: a matmul of rows\n")
    npgpt("exercise", "affine.py", "affine", "--out", "mine.py")
    assert "dw = ...\n" in Path("mine.py").read_text()
    npgpt("exercise", "check", "mine.py", "--hint")
    assert npgpt("exercise", "check", "mine.py", "--hint")[1] == "hint 2 of 3: a matmul of rows\n"
    write("affine.md", "## w\n\nlevel: 1\nmistake: none\n")
    refused(npgpt("exercise", "affine.py", "--out", "other.py"), "affine.md: a note is damaged: KeyError: 'hint'")


def test_what_is_no_layer_of_ones_own_is_refused_in_a_line(own, npgpt):
    write("affine.py", own("affine.py").read_text().replace("dout.dot(w.T)", "dout.dot(w.T) * 2"))
    refused(npgpt("exercise", "affine.py"), "affine.py, line 22: drows is not right")
    refused(npgpt("exercise", own("softmax_loss.py")), "a pair softmax_loss_forward and softmax_loss_backward is")
    refused(npgpt("study", "softmax_loss.py"), "a pair softmax_loss_forward and softmax_loss_backward is needed")
    for of, says in {"affine.py": "is not right", "gone.py": "gone.py: No such file"}.items():
        refused(
            npgpt(
                "exercise",
                "check",
                write("mine.py", f"# npgpt exercise: affine of {of}, level 3\n"),
            ),
            says,
        )


@page
def test_the_page_of_a_layer(own, npgpt):
    file = "affine.py"
    assert npgpt("study", own(file), "--out", "page.html")[0] == 0
    text, name = Path("page.html").read_text(), file[:-3]
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])
    body = text.partition("<body")[2].partition("<script>")[0]
    assert "WRONG" not in body and "GPT-2" not in body and f"npgpt study {file} --open" in body
    live = Live([Step(f"{file}:{name}", "").lesson], *load("tiny"), "a model")
    [layer] = data["layers"]
    line, typed = next((line, typed) for line, typed in layer["typed"].items() if typed["level"] == 1)
    request = {"layer": name, "edits": {line: typed["text"]}}
    assert live.judge_edit(request)["verdict"] == "right"
    assert live.judge_edit(request | {"edits": {line: typed["text"] + " * 2"}})["first"] == line
