"""The process of one side: for each number n on its standard input it runs n steps and prints how
long they took.

    python worker.py SIDE ROW FOLDER THREADS

PYTHONPATH chooses the npgpt that is measured. For the side `old`, use only calls that older
versions have.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

if sys.argv[1] not in ("machine", "torch", "compile", "transformers"):
    # before NumPy: what the command sets, so that OpenBLAS's idle threads sleep sooner
    import npgpt.cli
    from npgpt import GPT, AdamW, GPTConfig
    from npgpt.engine.memory import keep_freed_memory

    keep_freed_memory()  # as the command

import threadpoolctl
from shapes import KERNELS, LR, ROWS, SEED, SIDES, Work

PACKAGES = (
    "numpy",
    "numba",
    "jax",
    "jaxlib",
    "torch",
    "transformers",
    "triton",
    "cupy-cuda12x",
    "cupy-cuda13x",
)


def make_work(side, shape, folder, threads):
    """Return the `Work` of a side."""
    if side == "machine":
        return Work(lambda i: describe_machine())
    if side == "prepare":
        return Work(lambda i: prepare(shape, folder))
    if side in KERNELS:
        return (generation if shape.new_tokens else training)(shape, folder, threads, side)
    import peers  # takes seconds, and needs torch

    peers.torch.set_num_threads(threads)
    if side == "transformers":
        return peers.generation(shape, folder)
    return peers.training(shape, folder, compiled=side == "compile")


def pretrained(shape, folder, threads, side):
    """Return npgpt's model with the weights in a folder."""
    device = "gpu:0" if shape.device == "gpu" else "cpu"  # one, as PyTorch: for "gpu" XLA takes all
    return GPT.from_pretrained(
        folder, dtype=shape.dtype, device=device, threads=threads, kernels=KERNELS[side]
    )


def training(shape, folder, threads, side):
    """A training step like npgpt's trainer. The loss may still be computing after it."""
    if SIDES[side] == "cupy":
        import cupy

        free = cupy.cuda.Device().mem_info[0]
    model = pretrained(shape, folder, threads, side)
    optimizer, batches = AdamW(model.params, lr=LR, engine=model.engine), shape.batches()

    def step(i):
        idx, targets = batches[i % len(batches)]
        given = [(idx, targets)], [model.engine.dropout_rng(SEED, i, 0)], targets.size
        if hasattr(optimizer, "train_step"):  # an older checkout, as the side `old`
            return optimizer.train_step(*given, 1.0)[0]
        loss, grads = model.engine.loss_and_grads(*given)
        optimizer.step(grads, 1.0)
        return loss

    if shape.device == "cpu":
        return Work(step)
    if side == "xla":
        import jax

        return Work(step, memory=lambda: jax.devices()[0].memory_stats()["pool_bytes"])
    return Work(step, cupy.cuda.Device().synchronize, lambda: free - cupy.cuda.Device().mem_info[0])


def generation(shape, folder, threads, side):
    """npgpt's greedy generation with the weights in a folder; its result is the tokens."""
    model = pretrained(shape, folder, threads, side)
    return Work(
        lambda i: model.generate(shape.batches()[0][0], shape.new_tokens, temperature=0.0).tolist()
    )


def prepare(shape, folder):
    """Write the initial weights of a row's sides to a folder."""
    model = GPT(
        GPTConfig(
            shape.vocab_size,
            shape.block_size,
            shape.n_layer,
            shape.n_head,
            shape.n_embd,
            dropout=shape.dropout,
        ),
        seed=SEED,
    )
    for name, array in model.params.items():
        if shape.new_tokens and name.startswith("h.") and array.ndim == 2:
            array *= 10.0  # otherwise the model repeats one token, and any two programs agree
    model.save_pretrained(folder)


def describe_machine():
    """Return the machine and its software as a dict, without host or user names."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    blas = next(
        (info for info in threadpoolctl.threadpool_info() if info["user_api"] == "blas"), {}
    )
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return {
        "GPU": subprocess.run(query, capture_output=True, text=True).stdout.strip()
        if shutil.which(query[0])
        else None,
        "CPU": re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)[1],
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "BLAS": " ".join(str(blas.get(key)) for key in ("internal_api", "version", "architecture")),
        "Python": sys.version.split()[0],
        **{each.name: each.version for each in metadata.distributions() if each.name in PACKAGES},
        "date": time.strftime("%Y-%m-%d"),
    }


def peak_memory():
    """Return the peak memory of this process in bytes. getrusage's figure includes the parent's at
    the fork.
    """
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


def main():
    side, row, folder, threads = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # so that prints of libraries are not read as answers
    asked_for = os.environ["PYTHONPATH"].split(os.pathsep)[0]
    if side in KERNELS and not os.path.samefile(Path(npgpt.__file__).parents[1], asked_for):
        raise RuntimeError(f"{npgpt.__file__} would be measured, not that of {asked_for}")
    if side == "xla":  # XLA uses every core that its process may run on
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
    work = make_work(side, ROWS[row], Path(folder), int(threads))
    done = 0
    for line in sys.stdin:
        numbers = range(done, done + int(line))
        done = numbers.stop
        work.synchronize()
        began = time.perf_counter()
        for i in numbers:
            result = work.step(i)
        work.synchronize()
        result = (
            result.item() if hasattr(result, "item") else result
        )  # a loss; for one of XLA this waits
        seconds = (time.perf_counter() - began) / len(numbers)
        answer = {"seconds": seconds, "result": result, "memory": (work.memory or peak_memory)()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
