"""Layers of one's own, in files that know nothing of npgpt: `npgpt gradcheck my_layer.py` and `npgpt.study.verify`."""

from pathlib import Path

import numpy as np
import pytest

from npgpt import UserError
from npgpt.study import verify
from npgpt.study.gradcheck.check import first_wrong
from npgpt.study.gradcheck.own import check_own
from npgpt.study.gradcheck.verdicts import CONSTANT, OK, OTHER, UNNAMED
from npgpt.study.lessons.own_find import run_file
from npgpt.study.lessons.own_make import read_pair
from tests.helpers.runs import refused
from tests.study.gradcheck.cs231n import INPUTS, PLANTED

EXAMPLES = Path(__file__).resolve().parents[3] / "tools/examples/cs231n"
SWISH = """
import numpy as np

def swish_forward(x, beta):
    z = beta * x
    s = 1 / (1 + np.exp(-z))
    y = x * s
    return y, (x, beta, s)

def swish_backward(dout, cache):
    x, beta, s = cache
    ds = dout * x
    dz = ds * s * (1 - s)
    dbeta = (dz * x).sum(axis=(0, 1))
    dx = dout * s + dz * beta
    return dx, dbeta
"""


def check(file, texts=()):
    [found] = run_file(file)[1]
    return check_own(read_pair(file, found.name, tuple(texts)))


@pytest.mark.parametrize(("name", "old", "new", "variable", "piece"), PLANTED, ids=[each[0] for each in PLANTED])
def test_ten_layers_in_the_style_of_cs231n(name, old, new, variable, piece, tmp_path):
    """Right to 38 digits; with one typical mistake, that line is the first wrong one."""
    text = (EXAMPLES / name).read_text()
    found = check(EXAMPLES / name, INPUTS.get(name, []))
    assert found.measured == "" and {each.verdict for each in found.lines} <= {
        OK,
        UNNAMED,
        CONSTANT,
    }
    assert len(found.lines) > 1 and all(
        each.digits is None or each.digits > 37 for each in found.lines
    )
    (tmp_path / name).write_text(text.replace(old, new))
    wrong = first_wrong(check(tmp_path / name, INPUTS.get(name, [])).lines)
    lines = (tmp_path / name).read_text().split("\n")
    assert (wrong.variable, piece in lines[wrong.backward_line - 1]) == (variable, True)
    assert any(piece in line for line in lines[wrong.since - 1:wrong.until])


@pytest.mark.parametrize(("old", "new"), [
    ("(x, beta, s)\n\ndef", "{'x': x, 'beta': beta, 's': s}\n\ndef"),       # a dict, unpacked as one
    ("    return dx, dbeta", "    return {'dbeta': dbeta, 'x': dx}"),
    ("dx = dout * s + dz * beta\n    return dx", "b = dout * s + dz * beta\n    return b"),
    ("    y = x * s\n    return y", "    y = x.copy()\n    y *= s\n    return y"),
    ("ds = dout * x", "dout *= x\n    ds = dout\n    dout = dout / x"),         # it writes to its arguments
    ("ds = dout * x\n    dz = ds * s", "ds = 2 * dout * x\n    dz = ds / 2 * s"),       # a name for something else
    ("dbeta = (dz * x).sum(axis=(0, 1))", "dbeta = np.zeros(6)\n    for row in dz * x:\n        for dbeta_row in row:\n"
     "            dbeta += dbeta_row")])
def test_right_code_of_other_styles_is_right(old, new, tmp_path):
    assert SWISH.count(old) == 1
    text = SWISH.replace(old, new)
    file = tmp_path / "swish.py"
    file.write_text(text.replace("x, beta, s = cache", "x, beta, s = cache.values()") if "{'x': x," in new else text)
    checks = check(file, ["x=4,5,6", "beta=6"]).lines
    assert {each.verdict for each in checks} <= {OK, UNNAMED, OTHER}
    assert [each.digits > 35 for each in checks if each.verdict == OK].count(True) >= 3


