"""What data parallel training costs: the time of a step on N ranks by a formula, as tables and a plot, and checked.

    python tools/scaling.py [--plot scaling.png]        the tables; their assumptions are options
    mpiexec -n 2 python tools/scaling.py measure        this network, and the parts of a step against the formula
    python tools/scaling.py check                       the same between network namespaces whose links are slow
                                                        (needs Linux, root and MPICH)

A message of n bytes takes alpha + n / beta seconds: alpha is the latency, beta the bandwidth of a link in one direction
(Hockney 1994, doi:10.1016/S0167-8191(06)80021-9). Thakur, Rabenseifner and Gropp 2005 (doi:10.1177/1094342005051521)
have the costs of collective operations in these terms. An all-reduce is a reduce-scatter, here an all-to-all whose
chunks are added up in a fixed order, and an all-gather: each rank sends (N - 1) / N of the gradient in either. AdamW
between the two has 1/N of its work and memory on each rank (ZeRO stage 1, Rajbhandari et al. 2020, arXiv:1910.02054).
Nothing overlaps: the time of a step is the sum of its parts.
"""

import argparse
import dataclasses
import itertools
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent / "bench"))

from shapes import ROWS, Steps

from npgpt import GPTConfig
from npgpt.engine.memory import ROUND, SENT
from npgpt.engine.update import SLICE
from npgpt.model.parameters import parameter_shapes

MODELS = {"124M": Steps(T=1024, B=1), "1.5B": Steps(T=1024, B=1, n_layer=48, n_head=25, n_embd=1600)}
CHECKED = Steps(n_layer=6, n_head=6, n_embd=384, vocab_size=65, T=32, block_size=256, B=8)     # 10.8M parameters
RANKS = [2**k for k in range(1, 11)]
# A rank with two cores: the rate of row D in tools/bench/RESULTS.md without AdamW, and the memory's that AdamW has.
FLOPS, MEMORY = 150e9, 11e9
ETHERNET = 0.94 * 1e9 / 8       # bytes a second of 1 Gbit/s: 1,448 of the 1,538 bytes of a frame are ours


@dataclasses.dataclass(frozen=True)
class Network:
    """alpha: seconds a message; beta: bytes a second from a machine, and as many to it at the same time."""

    name: str
    alpha: float
    beta: float


@dataclasses.dataclass(frozen=True)
class Rank:
    """flops: floating-point operations a second; memory: bytes a second that are read or written."""

    flops: float = FLOPS
    memory: float = MEMORY


# Typical latencies of TCP, not measured. The first, two processes on one machine, is rough: `measure` found 1.6 to 9
# GB/s while the machine was busy, and exchanges that took several times as long as the formula says.
NETWORKS = [Network("shared memory", 3e-6, 4e9), Network("1 Gbit/s", 50e-6, ETHERNET),
            Network("10 Gbit/s", 30e-6, 10 * ETHERNET), Network("25 Gbit/s", 20e-6, 25 * ETHERNET),
            Network("100 Gbit/s", 10e-6, 100 * ETHERNET)]


def traffic(parameters, n, tokens):
    """Bytes of a step, float32: what a rank sends on average, but of the broadcast what each rank receives."""
    share = (n - 1) / n
    return {"broadcast": 8 * tokens,                                    # the whole batch: idx and targets, int32
            "all-to-all": share * 4 * parameters,                       # the gradient without its own chunk
            "all-gather": share * 4 * parameters,                       # its chunk of the parameters, to all others
            "small all-gather": share * 8 * (n + parameters / SLICE)}   # losses, and sums of squares of the slices


