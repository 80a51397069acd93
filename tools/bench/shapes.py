"""What is measured: training steps, generation and whole training runs. Imports nothing of npgpt or torch."""

import dataclasses
import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
TINYSHAKESPEARE = Path(os.environ.get("NPGPT_DATA_DIR") or ROOT / "data") / "tinyshakespeare" / "input.txt"
PRESETS = ROOT / "npgpt" / "training" / "presets"
# In the order of their turns. "npgpt" has --kernels numpy, "fast" numba, and "first" is the same with nothing compiled
# yet; "mkl", "xla" and, on a GPU, "reference" have those --kernels.
SIDES = ("npgpt", "fast", "first", "mkl", "xla", "reference", "equal", "old", "floor", "torch", "compile",
         "transformers")
PEERS = ("torch", "transformers")       # of training and of generation
SEED = 0            # of the weights, batches and prompts: every side has the same; a whole run's is its round
LR = 3e-4
N_BATCHES = 8       # they are repeated


@dataclasses.dataclass
class Work:
    """The work of a side: step(i) is timed, and returns a loss, tokens, or another value that fits JSON."""

    step: Callable
    synchronize: Callable = lambda: None        # wait for the GPU
    memory: Callable | None = None              # memory() gives the bytes in use; None: the process's peak


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steps:
    """Training steps (loss and gradients, clipping, AdamW) on batches of B crops of T tokens, by default of GPT-2 124M.

    With new_tokens: greedy generation of that many tokens after prompts (B, T), with a KV cache.
    """

    B: int
    T: int
    new_tokens: int = 0
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    vocab_size: int = 50257
    block_size: int = 1024
    dropout: float = 0.0
    device: str = "cpu"
    dtype: str = "float32"          # of the matmuls; parameters are float32
    padded_vocab_size: int = 0      # rows of PyTorch's embedding, if more than vocab_size
    first_steps: int = 3            # in the first turn; its last loss is compared
    tolerance: float = 1e-3         # between the losses of two sides
    floor_n: int = 2048             # rows and columns of the large matmul whose rate gives the floor of a step

    warm_up = 2         # turns that do not count: the first makes the model, the second tells how long a step takes
    max_rounds = 100
    limit = 300         # seconds that a side may take to answer; torch.compile needs the most

    @property
    def sides(self):
        """Return the sides that can run this row. The other times are given as multiples of the first's, npgpt's."""
        if self.new_tokens:
            return ("npgpt", "fast", "mkl", "xla", "old", "floor", "transformers")
        if self.device == "cpu":
            return ("npgpt", "fast", "mkl", "xla", "old", "floor", "torch", "compile")
        return ("xla", *(["reference"] if self.dtype != "bfloat16" else []), "floor", "torch", "compile")

    @property
    def description(self):
        what = "one generated token a text" if self.new_tokens else "training step"
        where = f", {self.dtype} on a GPU, dropout {self.dropout:g}" if self.device == "gpu" else ""
        return f"{what}, {self.n_layer} layers, {self.n_embd} wide, V={self.vocab_size}, T={self.T}, B={self.B}{where}"

    @property
    def tokens(self):
        """Tokens in a step; in generation, new tokens in a pass."""
        return self.B if self.new_tokens else self.B * self.T

    @property
    def weights(self):
        """Number of weights in the matrices that multiply every token: 12 C² a block, V C in the head."""
        return self.n_layer * 12 * self.n_embd**2 + self.vocab_size * self.n_embd

    @property
    def flops(self):
        """Floating-point operations of a training step that no causal GPT can do without.

        Forward 2 for each token and weight, backward twice that. Attention: 2 T C each for scores and weighted values
        in each block, of which the causal half is needed.
        """
        return 3 * (2 * self.weights + self.n_layer * 2 * self.T * self.n_embd) * self.tokens

    def floor(self, seconds):
        """Return the least seconds of a pass. seconds: of the floor's matmul; in generation, of reading all weights."""
        return seconds if self.new_tokens else self.flops / (2 * self.floor_n**3) * seconds

    def batches(self):
        """N_BATCHES pairs (idx, targets), int64 (B, T). Half of the tokens follow from the one before.

        The other half follows Zipf's law. Nothing could be learnt from uniformly random tokens, and a side with wrong
        gradients would have the same loss as the others.
        """
        rng, V = np.random.default_rng(SEED), self.vocab_size
        frequencies = 1.0 / np.arange(1, V + 1)
        tokens = rng.choice(V, size=(N_BATCHES, self.B, self.T + 1), p=frequencies / frequencies.sum())
        follows = rng.random(tokens.shape) < 0.5
        for t in range(1, self.T + 1):
            tokens[..., t] = np.where(follows[..., t], (tokens[..., t - 1] + 1) % V, tokens[..., t])
        return [(crops[:, :-1].copy(), crops[:, 1:].copy()) for crops in tokens]

    def same(self, result, expected):
        """Return whether two sides agree: in all tokens, or in the loss (False for NaN)."""
        return result == expected if self.new_tokens else abs(result - expected) <= self.tolerance


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A whole training run on TinyShakespeare with a preset, from start to end of its process.

    Each round has another seed: 0, 1, 2. The result of a run is its validation losses, pairs [step, loss].
    """

    sides: dict                 # side -> preset; the first side is npgpt's
    device: str = "cpu"
    options: tuple = ()         # more options of `npgpt train`
    until: float = 0.0          # the validation loss that ends the run; 0: it runs to its end
    max_rounds: int = 3

    warm_up, first_steps, new_tokens, tokens, limit = 0, 1, 0, None, 480

    @property
    def description(self):
        return "whole training run on TinyShakespeare" + (f" to validation loss {self.until}" if self.until else "")


def preset_fields(preset):
    """Return the fields of a preset of npgpt, or of a TOML file, as a dict."""
    return tomllib.loads((PRESETS / preset).with_suffix(".toml").read_text())


BABY = {"n_layer": 6, "n_head": 6, "n_embd": 384, "vocab_size": 65, "T": 256, "block_size": 256}
TINY = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 31, "T": 8, "block_size": 16}
GPU = {"device": "gpu", "dtype": "bfloat16", "first_steps": 10, "floor_n": 8192}
# nanoGPT rounds the vocabulary up to 50304: the head's matmul is faster, the loss hardly differs.
GPU_124M = {**GPU, "T": 1024, "B": 16, "tolerance": 0.02, "padded_vocab_size": 50304}
ROWS = {
    "A": Steps(n_layer=4, n_head=4, n_embd=128, vocab_size=65, T=64, block_size=64, B=12),
    "B": Steps(**BABY, B=16),
    "C": Steps(T=64, B=4),
    "D": Steps(T=1024, B=1),
    "gen1": Steps(T=8, B=1, new_tokens=100),
    "gen5": Steps(T=8, B=5, new_tokens=100),
    # "equal" and PyTorch do equal work, nanoGPT's recipe; npgpt's default reaches the loss in fewer steps.
    "E": Recipe({**dict.fromkeys(("npgpt", "fast", "first", "xla", "old"), "char-cpu"),
                 "equal": "char-nanogpt", "torch": "char-nanogpt"}),
    "124M": Steps(**GPU_124M),
    "124M-tf32": Steps(**{**GPU_124M, "dtype": "tf32"}),
    "124M-float32": Steps(**{**GPU_124M, "dtype": "float32"}),
    "baby": Steps(**BABY, B=64, **GPU, tolerance=0.1, dropout=0.2),
    # nanoGPT's best validation loss with this recipe is 1.4697.
    "train": Recipe({"xla": "char-gpu"}, "gpu", ("--device", "gpu:0", "--dtype", "bfloat16"), 1.47, 1),
    # For the tests of this program.
    "tiny": Steps(**TINY, B=3),
    "tiny-gen": Steps(**TINY, B=2, new_tokens=8),
    "tiny-gpu": Steps(**TINY, B=3, **{**GPU, "dtype": "float32", "floor_n": 64}),
}
GROUPS = {"gpu": ("124M", "baby", "124M-tf32", "124M-float32")}
DEFAULT = ("A", "B", "C", "D", "gen1", "gen5")      # E takes longer
