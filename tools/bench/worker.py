"""The process of one side: for each number n on its standard input it runs n steps and prints how long they took.

    python worker.py SIDE ROW FOLDER THREADS

PYTHONPATH chooses the npgpt that is measured. For the side `old`, use only calls that older versions have.
"""

import contextlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

if sys.argv[1] in ("npgpt", "fast", "first", "mkl", "xla", "reference", "equal", "old", "prepare"):
    import npgpt  # before NumPy: it makes OpenBLAS's idle threads sleep sooner
    from npgpt import GPT, AdamW, GPTConfig

import numpy as np
import threadpoolctl
from instructions import in_use, installed, of_the_cpu
from shapes import LR, ROWS, SEED, TINYSHAKESPEARE, Recipe, Work, preset_fields

OURS = ("npgpt", "fast", "mkl", "xla", "reference", "old")
KERNELS = {"fast": "numba", "first": "numba", "mkl": "mkl", "xla": "xla", "reference": "reference"}
PACKAGES = ("numpy", "numba", "mkl", "jax", "jaxlib", "torch", "transformers", "triton", "cupy-cuda12x", "cupy-cuda13x")


def make_work(side, shape, folder, threads):
    """Return the `Work` of a side."""
    if side == "machine":
        return Work(lambda i: describe_machine())
    if side == "prepare":
        return Work(lambda i: prepare(shape, folder, threads))
    if isinstance(shape, Recipe):
        return whole_run(side, shape, folder, threads)
    if side in OURS:
        return (generation if shape.new_tokens else training)(shape, folder, threads, side)
    if side == "floor" and shape.device == "cpu":
        return floor(shape)
    import peers  # takes seconds, and needs torch

    peers.torch.set_num_threads(threads)
    make = {"floor": peers.gpu_matmul, "transformers": peers.generation}.get(side)
    return make(shape, folder) if make else peers.training(shape, folder, compiled=side == "compile")


def kernels_of(side):
    """Return {"kernels": …} of a side; {} for an older npgpt that has NumPy's only."""
    known = getattr(sys.modules.get("npgpt.api"), "KERNELS", ())
    return {"kernels": KERNELS.get(side, "numpy")} if KERNELS.get(side, "numpy") in known else {}


def pretrained(shape, folder, threads, side):
    """Return npgpt's model with the weights in a folder."""
    device = "gpu:0" if shape.device == "gpu" else "cpu"        # one, as PyTorch: for "gpu" XLA takes all
    return GPT.from_pretrained(folder, dtype=shape.dtype, device=device, threads=threads, **kernels_of(side))


def training(shape, folder, threads, side="npgpt"):
    """npgpt's training step."""
    if side == "reference":
        import cupy

        free = cupy.cuda.Device().mem_info[0]
    model = pretrained(shape, folder, threads, side)
    step = trainers_step(model, model.engine, shape)
    if shape.device == "cpu":
        return Work(step)
    if side == "xla":
        import jax

        return Work(step, memory=lambda: jax.devices()[0].memory_stats()["pool_bytes"])
    return Work(step, cupy.cuda.Device().synchronize, lambda: free - cupy.cuda.Device().mem_info[0])


def trainers_step(model, engine, shape):
    """Return a function that runs a training step like npgpt's trainer. The loss may still be computing then."""
    optimizer, batches = AdamW(model.params, lr=LR, engine=engine), shape.batches()

    def step(i):
        idx, targets = batches[i % len(batches)]
        given = [(idx, targets)], [engine.dropout_rng(SEED, i, 0)], targets.size, 1.0
        if hasattr(optimizer, "train_step"):
            return optimizer.train_step(*given)[0]
        return engine.step(optimizer, *given)[0]        # an earlier version

    return step


def generation(shape, folder, threads, side):
    """npgpt's greedy generation with the weights in a folder; its result is the tokens."""
    model = pretrained(shape, folder, threads, side)
    return Work(lambda i: model.generate(shape.batches()[0][0], shape.new_tokens, temperature=0.0).tolist())


