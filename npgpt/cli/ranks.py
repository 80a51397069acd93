"""`npgpt train` on many ranks: rank 0 runs the command, the others follow."""

import math
import signal

from npgpt.api import GPT
from npgpt.checkpoints.config_json import config_from_fields, config_to_fields
from npgpt.engine.cpu import CPUEngine, cpu_kernels
from npgpt.engine.reference import ReferenceEngine
from npgpt.errors import UserError
from npgpt.launcher import SIZES, number_in
from npgpt.model.block import read_block


def mpi_world():
    """Return the `MPIWorld` of a launcher's ranks, connected at the first call; None if this process is alone."""
    if number_in(SIZES, 1) < 2:
        return None
    from npgpt.engine.distributed import mpi

    return mpi.mpi_world()


def rank_threads(args, saved=None):
    """Return the threads of this rank: --threads, else its share of the `saved` ones of a run, else of the cores."""
    world = mpi_world()
    if args.threads is not None:
        return args.threads
    if world is None:
        return saved
    return max(1, saved // world.size) if saved else world.threads


def distribute(model, args):
    """Give a model the engine of all ranks, if there are several."""
    world = mpi_world()
    if world:
        if args.device != "cpu" or args.kernels == "xla":
            raise UserError("ranks train on CPUs, without XLA: leave --device out, and choose other --kernels")
        kernels = cpu_kernels() if args.kernels == "auto" else args.kernels         # one for all ranks
        engine = engine_of_all(model, kernels, world)
        world.send_command("model", {"config": config_to_fields(model.config), "block": model.config.block.path,
                                     "dtype": model.dtype, "kernels": kernels, "threads": model.engine.threads,
                                     "frozen": sorted(model.params.frozen)})
        model.use_engine(engine)
        world.idle()


def follow(world):
    """Follow rank 0 until it stops. Only rank 0 handles signals: after Ctrl-C it saves first."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    name, order, _ = world.receive(math.inf)       # rank 0 may tokenize a corpus first
    if name == "model":
        config = config_from_fields(order["config"], read_block(order["block"]))
        model = GPT(config, None, order["dtype"], threads=order["threads"], kernels=order["kernels"],
                    freeze=order["frozen"])
        engine_of_all(model, order["kernels"], world).follow()


def engine_of_all(model, kernels, world):
    """Return the engine of one rank. Even one thread runs the lines in parts, like a shard of a process."""
    from npgpt.engine.distributed.engine import Distributed

    if type(model.engine) is ReferenceEngine and kernels != "reference":        # "auto" with one thread
        return Distributed(CPUEngine(model.params, model.engine.threads, kernels), world)
    return Distributed(model.engine, world)
