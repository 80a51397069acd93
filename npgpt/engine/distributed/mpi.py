"""Ranks that a launcher of MPI started (mpiexec, srun), through mpi4py."""

import functools
import itertools
import json
import os
import sys
import threading
import time
import traceback

import numpy as np

from npgpt.engine.distributed.watch import FAILED, STOPS, Watch
from npgpt.errors import UserError, one_line
from npgpt.launcher import SIZES, number_in

RING = 1 << 20      # bytes of an array from which on an all-gather is a ring


@functools.cache
def join():
    """The `MPIWorld` of this process; None if no launcher started it, or this process alone.

    Raises UserError if mpi4py is missing, or MPI does not see the ranks that the launcher started.
    """
    started = number_in(SIZES, 1)
    if started < 2:
        return None
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:        # RuntimeError: there is no library of MPI
        raise UserError(f"{started} ranks were started, but mpi4py cannot be loaded ({error}): "
                        'pip install "npgpt[mpi]" mpich, on every machine') from None
    if (seen := MPI.COMM_WORLD.size) != started:
        raise UserError(f"{started} ranks were started, but each sees {seen}: the launcher belongs to another MPI than "
                        "mpi4py's; use its mpiexec, or srun --mpi=pmi2 (MPICH) or --mpi=pmix (Open MPI)")
    return MPIWorld(MPI)


class MPIWorld:
    """The ranks of MPI.COMM_WORLD. Only arrays and JSON are sent, no Python objects: nothing is unpickled.

    rank, size; host and local_size: this machine, and how many ranks are on it; threads: this rank's part of the
    machine's cores. All ranks make theirs at the same time.
    """

    def __init__(self, MPI):
        self.MPI, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.size, self.host = self.comm.rank, self.comm.size, MPI.Get_processor_name()
        self.name = f"rank {self.rank} on {self.host}"
        here = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_size = here.size
        self.threads = threads_of(here)
        self.idle = True                # on rank 0: whether the others wait for an order
        self.ended = False              # whether they have been told to stop
        self._sent, self._received = {}, {}
        self._watch = Watch(self)

    def tell(self, name, order, *arrays):
        """Rank 0: send an order, a dict that JSON can hold, and arrays."""
        self.idle = False
        text = json.dumps([name, order, [[array.shape, str(array.dtype)] for array in arrays]]).encode()
        self.comm.Bcast(np.array([len(text)]))
        for array in (np.frombuffer(text, np.uint8), *arrays):
            self.comm.Bcast(array)

    def hear(self):
        """The others: wait for an order. Returns its name, the dict and the arrays."""
        length = np.zeros(1, np.int64)
        self.comm.Bcast(length)
        text = np.empty(length[0], np.uint8)
        self.comm.Bcast(text)
        name, order, kinds = json.loads(text.tobytes())
        self.ended = name == "stop"
        arrays = [np.empty(shape, dtype) for shape, dtype in kinds]
        for array in arrays:
            self.comm.Bcast(array)
        return name, order, arrays

    def broadcast(self, array):
        """Fill every rank's array with rank 0's."""
        self.comm.Bcast(array)

    def buffer(self, size, dtype):
        """An array for `exchange`, whose values are what they were."""
        return reused(self._sent, size, dtype)

    def exchange(self, send, offsets):
        """Send each rank r the values of `send` from offsets[r] to offsets[r + 1]; what each rank sends this one.

        Returns a list of arrays, which the next call overwrites.
        """
        counts = np.diff(offsets)
        n, mine = counts[self.rank], slice(*offsets[self.rank:self.rank + 2])
        received = reused(self._received, n * self.size, send.dtype)
        expected = np.full(self.size, n)
        counts[self.rank] = expected[self.rank] = 0         # MPICH is slow to send a rank its own part
        self.comm.Alltoallv([send, (counts, offsets[:-1])], [received, (expected, n * np.arange(self.size))])
        shares = list(received.reshape(self.size, n))
        shares[self.rank] = send[mine]
        return shares

    def all_gather(self, array, bounds):
        """Fill every rank's array: rank r has the values from bounds[r] to bounds[r + 1].

        Large parts go around a ring: over TCP and on one machine, MPICH's own way took up to 3 times as long.
        """
        if array.nbytes < RING:
            self.comm.Allgatherv(self.MPI.IN_PLACE, [array, (np.diff(bounds), bounds[:-1])])
            return
        parts = [array[begin:end] for begin, end in itertools.pairwise(bounds)]
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        for i in range(self.rank, self.rank - self.size + 1, -1):
            self.comm.Sendrecv(parts[i % self.size], after, 0, parts[(i - 1) % self.size], before)

    def gather(self, part, bounds):
        """Rank 0: an array of the parts of all ranks, which come to the places that bounds gives."""
        whole = np.empty(bounds[-1], part.dtype)
        self.comm.Gatherv(part, [whole, (np.diff(bounds), bounds[:-1])])
        return whole

    def end(self, code):
        """End this rank. Rank 0 tells the others to stop; if they do not wait for an order, or if another rank has
        failed, the whole job is aborted.
        """
        if self.rank == 0 and self.idle:
            self.tell("stop", {})
            self.ended = True
        if self.ended:
            self._watch.say(STOPS)
        else:
            if error := sys.exception():
                traceback.print_exc()
                what = "".join(traceback.format_exception_only(error))
                print(f"npgpt: {self.name} has failed: {one_line(what.strip())}", file=sys.stderr)
            self._watch.say(FAILED)
            self.abort(code)

    def abort(self, code):
        """End all ranks at once."""
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(0.5)         # a launcher that is told to abort does not read what was printed just before
        end = threading.Timer(1.0, os._exit, [code])    # if MPI cannot any more
        end.daemon = True
        end.start()
        self.comm.Abort(code)
        os._exit(code)          # it has returned: do not go on


def threads_of(here):
    """How many cores each of the ranks on this machine has for itself, if all share them alike."""
    cores = np.zeros(4096, np.uint8)
    for core in os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1):
        cores[core] = 1
    of_all = np.empty((here.size, cores.size), np.uint8)
    here.Allgather(cores, of_all)
    return max(1, int(cores.sum()) // int((of_all == cores).all(axis=1).sum()))


def reused(arrays, size, dtype):
    """An array that is kept in a dict and made anew if it is too small."""
    if dtype not in arrays or arrays[dtype].size < size:
        arrays[dtype] = np.empty(size, dtype)
    return arrays[dtype][:size]
