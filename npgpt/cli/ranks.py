"""`npgpt train` on many ranks: rank 0 runs the command, the others follow it."""

import dataclasses
import signal
import warnings

import numpy as np

from npgpt.api import GPT
from npgpt.engine.cpu import CPUEngine
from npgpt.engine.distributed.engine import Distributed
from npgpt.engine.distributed.mpi import join
from npgpt.engine.distributed.nccl import connect, own_gpu
from npgpt.errors import UserError
from npgpt.model.config import GPTConfig


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


def distribute(model, args):
    """Give a model the engine of all ranks; if this process is alone, nothing changes. args: those of the command."""
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
