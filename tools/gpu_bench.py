"""Measure training steps on an NVIDIA card: npgpt's and PyTorch's, each side in its own process.

    python tools/gpu_bench.py [--json FILE] [--quick] [--only TEXT ...] [--seconds 240] [--train]
    python tools/gpu_bench.py --show FILE       print the table of a measurement that --json wrote
    python tools/gpu_bench.py --table FILE      write it into README.md

A side that fails, or for which no time is left, is written down as such, and the others go on. The exit status is 1
where one of npgpt's sides failed or computed another loss, and 2 where there is no card. The table goes between the
lines <!-- gpu-bench --> and <!-- /gpu-bench --> of README.md. Linux only.
"""

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from npgpt.bench import shapes
from npgpt.bench.machine import version
from npgpt.bench.measure import Child, ChildError, one_line
from npgpt.bench.report import count, replace_between_markers, three_digits
from npgpt.data.corpora import data_dir, tinyshakespeare_path
from npgpt.errors import UserError
from npgpt.files import write_atomically
from npgpt.model.config import GPTConfig
from npgpt.training.metrics import METRICS_FILE, read_metrics

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"

LR = 3e-4
N_BATCHES = 8               # that are repeated
CHECK_STEPS = 10            # the first steps: they warm up, and the loss of the last is compared
BLOCKS, QUICK_BLOCKS = 5, 2                 # of steps, that are timed
BLOCK_STEPS, QUICK_BLOCK_STEPS = 10, 3      # in a block,
BLOCK_SECONDS = 0.7                         # or fewer, so that it takes no longer
SIDE_SECONDS = 90           # the longest that a side may take for an answer; most of it is for torch.compile
TRAIN_SECONDS, TRAIN_LOSS = 150, 1.47               # nanoGPT's best validation loss with this recipe is 1.4697
PRODUCT = 8192              # rows and columns of the matrices whose product shows what the card can do
DATASHEET = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12}     # FLOP/s in bfloat16, without sparsity

LABELS = {"plain": "npgpt, the layers' lines", "fused": "npgpt, fused", "eager": "PyTorch", "compile": "torch.compile"}
DTYPES = {"float32": ("plain", "fused", "eager", "compile"), "tf32": ("fused", "eager", "compile"),
          "bfloat16": ("fused", "eager", "compile")}
HEADER = ("shape", "side", "products in", "time per step", "times npgpt's", "tokens/s", "memory", "TFLOP/s",
          "of the peak", "of the datasheet", f"loss of step {CHECK_STEPS}")


# What is measured

@dataclasses.dataclass(frozen=True)
class CardShape(shapes.Training):
    """Training steps as in `npgpt bench`, in sizes for a card, with dropout, on a text that can be learnt."""

    dropout: float = 0.0
    padded_vocab_size: int = 0      # the rows of torch's embedding: nanoGPT rounds GPT-2's vocabulary up to 64s
    tolerance: float = 0.0          # between two sides' losses
    in_turns: bool = False          # whether all sides of a dtype fit on the card together

    @property
    def description(self):
        return f"{super().description}, dropout {self.dropout:g}"

    @property
    def config(self):
        return GPTConfig(self.vocab_size, self.block_size, self.n_layer, self.n_head, self.n_embd, self.dropout)

    @property
    def padded_config(self):
        return dataclasses.replace(self.config, vocab_size=self.padded_vocab_size)

    @property
    def flops(self):
        """Floating-point operations of a step that no causal GPT can do without.

        6 for each token and weight of the blocks and the head, as `Training.flops` counts them; but of attention's
        12 L C T for each token only the causal half, 6 L C T. The padding of the vocabulary is not counted.
        """
        return super().flops - 6 * self.n_layer * self.n_embd * self.T * self.tokens

    def batches(self):
        """The batches (idx, targets), int64 (B, T), of a language in which half of the tokens follow from the last.

        The other half is drawn by Zipf's law. Of tokens that are all equally likely nothing can be learnt, and then a
        side with wrong gradients has the same loss as the others.
        """
        rng, V = np.random.default_rng(shapes.SEED), self.vocab_size
        shares = 1.0 / np.arange(1, V + 1)
        tokens = rng.choice(V, size=(N_BATCHES, self.B, self.T + 1), p=shares / shares.sum())
        follows = rng.random(tokens.shape) < 0.5
        for t in range(1, self.T + 1):
            tokens[..., t] = np.where(follows[..., t], (tokens[..., t - 1] + 1) % V, tokens[..., t])
        return [(crops[:, :-1].copy(), crops[:, 1:].copy()) for crops in tokens]


