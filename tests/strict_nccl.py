"""A strict stand-in for `cupy.cuda.nccl` of CuPy 14.2, beside tests/strict_cupy.py.

A rank is a thread, or a process of MPI. Refused is what NCCL refuses, and what would make it hang or write anywhere:
memory that is not this GPU's, of another dtype, or too short; calls that the other ranks do not make, or make with
another count; two ranks with one GPU; sends and receives outside of a group; calls while a CUDA graph is recorded. Sums
are not taken in the order of the ranks.

>>> xp = strict_cupy.install(monkeypatch); strict_nccl.install(monkeypatch)
"""

import collections
import itertools
import queue
import threading
import time
import types

import numpy as np

from tests import strict_cupy
from tests.strict_cupy import gpu

SECONDS = 10            # that a rank waits for another
STREAM = 0              # the stream of CuPy's lines, the only one that is known here
DTYPES = {7: np.dtype("float32"), 8: np.dtype("float64")}
network = types.SimpleNamespace(wire=None)      # (unique id) -> what carries messages between ranks


def install(monkeypatch, wire=None):
    """Put the stand-in in the place of cupy.cuda.nccl until the test ends. The ranks are threads, or wire says what."""
    boxes = collections.defaultdict(queue.Queue)
    network.wire = wire or (lambda unique_id: Threads(boxes, unique_id))
    monkeypatch.setattr(strict_cupy.cuda, "nccl", nccl, raising=False)


class NcclError(RuntimeError):
    pass


class Threads:
    """Messages between threads, bytes."""

    def __init__(self, boxes, unique_id):
        self.boxes, self.id = boxes, unique_id

    def put(self, source, target, message):
        self.boxes[self.id, source, target].put(message)

    def take(self, source, target):
        try:
            return self.boxes[self.id, source, target].get(timeout=SECONDS)
        except queue.Empty:
            raise NcclError(f"NCCL hangs: rank {source} sends nothing to rank {target}") from None


class Processes:
    """Messages between processes, by mpi4py."""

    def __init__(self, MPI):
        self.comm, self.sent = MPI.COMM_WORLD.Dup(), []

    def put(self, source, target, message):
        self.sent = [(request, data) for request, data in self.sent if not request.Test()]
        self.sent.append((self.comm.Isend(np.frombuffer(message, np.uint8), target), message))

    def take(self, source, target):
        until = time.monotonic() + SECONDS
        from mpi4py import MPI
        status = MPI.Status()
        while not self.comm.Iprobe(source, status=status):
            if time.monotonic() > until:
                raise NcclError(f"NCCL hangs: rank {source} sends nothing to rank {target}")
            time.sleep(0)
        message = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        self.comm.Recv(message, source)
        return message.tobytes()


class Group(threading.local):
    """The calls of a thread since groupStart: (function that sends, function that receives) of each."""

    calls = None


group = Group()


def groupStart():
    assert group.calls is None
    group.calls = []


def groupEnd():
    calls, group.calls = group.calls, None
    for send, _ in calls:
        send()
    for _, receive in calls:
        receive()


def memory(address, count, kind):
    """The values at an address on this rank's GPU. Refuses other memory, and more values than there are."""
    dtype = DTYPES[kind]
    for begin, owner in gpu.memory_of.items():
        skip, odd = divmod(address - begin, dtype.itemsize)
        if owner.dtype == dtype and odd == 0 and 0 <= skip and 0 < count <= owner.size - skip:
            return owner.ravel(order="K")[skip:skip + count]
    raise NcclError(f"NCCL_ERROR_INVALID_ARGUMENT: no {count} values of {dtype} on the GPU at {address:#x}")


