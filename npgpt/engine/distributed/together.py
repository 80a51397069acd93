"""XLA on many processes: all run the same programs at the same time, each on its rows of the batch.

JAX exchanges the results. This file tells the other ranks which program is next, and sends them parameters and moments
that were changed on rank 0's host.
"""

import numpy as np

from npgpt.engine.update import Step
from npgpt.engine.xla.engine import Seeds, XLAEngine
from npgpt.engine.xla.place import DeviceParameters, Place


class Together:
    """The `XLAEngine` of each rank, on the devices of all. Rank 0 calls `step` and `loss`; the others `follow`."""

    def __init__(self, engine, world):
        self.engine, self.world, self.params = engine, world, engine.params
        self.state = [self.params, *engine.moments()]
        place = Place([self.params.place.own])
        own = DeviceParameters(self.params.config, self.params.dtype, place, self.params.frozen)
        self.alone = XLAEngine(own, engine.dtype)

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def moments(self):
        return self.state[1:]

    def reader(self, B, pads=None):
        """Rank 0 generates alone, on its own device."""
        self.alone.params.flat[...] = self.params.flat
        return self.alone.reader(B, pads)

    def step(self, batches, rngs, count, moments, step):
        self._share(self.state)
        self.world.tell("step", {"count": count, "seeds": rngs, "step": step}, np.array(batches, np.int32))
        return self._done(self.engine.step(batches, rngs, count, moments, step))

    def loss(self, idx, targets, mask=None, count=None):
        self._share(self.state[:1])
        self.world.tell("loss", {}, np.array([idx, targets], np.int32))
        return self._done([self.engine.loss(idx, targets, mask, count)])[0]

    def _done(self, arrays):
        """Wait for the devices by sleeping, because they may need all cores."""
        for array in arrays:
            self.world.wait(array.is_ready, busy=0)
        self.world.rest()
        return arrays

    def _share(self, state):
        for i, each in enumerate(state):
            if each.there is None:
                self.world.tell("values", {"which": i}, each.flat)

    def follow(self):
        """Carry out the orders of rank 0 until it sends stop."""
        while True:
            name, order, arrays = self.world.hear()
            if name == "values":
                self.state[order["which"]].flat[...] = arrays[0]
            elif name == "loss":
                self.engine.loss(*arrays[0])
            elif name == "step":
                rngs, step = [Seeds(*seed) for seed in order["seeds"]], Step(*order["step"])
                self.engine.step(arrays[0], rngs, order["count"], self.moments(), step)
            else:
                return