def rounds(parameters, n):
    """In how many all-to-alls the gradient is sent, so that the buffers stay small."""
    return math.ceil(parameters / n / max(ROUND // n, SENT))


def step(shape, rows, n, network, rank, local=1):
    """The seconds of each part of a training step on n ranks, a dict. shape: a model and its T; rows: of all ranks.

    local: ranks on each machine, which share its link. What they send in the all-to-all is not added up before; in the
    all-gather, a ring, each chunk enters a machine once.
    """
    parameters, alpha, beta, local = parameters_of(shape), network.alpha, network.beta, min(local, n)
    parts = {"compute": math.ceil(rows / n) * shape.flops / shape.B / rank.flops,
             "AdamW": 28 * parameters / n / rank.memory}                # reads p, g, m and v, and writes p, m and v
    if n == 1:
        return parts
    size, trips, outside = traffic(parameters, n, rows * shape.T), math.ceil(math.log2(n)), (n - local) / (n - 1)
    return parts | {
        "sum": 5 * 4 * parameters / rank.memory,                        # a copy to the buffer; n times +=, of 1/n each
        "broadcast": 4 * trips * alpha + broadcast(size["broadcast"], n, network),      # two orders; the batch
        "all-to-all": rounds(parameters, n) * (n - 1) * alpha + local * outside * size["all-to-all"] / beta,
        "all-gather": (n - 1) * alpha + outside * size["all-gather"] / beta,
        "small all-gather": trips * alpha + size["small all-gather"] / beta}


def broadcast(size, n, network):
    """The seconds from one rank to all: along a tree, or in n parts that are scattered and then all-gathered."""
    trips = math.ceil(math.log2(n))
    whole = trips * (network.alpha + size / network.beta)
    in_parts = (trips + n - 1) * network.alpha + 2 * (n - 1) / n * size / network.beta
    return min(whole, in_parts)


def seconds_of(shape, rows, n, network, rank, local=1):
    return sum(step(shape, rows, n, network, rank, local).values())


def efficiency(scaling, shape, rows, n, network, rank, local=1):
    """The speedup divided by n. scaling: "weak", rows are those of each rank; "strong", rows are those of all."""
    together = seconds_of(shape, rows * n if scaling == "weak" else rows, n, network, rank, local)
    return seconds_of(shape, rows, 1, network, rank) / together / (1 if scaling == "weak" else n)


def parameters_of(shape):
    return sum(map(math.prod, parameter_shapes(config_of(shape)).values()))


def config_of(shape):
    return GPTConfig(shape.vocab_size, shape.block_size, shape.n_layer, shape.n_head, shape.n_embd)


def tables(networks, rank, args):
    """Print the tables, in Markdown."""
    print(f"Each rank: {rank.flops / 1e9:g} GFLOP/s, memory {rank.memory / 1e9:g} GB/s; {args.local} on a machine.",
          *(f"{each.name}: {each.alpha * 1e6:g} us, {each.beta / 1e6:,.0f} MB/s." for each in networks))
    for (name, shape), (scaling, rows) in itertools.product(MODELS.items(), kinds(args)):
        head(f"{title(name, shape, scaling, rows)}: time of a step, efficiency", "ranks", networks)
        for n in RANKS:
            all_rows = rows * n if scaling == "weak" else rows
            print_row(n, *(f"{shown(seconds_of(shape, all_rows, n, each, rank, args.local))}, "
                           f"{efficiency(scaling, shape, rows, n, each, rank, args.local):.0%}" for each in networks))
    for name, shape in MODELS.items():
        head(f"{name}, 16 ranks with {args.rows} sequences each: the parts of a step", "part", networks)
        parts = [step(shape, 16 * args.rows, 16, each, rank, args.local) for each in networks]
        for part in parts[0]:
            print_row(part, *(shown(each[part]) for each in parts))
    for name, shape in MODELS.items():
        head(f"{name}, 16 ranks: efficiency by sequences a rank and step, such as micro-batches that are accumulated",
             "sequences", networks)
        for rows in (1, 4, 16, 64, 256):
            shares = [efficiency("weak", shape, rows, 16, each, rank, args.local) for each in networks]
            print_row(rows, *(f"{share:.0%}" for share in shares))


def kinds(args):
    return ("weak", args.rows), ("strong", args.batch)


def title(name, shape, scaling, rows):
    return f"{name}, {scaling} scaling, {rows} x {shape.T} tokens {'a rank' if scaling == 'weak' else 'in all'}"


def head(text, first, networks):
    print(f"\n{text}:\n")
    print_row(first, *(each.name for each in networks))
    print_row(*["---"] * (1 + len(networks)))


def shown(seconds):
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1.0:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 100.0 else f"{seconds:,.0f} s"


def print_row(*cells):
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def plot(networks, rank, args):
    """Draw the efficiencies."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), dpi=120, layout="constrained", facecolor="white")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for axes, ((name, shape), (scaling, rows)) in zip(panels.flat, itertools.product(MODELS.items(), kinds(args)),
                                                      strict=True):
        for network, marker in zip(networks, itertools.cycle("osD^v")):
            shares = [100 * efficiency(scaling, shape, rows, n, network, rank, args.local) for n in RANKS]
            axes.plot(RANKS, shares, marker=marker, markersize=5, label=network.name)
        axes.set_xscale("log", base=2)
        axes.set(title=title(name, shape, scaling, rows), ylim=(0, 105), xticks=RANKS, xticklabels=RANKS)
        axes.grid(alpha=0.3)
    for axes in panels[:, 0]:
        axes.set_ylabel("efficiency (%)")
    for axes in panels[1]:
        axes.set_xlabel("ranks")
    panels[0, 0].legend(loc="lower left")
    figure.suptitle(f"Data parallel training: {rank.flops / 1e9:g} GFLOP/s a rank, {args.local} on a machine")
    figure.savefig(args.plot)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", default="tables", choices=("tables", "measure", "check"))
    parser.add_argument("--flops", type=float, default=FLOPS / 1e9, help="GFLOP/s of a rank")
    parser.add_argument("--memory", type=float, default=MEMORY / 1e9, help="GB/s that a rank reads and writes")
    parser.add_argument("--local", type=int, default=1, help="ranks on each machine, which share its link")
    parser.add_argument("--rows", type=int, default=8, help="sequences of each rank, for weak scaling")
    parser.add_argument("--batch", type=int, default=512, help="sequences of all ranks, for strong scaling")
    parser.add_argument("--network", nargs=3, action="append", metavar=("NAME", "MICROSECONDS", "MB/S"),
                        help="alpha and beta; instead of the usual ones, and may be repeated")
    parser.add_argument("--plot", metavar="FILE", help="draw the efficiencies")
    parser.add_argument("--row", choices=("check", *ROWS), default="check", help="measure: a model of tools/bench")
    parser.add_argument("--steps", type=int, default=5, help="measure and check: how many are timed")
    parser.add_argument("--rates", nargs="+", default=["1gbit", "200mbit"], help="check: of the links, in tc's words")
    args = parser.parse_args()
    if args.what == "tables":
        networks = [Network(name, float(alpha) / 1e6, float(beta) * 1e6) for name, alpha, beta in args.network or ()]
        chosen = networks or NETWORKS, Rank(args.flops * 1e9, args.memory * 1e9), args
        tables(*chosen)
        if args.plot:
            plot(*chosen)
    elif args.what == "measure":
        from scaling_parts.measured import measure

        measure(CHECKED if args.row == "check" else ROWS[args.row], args.steps)
    else:
        from scaling_parts.namespaces import check

        check(args.rates, args.steps)


if __name__ == "__main__":
    main()
