"""A setting: the sizes and options of all arrays of a lesson.

All sizes differ, and so do the products of sizes that meet in a matmul. So a missing transpose raises an error, and a
wrong shape tells which axis is wrong.
"""

import dataclasses
import importlib.util
import re
from collections import namedtuple

import numpy as np

from npgpt.model.config import GPTConfig

SIZE = re.compile(r"(\d*)([A-Za-z]\w*)?")        # of an axis: 3, H or 4H


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
SMALL = 1e-5    # step of the difference in lesson 0: its error, of order SMALL^2 and 1e-16 / SMALL, is below 1e-9


@dataclasses.dataclass(frozen=True)
class Setting:
    """The options of a lesson's arrays. The defaults are the plain case, which the page and the exercises show.

    p: dropout probability; scale: of attention scores, None: 1 / sqrt(D); step: of the difference in lesson 0; spread:
    standard deviation of the inputs; layer: index of the block; off: the lesson's switches that are off; seed: of all
    random numbers; config: of a model whose options the composite layers take, with other sizes, or None.
    """

    sizes: Sizes = SIZES
    n_layer: int = 2
    layer: int = 0
    p: float = 0.3
    eps: float = 1e-5
    scale: float | None = None
    step: float = SMALL
    spread: float = 1.0
    off: frozenset[str] = frozenset()
    seed: int = 0
    config: GPTConfig | None = None

    def has(self, switch):
        return switch not in self.off

    @property
    def dropout(self):
        """The dropout probability, 0 without dropout."""
        return self.p if self.has("dropout") else 0.0

    @property
    def model(self):
        """The config of the model that contains the composite layers."""
        B, T, C, H, V, S, F, P = self.sizes
        sizes = {"vocab_size": V, "block_size": P, "n_head": H, "n_embd": C, "n_inner": F}
        if self.config:
            return dataclasses.replace(self.config, **sizes, bos_token_id=None, eos_token_id=None)
        activation = "gelu_tanh" if self.has("tanh") or not importlib.util.find_spec("scipy") else "gelu"
        return GPTConfig(**sizes, n_layer=self.n_layer, layer_norm_epsilon=self.eps, dropout=self.dropout,
                         bias=self.has("bias"), activation=activation)

    def tokens(self, rng):
        """Return random tokens (B, T), of which one is repeated, or all different ones."""
        B, T, V = self.sizes.B, self.sizes.T, self.sizes.V
        if not self.has("repeated"):
            return rng.permutation(V)[:B * T].reshape(B, T)
        idx = rng.integers(0, V, (B, T))
        idx[1:2] = idx[0, 0]
        return idx

    def attention_mask(self, rng, S):
        """Return the causal mask (T, S), a random mask (B, 1, T, S) in which each query sees a key, or None."""
        B, T = self.sizes.B, self.sizes.T
        if not self.has("mask"):
            return None
        if self.has("causal"):
            return np.triu(np.full((T, S), -np.inf), k=1 + S - T)
        unseen = rng.random((B, 1, T, S)) < 0.4
        unseen[..., 0] = False
        return np.where(unseen, -np.inf, 0.0)


PLAIN = Setting()
