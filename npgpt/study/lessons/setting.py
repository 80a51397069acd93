"""A setting: the sizes and options of all arrays of a lesson.

All sizes differ, and so do the products of sizes that meet in a matmul. So a missing transpose
raises an error, and a wrong shape tells which axis is wrong.
"""

import dataclasses
import importlib.util
import re
from collections import namedtuple

import numpy as np

from npgpt.layers.loss import IGNORE_INDEX
from npgpt.model.config import GPTConfig

SIZE = re.compile(r"(\d*)([A-Za-z]\w*)?")  # of an axis: 3, H or 4H


class Sizes(namedtuple("Sizes", "B T C H V S F P")):
    """The sizes of a set of lessons. S: keys, more than queries; P: rows of wpe, more than T."""

    @property
    def by_letter(self):
        """Letter -> size, also those that follow from others: D channels of a head, N tokens."""
        return self._asdict() | {"D": self.C // self.H, "N": self.B * self.T, "3C": 3 * self.C}


def shape_of(letters, sizes):
    """Return the shape that "N 4H 3" means. sizes: letter -> size."""
    parts = [SIZE.fullmatch(each).groups() for each in letters.split()]
    return tuple(int(number or 1) * sizes.get(letter, 1) for number, letter in parts)


SIZES = Sizes(B=4, T=5, C=6, H=2, V=8, S=7, F=9, P=10)
MANY = 1000  # tokens: of more, the last one occurs
# Targets: the first, any, a row's last ones, all of a row.
IGNORED = "first any padding row".split()
# step of the difference in lesson 0: its error, of order SMALL^2 and 1e-16 / SMALL, is below 1e-9
SMALL = 1e-5


@dataclasses.dataclass(frozen=True)
class Setting:
    """The options of a lesson's arrays. The defaults are the plain case, which the page and the
    exercises show.

    p: dropout probability
    scale: of attention scores; None: 1 / sqrt(D)
    step: of the difference in lesson 0
    spread, offset: standard deviation and mean of the inputs
    layer: index of the block
    off: the lesson's switches that are off
    ignored: which targets are ignored, one of `IGNORED`
    zeros: what is 0: "rows", the first row of each array; "last", the last input; or ""
    upstream: the size of the upstream gradient
    options: of the model, (name, value)
    views: whether the backward gets views that are read-only and not contiguous, as q, k and v in a
        model
    single: whether the arrays are float32
    seed: of all random numbers
    """

    sizes: Sizes = SIZES
    n_layer: int = 2
    layer: int = 0
    p: float = 0.3
    eps: float = 1e-5
    scale: float | None = None
    step: float = SMALL
    spread: float = 1.0
    offset: float = 0.0
    off: frozenset[str] = frozenset()
    ignored: str = "first"
    zeros: str = ""
    upstream: float = 1.0
    options: tuple = ()
    views: bool = False
    single: bool = False
    seed: int = 0

    def has(self, switch):
        return switch not in self.off

    @property
    def dropout(self):
        """The dropout probability, 0 without dropout."""
        return self.p if self.has("dropout") else 0.0

    def with_zeros(self, arrays):
        """Set some of the arrays to 0, as `zeros` says."""
        for array in arrays if self.zeros == "rows" else ():
            if array.ndim > 0:
                array[(0,) * max(array.ndim - 1, 1)] = 0.0
        if self.zeros == "last":
            arrays[-1][...] = 0.0

    def arranged(self, array):
        """Return an array in the setting's dtype. Whole numbers are small then, too."""
        if self.single:
            small = np.int32 if array.min(initial=0) < 0 else np.uint16
            array = array.astype({"f": np.float32, "i": small}.get(array.dtype.kind, array.dtype))
        return array

    def laid_out(self, array):
        """Return an array, a view with gaps, or (B, H, T, D) stored as (B, T, H, D)."""
        axes = (1, 2) if array.ndim == 4 else (-1, -2)
        if not self.views or array.ndim < 2:
            return array
        if self.seed % 3 == 0:
            array = np.concatenate([array, array], axis=-1)[..., : array.shape[-1]]
        else:
            array = array.swapaxes(*axes).copy().swapaxes(*axes)
        array.flags.writeable = False
        return array

    @property
    def model(self):
        """The config of the model that contains the composite layers."""
        B, T, C, H, V, S, F, P = self.sizes
        sizes = {"vocab_size": V, "block_size": P, "n_head": H, "n_embd": C, "n_inner": F}
        is_tanh = self.has("tanh") or not importlib.util.find_spec("scipy")
        others = {
            "n_layer": self.n_layer,
            "layer_norm_epsilon": self.eps,
            "dropout": self.dropout,
            "bias": self.has("bias"),
            "activation": "gelu_tanh" if is_tanh else "gelu",
        }
        return GPTConfig(**{**sizes, **others, **dict(self.options)})

    def tokens(self, rng):
        """Return random tokens (B, T), of which one is repeated, or all different ones."""
        B, T, V = self.sizes.B, self.sizes.T, self.sizes.V
        if not self.has("repeated"):
            return rng.permutation(V)[: B * T].reshape(B, T)
        idx = rng.integers(0, V, (B, T))
        idx[1:2] = idx[0, 0]
        if V > MANY:
            idx[0, 0] = V - 1
        return idx

    def targets(self, rng):
        """Return random targets (B, T) of which some are ignored, but not all."""
        B, T = self.sizes.B, self.sizes.T
        found = rng.integers(0, self.sizes.V, (B, T))
        if not self.has("ignored"):
            return found
        ignored = {
            "first": np.arange(B * T).reshape(B, T) == 0,
            "any": rng.random((B, T)) < 0.5,
            "padding": np.arange(T) >= rng.integers(0, T + 1, (B, 1)),
            "row": np.full((T, B), np.arange(B) == rng.integers(B)).T,
        }[self.ignored]
        if ignored.all():
            ignored[0, rng.integers(T)] = False
        return np.where(ignored, IGNORE_INDEX, found)

    def attention_mask(self, rng, S):
        """Return the causal mask (T, S), a random one (B, 1 or H, T, S) in which each query sees a
        key, or None.
        """
        B, T = self.sizes.B, self.sizes.T
        if not self.has("mask"):
            return None
        if self.has("causal"):
            return np.triu(np.full((T, S), -np.inf), k=1 + S - T)
        heads = self.sizes.H if self.seed % 2 else 1
        unseen = rng.random((B, heads, T, S)) < 0.4
        seen = rng.integers(0, S, (B, heads, T, 1))
        np.put_along_axis(unseen, seen, False, axis=-1)
        return np.where(unseen, -np.inf, 0.0)


PLAIN = Setting()
