"""What is measured: training steps and generation, and the sides that do it. Imports nothing of
npgpt or torch.
"""

import dataclasses
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

# In the order of their turns, each with the package that it needs. Those of KERNELS are npgpt.
SIDES = {
    "npgpt": "numpy",
    "fast": "numba",
    "xla": "jax",
    "cupy": "cupy",
    "reference": "cupy",
    "old": "numpy",
    "torch": "torch",
    "compile": "torch",
    "transformers": "transformers",
}
KERNELS = {
    "npgpt": "numpy",
    "fast": "numba",
    "xla": "xla",
    "cupy": "auto",
    "reference": "reference",
    "old": "numpy",
}
PEERS = ("torch", "transformers")  # of training and of generation
SEED = 0  # of the weights, batches and prompts: every side has the same
LR = 3e-4
N_BATCHES = 8  # they are repeated


def installed(side):
    """Return whether the package of a side is installed."""
    return bool(find_spec(SIDES[side]))


@dataclasses.dataclass
class Work:
    """The work of a side: step(i) is timed, and returns a loss, tokens, or another value that fits
    JSON.
    """

    step: Callable
    synchronize: Callable = lambda: None  # wait for the GPU
    memory: Callable | None = None  # memory() gives the bytes in use; None: the process's peak


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """Training steps (loss and gradients, clipping, AdamW) on batches of B crops of T tokens, by
    default of GPT-2 124M.

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
    dtype: str = "float32"  # of the matmuls; parameters are float32
    padded_vocab_size: int = 0  # rows of PyTorch's embedding, if more than vocab_size
    first_steps: int = 3  # in the first turn; its last loss is compared
    tolerance: float = 1e-3  # between the losses of two sides

    @property
    def sides(self):
        """Return the sides that can run this row. The other times are given as multiples of the
        first's, npgpt's.
        """
        if self.device == "gpu":
            return (
                "xla",
                *(["cupy", "reference"] if self.dtype != "bfloat16" else []),
                "torch",
                "compile",
            )
        if self.dtype == "bfloat16":
            return "fast", "torch", "compile"
        return (
            "npgpt",
            "fast",
            "xla",
            "old",
            *(["transformers"] if self.new_tokens else ["torch", "compile"]),
        )

    @property
    def description(self):
        what = "one generated token a text" if self.new_tokens else "training step"
        on_gpu = f" on a GPU, dropout {self.dropout:g}" if self.device == "gpu" else ""
        how = f", {self.dtype}{on_gpu}" if on_gpu or self.dtype != "float32" else ""
        return (
            f"{what}, {self.n_layer} layers, {self.n_embd} wide, V={self.vocab_size}, "
            f"T={self.T}, B={self.B}{how}"
        )

    @property
    def tokens(self):
        """Tokens in a step; in generation, new tokens in a pass."""
        return self.B if self.new_tokens else self.B * self.T

    def batches(self):
        """N_BATCHES pairs (idx, targets), int64 (B, T). Half of the tokens follow from the one
        before.

        The other half follows Zipf's law. Nothing could be learnt from uniformly random tokens, and
        a side with wrong gradients would have the same loss as the others.
        """
        rng, V = np.random.default_rng(SEED), self.vocab_size
        frequencies = 1.0 / np.arange(1, V + 1)
        tokens = rng.choice(
            V, size=(N_BATCHES, self.B, self.T + 1), p=frequencies / frequencies.sum()
        )
        follows = rng.random(tokens.shape) < 0.5
        for t in range(1, self.T + 1):
            tokens[..., t] = np.where(follows[..., t], (tokens[..., t - 1] + 1) % V, tokens[..., t])
        return [(crops[:, :-1].copy(), crops[:, 1:].copy()) for crops in tokens]

    def same(self, result, expected):
        """Return whether two sides agree: in all tokens, or in the loss (False for NaN)."""
        return result == expected if self.new_tokens else abs(result - expected) <= self.tolerance


BABY = {"n_layer": 6, "n_head": 6, "n_embd": 384, "vocab_size": 65, "T": 256, "block_size": 256}
TINY = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 31, "T": 8, "block_size": 16}
GPU = {"device": "gpu", "dtype": "bfloat16", "first_steps": 10}
# nanoGPT rounds the vocabulary up to 50304: the head's matmul is faster, the loss hardly differs.
GPU_124M = {**GPU, "T": 1024, "B": 16, "tolerance": 0.02, "padded_vocab_size": 50304}
ROWS = {
    "A": Shape(n_layer=4, n_head=4, n_embd=128, vocab_size=65, T=64, block_size=64, B=12),
    "B": Shape(**BABY, B=16),
    "C": Shape(T=64, B=4),
    "D": Shape(T=1024, B=1),
    # Beside PyTorch's autocast; on CPUs that multiply bfloat16.
    "B-bfloat16": Shape(**BABY, B=16, dtype="bfloat16", tolerance=0.02),
    "C-bfloat16": Shape(T=64, B=4, dtype="bfloat16", tolerance=0.02),
    "D-bfloat16": Shape(T=1024, B=1, dtype="bfloat16", tolerance=0.02),
    "gen1": Shape(T=8, B=1, new_tokens=100),
    "gen5": Shape(T=8, B=5, new_tokens=100),
    "124M": Shape(**GPU_124M),
    "124M-tf32": Shape(**{**GPU_124M, "dtype": "tf32"}),
    "124M-float32": Shape(**{**GPU_124M, "dtype": "float32"}),
    "baby": Shape(**BABY, B=64, **GPU, tolerance=0.1, dropout=0.2),
    # For the tests of this program.
    "tiny": Shape(**TINY, B=3),
    "tiny-gen": Shape(**TINY, B=2, new_tokens=8),
    "tiny-gpu": Shape(**TINY, B=3, **{**GPU, "dtype": "float32"}),
}
GROUPS = {
    "gpu": ("124M", "baby", "124M-tf32", "124M-float32"),
    "cpu": ("A", "B", "C", "D", "gen1", "gen5"),
}
