"""What a training step on a GPU spends its time on: a table of its kernels and matmuls, the longest first.

    python tools/bench/kernels.py [ROW ...]         124M and baby by default, or another row of tools/bench for a GPU

Each launch of a step that is no CUDA graph stands between two CUDA events; the GPU is given other work first, so that
the host's launches are ahead of it and no gap between them is measured. The limit of a launch is the longer of two
times: for its floating-point operations at the rate of a large matmul, and for its bytes, each array read or written
once, at the rate of a large copy. Both rates are measured here. A launch may be faster than that: arrays may still be
in the cache, and in float32 attention uses tensor cores and the matmuls do not.
"""

import argparse
import collections
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from report import digits, table
from shapes import LR, ROWS, SEED, Steps

from npgpt import GPT, AdamW, GPTConfig

STEPS = 10
HEADER = ("", "launches", "ms", "TFLOP/s", "GB/s", "limit / time", "ms above the limit")
# Arrays that are read as well as written, unless a launch only sets them. No step here adds to earlier gradients.
READ_TOO = {"adamw": ("p", "m", "v"), "layernorm_backward": ("dx",), "classifier": ("logits",),
            "dropout_backward": ("dx",)}
DQKV = {"attention_backward_kv": 2 / 3, "attention_backward_q": 1 / 3}      # the parts of dqkv that they write
# Matmuls of a (T, T) with a (T, D) matrix for each head.
ATTENTION_MATMULS = {"attention_forward": 2, "attention_backward_kv": 4, "attention_backward_q": 3}


class Timed:
    """A `GPU` whose launches, matmuls and copies are timed. `spans`: (label, operations, bytes, begin, end) of each."""

    def __init__(self, gpu, n_tokens):
        self.gpu, self.spans = gpu, []
        self.launch, self.matmul = self._timed(gpu.launch, of_kernel(gpu, n_tokens)), self._timed(gpu.matmul, of_matmul)
        self.zero = self._timed(gpu.zero, lambda array: ("zero", 0, array.nbytes))
        self.upload = self._timed(gpu.upload, lambda array, host: ("upload", 0, 0))

    def __getattr__(self, name):
        return getattr(self.gpu, name)

    def _timed(self, function, describe):
        def call(*arguments, **named):
            begin, end = event(self.gpu), self.gpu.xp.cuda.Event()
            function(*arguments, **named)
            end.record()
            self.spans.append((*describe(*arguments, **named), begin, end))
        return call


def event(gpu):
    """A CUDA event at this place of the current stream."""
    made = gpu.xp.cuda.Event()
    made.record()
    return made


def of_matmul(a, b, out, bias=None, add=False):
    """The label, the operations and the bytes of a matmul."""
    (M, K), N = a.shape, b.shape[1]
    return f"matmul {M} x {K} x {N}", 2 * M * K * N, a.nbytes + b.nbytes + out.nbytes


def of_kernel(gpu, n_tokens):
    """A function that returns a launch's label, operations and bytes. n_tokens: how many tokens of a batch differ."""
    def describe(name, grid, block, *arguments):
        grid = (grid,) if isinstance(grid, int) else grid
        named = {parameter: value for (_, _, parameter), value in zip(gpu._parameters[name], arguments, strict=True)}
        arrays = {key: value for key, value in named.items() if hasattr(value, "nbytes") and value.size > 1}
        # Of an array of parts only as many rows and columns are used as the launch says.
        C = named.get("C", 0)
        sizes = {key: 4 * C * named.get("P", grid[0]) if key.endswith("parts") and C else array.nbytes
                 for key, array in arrays.items()}
        if name == "embedding_forward":
            sizes["wte"] = sizes["x"]                           # a row for each token
        if name == "embedding_backward_wte":
            sizes["dwte"] = 2 * 4 * C * n_tokens                # a row for each that differs, read and written
        if name in DQKV:
            sizes["dqkv"] *= DQKV[name]
        if not named.get("set", False):
            sizes |= {key: 2 * sizes[key] for key in READ_TOO.get(name, ())}
        return name, attention_operations(name, grid, named), sum(sizes.values())
    return describe


