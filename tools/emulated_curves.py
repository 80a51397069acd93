"""Train a small model by the fused kernels, emulated on this CPU, and by the layers' own lines; compare the losses.

    python tools/emulated_curves.py [--steps 200]

The same weights and batches for each; float32, tf32 and bfloat16 round as a GPU does. Needs g++; takes minutes.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from npgpt import GPT, AdamW, GPTConfig
from npgpt.engine.cuda.engine import CudaEngine
from tests.cuda.gpu import EmulatedGPU

B, T = 4, 32
CONFIG = GPTConfig(vocab_size=256, block_size=T, n_layer=2, n_head=2, n_embd=64)
TEXT = "".join(f"{a} of {b} and {c}, not {a}; " for a in ("love", "war", "sleep") for b in ("kings", "men", "the sea")
               for c in ("roses", "thorns", "glass", "none"))


def losses(precision, steps):
    """The loss of each step: of the lines in float32 if precision is None, else of the kernels."""
    model = GPT(CONFIG, seed=0, threads=1)
    if precision:
        model.engine = CudaEngine(model.params, EmulatedGPU(precision, CONFIG.head_size))
    optimizer = AdamW(model.params, lr=1e-3, betas=(0.9, 0.99), engine=model.engine)
    ids = np.frombuffer(TEXT.encode(), np.uint8).astype(np.int64)
    rng, curve = np.random.default_rng(0), []
    for _ in range(steps):
        crops = ids[rng.integers(0, len(ids) - T, B)[:, None] + np.arange(T + 1)]
        loss, grads = model.loss_and_grads(crops[:, :-1], crops[:, 1:])
        optimizer.step(grads, max_norm=1.0)
        curve.append(float(loss))
    return np.array(curve)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    expected = losses(None, steps)
    print(f"{'':10} {'first loss':>10} {'last loss':>10} {'mean difference':>16} {'largest':>9}")
    print(f"{'lines':10} {expected[0]:10.4f} {expected[-1]:10.4f}")
    for precision in ("float32", "tf32", "bfloat16"):
        curve = losses(precision, steps)
        difference = abs(curve - expected)
        print(f"{precision:10} {curve[0]:10.4f} {curve[-1]:10.4f} {difference.mean():16.1e} {difference.max():9.1e}",
              flush=True)


if __name__ == "__main__":
    main()
