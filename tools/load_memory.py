"""Measure how long a GPT-2 checkpoint takes to load, and how much memory at its peak.

    python tools/load_memory.py [gpt2 | gpt2-medium | gpt2-large | gpt2-xl]

Random weights of that shape are saved to a temporary folder (gpt2-xl needs 6.2 GB of disk and of memory), then a new
process loads them with GPT.from_pretrained.
"""

import argparse
import subprocess
import sys
import tempfile

from npgpt import GPT, GPTConfig

SHAPES = {"gpt2": (12, 12, 768), "gpt2-medium": (24, 16, 1024), "gpt2-large": (36, 20, 1280), "gpt2-xl": (48, 25, 1600)}

CHILD = """
import sys, time
from npgpt import GPT
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
before, began = peak(), time.perf_counter()
model = GPT.from_pretrained(sys.argv[1])
seconds, size = time.perf_counter() - began, model.params.flat.nbytes
print(f"{size / 1e9:.2f} GB of weights in {seconds:.2f} s; peak memory {peak() / 1e9:.2f} GB, of which "
      f"{before / 1e9:.2f} GB before loading: {(peak() - before) / size:.3f} copies of the model")
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", nargs="?", default="gpt2", choices=SHAPES)
    n_layer, n_head, n_embd = SHAPES[parser.parse_args().shape]
    with tempfile.TemporaryDirectory() as folder:
        GPT(GPTConfig(50257, 1024, n_layer, n_head, n_embd)).save_pretrained(folder)
        subprocess.run([sys.executable, "-c", CHILD, folder], check=True)


if __name__ == "__main__":
    main()
