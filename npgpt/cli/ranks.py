"""`npgpt train` in many processes: rank 0 runs the command, the others follow it."""

import contextlib
import dataclasses
import signal
import sys
import warnings

import numpy as np

from npgpt.api import GPT
from npgpt.engine.cpu import CPUEngine
from npgpt.engine.distributed.engine import Distributed
from npgpt.engine.distributed.mpi import join
from npgpt.engine.distributed.nccl import connect, own_gpu
from npgpt.engine.distributed.workers import Workers
from npgpt.engine.memory import number_of_shards
from npgpt.errors import UserError
from npgpt.model.config import GPTConfig

SMALL = 1 << 17         # values of a shard's (B, T, C) arrays
SMALLEST = 1 << 16      # bytes


def rank_threads(args, of_the_run=None):
    """The threads of a process: those that the user gave, or else its part of those of an earlier run, or of the cores.
    """
    world = join()
    if args.threads is not None:
        return args.threads
    if world is None:
        return of_the_run
    return max(1, of_the_run // world.size) if of_the_run else world.threads


def rank_device(device):
    """The device of this rank: of several GPUs, its own."""
    world = join()
    if world and device.startswith(("gpu:", "cuda:")):
        raise UserError(f"--device {device} is one GPU, and there are {world.size} ranks: with --device gpu each takes "
                        "its own (CUDA_VISIBLE_DEVICES says which there are)")
    return own_gpu(world) if world and device in ("gpu", "cuda") else device


def distribute(model, args, rows):
    """Give a model the engine of all ranks, or of workers if they pay. args: the command's; rows: of a batch."""
    world, on_gpus = join(), model.xp is not np
    if args.reduce == "nccl" and not (world and on_gpus):
        raise UserError("--reduce nccl is for several ranks with GPUs: leave it out, or add --device gpu" if world else
                        "--reduce nccl is for several ranks, and this process is alone: leave it out, or use mpiexec")
    if world:
        world.tell("model", {"config": dataclasses.asdict(model.config), "dtype": model.dtype, "kernels": args.kernels,
                             "device": "gpu" if on_gpus else "cpu", "threads": model.engine.threads,
                             "reduce": args.reduce})
        network = connect(world, args.reduce) if on_gpus else None
        model.engine = Distributed(engine_of(model, args.kernels), world, network)
        world.idle = True
    elif isinstance(model.engine, CPUEngine) and not args.backward and workers_pay(model, rows):
        engine, n = CPUEngine(model.params, 1), model.engine.threads
        world = Workers(n, max(model.params.flat.nbytes, SMALLEST))
        world.start(lambda world: Distributed(engine, world).follow())
        model.engine = Distributed(engine, world)


def workers_pay(model, rows):
    """Whether processes are faster than threads: if a shard's arrays are so small that Python itself takes long.

    Python's lock costs two threads a fifth of such a step; the bits are the same. Linux only: elsewhere a process that
    has used NumPy cannot be forked safely.
    """
    config, n = model.config, model.engine.threads
    return (sys.platform == "linux" and number_of_shards(config, rows, config.block_size, n) == n
            and rows * config.block_size * config.n_embd <= n * SMALL)


@contextlib.contextmanager
def end_workers(model):
    """After it the workers of a model have ended, if it has any."""
    world = getattr(model.engine, "world", None)
    try:
        yield
    finally:
        if isinstance(world, Workers):
            world.end()


def follow(world):
    """Do what rank 0 says, until it stops. Signals are rank 0's to answer: after Ctrl-C it saves first."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    warnings.filterwarnings("ignore", category=RuntimeWarning)      # a run that diverges: rank 0 says so
    name, order, _ = world.hear()
    if name == "model":
        network = None
        if order["device"] == "gpu":
            network = connect(world, order["reduce"])
            if network is None:
                return
        model = GPT(GPTConfig(**order["config"]), None, order["dtype"], rank_device(order["device"]), order["threads"],
                    order["kernels"])
        Distributed(engine_of(model, order["kernels"]), world, network).follow()


def engine_of(model, kernels):
    """The engine of one rank. Also with one thread it runs the lines in parts, as a shard of one process does."""
    if model.xp is np and kernels == "fused":
        return CPUEngine(model.params, model.engine.threads)
    return model.engine
