"""Declare the inputs of users' functions with texts such as "N D", in `LESSON` or --input; draw
arrays for them.

LESSON = {"x": "N D", "w": "D 4H", "b": "4H",           # sizes by letters or numbers
          "y": "N: 0..C", "p": "N D: 0.1..0.9",         # integers below C, constant; a range
          "labels": "N C: onehot",                      # rows with a single 1, constant
          "mask": "N D: constant", "eps": 1e-5,         # no gradient; any other Python value
          "params": {"W": "D H", "b": "H"}}             # a dict of arrays
"""

import ast
import random
import re

import numpy as np

from npgpt.errors import UserError
from npgpt.study.gradcheck.spelling import spellings
from npgpt.study.lessons.setting import SIZE, shape_of

PLAIN_SIZES = 4, 5, 6, 3, 7, 8, 9, 2  # of the letters, in the order in which they are named
NUMBER = r"-?\d+(?:\.\d*)?"
SHAPE = re.compile(
    rf"((?:\w+(?:\s+\w+)*)?)\s*(?::\s*(constant|onehot|({NUMBER}|\w+)\.\.({NUMBER}|\w+)))?"
)


def parts(spec):
    """Return the sizes of a shape, whether it is an "input", "integers" or "constant", and the
    limits or ().
    """
    letters, kind, *limits = SHAPE.fullmatch(spec).groups()
    if not kind or kind in ("constant", "onehot"):
        return letters, kind or "input", ()
    return letters, "input" if "." in "".join(limits) else "integers", limits


def is_shape(said):
    return isinstance(said, str) and SHAPE.fullmatch(said) is not None


def input_of(text):
    """Return (name, shape or value) of an --input.

    "x=4,5", "n=4," and "y=4:0..9" are shapes for `drawn`; "heads=2", "eps=1e-5", "mode='train'" are
    values.
    """
    name, is_given, said = text.partition("=")
    sizes, colon, kind = said.partition(":")
    if name.isidentifier() and is_given:
        try:
            value = ast.literal_eval(said)
            if not isinstance(value, tuple) or all(isinstance(each, str) for each in value):
                return name, Text(value) if isinstance(value, str) else value
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            pass
        text = sizes.replace(",", " ").strip() + colon + kind
        if SHAPE.fullmatch(text):
            is_word = re.fullmatch("[a-z_]+", said.strip())  # "train"; "n," is a shape
            return name, Text(text) if is_word else text
    raise UserError(
        f"--input {text}: write x=4,5 for a shape, n=4, for that of one axis, y=4:0..9 for "
        "integers, heads=2 or mode='train' for a value"
    )


class Text(str):
    """A string that is a value, not a shape."""


def is_sizes(said):
    """Return whether a string must be a shape, and no other word: each size has a digit or a
    capital letter.
    """
    return is_shape(said) and all(re.match(r"\d|[A-Z]", each) for each in parts(said)[0].split())


def is_computed(name, source):
    """Return whether the gradient of a variable is among the names that the code assigns."""
    return any(each in source for each, variable in spellings((name,)).items() if variable == name)


def sizes_of(specs, seed):
    """Return letter -> size for the letters in some specs: all sizes differ."""
    letters = dict.fromkeys(
        letter
        for spec in specs
        for each in parts(spec)[0].split()
        if (letter := SIZE.fullmatch(each)[2])
    )
    sizes = [*PLAIN_SIZES, *range(10, 10 + len(letters))]
    if seed:
        random.Random(seed).shuffle(sizes)
    return dict(zip(letters, sizes, strict=False))


def drawn(spec, sizes, rng, spread=1.0):
    """Draw the array of a spec: normal with standard deviation `spread`, or uniform in limits."""
    letters, kind, limits = parts(spec)
    shape = shape_of(letters, sizes)
    if kind == "onehot":
        return np.eye(shape[-1])[rng.integers(shape[-1], size=shape[:-1])]
    if kind == "integers":
        bounds = [
            int(each) if re.fullmatch(NUMBER, each) else shape_of(each, sizes)[0] for each in limits
        ]
        if bounds[0] >= bounds[1]:
            raise UserError(f'"{spec}" has no numbers: the second one must be larger')
        if bounds[0] + 1 == bounds[1]:
            raise UserError(f'"{spec}" is {bounds[0]} everywhere: the second one does not count')
        array = np.asarray(rng.integers(*bounds, shape))
        if array.size > 1:
            array.flat[-1] = array.flat[0]  # an index that occurs twice
        return array
    if limits:
        return np.asarray(rng.uniform(*map(float, limits), shape))
    return np.asarray(spread * rng.standard_normal(shape))
