"""The lessons of the four rules in basics.py."""

import numpy as np

from npgpt.study.lessons import basics
from npgpt.study.lessons.lesson import Lesson


def unknown(setting, rng):
    """A function that the difference can only call."""
    a, b = rng.uniform(0.5, 2.0, 2).tolist()
    return {"f": lambda x: np.sin(a * x) + b * (x * x), "h": setting.step}


CHAIN = Lesson("The chain rule", basics.chain_forward, basics.chain_backward, {"x": "T C", "a": "T C"})
TWICE = Lesson("A variable used twice", basics.twice_forward, basics.twice_backward, {"x": "T C"})
BROADCAST = Lesson("Broadcasting", basics.broadcast_forward, basics.broadcast_backward,
                   {"x": "N C", "gain": "N 1", "bias": "C"})
DIFFERENCE = Lesson("A derivative, measured", basics.difference_forward, basics.difference_backward, {"x": "T C"},
                    unknown)
