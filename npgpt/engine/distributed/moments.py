"""One of AdamW's moments, in chunks: every rank holds a chunk, and rank 0 reads and writes whole tensors."""

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor whose values are on several ranks: `get` returns them, like the `get` of an array on a GPU."""

    shape: tuple
    dtype: np.dtype
    get: Callable

    @property
    def nbytes(self):
        return math.prod(self.shape) * self.dtype.itemsize


class Moments(Mapping):
    """A mapping name -> `Tensor` with the interface of `Parameters`, for rank 0.

    So checkpoints are those of one process; rank 0 holds one tensor at a time while writing and reading them.
    """

    def __init__(self, engine, which):
        self.engine, self.which = engine, which
        self.shapes, self.dtype = engine.params.trained, engine.params.dtype
        self.chunk = np.zeros(engine.end - engine.begin, self.dtype)

    def __getitem__(self, name):
        shape, order = self.shapes[name], {"which": self.which, "name": name}
        return Tensor(shape, self.dtype, lambda: self.engine._lead("moment", order).reshape(shape))

    def fill(self, name, read):
        """Fill a tensor with what read(array) writes into an array."""
        array = np.empty(self.shapes[name], self.dtype)
        read(array)
        self.engine._lead("set_moment", {"which": self.which, "name": name}, array)

    def __iter__(self):
        return iter(self.shapes)

    def __len__(self):
        return len(self.shapes)
