"""A tiny model that trains while the page is open: the loss and the gradient norms of its parts, step by step."""

import threading

from npgpt.api import GPT
from npgpt.data.tokenizers import ByteTokenizer
from npgpt.model.config import GPTConfig
from npgpt.study.exercises.mathematics import read_text
from npgpt.study.lessons.table import LESSONS
from npgpt.training.options import TrainOptions
from npgpt.training.trainer import Trainer

STEPS = 2000            # at most
AT_ONCE = 5             # steps for a request; the page sends two a second while the curve is in view
NORM = "grad_norm."     # begins the names of the parts' norms in a record


class TinyRun:
    """Trains on the text of the derivations, only when asked."""

    def __init__(self):
        self.lock, self.records = threading.Lock(), []
        model = GPT(GPTConfig(vocab_size=256, block_size=32, n_layer=2, n_head=2, n_embd=32), seed=0, threads=1)
        tokens = ByteTokenizer().encode("\n".join(map(read_text, LESSONS.values())))
        options = TrainOptions(batch_size=8, learning_rate=1e-3, warmup_iters=0, lr_decay_iters=0, beta2=0.95,
                               log_interval=1)          # a learning rate of 3e-3 makes the curve jump
        self.trainer = Trainer(model, tokens, None, options)

    def since(self, step):
        """Return the losses and the gradient norms of each part from number `step` on, of `AT_ONCE` steps or more."""
        with self.lock:
            while len(self.records) < min(step + AT_ONCE, STEPS):
                self.records.append(self.trainer.train_step())
            new = self.records[step:]
        norms = {name.removeprefix(NORM): [each[name] for each in new]
                 for name in self.records[0] if name.startswith(NORM)}
        return {"loss": [each["loss"] for each in new], "norms": norms}
