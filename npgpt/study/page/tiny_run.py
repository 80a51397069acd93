"""A tiny model that trains while the page is open: the loss and the gradient norms of its parts, step by step."""

import math
import threading
import time

from npgpt.api import GPT
from npgpt.data.tokenizers import ByteTokenizer
from npgpt.model.config import GPTConfig
from npgpt.study.exercises.mathematics import read_text
from npgpt.study.lessons.table import LESSONS
from npgpt.training.options import TrainOptions
from npgpt.training.trainer import Trainer

STEPS = 2000            # at most
RATE = 10.0             # steps a second
PAUSE = 3.0             # seconds without a request after which it pauses
NORM = "grad_norm."     # begins the names of the parts' norms in a record


class TinyRun:
    """Trains on the text of the derivations. Steps that are due are taken when the page asks, from the first time on.

    until: the time up to which all due steps have been taken.
    """

    def __init__(self):
        self.lock, self.until, self.records = threading.Lock(), math.inf, []
        model = GPT(GPTConfig(vocab_size=256, block_size=32, n_layer=2, n_head=2, n_embd=32), seed=0, threads=1)
        tokens = ByteTokenizer().encode("\n".join(map(read_text, LESSONS.values())))
        options = TrainOptions(batch_size=8, learning_rate=1e-3, warmup_iters=0, lr_decay_iters=0, beta2=0.95,
                               log_interval=1)          # a learning rate of 3e-3 makes the curve jump
        self.trainer = Trainer(model, tokens, None, options)

    def since(self, step):
        """Take the due steps; return the losses and the gradient norms of each part of the model since `step`."""
        with self.lock:
            now = time.monotonic()
            waited = max(0.0, min(now - self.until, PAUSE))
            due = int(waited * RATE)
            self.until = now - (waited - due / RATE)
            for _ in range(min(due, STEPS - len(self.records))):
                self.records.append(self.trainer.train_step())
            new = self.records[step:]
            norms = {name: [each[name] for each in new] for name in (new[0] if new else ()) if name.startswith(NORM)}
            return {"loss": [each["loss"] for each in new],
                    "norms": {name.removeprefix(NORM): values for name, values in norms.items()}}
