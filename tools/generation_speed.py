"""Compare the speed of generation with transformers' on PyTorch: the same random GPT-2, greedy, float32, same threads.

    python tools/generation_speed.py [--tokens 100] [--rounds 3] [--threads N]

Both sides take turns in one process; medians are printed, and the floor: the time that reading every weight once takes.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time

import numpy as np
import threadpoolctl
import torch
import transformers

from npgpt import GPT, GPTConfig
from npgpt.backend.threads import available_cores


def let_blas_choose():
    """Begin anew without the variables that pin OpenBLAS's kernels, which it reads when it is loaded."""
    pinned = {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"}
    if pinned & os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv],
                  {name: value for name, value in os.environ.items() if name not in pinned})


def weight_reading_floor(n_values, repeats=5):
    """Seconds to read so many float32 with all BLAS threads, by a matrix-vector product; the best of some."""
    matrix, vector = np.ones((n_values // 768, 768), np.float32), np.ones(768, np.float32)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        matrix @ vector
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def main():
    let_blas_choose()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=available_cores())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    blas = [(info["internal_api"], info.get("architecture"), info["num_threads"]) for info in
            threadpoolctl.threadpool_info() if info["user_api"] == "blas"]
    print(f"numpy {np.__version__} {blas}, torch {torch.__version__}, transformers {transformers.__version__}")

    ours = GPT(GPTConfig(vocab_size=50257, block_size=1024, n_layer=12, n_head=12, n_embd=768), threads=args.threads)
    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(folder)
        theirs = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    n_read = ours.params.flat.size - ours.params["wpe.weight"].size
    with threadpoolctl.threadpool_limits(args.threads):
        floor = weight_reading_floor(n_read)

    for batch in (1, 5):
        prompt = np.random.default_rng(0).integers(0, 50257, (batch, 8))
        ids = torch.from_numpy(prompt)
        seconds = {"npgpt": [], "transformers": []}
        for _ in range(args.rounds):
            began = time.perf_counter()
            out = ours.generate(prompt, args.tokens, temperature=0.0)
            seconds["npgpt"].append(time.perf_counter() - began)
            began = time.perf_counter()
            with torch.inference_mode():
                expected = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=args.tokens,
                                           do_sample=False, eos_token_id=None, pad_token_id=0)
            seconds["transformers"].append(time.perf_counter() - began)
        same = (out == expected.numpy()).mean()
        rates = {side: batch * args.tokens / statistics.median(times) for side, times in seconds.items()}
        print(f"batch {batch}: " + ", ".join(f"{side} {rate:.1f} tokens/s" for side, rate in rates.items())
              + f", ratio {rates['npgpt'] / rates['transformers']:.2f}; {same:.0%} of the tokens equal")
    print(f"reading every weight once takes {1000 * floor:.1f} ms: at most {1 / floor:.0f} tokens/s at batch 1")


if __name__ == "__main__":
    main()
