"""Batch shards: the rows of a batch divided over threads, each with a single-threaded BLAS and its own gradients.

NumPy lets go of Python's lock in its loops and in BLAS, so that plain code uses every core. Layers know nothing of it.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import threadpoolctl

from npgpt.errors import UserError


class Shards:
    """Runs a function on parts of a batch at the same time and adds up what comes back, always in the same order.

    threads: how many parts at most, by default the cores that this process may use.
    """

    def __init__(self, threads=None):
        if threads is not None and threads < 1:
            raise UserError(f"threads must be at least 1, not {threads}")
        self.threads = threads or available_cores()
        self._pool = None
        self._blas = threadpoolctl.ThreadpoolController()
        self._grads = []

    def sum_with_grads(self, function, n_rows, rng, params):
        """The sum of function(rows, rng, grads) over the parts, and the sum of their gradients in the first buffer.

        function: takes a slice of the batch, its own generator (or None) and a gradient buffer to overwrite; returns a
        number. The buffers are kept from call to call.
        """
        parts = self.parts(n_rows)
        while len(self._grads) < len(parts):
            self._grads.append(params.zeros_like())
        rngs = rng.spawn(len(parts)) if rng is not None else [None] * len(parts)
        total = sum(self._run(function, parts, rngs, self._grads))
        first, *others = self._grads[:len(parts)]
        for other in others:
            first.flat += other.flat
        return total, first

    def sum(self, function, n_rows):
        """The sum of function(rows) over the parts."""
        return sum(self._run(function, self.parts(n_rows)))

    def whole(self, function, *arguments):
        """function(*arguments), undivided: the cores go to BLAS inside the layers."""
        with self._blas.limit(limits=self.threads, user_api="blas"):
            return function(*arguments)

    def parts(self, n_rows):
        """Slices that divide n_rows as evenly as can be, one a thread."""
        n = min(self.threads, n_rows)
        return [slice(n_rows * i // n, n_rows * (i + 1) // n) for i in range(n)]

    def _run(self, function, *arguments):
        if len(arguments[0]) == 1:
            return [self.whole(function, *(argument[0] for argument in arguments))]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="npgpt-shard")
        with self._blas.limit(limits=1, user_api="blas"):       # our threads times BLAS's would fight over the cores
            return list(self._pool.map(function, *arguments))


def available_cores():
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
