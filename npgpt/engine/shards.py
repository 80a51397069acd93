"""Batch shards: the rows of a batch divided over threads, each with a single-threaded BLAS and its own gradients.

Layers know nothing of it.
"""

from npgpt.checks import MOST_THREADS, check_whole
from npgpt.engine.threads import available_cores, blas_threads, even_parts, in_threads, using_cores


class Shards:
    """Runs a function on parts of a batch at the same time and adds up what comes back, always in the same order.

    threads: how many parts at most, by default the cores that this process may use.
    """

    def __init__(self, threads=None):
        if threads is not None:
            check_whole("threads", threads, 1, MOST_THREADS)
        self.threads = threads or available_cores()
        self._grads = []

    def sum_with_grads(self, function, n_rows, n_parts, rng, params, add=False):
        """The sum of function(rows, rng, grads) over the parts, and the sum of their gradients in the first buffer.

        function: takes a slice of the batch, its own generator (or None) and a gradient buffer to overwrite; returns a
        number. The buffers are kept from call to call; with `add` the gradients are added to what the first one holds.
        """
        parts = even_parts(n_rows, n_parts)
        first = 1 if add else 0
        while len(self._grads) < first + len(parts):
            self._grads.append(params.zeros_like())
        grads = self._grads[first:first + len(parts)]
        rngs = [rng] * len(parts) if len(parts) == 1 or rng is None else rng.spawn(len(parts))
        total = sum(self._run(function, parts, rngs, grads))
        for other in self._grads[1:first + len(parts)]:
            in_threads(lambda part, other=other: add_to(self._grads[0].flat[part], other.flat[part]),
                       even_parts(other.flat.size, self.threads))
        return total, self._grads[0]

    def sum(self, function, n_rows):
        """The sum of function(rows) over the parts."""
        return sum(self._run(function, even_parts(n_rows, self.threads)))

    def whole(self, function, *arguments):
        """function(*arguments), undivided: the cores go to BLAS, row blocks and heads inside the layers."""
        with blas_threads(self.threads), using_cores(self.threads):
            return function(*arguments)

    def _run(self, function, *arguments):
        if len(arguments[0]) == 1:
            return [self.whole(function, *(argument[0] for argument in arguments))]
        with blas_threads(1):
            return in_threads(function, *arguments)


def add_to(total, other):
    """total += other, as a function."""
    total += other
