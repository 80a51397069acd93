"""One of AdamW's moments, in chunks: every rank holds a chunk, and rank 0 reads and writes whole tensors."""

import math
from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np


class Moments(Mapping):
    """A mapping name -> tensor with the interface of `Parameters`, for rank 0: `get` returns it, as of one on a GPU.

    So checkpoints are those of one process; rank 0 holds one tensor at a time while writing and reading them.
    """

    def __init__(self, engine, which):
        self.engine, self.which = engine, which
        self.shapes, self.dtype = engine.params.trained, engine.params.dtype
        self.chunk = np.zeros(engine.end - engine.begin, self.dtype)

    def __getitem__(self, name):
        shape, order = self.shapes[name], {"which": self.which, "name": name}
        return SimpleNamespace(shape=shape, dtype=self.dtype, nbytes=math.prod(shape) * self.dtype.itemsize,
                               get=lambda: self.engine._lead("moment", order).reshape(shape))

    def fill(self, name, read):
        """Fill a tensor with what read(array) writes into an array."""
        array = np.empty(self.shapes[name], self.dtype)
        read(array)
        self.engine._lead("set_moment", {"which": self.which, "name": name}, array)

    def __iter__(self):
        return iter(self.shapes)

    def __len__(self):
        return len(self.shapes)