SHAPES = {
    "baby": CardShape(n_layer=6, n_head=6, n_embd=384, T=256, B=64, vocab_size=65, block_size=256, dropout=0.2,
                      padded_vocab_size=65, tolerance=0.1, in_turns=True),
    "124M": CardShape(n_layer=12, n_head=12, n_embd=768, T=1024, B=16, vocab_size=50257, block_size=1024,
                      padded_vocab_size=50304, tolerance=0.02),
}


def groups():
    """Lists of sides (shape, kind, dtype) that are measured together, the most telling first, in case time runs out.

    Sides that take turns see the same state of the card; those of the large shape would not fit into its memory
    together. torch.compile takes longest before its first step: but for bfloat16 it comes last.
    """
    early, late = [], []
    for dtype in reversed(DTYPES):
        for name, shape in SHAPES.items():
            sides = [(name, kind, dtype) for kind in DTYPES[dtype]]
            if dtype != "bfloat16":
                late.append([sides.pop()])          # compile, the last of the kinds
            early += [sides] if shape.in_turns else [[side] for side in sides]
    return early + late


def selected(only):
    """`groups` with the sides alone whose name, such as 124M/fused/bfloat16, contains one of some texts.

    Raises UserError where a text is in no name.
    """
    names = ["/".join(side) for group in groups() for side in group]
    for text in only:
        if not any(text in name for name in names):
            raise UserError(f"--only {text}: no side is called so; there are {', '.join(names)}")
    chosen = [[side for side in group if not only or any(text in "/".join(side) for text in only)]
              for group in groups()]
    return [group for group in chosen if group]


# The process of one side

def npgpt_steps(shape, dtype, kernels):
    """npgpt's training step: (step(i), synchronize(), last_loss() -> float, memory() -> bytes of CuPy's pool)."""
    import cupy

    from npgpt.api import GPT
    from npgpt.training.adamw import AdamW

    model = GPT(shape.config, shapes.SEED, dtype, "gpu", kernels=kernels)
    optimizer = AdamW(model.params, LR)
    batches = shape.batches()
    loss = None

    def step(i):
        nonlocal loss
        loss, grads = model.loss_and_grads(*batches[i % len(batches)], model.dropout_rng(shapes.SEED, i, 0))
        optimizer.step(grads, max_norm=1.0)

    return step, cupy.cuda.Device().synchronize, lambda: float(loss), cupy.get_default_memory_pool().total_bytes


def load_side(name):
    """Import what a side needs. Returns make_steps(), free_memory() -> bytes on the card, and the version of CUDA.

    name: SHAPE/KIND/DTYPE, or "peak".
    """
    if name != "peak":
        shape, kind, dtype = name.split("/")
        if kind in ("plain", "fused"):
            import cupy

            import npgpt.api  # noqa: F401  (now, while another side has the card)

            number = cupy.cuda.runtime.runtimeGetVersion()      # 13000 is 13.0, 12090 is 12.9
            kernels = "reference" if kind == "plain" else "fused"
            return (lambda: npgpt_steps(SHAPES[shape], dtype, kernels), lambda: cupy.cuda.runtime.memGetInfo()[0],
                    f"{number // 1000}.{number % 1000 // 10}")
    from npgpt.bench import torch_gpu

    if name == "peak":
        return lambda: torch_gpu.products(PRODUCT), torch_gpu.free_memory, torch_gpu.cuda_version()
    return (lambda: torch_gpu.training(SHAPES[shape], dtype, LR, kind == "compile"), torch_gpu.free_memory,
            torch_gpu.cuda_version())


