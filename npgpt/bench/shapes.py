"""What is measured: training steps, generation and a whole training run, of models of known shape."""

import dataclasses
import itertools

import numpy as np

from npgpt.model.config import GPTConfig
from npgpt.training.options import load_preset

SEED = 0            # of the weights, the batches and the prompts: every side has the same
N_BATCHES = 32      # that are repeated


@dataclasses.dataclass(frozen=True)
class Training:
    """Training steps (loss and gradients, clipping, AdamW) of a GPT on batches of B crops of T tokens."""

    n_layer: int
    n_head: int
    n_embd: int
    T: int
    B: int
    vocab_size: int
    block_size: int

    peers = ("eager", "compile")
    warm_up = 2                         # turns of one step that do not count
    passes = 1                          # through the model in a step: its seconds are divided by them

    @property
    def description(self):
        return f"training step, {self.n_layer} layers, {self.n_embd} wide, V={self.vocab_size}, T={self.T}, B={self.B}"

    @property
    def config(self):
        return GPTConfig(self.vocab_size, self.block_size, self.n_layer, self.n_head, self.n_embd)

    @property
    def tokens(self):
        """Tokens in a step."""
        return self.B * self.T

    @property
    def flops(self):
        """Floating-point operations of a step's matrix products.

        The backward of a product is two products of its size. A token meets 12 C² weights in a block (3 C² in c_attn,
        C² in c_proj, 4 C² each way in the MLP) and V C in the head, and has T scores and T weighted values of width C
        in each block: the causal half that could be left out is counted too.
        """
        C = self.n_embd
        weights = self.n_layer * 12 * C * C + self.vocab_size * C
        attention = self.n_layer * 2 * self.T * C
        return 3 * 2 * (weights + attention) * self.tokens

    def batches(self):
        """Yield (idx, targets), int64 (B, T), for ever."""
        tokens = np.random.default_rng(SEED).integers(self.vocab_size, size=(N_BATCHES, self.B, self.T + 1))
        return itertools.cycle([(crops[:, :-1].copy(), crops[:, 1:].copy()) for crops in tokens])


@dataclasses.dataclass(frozen=True)
class Generation:
    """Greedy generation of new_tokens tokens after prompts (B, T), with a KV cache, by a model of GPT-2's shape."""

    B: int
    T: int = 8
    new_tokens: int = 100
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    vocab_size: int = 50257
    block_size: int = 1024

    peers = ("transformers",)
    warm_up = 2
    config = Training.config

    @property
    def description(self):
        return f"one token of each text, {self.n_layer} layers, {self.n_embd} wide, V={self.vocab_size}, B={self.B}"

    @property
    def passes(self):
        return self.new_tokens

    @property
    def tokens(self):
        """New tokens for each pass through the model."""
        return self.B

    def prompt(self):
        """Token ids, int64 (B, T)."""
        return np.random.default_rng(SEED).integers(self.vocab_size, size=(self.B, self.T))


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A whole training run as a preset says, with its evaluations and checkpoints, from start to end of the process."""

    preset: str

    peers = ("eager",)
    warm_up = 0
    passes = 1

    @property
    def description(self):
        return f"whole run of {self.preset}, {load_preset(self.preset)['max_iters']} steps"

    @property
    def tokens(self):
        """Tokens trained on in the run."""
        fields = load_preset(self.preset)
        return fields["max_iters"] * fields["batch_size"] * fields["block_size"]


@dataclasses.dataclass(frozen=True)
class Scaling:
    """Training steps of one model with more and more tokens, sequences or width, the rest unchanged."""

    base: Training = Training(n_layer=4, n_head=4, n_embd=256, T=256, B=8, vocab_size=65, block_size=1024)
    T: tuple = (64, 128, 256, 512, 1024)
    B: tuple = (1, 2, 4, 8, 16)
    n_embd: tuple = (128, 256, 512, 1024)

    peers = ("eager",)

    def points(self, axis):
        """The `Training` for each value of an axis: "T", "B" or "n_embd"."""
        for value in getattr(self, axis):
            point = dataclasses.replace(self.base, **{axis: value})
            head_width = self.base.n_embd // self.base.n_head
            yield dataclasses.replace(point, n_head=point.n_embd // head_width)


AXES = ("T", "B", "n_embd")
SHAPES = {
    "A": Training(n_layer=4, n_head=4, n_embd=128, T=64, B=12, vocab_size=65, block_size=64),
    "B": Training(n_layer=6, n_head=6, n_embd=384, T=256, B=16, vocab_size=65, block_size=256),
    "C": Training(n_layer=12, n_head=12, n_embd=768, T=64, B=4, vocab_size=50257, block_size=1024),
    "D": Training(n_layer=12, n_head=12, n_embd=768, T=1024, B=1, vocab_size=50257, block_size=1024),
    "E": Recipe("char-cpu"),
    "gen1": Generation(B=1),
    "gen5": Generation(B=5),
    "scaling": Scaling(),
}
DEFAULT = ("A", "B", "C", "D", "gen1", "gen5")      # E and scaling take longer