def test_the_command_in_two_ways_of_saying_the_inputs(npgpt, tmp_path):
    file = tmp_path / "swish.py"
    file.write_text(SWISH)
    refused(npgpt("gradcheck", file), "nothing says the shape of x: use --input x=")
    norm = EXAMPLES / "batchnorm.py", "--input", "bn_param={'mode': 'test'}"        # a value that cannot be hashed
    refused(npgpt("gradcheck", *norm), "ValueError: no backward in mode test")
    file.write_text(SWISH.replace("dz * beta", "dz"))
    code, out, err = npgpt("gradcheck", file, "swish", "--input", "x=4,5,6", "--input", "beta=6")
    verdicts = {
        line.split()[0]: line.split()[-1] for line in out.splitlines() if line.startswith("  ")
    }
    assert (
        code == 1
        and err == ""
        and (verdicts["x"], verdicts["z"]) == ("WRONG", "ok")
        and "right to 40 digits" not in out
    )
    file.write_text(f"LESSON = {{'x': '2 T C: 0.1..2.0', 'beta': 'C'}}\n{SWISH}")
    code, out, _ = npgpt("gradcheck", file)
    assert code == 0 and "2x4x5" in out


HOSTILE = {     # what stands above the pair, or is replaced in it -> what is said of it
    "raise ValueError('two\\nlines')": "line 1: ValueError: two", "while True: pass": "has not ended within 2 seconds",
    ("return dx, dbeta", ""): "swish_backward returned nothing, not a gradient for each of x, beta",
    ("swish_backward", "swish_undo"): "there is no pair x_forward",
    "LESSON = 5": "LESSON must be a dict", "LESSON = {'x': 'N', 'beta': 'N, D'}": "no shape",
    "LESSON = {'x': 'N', 'beta': 'D', 'c': 'D'}": "no forward has an argument c",
    ("return y, (x, beta, s)", "return y"): "line 12: ValueError: too many values"}


@pytest.mark.parametrize("change", [pytest.param(each, marks=[pytest.mark.slow] * (i > 3))
                                    for i, each in enumerate(HOSTILE)], ids=range(len(HOSTILE)))
def test_a_hostile_file_gives_one_line(change, npgpt, tmp_path):
    text = f"{change}{SWISH}" if isinstance(change, str) else \
        "LESSON = {'x': 'N D', 'beta': 'D'}\n" + SWISH.replace(*change)
    (tmp_path / "swish.py").write_text(text)
    code, out, err = npgpt("gradcheck", tmp_path / "swish.py", "--time-limit", 2 if "while" in change else 30)
    line = err.strip().split("\n")[-1]
    assert code == 2 and out == "" and line.startswith(f"npgpt: {tmp_path}/swish.py") and HOSTILE[change] in line
    assert "Traceback" not in err


def double_forward(x, mask):
    y = 2.0 * x * mask
    return y, mask


def double_backward(dy, mask):
    dx = dy * mask
    return dx


def drawn_loss(x):
    return (x * np.random.default_rng(0).standard_normal()).sum(), np.full(x.shape, 0.12573022)


def test_names_with_two_underscores_of_functions_are_not_those_of_a_class():
    __twice = 2.0

    def scale_forward(x):
        y = __twice * x
        return y, None

    def scale_backward(dy, cache):
        dx = __twice * dy
        return dx

    assert verify(scale_forward, scale_backward, x=np.ones((2, 3))).right


def test_verify_in_a_notebook(capsys):
    x = np.random.default_rng(1).standard_normal((2, 3))
    found = verify(double_forward, double_backward, x=x, constants={"mask": np.eye(2, 3)})
    assert not found.right and capsys.readouterr().out == f"{found}\n" and "the first wrong line is " in repr(found)
    assert verify(drawn_loss, x=x).right
    with pytest.raises(UserError, match="an array of floating numbers"):
        verify(double_forward, double_backward, x=1, mask=1.0)
    with pytest.raises(UserError, match="define it by def"):
        verify(eval("lambda x: (x, x)"), np.exp, x=x)