def serve(name):
    """Answer lines of JSON, as `Side.ask` sends them, until there are no more."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())       # what libraries print is no answer
    try:
        make_steps, free_memory, cuda = load_side(name)
        print(json.dumps({"cuda": cuda}), file=answers, flush=True)
        steps = None
        for line in sys.stdin:
            if steps is None:
                # The first request: the side has the card from now on. CUDA's own memory is not counted.
                free, steps, done = free_memory(), make_steps(), 0
            n = json.loads(line)["steps"]
            answer = timed_block(steps, range(done, done + n))
            done += n
            answer["card_memory"] = free - free_memory()
            print(json.dumps(answer), file=answers, flush=True)
    except Exception as error:      # whatever it is, the side that fails says so and the other sides go on
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)


def timed_block(steps, numbers):
    """Do steps of these numbers: their seconds from an idle card to an idle card, their last loss, and the memory."""
    step, synchronize, last_loss, memory = steps
    synchronize()
    began = time.perf_counter()
    for i in numbers:
        step(i)
    synchronize()
    return {"seconds": time.perf_counter() - began, "loss": last_loss(), "pool_memory": memory()}


# The process that starts the others

class Process(Child):
    """A child that finds this npgpt, and that ends together with all that it has started."""

    def __init__(self):
        super().__init__(threads=None)

    def start(self, *command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL):
        """Start Python with these arguments."""
        self.errors = tempfile.TemporaryFile()
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, *map(str, command)], stdin=stdin, stdout=stdout, stderr=self.errors, encoding="utf-8",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, start_new_session=True)

    def close(self):
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)     # torch.compile has processes of its own
        super().close()


class Side(Process):
    """One side. It imports its libraries at once, and uses the card from the first `ask` on."""

    script = Path(__file__).resolve()

    def __init__(self, name):
        super().__init__()
        self.ready, self.cuda, self.failure = False, None, None
        self.start(self.script, "--serve", name, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def wait(self, deadline):
        """Wait until it has imported its libraries. Where it cannot, `ask` says why."""
        if self.ready:
            return
        self.ready = True
        try:
            self.cuda = self.answer(deadline)["cuda"]
        except ChildError as error:
            self.failure = error

    def ask(self, steps, deadline):
        """Let it do so many steps: {"seconds", "loss", "pool_memory", "card_memory"}. Raises ChildError."""
        self.wait(deadline)
        if self.failure:
            raise self.failure
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"steps": steps}), file=self.process.stdin, flush=True)
        return self.answer(deadline)

    def answer(self, deadline):
        seconds = min(SIDE_SECONDS, deadline - time.monotonic())
        if seconds <= 0:
            raise ChildError("no time was left")
        # Answers and requests alternate: no second line can wait in the buffer where `select` does not see it.
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            raise ChildError(f"no answer within {seconds:.0f} s")
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": self.why_it_ended()}
        if "error" in answer:
            raise ChildError(one_line(answer["error"]))
        return answer


def measure(names, waiting, blocks, block_steps, deadline):
    """The figures of the sides of a group, which take turns: {name: figures or {"failed": reason}}.

    names: of sides that have been started, {name: Side}. waiting: the next group's sides, which still import their
    libraries; before anything is timed they have done so.
    """
    first, sizes, seconds, failed = {}, {}, {name: [] for name in names}, {}

    @contextlib.contextmanager
    def written_down(name):
        try:
            yield
        except ChildError as error:
            failed[name] = {"failed": str(error)}
            names[name].close()

    for name, side in names.items():
        with written_down(name):
            first[name] = side.ask(CHECK_STEPS, deadline)
            sizes[name] = min(block_steps, max(1, int(BLOCK_SECONDS / (side.ask(2, deadline)["seconds"] / 2))))
    for side in waiting.values():
        side.wait(deadline)
    for _ in range(blocks):
        for name, side in names.items():
            if name not in failed:
                with written_down(name):
                    seconds[name].append(side.ask(sizes[name], deadline)["seconds"] / sizes[name])
    return {name: failed.get(name) or {
        "seconds": float(np.median(seconds[name])), "blocks": seconds[name], "block_steps": sizes[name],
        "loss": first[name]["loss"], "pool_memory": first[name]["pool_memory"],
        "card_memory": first[name]["card_memory"]} for name in names}


def measure_all(results, chosen, deadline, save):
    """Measure groups of sides, and how fast the card is; fill `results` and save() after each group."""
    blocks, block_steps = (QUICK_BLOCKS, QUICK_BLOCK_STEPS) if results["quick"] else (BLOCKS, BLOCK_STEPS)
    plan = [["peak"], *(["/".join(side) for side in group] for group in chosen)]
    with contextlib.ExitStack() as stack:
        def started(group):
            return {name: stack.enter_context(Side(name)) for name in group}

        present = started(plan[0])
        for following in [*plan[1:], []]:
            waiting = started(following)
            for name, figures in measure(present, waiting, blocks, block_steps, deadline).items():
                note(results, name, figures, present[name].cuda)
            for side in present.values():
                side.close()
            compare_losses(results["shapes"])
            save()
            present = waiting


def note(results, name, figures, cuda):
    """Put the figures of a side where they belong, and print them as a line."""
    said = f"failed: {figures['failed']}" if "failed" in figures else f"{1000 * figures['seconds']:.2f} ms"
    print(f"{name}: {said}", file=sys.stderr, flush=True)
    if name == "peak":
        results["peak"].update(figures if "failed" in figures else {"measured": 2 * PRODUCT**3 / figures["seconds"]})
        return
    shape, kind, dtype = name.split("/")
    results["shapes"][shape]["sides"][f"{kind}/{dtype}"] = figures
    if cuda:
        results["machine"]["cuda"]["npgpt" if kind in ("plain", "fused") else "torch"] = cuda


def compare_losses(of_shapes):
    """Mark each side whose loss is not that of PyTorch in float32, or of the first side where that is not there.

    A loss that is not a number is another one, too.
    """
    for name, shape in of_shapes.items():
        sides = {side: figures for side, figures in shape["sides"].items() if "loss" in figures}
        if not sides:
            continue
        right = sides.get("eager/float32", next(iter(sides.values())))["loss"]
        for figures in sides.values():
            figures["differs"] = not abs(figures["loss"] - right) <= SHAPES[name].tolerance


def sound(results):
    """Whether every side of npgpt that was asked for was measured and has the right loss."""
    return not any("failed" in figures or figures["differs"]
                   for shape in results["shapes"].values() for side, figures in shape["sides"].items()
                   if side.startswith(("plain", "fused")))


def describe_card():
    """The first card and the software around it, a dict for JSON. UserError where there is no card."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        raise UserError("no NVIDIA card here: there is no nvidia-smi") from None
    except subprocess.TimeoutExpired:
        raise UserError("no NVIDIA card here: nvidia-smi does not answer") from None
    fields = done.stdout.partition("\n")[0].split(", ")
    if done.returncode != 0 or len(fields) != 3:
        raise UserError(f"no NVIDIA card here: nvidia-smi says {one_line(done.stdout + done.stderr)!r}")
    cupy = next(filter(None, map(version, ("cupy-cuda13x", "cupy-cuda12x", "cupy"))), None)
    return {"card": fields[0], "driver": fields[1], "memory": fields[2], "cuda": {}, "cupy": cupy,
            "python": platform.python_version(), **{name: version(name) for name in ("torch", "triton", "numpy")},
            "date": datetime.date.today().isoformat()}


