"""One of AdamW's moments, in chunks: every rank holds a chunk, and rank 0 reads and writes whole tensors."""

import math
from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np


class Moments(Mapping):
    """A mapping name -> tensor like `Parameters`, for checkpoints on rank 0; `get` gathers a tensor, as from a GPU."""

    def __init__(self, engine, which):
        self.engine, self.which = engine, which
        self.shapes, self.dtype = engine.params.trained, engine.params.dtype
        self.chunk = np.zeros(engine.end - engine.begin, self.dtype)

    def __getitem__(self, name):
        def get():
            return self.engine._run_everywhere("moment", {"which": self.which, "name": name}).reshape(shape)

        shape = self.shapes[name]
        return SimpleNamespace(shape=shape, dtype=self.dtype, nbytes=math.prod(shape) * self.dtype.itemsize, get=get)

    def fill(self, name, read):
        """Fill a tensor with what read(array) writes into an array."""
        array = np.empty(self.shapes[name], self.dtype)
        read(array)
        self.engine._run_everywhere("set_moment", {"which": self.which, "name": name}, array)

    def __iter__(self):
        return iter(self.shapes)

    def __len__(self):
        return len(self.shapes)
