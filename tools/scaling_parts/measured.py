"""Measure a network and the parts of training steps, on all ranks, and compare them with the formula."""

import itertools
import math
import sys
import time

import numpy as np
from scaling import Network, Rank, config_of, parameters_of, print_row, step

from npgpt import GPT, AdamW
from npgpt.engine.cpu import CPUEngine
from npgpt.engine.distributed.engine import Distributed
from npgpt.engine.distributed.mpi import join
from npgpt.engine.memory import ROUND

PARTS = {"accumulated": "compute", "tell": "broadcast", "hear": "broadcast", "broadcast": "broadcast",
         "exchange": "all-to-all"}


class Timed:
    """A world or an engine whose calls all ranks begin together. calls: the part of a step, and seconds, of each call.
    """

    def __init__(self, timed, comm, calls):
        self.timed, self.comm, self.calls = timed, comm, calls

    def __getattr__(self, name):
        call = getattr(self.timed, name)
        if name not in (*PARTS, "all_gather"):
            return call

        def timed(*args):
            self.comm.Barrier()
            began = time.perf_counter()
            result = call(*args)
            part = PARTS.get(name) or ("small all-gather" if args[0].dtype == np.float64 else "all-gather")
            self.calls.append((part, time.perf_counter() - began))
            return result

        return timed


def measure(shape, steps):
    """Print what the network does, and the parts of a step: by the formula, measured, and the ratio of the two."""
    world = join() or sys.exit("start it so: mpiexec -n 2 python tools/scaling.py measure")
    if shape.B < world.size:
        sys.exit(f"the batch has {shape.B} sequences: take at most as many ranks")
    alpha, beta, error = fit(ping_pongs(world))
    memory = memory_rate(world)
    found = parts_of_steps(world, shape, steps)
    world.ended = True
    if world.rank == 0:
        flops = math.ceil(shape.B / world.size) * shape.flops / shape.B / found["compute"]
        print(f"{world.size} ranks: alpha {alpha * 1e6:.1f} us, beta {beta / 1e6:.1f} MB/s (fitted with errors up to "
              f"{error:.0%}); memory {memory / 1e9:.1f} GB/s, compute {flops / 1e9:.1f} GFLOP/s a rank; "
              f"{parameters_of(shape) / 1e6:.1f}M parameters\n")
        predicted = step(shape, shape.B, world.size, Network("here", alpha, beta), Rank(flops, memory))
        predicted["sum, AdamW"] = predicted.pop("sum") + predicted.pop("AdamW")
        exchange = predicted.keys() - {"compute", "sum, AdamW"}
        for parts in (predicted, found):
            parts["exchange"] = sum(parts[part] for part in exchange)
        print_row("part of a step", "formula (ms)", "measured (ms)", "formula / measured")
        print_row(*["---"] * 4)
        for part in predicted:
            print_row(part, f"{predicted[part] * 1e3:.1f}", f"{found[part] * 1e3:.1f}",
                      f"{predicted[part] / found[part]:.2f}")
    world.end(0)


def parts_of_steps(world, shape, steps):
    """The seconds of each part of a step on the slowest rank, the medians of some steps, a dict."""
    calls, model, marks = [], GPT(config_of(shape), threads=1), [(0.0, 0)]
    timed = Timed(world, world.comm, calls)
    engine = model.engine = Distributed(Timed(CPUEngine(model.params, 1), world.comm, calls), timed)
    if world.rank == 0:
        optimizer, batch = AdamW(model.params, lr=1e-4, engine=engine), shape.batches()[0]
        for _ in range(steps + 1):
            _, grads = engine.accumulated([batch], [None], shape.tokens)
            optimizer.step(grads, 1.0)
            marks.append((time.perf_counter(), len(calls)))
        timed.tell("stop", {})
    else:
        engine.follow()
    of_rank = np.array([seconds for _, seconds in calls])
    slowest = np.empty_like(of_rank)
    world.comm.Allreduce(of_rank, slowest, world.MPI.MAX)
    found = []
    for (began, first), (ended, last) in itertools.pairwise(marks[1:]):     # without the first step
        parts = {"sum, AdamW": ended - began - slowest[first:last].sum()}
        for (part, _), seconds in zip(calls[first:last], slowest[first:last], strict=True):
            parts[part] = parts.get(part, 0.0) + seconds
        found.append(parts)
    return {part: float(np.median([parts[part] for parts in found])) for part in found[0]} if found else None


def ping_pongs(world):
    """(bytes, seconds one way) of messages between rank 0 and the last rank, while the others wait.

    A step sends small messages and large ones. Those between, at which MPI changes its protocol, would spoil the fit.
    """
    found, other = [], world.size - 1
    for size in (1, 16, 256, 2**20, 2**22, 2**24):
        buffer, times = np.zeros(size, np.uint8), []
        for _ in range(5 if size > 2**20 else 20):
            world.comm.Barrier()
            began = time.perf_counter()
            if world.rank == 0:
                world.comm.Send(buffer, other)
                world.comm.Recv(buffer, other)
            elif world.rank == other:
                world.comm.Recv(buffer, 0)
                world.comm.Send(buffer, 0)
            times.append((time.perf_counter() - began) / 2)
        found.append((size, float(np.median(times))))
    return found


def fit(samples):
    """alpha, beta and the largest relative error: the least squares of the relative errors of alpha + bytes / beta."""
    sizes, seconds = np.array(samples).T
    terms = np.stack([1.0 / seconds, sizes / seconds], axis=1)
    (alpha, per_byte), *_ = np.linalg.lstsq(terms, np.ones(len(samples)), rcond=None)
    return float(alpha), float(1.0 / per_byte), float(np.abs(terms @ (alpha, per_byte) - 1.0).max())


def memory_rate(world):
    """Bytes a second of `total += share`, on all ranks at the same time."""
    total, share, times = np.zeros(8 * ROUND, np.float32), np.ones(8 * ROUND, np.float32), []     # not in the cache
    world.comm.Barrier()
    for _ in range(5):
        began = time.perf_counter()
        total += share
        times.append(time.perf_counter() - began)
    return 3 * total.nbytes / float(np.median(times))