def new_results(machine, quick):
    """Results with nothing measured."""
    return {"machine": machine, "quick": quick, "peak": {"datasheet": DATASHEET.get(machine["card"])},
            "shapes": {name: {"description": shape.description, "tokens": shape.tokens, "flops": shape.flops,
                              "sides": {}} for name, shape in SHAPES.items()}}


def train():
    """The seconds that `npgpt train --preset char-gpu` takes to TRAIN_LOSS, from its start: a dict for JSON."""
    folder = data_dir().resolve()
    if not tinyshakespeare_path(folder).exists():
        return {"failed": f"{tinyshakespeare_path(Path('NPGPT_DATA_DIR'))} is not at hand"}
    with tempfile.TemporaryDirectory(prefix="npgpt-train-") as out_dir, Process() as process:
        began = time.perf_counter()
        process.start("-m", "npgpt.cli", "train", "--preset", "char-gpu", "--corpus", "tinyshakespeare", "--data-dir",
                      folder, "--device", "gpu", "--dtype", "bfloat16", "--out-dir", out_dir)
        return wait_for_loss(process, out_dir, began)


def wait_for_loss(process, out_dir, began):
    """Watch the metrics that a process writes until the validation loss is TRAIN_LOSS, time is out, or it ends."""
    while True:
        seconds, ended = time.perf_counter() - began, process.process.poll() is not None
        records = read_metrics(out_dir) if (Path(out_dir) / METRICS_FILE).exists() else []
        for record in records:
            if record.get("val_loss", np.inf) <= TRAIN_LOSS:
                return {"seconds": seconds, "step": record["step"], "val_loss": record["val_loss"]}
        best = min((record["val_loss"] for record in records if "val_loss" in record), default=None)
        so_far = "nothing was evaluated" if best is None else f"the best validation loss was {best:.4f}"
        if ended and process.process.returncode != 0:
            return {"failed": one_line(process.why_it_ended())}
        if ended or seconds > TRAIN_SECONDS:
            return {"failed": f"{so_far} after {seconds:.0f} s"}
        time.sleep(0.1)


