"""What is said of the layers of ten people, each right and with a planted mistake (schools/), of
`small_layers.py`, of packages and of many pairs; and what stays as it was.
"""

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
from tests.study.gradcheck.schools.masks import ResidualDropout
from tests.study.gradcheck.schools.planted import PLANTED
from tests.study.gradcheck.schools.updates import Highway
from tests.study.gradcheck.small_layers import LAYERS

SCHOOLS = Path(__file__).with_name("schools")  # ten people's layers; none knows of npgpt
CASES = [
    (case, re.sub("(?m)^# .*\n", "", block))
    for block in LAYERS.strip().replace("\n#   ", " ").split("\n\n")
    for case in re.findall("(?m)^# (.*)", block)
]
for line in PLANTED.strip().replace("\n    ", " ").split("\n"):
    school, name, given, change = line.split(" | ", 3)
    text = (SCHOOLS / school).read_text()
    CASES.append((f"right {name} | {name} | {given} | | right | not float64 | not other", text))
    CASES.append((f"planted {name} | {name} | {given} | {change} | not float64", text))
PAIR = """
def {0}_forward(x):
    y = twice(x) * SCALE
    return y, None
def {0}_backward(dy, cache):
    dx = 2 * dy
    return dx
"""


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


IMPORTS = [
    "from .tools import twice\nfrom ..common import SCALE",
    "from tools import twice, SCALE",
    "from nets.deep.tools import twice, SCALE",
]


@pytest.mark.parametrize("lines", IMPORTS)
def test_imports_without_an_init_file(lines, npgpt, tmp_path):
    """What runs only as a script, and never ends, does not run."""
    own = tmp_path / "nets/deep/own.py"
    own.parent.mkdir(parents=True)
    own.with_name("tools.py").write_text("SCALE = 1\ndef twice(x):\n    return 2 * x")
    (tmp_path / "nets/common.py").write_text("SCALE = 1")
    end = "if __name__ == '__main__':\n    while True: pass"
    own.write_text(f"{lines}{PAIR.format('own')}{end}")
    code, out, err = npgpt("gradcheck", own, "--input", "x=4,5")
    assert (code, err) == (0, "") and "right to 40 digits or more" in out


def test_eight_pairs_of_which_one_is_wrong_and_one_fails(npgpt, tmp_path):
    text = "twice, SCALE = (lambda x: 2 * x), 1" + "".join(map(PAIR.format, "abcdefgh"))
    text = text.replace("d_forward(x):", "d_forward(x):\n    1 / 0").replace("2 * dy", "3 * dy", 1)
    (tmp_path / "own.py").write_text(text)
    code, out, err = npgpt("gradcheck", tmp_path / "own.py", "--input", "x=4,5")
    assert code == 2 and "not all of it could be checked" in err
    assert "d --input x=…: line 24: ZeroDivisionError" in out.split("checked in")[1]
    assert "dx is 1.5 times" in out and "7 inputs and parameters, 1 wrong" in out


def test_verify_leaves_the_generators_and_the_object_as_they_were():
    random.seed(1)
    for layer in ResidualDropout(np.ones(6)), Highway(np.eye(6), np.eye(6)):
        both = np.random.get_state(), random.getstate()  # noqa: NPY002
        before = repr((both, vars(layer)))
        assert verify(layer, x=np.ones((4, 6))).right
        both = np.random.get_state(), random.getstate()  # noqa: NPY002
        assert repr((both, vars(layer))) == before
