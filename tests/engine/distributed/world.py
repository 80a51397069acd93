"""Ranks that are threads of this process, for tests without MPI: `ranks` trains a model on several of them."""

import contextlib
import json
import threading

import numpy as np

from npgpt import GPT
from npgpt.cli.ranks import engine_of_all
from npgpt.engine.cpu import cpu_kernels
from npgpt.engine.threads import blas_threads
from npgpt.training.metrics import read_metrics

SECONDS = 20        # that a rank waits for the others, at most


def content(out_dir):
    """Return the files of all checkpoints, and the records without speed."""
    files = {path.relative_to(out_dir): path.read_bytes() for path in out_dir.rglob("step-*/*")}
    assert files and len(files) % 5 == 0
    return files, [{key: value for key, value in record.items() if key != "tokens_per_second"}
                   for record in read_metrics(out_dir)]


@contextlib.contextmanager
def ranks(n, config, dtype="float64", threads=1, kernels="auto", seed=0):
    """Within it, n ranks: yields the model of rank 0, whose engine is a `Distributed`; `engines` of its world has all.

    The parameters of the other ranks are NaN until rank 0 sends its own.
    """
    worlds = together(n)
    models = [GPT(config, seed, dtype, threads=threads, kernels=kernels) for _ in worlds]
    for model, world in zip(models, worlds, strict=True):
        model.use_engine(engine_of_all(model, cpu_kernels() if kernels == "auto" else kernels, world))
        model.params.flat[...] = model.params.flat if world.rank == 0 else np.nan
    model, world = models[0], worlds[0]
    world.engines, failed = [each.engine for each in models], []

    def follow(engine):
        try:
            engine.follow()
        except threading.BrokenBarrierError:
            pass                        # another rank has failed
        except BaseException as error:
            failed.append(error)
            world.barrier.abort()

    others = [threading.Thread(target=follow, args=(each,), daemon=True) for each in world.engines[1:]]
    with blas_threads(1):               # once for all: it is a setting of the process
        for thread in others:
            thread.start()
        try:
            yield model
            world.send_command("stop", {})
        except threading.BrokenBarrierError:
            raise (failed or [TimeoutError("a rank waits for another")])[0] from None
        finally:
            if any(thread.is_alive() for thread in others) and not world.ended:
                world.barrier.abort()
            for thread in others:
                thread.join(SECONDS)
    assert not failed and not any(thread.is_alive() for thread in others)


def together(n):
    """Return the connected worlds of n ranks."""
    barrier, boxes = threading.Barrier(n, timeout=SECONDS), [None] * n
    return [World(rank, n, barrier, boxes) for rank in range(n)]


class World:
    """Replaces `MPIWorld`."""

    def __init__(self, rank, size, barrier, boxes):
        self.rank, self.size, self.local_size, self.barrier, self.boxes = rank, size, size, barrier, boxes
        self.others_wait, self.ended = True, False

    def _share(self, value, use):
        """Return use(the values of all ranks); all ranks wait for each other."""
        self.boxes[self.rank] = value
        self.barrier.wait()
        result = use(self.boxes)
        self.barrier.wait()
        return result

    def send_command(self, name, order, *arrays):
        self.others_wait, self.ended = False, name == "stop"
        text = json.dumps([name, order])
        self._share((text, [array.copy() for array in arrays]), lambda boxes: None)

    def idle(self):
        self.others_wait = True

    def receive(self):
        text, arrays = self._share(None, lambda boxes: boxes[0])
        return *json.loads(text), [array.copy() for array in arrays]

    def broadcast(self, array):
        def use(boxes):
            if self.rank > 0:
                array[...] = boxes[0]

        self._share(array, use)

    def exchange(self, send, offsets):
        assert len(offsets) == self.size + 1 and offsets[-1] == send.size
        return self._share((send, offsets), lambda boxes: [
            values[where[self.rank]:where[self.rank + 1]].copy() for values, where in boxes])

    def all_gather(self, array, bounds):
        def use(boxes):
            for rank, other in enumerate(boxes):
                part = slice(bounds[rank], bounds[rank + 1])
                if rank != self.rank:
                    array[part] = other[part]

        self._share(array, use)

    def gather(self, part, bounds):
        def use(boxes):
            assert [len(each) for each in boxes] == list(np.diff(bounds))
            return np.concatenate(boxes)

        return self._share(part, use)
