"""Layers of one's own, in files that know nothing of npgpt: `npgpt gradcheck my_layer.py` and
`npgpt.study.verify`.
"""

from pathlib import Path

import numpy as np

from npgpt.study import verify
from npgpt.study.lessons.own_call import kind_of
from tests.helpers.runs import refusing
from tests.study.gradcheck.small_layers import LAYERS
from tests.study.judge.solutions import each_of, play

SWISH = "\nimport numpy as np\n\n" + LAYERS[LAYERS.index("def swish_forward") :]


PAIR = """
def {0}_forward(x):
    y = twice(x) * SCALE
    return y, None
def {0}_backward(dy, cache):
    dx = 2 * dy
    return dx
"""
SESSIONS = r"""
# the inputs are said by flags, or by the file
2$ gradcheck swish.py
  nothing says the shape of x: use --input x=
swish.py ~ dz \* beta => dz
1$ gradcheck swish.py swish --input x=4,5,6 --input beta=6
  WRONG
  the first wrong line is 14: dx = dout * s + dz
  not right to 40 digits
swish.py ~ \A => LESSON = {'x': '2 T C: 0.1..2.0', 'beta': 'C'}
1$ gradcheck swish.py
  2x4x5

# a file that fails, and one that never ends
swish.py : raise ValueError('two' + chr(10) + 'lines')
2$ gradcheck swish.py
  swish.py, line 1: ValueError: two
swish.py : while True: pass
2$ gradcheck swish.py --time-limit 2
  has not ended within 2 seconds

# imports without an init file; what runs only as a script, and never ends, does not run
nets/deep/tools.py : SCALE = 1\ndef twice(x):\n    return 2 * x
nets/common.py : SCALE = 1
nets/deep/own.py ~ IMPORTS => from .tools import twice\nfrom ..common import SCALE
$ gradcheck nets/deep/own.py --input x=4,5
  right to 40 digits or more
nets/deep/own.py ~ from .tools .*\n.*SCALE => from tools import twice, SCALE
$ gradcheck nets/deep/own.py --input x=4,5
  right to 40 digits or more
nets/deep/own.py ~ from tools => from nets.deep.tools
$ gradcheck nets/deep/own.py --input x=4,5
  right to 40 digits or more

# eight pairs, of which one is wrong and one fails
eight.py ~ d_forward\(x\): => d_forward(x):\n    1 / 0
eight.py ~ \A((.*\n){5}.*)2 \* dy => \g<1>3 * dy
2$ gradcheck eight.py --input x=4,5
  all of it could be checked
  d --input x=…: line 24: ZeroDivisionError
  dx is 1.5 times
  inputs and parameters: 7, of which 1 wrong
"""


@each_of(SESSIONS)
def test_a_session(session, npgpt):
    Path("swish.py").write_text(SWISH)
    Path("nets/deep").mkdir(parents=True)
    script = "if __name__ == '__main__':\n    while True: pass"
    Path("nets/deep/own.py").write_text(f"IMPORTS\n{PAIR.format('own')}{script}")
    pairs = "".join(map(PAIR.format, "abcdefgh"))
    Path("eight.py").write_text(f"twice, SCALE = (lambda x: 2 * x), 1{pairs}")
    play(session, npgpt, None)


def double_forward(x, mask):
    y = 2.0 * x * mask
    return y, mask


def double_backward(dy, mask):
    dx = dy * mask
    return dx


def drawn_loss(x):
    return (x * np.random.default_rng(0).standard_normal()).sum(), np.full(x.shape, 0.12573022)


class Relu:
    def __init__(self):
        self.w = np.full(4, 2.0)

    def forward(self, x):
        self.x = x
        return self.w * np.maximum(x, 0)

    def backward(self, dy):
        self.dw = (dy * np.maximum(self.x, 0)).sum(0)
        return dy * self.w * (self.x > 0)


class Wrong(Relu):
    def backward(self, dy):
        dx = super().backward(dy)
        self.dw = self.dw * 2
        return dx


def test_verify_of_methods_and_at_a_kink():
    x = np.arange(12.0).reshape(3, 4)
    found = verify(Relu(), x=x)
    assert found.right and "at a kink" in str(found)
    for layer in (Relu(), Wrong()):
        found = verify(layer.forward, layer.backward, x=x)
        assert found.right == (type(layer) is Relu) and {"x", "w"} <= {
            each.variable for each in found.lines
        }
    with refusing(r"Relu is a class: give an object of it, as in Relu\("):
        verify(Relu, x=x)


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
    assert not found.right and "the first wrong line is " in repr(found)
    assert capsys.readouterr().out == f"{found}\n"
    assert verify(drawn_loss, x=x).right
    with refusing("an array of floating numbers"):
        verify(double_forward, double_backward, x=1, mask=1.0)
    with refusing("define it by def"):
        verify(eval("lambda x: (x, x)"), np.exp, x=x)


def test_what_a_function_has_returned_is_said():
    said = list(map(kind_of, [(1, 2), np.zeros(2), None, 3]))
    assert said == ["2 results", "an array", "nothing", "a int"]