def attention_operations(name, grid, named):
    """The operations of an attention kernel, else 0."""
    if name not in ATTENTION_MATMULS:
        return 0
    (H, B, _), T, D = grid, named["T"], named["qkv"].shape[1] // 3 // named["H"]     # a causal mask leaves half
    return ATTENTION_MATMULS[name] * 2 * D * B * H * (T * (T + 1) // 2 if named["causal"] else T * T)


def milliseconds(gpu, times, function):
    """The mean time of a function on the GPU, after one call that does not count."""
    function()
    begin = event(gpu)
    for _ in range(times):
        function()
    end = event(gpu)
    end.synchronize()
    return gpu.xp.cuda.get_elapsed_time(begin, end) / times


def times_of(gpu, function, ms):
    """How many calls of a function take about so many milliseconds."""
    return 1 + round(ms / milliseconds(gpu, 1, function))


def measure(shape):
    """The GPU's rates, the spans of STEPS steps, and the milliseconds of a step as a graph and of an empty launch."""
    config = GPTConfig(shape.vocab_size, shape.block_size, shape.n_layer, shape.n_head, shape.n_embd,
                       dropout=shape.dropout)
    model = GPT(config, SEED, shape.dtype, "gpu")
    engine, optimizer = model.engine, AdamW(model.params, lr=LR, engine=model.engine)
    batches, gpu, n = shape.batches(), model.engine.gpu, shape.floor_n

    def step(i):
        rng = engine.dropout_rng(SEED, i, 0) if shape.dropout else None
        _, grads = engine.loss_and_grads(*batches[i % len(batches)], rng)
        optimizer.step(grads, max_norm=1.0)

    for i in range(3):          # as it is, recorded, replayed
        step(i)
    numbers = iter(range(3, 1 << 30))
    floats = np.random.default_rng(0).standard_normal((n, n), np.float32)   # matmuls of zeros are faster
    n_tokens = round(np.mean([len(np.unique(idx)) for idx, _ in batches]))
    with gpu.working():
        graphed = milliseconds(gpu, times_of(gpu, lambda: step(next(numbers)), 300), lambda: step(next(numbers)))
        floats, one = model.xp.asarray(floats), gpu.empty(1, np.float32)
        other, a, out = floats.copy(), gpu.empty((n, n), gpu.real), gpu.empty((n, n), gpu.real)
        if shape.dtype == "bfloat16":
            gpu.launch("round_to_bfloat16", n * n // 1024, 256, a, floats, n * n)
        else:
            a[...] = floats

        def multiply(times):
            for _ in range(times):
                gpu.matmul(a, a, out)

        ahead = times_of(gpu, lambda: multiply(1), 50)
        multiply(2 * ahead)                 # after an idle time the GPU's clocks are low
        multiplied = milliseconds(gpu, ahead, lambda: multiply(1))
        copied = milliseconds(gpu, 10 * STEPS, lambda: other.__setitem__(..., floats))

        timed = engine.gpu = Timed(gpu, n_tokens)
        for i in range(STEPS):
            multiply(ahead)                 # the host gets ahead
            engine._graphs.clear()          # the first run of a shape is no graph
            step(i)
        steps, timed.spans = timed.spans, []
        multiply(ahead)
        for _ in range(STEPS):
            timed.launch("sum", 1, 32, one, one, 1, False)
        event(gpu).synchronize()
        elapsed = model.xp.cuda.get_elapsed_time
        spans = [(*span[:3], elapsed(*span[3:])) for span in steps]
        empty = float(np.median([elapsed(*span[3:]) for span in timed.spans]))
    return {"operations": 2 * n**3 / multiplied, "bytes": 2 * floats.nbytes / copied}, spans, graphed, empty


def report(rates, spans, graphed, empty):
    """The table: of each label what one step spends on it, then of all labels."""
    labels = collections.defaultdict(lambda: np.zeros(5))
    for label, operations, size, ms in spans:
        limit = max(operations / rates["operations"], size / rates["bytes"])
        labels[label] += np.array([1, ms, operations, size, limit]) / STEPS
    rows = sorted(labels.items(), key=lambda row: -row[1][1]) + [("all", sum(labels.values()))]
    text = table(HEADER, [(label, digits(n), f"{ms:.3f}", digits(operations / ms / 1e9) if operations else "",
                           digits(size / ms / 1e6) if size else "", f"{limit / ms:.0%}" if limit else "",
                           f"{ms - limit:.3f}")
                          for label, (n, ms, operations, size, limit) in rows])
    return (f"{text}\n\nA step as a graph: {graphed:.3f} ms. A launch of almost nothing, with its events: "
            f"{1000 * empty:.1f} μs. A large matmul: {rates['operations'] / 1e9:,.0f} TFLOP/s. A large copy, read and "
            f"written: {rates['bytes'] / 1e6:,.0f} GB/s.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_gpu = [name for name, shape in ROWS.items() if shape.device == "gpu" and isinstance(shape, Steps)]
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(on_gpu))
    args = parser.parse_args()
    if unknown := {*args.rows} - {*on_gpu}:
        parser.error(f"not training steps on a GPU: {', '.join(unknown)}")
    for name in args.rows or ("124M", "baby"):
        print(f"{name}: {ROWS[name].description}\n\n{report(*measure(ROWS[name]))}", flush=True)


if __name__ == "__main__":
    main()
