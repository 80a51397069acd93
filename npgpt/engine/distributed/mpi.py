"""Ranks started by an MPI launcher (mpiexec, srun), through mpi4py."""

import contextlib
import functools
import json
import os
import sys
import threading
import time
import traceback

import numpy as np

from npgpt.errors import UserError, one_line
from npgpt.launcher import SIZES, number_in

BUSY = 10           # seconds that a rank polls at full speed, as MPI itself does, before it sleeps between polls
LOST = 1800         # seconds without an answer after which a rank is given up, as in torch.distributed
give_way = getattr(os, "sched_yield", lambda: time.sleep(0))        # in case there are more ranks than cores


@functools.cache
def mpi_world():
    """Return the `MPIWorld` of this process. Raises UserError without mpi4py, or if MPI sees other ranks."""
    started = number_in(SIZES, 1)
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
    """The ranks of MPI.COMM_WORLD. They exchange arrays and JSON, never pickled objects.

    rank, size; name: for messages; local_size: the number of ranks on this machine; threads: this rank's share of its
    cores. All ranks must create theirs at the same time.
    """

    def __init__(self, MPI):
        self.MPI, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.name = f"rank {self.rank} on {MPI.Get_processor_name()}"
        here = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_size = here.size
        self.threads = threads_of(here)
        self.others_wait = True         # on rank 0: whether the others wait for a command
        self.ended = False              # whether they have been told to stop

    def send_command(self, name, arguments, *arrays):
        """On rank 0: send the name of a command, its arguments, a dict for JSON, and arrays."""
        self.others_wait = False
        text = json.dumps([name, arguments, [[array.shape, str(array.dtype)] for array in arrays]]).encode()
        for array in (np.array([len(text)]), np.frombuffer(text, np.uint8), *arrays):
            self.broadcast(array)

    def idle(self):
        """On rank 0: note that the others are waiting for the next command."""
        self.others_wait = True

    def receive(self, seconds=None):
        """On other ranks: wait for a command, by default for LOST seconds; return name, arguments and arrays."""
        length = np.zeros(1, np.int64)
        self.broadcast(length, seconds)
        text = np.empty(length[0], np.uint8)
        self.broadcast(text)
        name, arguments, kinds = json.loads(text.tobytes())
        self.ended = name == "stop"
        arrays = [np.empty(shape, dtype) for shape, dtype in kinds]
        for array in arrays:
            self.broadcast(array)
        return name, arguments, arrays

    def broadcast(self, array, seconds=None):
        """Copy rank 0's array to every rank's."""
        self.wait(self.comm.Ibcast(array).Test, seconds)

    def exchange(self, send, offsets):
        """Send each rank r the values of `send` from offsets[r] to offsets[r + 1]; return what each rank sent here."""
        counts = np.diff(offsets)
        n, mine = counts[self.rank], slice(*offsets[self.rank:self.rank + 2])
        received = np.empty(n * self.size, send.dtype)
        expected = np.full(self.size, n)
        counts[self.rank] = expected[self.rank] = 0         # MPICH is slow at sending a rank its own part
        self.wait(self.comm.Ialltoallv([send, (counts, offsets[:-1])],
                                       [received, (expected, n * np.arange(self.size))]).Test)
        shares = list(received.reshape(self.size, n))
        shares[self.rank] = send[mine]
        return shares

    def all_gather(self, array, bounds):
        """Complete every rank's array: rank r provides the values from bounds[r] to bounds[r + 1]."""
        self.wait(self.comm.Iallgatherv(self.MPI.IN_PLACE, [array, (np.diff(bounds), bounds[:-1])]).Test)

    def gather(self, part, bounds):
        """On rank 0: return one array of the parts of all ranks; rank r's begins at bounds[r]."""
        whole = np.empty(bounds[-1], part.dtype)
        self.wait(self.comm.Igatherv(part, [whole, (np.diff(bounds), bounds[:-1])]).Test)
        return whole

    def wait(self, done, seconds=None):
        """Wait until done() is true, and handle signals meanwhile. Raises UserError after `seconds`, or after LOST."""
        began = time.monotonic()
        while not done():
            waited = time.monotonic() - began
            if waited > (seconds or LOST):
                raise UserError("another rank does not answer: it is stopped, or its machine is gone; training stops, "
                                "continue with --resume")
            if waited > BUSY:
                time.sleep(0.001)
            else:
                give_way()

    def end(self, code):
        """End this rank. Rank 0 tells the others to stop.

        If they are not waiting for a command, or if another rank failed or does not answer, the whole job is aborted.
        """
        if error := sys.exception():
            traceback.print_exc()
            what = "".join(traceback.format_exception_only(error))
            print(f"npgpt: {self.name} has failed: {one_line(what.strip())}", file=sys.stderr)
        with contextlib.suppress(UserError, KeyboardInterrupt):
            if self.rank == 0 and self.others_wait:
                self.send_command("stop", {})
                self.ended = True
            if self.ended:
                self.wait(self.comm.Ibarrier().Test)        # MPI's own wait at exit would ignore Ctrl-C
                return
        self.abort(code)

    def abort(self, code):
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(0.5)         # a launcher that aborts may drop what was printed just before
        end = threading.Timer(1.0, os._exit, [code])    # if MPI hangs
        end.daemon = True
        end.start()
        self.comm.Abort(code)
        os._exit(code)


def threads_of(here):
    """Return the cores per rank on this machine, if all ranks share them evenly."""
    cores = np.zeros(4096, np.uint8)
    for core in os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1):
        cores[core] = 1
    of_all = np.empty((here.size, cores.size), np.uint8)
    here.Allgather(cores, of_all)
    return max(1, int(cores.sum()) // int((of_all == cores).all(axis=1).sum()))
