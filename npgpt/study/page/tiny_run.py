"""A tiny model that trains while the page is open: the loss and the gradient norms of its parts, step by step."""

import itertools
import math
import re
import threading
import time

import numpy as np

from npgpt.api import GPT
from npgpt.data.tokenizers import ByteTokenizer
from npgpt.model.config import GPTConfig
from npgpt.study.exercises.mathematics import read_text
from npgpt.study.lessons.table import LESSONS
from npgpt.training.adamw import AdamW

STEPS = 2000            # at most
RATE = 10.0             # steps a second
PAUSE = 3.0             # seconds without a request after which it pauses
BATCH = 8


class TinyRun:
    """Trains on the text of the derivations. Steps that are due are taken when the page asks, from the first time on.

    until: the time up to which all due steps have been taken.
    """

    def __init__(self):
        self.lock, self.until = threading.Lock(), math.inf
        config = GPTConfig(vocab_size=256, block_size=32, n_layer=2, n_head=2, n_embd=32)
        self.model = GPT(config, seed=0, threads=1)
        self.optimizer = AdamW(self.model.params, lr=1e-3, engine=self.model.engine)    # 3e-3 makes the curve jump
        self.rng = np.random.default_rng(0)
        self.tokens = ByteTokenizer().encode("\n".join(map(read_text, LESSONS.values()))).astype(np.int64)
        self.losses, self.norms = [], {part_of(name): [] for name in self.model.params}

    def since(self, step):
        """Take the due steps; return the losses and the gradient norms of each part of the model since `step`."""
        with self.lock:
            now = time.monotonic()
            waited = max(0.0, min(now - self.until, PAUSE))
            due = int(waited * RATE)
            self.until = now - (waited - due / RATE)
            for _ in range(min(due, STEPS - len(self.losses))):
                self.step()
            return {"loss": self.losses[step:], "norms": {part: norms[step:] for part, norms in self.norms.items()}}

    def step(self):
        """Take one step."""
        length = self.model.config.block_size
        starts = self.rng.integers(0, len(self.tokens) - length, BATCH)
        text = self.tokens[starts[:, None] + np.arange(length + 1)]
        loss, grads = self.model.loss_and_grads(text[:, :-1], text[:, 1:])
        for part, names in itertools.groupby(grads, part_of):
            self.norms[part].append(float(np.sqrt(sum((grads[name] ** 2).sum() for name in names))))
        self.losses.append(float(loss))
        self.optimizer.step(grads, max_norm=1.0)


def part_of(name):
    """Return the part of the model that a parameter belongs to: "h.0", "wte"."""
    return re.match(r"h\.\d+|\w+", name)[0]