class NcclCommunicator:
    """The parameters' names are CuPy's."""

    def __init__(self, ndev, commId, rank):
        assert type(commId) is bytes and len(commId) == 128 and 0 <= rank < ndev
        self.ndev, self.rank, self.wire = ndev, rank, network.wire(commId)
        gpus = self._tell_all("gpu", pci())
        if len(set(gpus)) < ndev:
            raise NcclError("NCCL_ERROR_INVALID_USAGE: Duplicate GPU detected")

    def destroy(self):
        self.wire = None

    def _tell_all(self, what, data):
        for peer in range(self.ndev):
            self._put(peer, what, data)
        return [self._take(peer, what) for peer in range(self.ndev)]

    def _put(self, peer, what, data):
        self.wire.put(self.rank, peer, what.encode() + b"\n" + data)

    def _take(self, peer, what):
        other, _, data = self.wire.take(peer, self.rank).partition(b"\n")
        if other.decode() != what:
            raise NcclError(f"NCCL hangs: rank {peer} calls {other.decode()}, and rank {self.rank} {what}")
        return data

    def _do(self, stream, send, receive, alone=True):
        if gpu.recording is not None:
            raise strict_cupy.CUDARuntimeError("cudaErrorStreamCaptureUnsupported")
        assert self.wire is not None, "the communicator is destroyed"
        assert stream == STREAM, "CuPy's lines run on another stream"
        assert alone or group.calls is not None, "it waits for the other rank's call, which waits for this one's"
        gpu.log.append(("nccl",))
        strict_cupy.finish_copies()
        if group.calls is None:
            send()
            receive()
        else:
            group.calls.append((send, receive))

    def send(self, sendbuf, count, datatype, peer, stream):
        values = memory(sendbuf, count, datatype)
        self._do(stream, lambda: self._put(peer, f"send {count} {datatype}", values.tobytes()), lambda: None, False)

    def recv(self, recvbuf, count, datatype, peer, stream):
        to = memory(recvbuf, count, datatype)

        def receive():
            to[...] = np.frombuffer(self._take(peer, f"send {count} {datatype}"), to.dtype)

        self._do(stream, lambda: None, receive, False)

    def broadcast(self, sendbuff, recvbuff, count, datatype, root, stream):
        values, to = memory(sendbuff, count, datatype), memory(recvbuff, count, datatype)
        what = f"broadcast {count} {datatype} {root}"

        def send():
            for peer in range(self.ndev):       # those who have nothing to send, too: what they call is compared
                self._put(peer, what, values.tobytes() if self.rank == root else b"")

        def receive():
            to[...] = [np.frombuffer(self._take(peer, what), to.dtype) for peer in range(self.ndev)][root]

        self._do(stream, send, receive)

    def allGather(self, sendbuf, recvbuf, count, datatype, stream):
        values, to = memory(sendbuf, count, datatype), memory(recvbuf, count * self.ndev, datatype)
        what = f"allGather {count} {datatype}"

        def send():
            for peer in range(self.ndev):
                self._put(peer, what, values.tobytes())

        def receive():
            for peer in range(self.ndev):
                to[peer * count:][:count] = np.frombuffer(self._take(peer, what), to.dtype)

        self._do(stream, send, receive)

    def reduce(self, sendbuf, recvbuf, count, datatype, op, root, stream):
        values, to = memory(sendbuf, count, datatype), memory(recvbuf, count, datatype)
        what = f"reduce {count} {datatype} {root}"
        assert op == nccl.NCCL_SUM

        def send():
            for peer in range(self.ndev):
                self._put(peer, what, values.tobytes())

        def receive():
            total = self._sum(what, to.dtype)
            if self.rank == root:
                to[...] = total

        self._do(stream, send, receive)

    def reduceScatter(self, sendbuf, recvbuf, recvcount, datatype, op, stream):
        values = memory(sendbuf, recvcount * self.ndev, datatype)
        to, what = memory(recvbuf, recvcount, datatype), f"reduceScatter {recvcount} {datatype}"
        assert op == nccl.NCCL_SUM

        def send():
            for peer in range(self.ndev):
                self._put(peer, what, values[peer * recvcount:][:recvcount].tobytes())

        def receive():
            to[...] = self._sum(what, to.dtype)

        self._do(stream, send, receive)

    def _sum(self, what, dtype):
        """Around the ring, so that this rank adds last."""
        ring = [(self.rank + 1 + i) % self.ndev for i in range(self.ndev)]
        return sum(np.frombuffer(self._take(peer, what), dtype) for peer in ring)


def pci():
    return strict_cupy.runtime.deviceGetPCIBusId(gpu.device).encode()


ids = itertools.count()
nccl = types.SimpleNamespace(
    available=True, NcclError=NcclError, NcclCommunicator=NcclCommunicator, groupStart=groupStart, groupEnd=groupEnd,
    get_unique_id=lambda: next(ids).to_bytes(128, "little"), NCCL_SUM=0, NCCL_FLOAT32=7, NCCL_FLOAT64=8)