def whole_run(side, shape, folder, threads):
    """A training run in a process of its own, with the seed i; the result is its [step, validation loss] pairs."""
    def step(i):
        out_dir = tempfile.mkdtemp(dir=folder)
        command = [Path(__file__).with_name("peers.py"), shape.sides[side], folder, out_dir, threads, i]
        if side != "torch":
            how = ["--threads", threads, *[f"--{name}={value}" for name, value in kernels_of(side).items()]]
            command = ["-m", "npgpt", "train", "--preset", shape.sides[side], "--corpus", folder / "corpus.txt",
                       "--tokenizer", "char", "--out-dir", out_dir, "--seed", i, *how, *shape.options]
        losses, variables = [], {"NUMBA_CACHE_DIR": tempfile.mkdtemp(dir=folder)} if side == "first" else {}
        # In `folder`: `-m` would prefer an npgpt in the current folder to the one of PYTHONPATH.
        with subprocess.Popen([*map(str, [sys.executable, *command])], cwd=folder, stdout=subprocess.PIPE,
                              text=True, env={**os.environ, **variables}) as process:
            for line in process.stdout:
                print(line, end="", file=sys.stderr)
                if found := re.search(r"step +(\d+):.* validation loss (\d+\.\d+)", line):
                    losses.append([int(found[1]), float(found[2])])
                    if losses[-1][1] <= shape.until:
                        process.kill()
                        return losses
        if process.returncode == 0 and losses:
            return losses
        raise RuntimeError(f"the run ended with code {process.returncode}; validation losses: {losses}")

    host = shape.device == "cpu"
    return Work(step, memory=lambda: host and resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)


def prepare(shape, folder, threads):
    """Write the input of a row's sides to a folder: initial weights, or the text of a whole run. Compile the loops."""
    if isinstance(shape, Recipe):
        text = TINYSHAKESPEARE.read_text()
        (folder / "corpus.txt").write_text(text)
        characters = {character: i for i, character in enumerate(sorted(set(text)))}
        tokens = np.array([characters[character] for character in text], np.uint16)
        for split, part in zip(("train", "val"), np.split(tokens, [int(0.9 * len(tokens))]), strict=True):
            part.tofile(folder / f"{split}.bin")
        if "torch" in shape.sides:
            recipe = SimpleNamespace(**preset_fields(shape.sides["torch"]), vocab_size=len(characters))
            for seed in range(shape.max_rounds):
                initial_model(recipe, seed).save_pretrained(folder / f"seed-{seed}")
        if "fast" in shape.sides and installed("numba"):
            short = Recipe(shape.sides, options=("--max-iters", 1, "--eval-iters", 1))
            with contextlib.suppress(RuntimeError):         # the side reports it
                whole_run("fast", short, folder, threads).step(0)
        return
    model = initial_model(shape, SEED)
    for name, array in model.params.items():
        if shape.new_tokens and name.startswith("h.") and array.ndim == 2:
            array *= 10.0       # otherwise the model repeats one token, and any two programs agree
    model.save_pretrained(folder)


def initial_model(shape, seed):
    """Return an untrained GPT."""
    return GPT(GPTConfig(shape.vocab_size, shape.block_size, shape.n_layer, shape.n_head, shape.n_embd,
                         dropout=shape.dropout), seed=seed)


def floor(shape):
    """A large matmul on all threads of BLAS; for generation, a matrix-vector product as large as the weights."""
    m, k, n = (shape.weights // shape.n_embd, shape.n_embd, 1) if shape.new_tokens else (shape.floor_n,) * 3
    a, b, out = np.ones((m, k), np.float32), np.ones((k, n), np.float32), np.empty((m, n), np.float32)

    def step(i):
        np.matmul(a, b, out=out)

    return Work(step)


def describe_machine():
    """Return the machine and its software as a dict, without host or user names."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    blas = next((info for info in threadpoolctl.threadpool_info() if info["user_api"] == "blas"), {})
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return {
        "GPU": subprocess.run(query, capture_output=True, text=True).stdout.strip() if shutil.which(query[0]) else None,
        "CPU": re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)[1],
        "with": of_the_cpu(),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "BLAS": " ".join(str(blas.get(key)) for key in ("internal_api", "version", "architecture")),
        "Python": sys.version.split()[0],
        **{each.name: each.version for each in metadata.distributions() if each.name in PACKAGES},
        "date": time.strftime("%Y-%m-%d"),
        "in use": in_use(),
    }


def peak_memory():
    """Return the peak memory of this process in bytes. getrusage's figure includes the parent's at the fork."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


def main():
    side, row, folder, threads = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)           # so that prints of libraries are not read as answers
    asked_for = os.environ["PYTHONPATH"].split(os.pathsep)[0]
    if side in OURS and not os.path.samefile(Path(npgpt.__file__).parents[1], asked_for):
        raise RuntimeError(f"{npgpt.__file__} would be measured, not that of {asked_for}")
    if side == "xla":       # XLA uses every core that its process may run on
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:int(threads)])
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
        result = result.item() if hasattr(result, "item") else result       # a loss; for one of XLA this waits
        seconds = (time.perf_counter() - began) / len(numbers)
        answer = {"seconds": seconds, "result": result, "memory": (work.memory or peak_memory)()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
