"""The exchange between GPUs: NVIDIA's library NCCL, through CuPy's `cupy.cuda.nccl`."""

import atexit
import itertools
import warnings

import numpy as np

from npgpt.arrays import array_module, count_gpus, import_cupy
from npgpt.engine.distributed.mpi import reused
from npgpt.errors import UserError

ANSWER = 1000       # bytes that a rank says of its GPU


class NCCL:
    """Moves the arrays of a step between the GPUs of the ranks, with the methods that an `MPIWorld` has for the host's.

    The work goes to the stream of CuPy's own lines, and nothing here waits for it. All ranks make theirs at the same
    time: xp is CuPy, nccl its module, unique_id what rank 0 has from `nccl.get_unique_id()`.

    reduce: who adds up the gradients. "fixed": each rank gets its chunk from all ranks, and adds in their order, so the
    bits depend only on how many ranks there are. "nccl": NCCL adds on the way, in an order that depends on its version
    and on how the GPUs are connected. Within one machine both send as much. But of several machines with G GPUs each, a
    machine sends about G times as much with "fixed"; NCCL first adds up what its GPUs have.
    """

    def __init__(self, world, xp, nccl, unique_id, reduce):
        self.rank, self.size, self.xp, self.nccl = world.rank, world.size, xp, nccl
        self.exchange = self._sum if reduce == "nccl" else self._swap
        self._sent, self._received = {}, {}
        try:
            self.comm = nccl.NcclCommunicator(world.size, unique_id, world.rank)
        except nccl.NcclError as error:
            raise UserError(f"NCCL cannot connect the GPUs ({error}): with NCCL_DEBUG=WARN in the environment it says "
                            "why") from None
        atexit.register(self.comm.destroy)      # on all ranks of a machine at the same time, as NCCL wants it

    @property
    def stream(self):
        return self.xp.cuda.get_current_stream().ptr

    def kind(self, array):
        """NCCL's number for a dtype."""
        return getattr(self.nccl, f"NCCL_{array.dtype.name.upper()}")

    def buffer(self, size, dtype):
        """An array for `exchange`, whose values are what they were."""
        return reused(self._sent, size, dtype, self.xp)

    def _swap(self, send, offsets):
        """`exchange` as an `MPIWorld` does it: what each rank sends this one, a list of arrays."""
        kind, stream, mine = self.kind(send), self.stream, slice(*offsets[self.rank:self.rank + 2])
        n = mine.stop - mine.start
        shares = list(reused(self._received, n * self.size, send.dtype, self.xp).reshape(self.size, n))
        shares[self.rank] = send[mine]
        self.nccl.groupStart()
        for peer, (begin, end) in enumerate(itertools.pairwise(offsets)):
            if end > begin and peer != self.rank:
                self.comm.send(send[begin:].data.ptr, end - begin, kind, peer, stream)
            if n and peer != self.rank:
                self.comm.recv(shares[peer].data.ptr, n, kind, peer, stream)
        self.nccl.groupEnd()
        return shares

    def _sum(self, send, offsets):
        """`exchange` as NCCL does it: the sum of what all ranks send this one, in a list."""
        kind, stream, add, each = self.kind(send), self.stream, self.nccl.NCCL_SUM, evenly(offsets)
        total = reused(self._received, offsets[self.rank + 1] - offsets[self.rank], send.dtype, self.xp)
        if each:
            self.comm.reduceScatter(send.data.ptr, total.data.ptr, each, kind, add, stream)
        self.nccl.groupStart()
        for root, begin, end in beyond(offsets, each):
            to = total[each:] if root == self.rank else send        # only the root's is written to
            self.comm.reduce(send[begin:].data.ptr, to.data.ptr, end - begin, kind, add, root, stream)
        self.nccl.groupEnd()
        return [total]

    def all_gather(self, array, bounds):
        """Fill every rank's array: rank r has the values from bounds[r] to bounds[r + 1]."""
        kind, stream, each = self.kind(array), self.stream, evenly(bounds)
        if each:
            self.comm.allGather(array[bounds[self.rank]:].data.ptr, array.data.ptr, each, kind, stream)
        self.nccl.groupStart()
        for root, begin, end in beyond(bounds, each):
            rest = array[begin:].data.ptr
            self.comm.broadcast(rest, rest, end - begin, kind, root, stream)
        self.nccl.groupEnd()


def evenly(bounds):
    """How many values all ranks have, if only the last may have more; else 0: NCCL's fastest calls want equally many.
    """
    each = min(end - begin for begin, end in itertools.pairwise(bounds))
    return each if all(begin == rank * each for rank, begin in enumerate(bounds[:-1])) else 0


def beyond(bounds, each):
    """(rank, begin, end) of the values that ranks have after the first `each`."""
    return [(rank, begin + each, end) for rank, (begin, end) in enumerate(itertools.pairwise(bounds))
            if begin + each < end]


def connect(world, reduce):
    """An `NCCL` between the GPUs of all ranks, which call this at the same time.

    None if rank 0 stops because a rank lacks something; on rank 0 UserError says which one, and what to do.
    """
    gpu = problem = ""
    try:
        xp = array_module(own_gpu(world))
        nccl = load_nccl(xp)
        gpu = f"{world.host} {xp.cuda.runtime.deviceGetPCIBusId(xp.cuda.Device().id)}"
    except UserError as error:
        problem = str(error)
    answer = "\n".join([world.name, gpu, problem]).encode()[:ANSWER].ljust(ANSWER, b"\0")
    answers = world.gather(np.frombuffer(answer, np.uint8), range(0, ANSWER * (world.size + 1), ANSWER))
    if world.rank > 0:
        name, _, arrays = world.hear()
        return NCCL(world, xp, nccl, arrays[0].tobytes(), reduce) if name == "connect" else None
    world.idle, ranks = True, {}
    for answer in answers.reshape(-1, ANSWER):
        rank, gpu, problem = answer.tobytes().rstrip(b"\0").decode(errors="replace").split("\n", 2)
        if problem or gpu in ranks:
            raise UserError(f"{rank}: {problem}" if problem else f"{rank} would need the GPU that {ranks[gpu]} has: "
                            "start at most one rank for each GPU of a machine")
        ranks[gpu] = rank
    unique_id = nccl.get_unique_id()
    world.tell("connect", {}, np.frombuffer(unique_id, np.uint8))
    return NCCL(world, xp, nccl, unique_id, reduce)


def own_gpu(world):
    """The GPU of this rank, "gpu:N". Where the ranks of a machine see one GPU each, as SLURM can do it, N is 0."""
    return f"gpu:{world.local_rank % count_gpus(import_cupy())}"


def load_nccl(cupy):
    """Import CuPy's module nccl. Raises UserError, with what to install, if there is no NCCL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")     # CuPy's own words for it, in six lines
        from cupy.cuda import nccl
    if not nccl.available:
        raise UserError("GPUs of several ranks need NCCL, and CuPy finds none: pip install "
                        f"nvidia-nccl-cu{cupy.cuda.runtime.runtimeGetVersion() // 1000}, on every machine")
    return nccl
