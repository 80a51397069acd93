"""Evaluate the formulas of a derivation, such as "dmean = -∑_c dcentred[c]", with 60 digits."""

import itertools
import re

import numpy as np

from npgpt.study.gradcheck.digits import mp_context

INDEX = r"\[(?:[^][]|\[[^]]*\])*\]"
TOKEN = re.compile(
    rf"∑_\(?[\w,]+\)?|∂\w+(?:{INDEX})?/∂\w+(?:{INDEX})?|√|δ|[A-Za-z_][A-Za-z0-9_]*|\d+|{INDEX}"
    r"|[-+·/^²³()]"
)
POWERS = {"²": 2, "³": 3}


def letters_in(text):
    """Return the index letters of a formula that no sum binds."""
    used = {each for inside in re.findall(INDEX, text) for each in re.findall(r"\b[a-z]\b", inside)}
    bound = {each for sums in re.findall(r"∑_(\(.*?\)|\w)", text) for each in sums}
    return sorted(used - bound - {"k"})


class Formula:
    """A formula as a number. values: name -> array; sizes: letter -> how far it counts."""

    def __init__(self, text, values, sizes):
        self.tokens, self.values, self.sizes = TOKEN.findall(text), values, sizes
        self.mp = mp_context()
        assert "".join(self.tokens) == text.replace(" ", ""), text

    def __call__(self, at):
        """Return its value. at: letter -> number; n also where the formulas leave it out."""
        self.left = [*self.tokens]
        found = self.sum(at)
        assert not self.left, self.tokens
        return found

    def take(self, *wanted):
        return self.left.pop(0) if self.left and self.left[0] in wanted else None

    def sum(self, at):
        total = (-1 if self.take("-") else 1) * self.product(at)
        while sign := self.take("+", "-"):
            total += self.product(at) * (-1 if sign == "-" else 1)
        return total

    def product(self, at):
        made = self.mp.mpf(1)
        while self.left and self.left[0] not in ("+", "-", ")"):
            if self.left[0].startswith("∑"):  # over all that follows in the product
                letters = re.findall(r"[a-z]", self.left.pop(0))
                rest, total = self.left, 0
                for turn in itertools.product(*(range(self.sizes[each]) for each in letters)):
                    self.left = [*rest]
                    total += self.product(at | dict(zip(letters, turn, strict=True)))
                return made * total
            self.take("·")
            factor = self.power(at)
            while self.take("/"):
                factor /= self.power(at)
            made *= factor
        return made

    def power(self, at):
        made = self.atom(at)
        if mark := self.take(*POWERS):
            made **= POWERS[mark]
        return made ** self.power(at) if self.take("^") else made

    def atom(self, at):
        token = self.left.pop(0)
        if token == "(":
            made = self.sum(at)
            assert self.take(")")
            return made
        if token in ("√", "log"):
            return (self.mp.sqrt if token == "√" else self.mp.log)(self.power(at))
        if token.isdigit() or token == "e":
            return self.mp.e if token == "e" else self.mp.mpf(token)
        index = self.left.pop(0)[1:-1] if self.left and self.left[0][0] == "[" else ""
        index = [self.index(each, at) for each in re.findall(r"\w\[\w\]|\w", index)]
        if token == "δ":
            return self.mp.mpf(index[0] == index[1])
        array = np.asarray(self.values[token])
        return array[tuple([at["n"]] * (array.ndim - len(index)) + index)]

    def index(self, text, at):
        return int(self.values[text[0]][at[text[2]]]) if len(text) > 1 else at[text]