# The table

def markdown(results):
    """The card, a row for each side of each shape, and what the figures mean."""
    table = [row for name, shape in SHAPES.items() for row in rows(name, shape, results)]
    widths = [max(len(row[i]) for row in [HEADER, *table]) for i in range(len(HEADER))]
    lines = [HEADER, ["-" * width for width in widths], *table]
    parts = [card_line(results), "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines)]
    marked = any(figures.get("differs") for shape in results["shapes"].values() for figures in shape["sides"].values())
    if marked:
        parts.append("**A loss that differs by more than it may: that side is wrong.**")
    parts.append(explanation(results))
    parts.append(train_line(results.get("train")))
    return "\n\n".join(parts) + "\n"


def rows(name, shape, results):
    """The cells of a shape, a row for each side, whether it was measured or not."""
    of_shape = results["shapes"].get(name, {"sides": {}})
    first = f"{name}: {shape.description}"
    for dtype, kinds in DTYPES.items():
        npgpts = of_shape["sides"].get(f"fused/{dtype}", {}).get("seconds")
        for kind in kinds:
            figures = of_shape["sides"].get(f"{kind}/{dtype}", {"failed": None})
            cells = [first, LABELS[kind], dtype]
            first = ""
            if "failed" in figures:
                reason = figures["failed"]
                what = "not yet measured" if reason is None else f"failed: {reason.replace('|', '/')}"
                yield [*cells, what, *[""] * (len(HEADER) - 4)]
                continue
            seconds, rate = figures["seconds"], of_shape["flops"] / figures["seconds"]
            yield [*cells, f"{three_digits(1000 * seconds)} ms",
                   f"{seconds / npgpts:.2f}" if npgpts and kind != "fused" else "",
                   three_digits(of_shape["tokens"] / seconds), f"{figures['card_memory'] / 1e6:,.0f} MB",
                   three_digits(rate / 1e12), share(rate, results["peak"].get("measured")),
                   share(rate, results["peak"].get("datasheet")),
                   f"{figures['loss']:.4f}" + (", **differs**" if figures["differs"] else "")]


def share(rate, peak):
    return "" if peak is None else f"{rate / peak:.1%}"


def card_line(results):
    """One line on where and with what was measured."""
    machine, cuda = results["machine"], results["machine"]["cuda"]
    npgpts, torchs = (f" (CUDA {cuda[side]})" if side in cuda else "" for side in ("npgpt", "torch"))
    parts = [f"{machine['card']}, {machine['memory']}, driver {machine['driver']}", f"Python {machine['python']}",
             f"NumPy {machine['numpy']}", f"CuPy {machine['cupy']}{npgpts}" if machine["cupy"] else "no CuPy",
             f"PyTorch {machine['torch']}{torchs}" if machine["torch"] else "no PyTorch"]
    quick = ", a quick run of few steps" if results["quick"] else ""
    return f"{', '.join(parts)}; {machine['date']}{quick}."


def explanation(results):
    """What the columns say."""
    peak = results["peak"]
    if "measured" in peak:
        measured = f"{peak['measured'] / 1e12:.0f} TFLOP/s"
    else:
        measured = f"failed: {peak['failed']}" if "failed" in peak else "not yet measured"
    datasheet = f"{peak['datasheet'] / 1e12:.0f} TFLOP/s" if peak["datasheet"] else "not known here"
    blocks, block_steps = (QUICK_BLOCKS, QUICK_BLOCK_STEPS) if results["quick"] else (BLOCKS, BLOCK_STEPS)
    return (
        f"A step is loss and gradients, clipping and AdamW; its time is the median of {blocks} blocks of up to "
        f"{count(block_steps, 'step')}, each side in a process of its own. PyTorch is nanoGPT's model with "
        "scaled_dot_product_attention, fused AdamW and a vocabulary rounded up to 50304. Memory is what the card has "
        "less of than before, CUDA's own share apart. FLOPs are 6 for each token and weight of blocks and head, and "
        "6 L C T for each token's attention (the causal half). The peak is that of bfloat16, for all rows: "
        f"PyTorch's product of two {PRODUCT} x {PRODUCT} matrices, {measured}; the datasheet's, {datasheet}. "
        "All sides begin with the same weights and see the same batches.")


def train_line(figures):
    what = f"`npgpt train --preset char-gpu --device gpu --dtype bfloat16` to a validation loss of {TRAIN_LOSS}: "
    if figures is None:
        return what + "not yet measured."
    if "failed" in figures:
        return what + f"failed: {figures['failed']}."
    return what + (f"{figures['seconds']:.0f} s from start, with all evaluations and checkpoints "
                   f"(step {figures['step']}, {figures['val_loss']:.4f}).")


def read_results(path):
    """What --json wrote. UserError where the file is not there or holds something else."""
    try:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
        if not {"machine", "quick", "peak", "shapes"} <= results.keys():
            raise ValueError
        return results
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): give a file that --json wrote") from None
    except (ValueError, AttributeError):
        raise UserError(f"{path} is no measurement: give a file that --json wrote") from None


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="where the figures go, after each group of sides anew")
    parser.add_argument("--quick", action="store_true", help="time few steps only")
    parser.add_argument("--only", metavar="TEXT", nargs="+", default=[],
                        help="the sides alone whose name, such as 124M/fused/bfloat16, contains one of these")
    parser.add_argument("--seconds", type=float, default=240.0, help="how long all sides may take; by default 240")
    parser.add_argument("--train", action="store_true", help=f"train as well: {TRAIN_SECONDS} s more at most")
    parser.add_argument("--show", metavar="FILE", help="measure nothing, print the table of these figures")
    parser.add_argument("--table", metavar="FILE", help="measure nothing, write that table to README.md")
    parser.add_argument("--serve", metavar="SIDE", help=argparse.SUPPRESS)      # the process of one side
    return parser.parse_args(arguments)


def main(arguments=None):
    args = parse(arguments)
    if args.serve:
        serve(args.serve)
        return 0
    # Also when `timeout` ends this process, its children are ended.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        if args.show:
            print(markdown(read_results(args.show)), end="")
            return 0
        if args.table:
            table = markdown(read_results(args.table))
            new = replace_between_markers(README.read_text(encoding="utf-8"), "gpu-bench", table)
            write_atomically(README, new.encode())
            return 0
        return measure_and_print(args)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


def measure_and_print(args):
    """Measure what was asked for. Returns the exit status."""
    chosen = selected(args.only)
    results = new_results(describe_card(), args.quick)

    def save():
        if args.json:
            write_atomically(args.json, (json.dumps(results, indent=1) + "\n").encode())

    save()          # complains now, not after four minutes
    measure_all(results, chosen, time.monotonic() + args.seconds, save)
    if args.train:
        results["train"] = train()
        save()
    print(markdown(results), end="")
    return 0 if sound(results) else 1


if __name__ == "__main__":
    sys.exit(main())
