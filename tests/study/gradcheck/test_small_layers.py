"""What is said of `small_layers.py`, `schools.py` and the examples in the style of CS231n."""

import importlib
import random
import re
from pathlib import Path

import numpy as np
import pytest

from npgpt.study import verify
from npgpt.study.gradcheck.check import first_wrong
from npgpt.study.gradcheck.own import check_own
from npgpt.study.gradcheck.verdicts import ROUNDED
from npgpt.study.lessons.own_make import read_pair
from tests.study.gradcheck.schools import SCHOOLS
from tests.study.gradcheck.small_layers import CS231N, LAYERS

EXAMPLES = Path(__file__).parents[3] / "tools/examples/cs231n"
CASES = [
    (case, re.sub("(?m)^# .*\n", "", block))
    for block in (LAYERS + SCHOOLS).strip().replace("\n#   ", " ").split("\n\n")
    for case in re.findall("(?m)^# (.*)", block)
]
for row in CS231N.strip().split("\n"):
    layer, inputs, edit, wrong = row.split("|")
    file, layer = layer.split()[0], layer.split()[-1]
    text = (EXAMPLES / f"{file}.py").read_text()
    CASES.append((f"right {file} | {layer} | {inputs} | | right | not float64", text))
    CASES.append((f"planted {file} | {layer} | {inputs} | {edit} | {wrong}", text))


@pytest.mark.parametrize(("case", "code"), CASES, ids=[case.split(" |")[0] for case, _ in CASES])
def test_it_is_said_of(case, code, tmp_path, monkeypatch):
    fact, layer, inputs, edits, verdict, *words = map(str.strip, case.split("|"))
    if "float64:" in fact:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for edit in edits.replace(r"\n", "\n").split(" @@ ") * bool(edits):
        assert edit.split(" => ")[0] in code
        code = code.replace(*edit.split(" => "))
    file = tmp_path / "own.py"
    file.write_text(f"import numpy as np\n{code}")
    kind, _, piece = verdict.partition(": ")
    try:
        found = check_own(read_pair(file, layer, tuple(inputs.split("; ") * bool(inputs))))
    except Exception as error:
        said, is_ = str(error), "stopped"
    else:
        said, is_ = f"{found} {found.measured}", "right"
        if wrong := first_wrong(found.lines):
            is_ = f"WRONG {wrong.variable}"
            lines = file.read_text().split("\n")[(wrong.since or 0) - 1 : wrong.until or 0]
            assert piece in "\n".join(lines)
        elif "gradient was found" in said:
            is_ = "unread"
        elif any(each.verdict == ROUNDED for each in found.lines):
            is_ = "rounded"
    assert is_ == kind, said
    for word in words:
        assert (word.removeprefix("not ") in said) != word.startswith("not "), said


@pytest.mark.parametrize(
    ("name", "weights"), [("ResidualDropout", [np.ones(6)]), ("Highway", [np.eye(6), np.eye(6)])]
)
def test_verify_leaves_the_generators_and_the_object_as_they_were(
    name, weights, tmp_path, monkeypatch
):
    """The one draws random numbers, the backward of the other changes its weights."""
    code = next(code for _, code in CASES if f"class {name}" in code)
    (tmp_path / f"own_{name}.py").write_text(f"import numpy as np\n{code}")
    monkeypatch.syspath_prepend(tmp_path)
    layer = getattr(importlib.import_module(f"own_{name}"), name)(*weights)

    def state():
        return repr((np.random.get_state(), random.getstate(), vars(layer)))  # noqa: NPY002

    before = state()
    assert verify(layer, x=np.ones((4, 6))).right
    assert state() == before
