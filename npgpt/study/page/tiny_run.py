"""A tiny model that trains while the page is open: the loss and the gradient norms of its parts, step by step."""

import math
import re
import threading
from collections import defaultdict

import numpy as np

from npgpt.api import GPT
from npgpt.data.batches import crops_of
from npgpt.data.tokenizers import ByteTokenizer
from npgpt.model.config import GPTConfig
from npgpt.study.exercises.mathematics import read_text
from npgpt.study.lessons.table import LESSONS
from npgpt.training.adamw import AdamW

STEPS = 2000            # at most
AT_ONCE = 5             # steps for a request; the page sends two a second while the curve is in view


class TinyRun:
    """Trains on the text of the derivations, only when asked."""

    def __init__(self):
        self.lock, self.losses, self.norms = threading.Lock(), [], defaultdict(list)
        self.model = GPT(GPTConfig(vocab_size=256, block_size=32, n_layer=2, n_head=2, n_embd=32), seed=0, threads=1)
        text = "\n".join(map(read_text, LESSONS.values()))
        self.crops, self.rng = crops_of(ByteTokenizer().encode(text), 32), np.random.default_rng(0)
        # A learning rate of 3e-3 makes the curve jump.
        self.optimizer = AdamW(self.model.params, lr=1e-3, engine=self.model.engine)

    def since(self, step):
        """Return the losses and the gradient norms of each part from number `step` on, of `AT_ONCE` steps or more."""
        with self.lock:
            while len(self.losses) < min(step + AT_ONCE, STEPS):
                self.take_step()
            return {"loss": self.losses[step:], "norms": {part: norms[step:] for part, norms in self.norms.items()}}

    def take_step(self):
        loss, grads = self.model.loss_and_grads(*self.crops.at(self.crops.random(8, self.rng)))
        squares = defaultdict(float)
        for name, gradient in grads.items():
            part = re.findall(r"h\.\d+|\w+", name)[0]        # h.0 of h.0.ln_1.weight, wte of wte.weight
            squares[part] += float((gradient**2).sum())
        self.optimizer.step(grads, max_norm=1.0)
        self.losses.append(loss)
        for part, square in squares.items():
            self.norms[part].append(math.sqrt(square))
