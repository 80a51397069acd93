"""The engine of many ranks: it wraps an engine, and exchanges the results of the ranks."""

import bisect
import itertools

import numpy as np

from npgpt.engine.cpu import mask_part
from npgpt.engine.distributed.moments import Moments
from npgpt.engine.memory import ROUND, SENT
from npgpt.engine.reference import ReferenceEngine, counted
from npgpt.engine.threads import even_parts
from npgpt.engine.update import SLICE, AdamWStep, clip_factor, norm_of, slices, square_sums, update_slices


class Distributed:
    """Runs an engine on every rank, each on its rows; the package's docstring lists the steps.

    engine: this rank's, on a CPU. world: the ranks, such as an `MPIWorld`. Rank 0 sends the name and the arguments of a
    command to the others; then all ranks call the method `_name`.
    """

    step = ReferenceEngine.step

    def __init__(self, engine, world):
        self.engine, self.world, self.params = engine, world, engine.params
        self.ranks = world.size, world.local_size       # in all, and on this machine
        self.threads = engine.threads * world.size
        self.description = f"{world.size} ranks, each {engine.description}"
        self.starts = [0, *itertools.accumulate(self.params[name].size for name in self.params.flat_names)]
        self.pieces = divide(self.params, world.size)
        sizes = [sum(end - start for *_, start, end in pieces) for pieces in self.pieces]
        self.chunks = [0, *itertools.accumulate(sizes)]         # where the ranks' chunks begin in params.flat
        self.begin, self.end = self.chunks[world.rank:world.rank + 2]
        # Each rank sends its loss and the sums of squares of its slices: where they begin in the list of all.
        self.numbers = [0, *itertools.accumulate(len(pieces) + 1 for pieces in self.pieces)]
        self.m, self.v = Moments(self, 0), Moments(self, 1)
        self.gs, self.norm = None, None         # this rank's slices of the gradient; the norm of all
        self.synchronized = False               # whether all ranks have rank 0's parameters

    # Called by the program, on rank 0.


    def __getattr__(self, name):
        """Take everything else from this rank's engine: so rank 0 generates alone."""
        return getattr(self.engine, name)

    def moments(self):
        """Return AdamW's moments; each rank holds its chunk."""
        return self.m, self.v

    def accumulated(self, batches, rngs, count):
        """As in `ReferenceEngine`, but return this rank's share of the gradients; `adamw_step` uses the sum of all."""
        seeds = [None if rng is None else list(map(int, rng.bit_generator.seed_seq.entropy)) for rng in rngs]
        return self._run_everywhere("accumulate", {"count": count, "seeds": seeds}, np.array(batches, np.int32))

    def loss(self, idx, targets, mask=None):
        masks = [] if mask is None else [np.ascontiguousarray(mask)]
        return self._run_everywhere("evaluate", {"count": counted(targets)}, np.array([idx, targets], np.int32), *masks)

    def adamw_step(self, grads, moments, step):
        """As in `ReferenceEngine`, on all ranks, with the last gradients of `accumulated`."""
        clip_factor(self.norm, step.max_norm)       # raises if the norm is not finite
        self._run_everywhere("step", step._asdict())
        return self.norm

    def _run_everywhere(self, name, arguments, *arrays):
        """Send the other ranks a command, and run it here, too."""
        self.world.send_command(name, arguments, *arrays)
        result = getattr(self, f"_{name}")(*arrays, **arguments)
        self.world.idle()
        return result

    # Called on every rank.

    def follow(self):
        """Run the commands of rank 0 until it sends stop."""
        while True:
            name, arguments, arrays = self.world.receive()
            if name == "stop":
                return
            getattr(self, f"_{name}")(*arrays, **arguments)

    def _synchronize(self):
        """Copy the parameters of rank 0 to all ranks, once."""
        if not self.synchronized:
            self.world.broadcast(self.params.flat)
            self.synchronized = True

    def _accumulate(self, batches, count, seeds):
        """Sum loss and gradients over the ranks, and compute the norm; batches (micro-batches, 2, B, T)."""
        self._synchronize()
        parts = even_parts(batches.shape[2], self.world.size)
        rank, loss, grads = self.world.rank, 0.0, None
        self.gs = None              # free the last step's
        if rank < len(parts):
            drawn = [None if seed is None else np.random.default_rng(seed) for seed in seeds]
            if len(parts) > 1:          # as the shards of one process draw
                drawn = [None if rng is None else rng.spawn(len(parts))[rank] for rng in drawn]
            # If all targets are ignored, the mean would be 0 / 0, and there is no gradient.
            mine = [(batch[:, parts[rank]], rng) for batch, rng in zip(batches, drawn, strict=True)
                    if counted(batch[1, parts[rank]])]
            if mine:
                loss, grads = self.engine.accumulated(*zip(*mine, strict=True), count)
        self.gs = self._summed(grads, len(parts))
        numbers = self._of_all_ranks([loss, *square_sums(self.gs, self.engine.threads)], self.numbers)
        losses = set(self.numbers)
        self.norm = norm_of(number for i, number in enumerate(numbers) if i not in losses)
        return sum(numbers[first] for first in self.numbers[:-1]), grads or self.params.zeros_like()

    def _evaluate(self, batch, mask=None, *, count):
        """Compute the loss of a batch (2, B, T), each rank on its rows."""
        self._synchronize()
        rank, parts, loss = self.world.rank, even_parts(batch.shape[1], self.world.size), 0.0
        if rank < len(parts) and counted(batch[1, parts[rank]]):
            loss = self.engine.loss(*batch[:, parts[rank]], mask_part(mask, parts[rank]), count)
        return sum(self._of_all_ranks([loss], range(self.world.size + 1)))

    def _step(self, **numbers):
        """Update this rank's chunk, and gather the new parameters of all ranks."""
        step = AdamWStep(**numbers)
        update_slices(step, self.params.flat[self.begin:self.end], self.m.chunk, self.v.chunk, self.begin,
                      self.pieces[self.world.rank], self.gs, clip_factor(self.norm, step.max_norm), self.engine.threads,
                      self.engine.adamw_update)
        self.world.all_gather(self.params.flat[:self.params.n_trained], self.chunks)

    def _summed(self, grads, active):
        """Return this rank's slices of the gradient, summed over the `active` ranks; grads: its share, or None."""
        chunk = np.empty(self.end - self.begin, self.params.dtype)
        most = max(end - begin for begin, end in itertools.pairwise(self.chunks))
        values = max(ROUND // self.world.size, SENT)
        for done in range(0, most, values):         # a round exchanges a part of every chunk
            ranges = [(min(begin + done, end), min(begin + done + values, end))
                      for begin, end in itertools.pairwise(self.chunks)]
            offsets = [0, *itertools.accumulate(end - begin for begin, end in ranges)]
            send = np.empty(offsets[-1], self.params.dtype)
            if grads is not None:
                np.concatenate([part for each in ranges for part in self._between(grads, *each)], out=send)
            else:
                send[...] = 0.0
            first, *others = self.world.exchange(send, offsets)[:active]
            total = chunk[done:done + values]
            total[...] = first
            for share in others:
                total += share
        return [chunk[first + start - self.begin:first + end - self.begin]
                for _, first, start, end in self.pieces[self.world.rank]]

    def _between(self, grads, begin, end):
        """Yield the gradients from begin to end, in the order of params.flat: views to be concatenated."""
        for i in range(bisect.bisect(self.starts, begin) - 1, bisect.bisect_left(self.starts, end)):
            flat = grads[self.params.flat_names[i]].reshape(-1)
            yield flat[max(begin - self.starts[i], 0):end - self.starts[i]]

    def _of_all_ranks(self, values, bounds):
        """Gather the numbers of all ranks, a list; rank r's are at bounds[r] to bounds[r + 1]."""
        numbers = np.zeros(bounds[-1])
        numbers[slice(*bounds[self.world.rank:self.world.rank + 2])] = values
        self.world.all_gather(numbers, bounds)
        return numbers.tolist()

    def _moment(self, which, name):
        return self.world.gather(*self._part(which, name))

    def _set_moment(self, array, which, name):
        mine, bounds = self._part(which, name)
        mine[...] = array.reshape(-1)[slice(*bounds[self.world.rank:self.world.rank + 2])]

    def _part(self, which, name):
        """Return this rank's part of a tensor of m or v, a view, and where the parts of all ranks begin in it."""
        i = self.params.flat_names.index(name)
        begin, end = self.starts[i:i + 2]
        cuts = [min(max(chunk, begin), end) for chunk in self.chunks]
        first, last = cuts[self.world.rank:self.world.rank + 2]
        return (self.m, self.v)[which].chunk[first - self.begin:last - self.begin], [cut - begin for cut in cuts]


def divide(params, n):
    """Divide the slices of the parameters among n ranks, as evenly as whole slices allow: n lists."""
    parts = slices(params, SLICE)
    middles = [first + (start + end) / 2 for _, first, start, end in parts]     # a cut is at the nearest end of a slice
    cuts = [0, *(bisect.bisect(middles, params.n_trained * rank / n) for rank in range(1, n)), len(parts)]
    return [parts[begin:end] for begin, end in itertools.pairwise(cuts)]
