"""Ranks on one machine without MPI: processes forked from this one, which exchange arrays through shared memory."""

import json
import mmap
import os
import signal
import socket
import struct
import traceback

import numpy as np

from npgpt.errors import UserError

LENGTH = struct.Struct("=Q")
READY = b"."


class Workers:
    """This process, rank 0, and those that `start` forks from it; the methods are those of `MPIWorld`.

    n_bytes: of the largest array that is exchanged. Each worker has a socket to rank 0, for orders and to wait for each
    other. Who waits there sees at once if the other process has ended.
    """

    kind = "processes"

    def __init__(self, size, n_bytes):
        self.rank, self.size, self.local_size, self.idle = 0, size, size, True
        # Two areas for each rank, used in turn: while one rank still reads the last one, another may write the next.
        self._areas = [[mmap.mmap(-1, n_bytes) for _ in range(size)] for _ in range(2)]
        self._turn, self._sockets, self._workers = 0, [], []

    def start(self, follow):
        """Fork the workers: each calls follow(self), and ends."""
        for rank in range(1, self.size):
            mine, theirs = socket.socketpair()
            worker = os.fork()
            if worker == 0:
                for each in (mine, *self._sockets):
                    each.close()
                self.rank, self._sockets = rank, [theirs]
                self._work(follow)
            theirs.close()
            self._sockets.append(mine)
            self._workers.append(worker)

    def _work(self, follow):
        """The life of a worker. What Python does at the end of a program is left to rank 0."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)       # rank 0 answers them: it saves first
        try:
            follow(self)
        except (EOFError, OSError, MemoryError):        # rank 0 is gone, or will see that this process is
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)

    def tell(self, name, order, *arrays):
        text = json.dumps([name, order, [[array.shape, str(array.dtype)] for array in arrays]]).encode()
        self._send(LENGTH.pack(len(text)), text, *arrays)

    def hear(self):
        (length,) = LENGTH.unpack(self._receive(np.empty(LENGTH.size, np.uint8)))
        name, order, kinds = json.loads(self._receive(np.empty(length, np.uint8)).tobytes())
        return name, order, [self._receive(np.empty(shape, dtype)) for shape, dtype in kinds]

    def broadcast(self, array):
        self._send(array) if self.rank == 0 else self._receive(array)

    def buffer(self, size, dtype):
        return np.frombuffer(self._areas[self._turn][self.rank], dtype, size)

    def exchange(self, send, offsets):
        mine = slice(*offsets[self.rank:self.rank + 2])
        return [np.frombuffer(area, send.dtype, send.size)[mine] for area in self._written()]

    def all_gather(self, array, bounds):
        parts = [array[bounds[rank]:bounds[rank + 1]] for rank in range(self.size)]
        self.buffer(parts[self.rank].size, array.dtype)[:] = parts[self.rank]
        for rank, area in enumerate(self._written()):
            if rank != self.rank:
                parts[rank][:] = np.frombuffer(area, array.dtype, parts[rank].size)

    def gather(self, part, bounds):
        if self.rank > 0:
            return self._send(part)
        whole = np.empty(bounds[-1], part.dtype)
        whole[:bounds[1]] = part
        for rank, each in enumerate(self._sockets, 1):
            self._receive(whole[bounds[rank]:bounds[rank + 1]], each)
        return whole

    def end(self):
        """Let the workers end, and wait for them."""
        for each in self._sockets:
            each.close()
        for worker in self._workers:
            os.waitpid(worker, 0)

    def _written(self):
        """The areas of all ranks, when all of them have written to theirs."""
        token = np.frombuffer(READY, np.uint8).copy()
        if self.rank > 0:
            self._send(token)
            self._receive(token)
        else:
            for each in self._sockets:
                self._receive(token, each)
            self._send(token)
        areas, self._turn = self._areas[self._turn], 1 - self._turn
        return areas

    def _send(self, *parts):
        """Send bytes or arrays to all who are connected."""
        for part in parts:
            for each in self._sockets:
                try:
                    each.sendall(memoryview(part).cast("B"))
                except OSError:
                    raise self._gone() from None

    def _receive(self, array, sender=None):
        """Fill an array with what comes from a socket, by default from rank 0, and return it."""
        buffer, sender = memoryview(array).cast("B"), sender or self._sockets[0]
        while buffer:
            try:
                n = sender.recv_into(buffer)
            except ConnectionResetError:
                n = 0
            if n == 0:
                raise self._gone()
            buffer = buffer[n:]
        return array

    def _gone(self):
        return EOFError() if self.rank else UserError(
            "a process of this training has ended, perhaps for lack of memory: continue with --resume --threads 1")
