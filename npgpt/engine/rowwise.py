"""Row blocks: a readable expression at the speed of one that was written for the cache.

An expression on large arrays, `0.5 * x * (1.0 + t)`, goes through memory once for every operator. On a block of rows
its temporaries stay in the cache. `@rowwise` cuts the rows into such blocks and puts the results together, so that the
functions in `layers/` need no loop for it.
"""

import functools

import numpy as np

from npgpt.engine.threads import spread

BLOCK_BYTES = 1 << 20       # a core's second-level cache; of smaller blocks the calls cost more than the cache saves
GPU_BLOCK_BYTES = 1 << 28   # of an array on a GPU: enough to keep it busy, and temporaries that leave room for the rest


def rowwise(function):
    """Decorate a function that works on every row of its arrays by itself, and at most sums over the rows.

    A row is what is left of an array when all axes but its last are counted through. The arrays of `function` that
    have the most axes are cut into blocks of rows; the others are given to each block whole. A result with as many axes
    is put together from the blocks' results; one with fewer is a sum over the rows, and the blocks' sums are added in
    order. Arguments and results may be nested tuples. An argument that is returned, in the cache say, is not copied.

    The undecorated function, `function.__wrapped__`, gives the same numbers but for the order of the sums. Blocks are
    worked on at the same time where the calling thread has several cores (`using_cores`), with the same bits.
    """
    @functools.wraps(function)
    def in_blocks(*arguments, **named):
        first = arguments[0] if arguments else None
        if isinstance(first, np.ndarray) and first.nbytes <= BLOCK_BYTES:       # soon found, for small models
            return function(*arguments, **named)
        given = (arguments, tuple(named.values()))
        leaves = list(_leaves(given))
        x = max((leaf for leaf in leaves if isinstance(leaf, np.ndarray)), key=np.ndim, default=None)
        if x is None or x.nbytes <= BLOCK_BYTES:        # small, or not in this machine's memory
            return function(*arguments, **named)
        n = x.size // x.shape[-1]
        is_rows = [isinstance(leaf, np.ndarray) and leaf.ndim == x.ndim for leaf in leaves]
        flat = [leaf.reshape(n, leaf.shape[-1]) if rows else leaf for leaf, rows in zip(leaves, is_rows, strict=True)]

        def call(block):
            parts = [leaf[block] if rows else leaf for leaf, rows in zip(flat, is_rows, strict=True)]
            positional, by_name = _nest(given, iter(parts))
            return parts, function(*positional, **dict(zip(named, by_name, strict=True)))

        # A call on no rows tells, for little, what comes back: arguments, arrays of rows, or sums over the rows.
        parts, nest = call(slice(0, 0))
        results, rows, sums = list(_leaves(nest)), [], []
        for i, result in enumerate(results):
            argument = next((j for j, part in enumerate(parts) if part is result), None)
            if argument is not None:
                results[i] = leaves[argument]
            elif np.ndim(result) == 2:
                results[i] = np.empty((n, result.shape[1]), dtype=result.dtype)
                rows.append(i)
            elif isinstance(result, np.ndarray | np.generic):
                sums.append(i)

        def run(block):
            found = list(_leaves(call(block)[1]))
            for i in rows:
                results[i][block] = found[i]
            return [found[i] for i in sums]

        block_sums = spread(run, row_blocks(x.reshape(n, -1)))
        for i, parts in zip(sums, zip(*block_sums, strict=True), strict=False):
            results[i] = sum(parts)
        for i in rows:
            results[i] = results[i].reshape(*x.shape[:-1], -1)
        return _nest(nest, iter(results))
    return in_blocks


def row_blocks(rows):
    """Slices that cut an array (n, C) into blocks for the cache, or of `GPU_BLOCK_BYTES`: one slice where it fits."""
    n = len(rows)
    block_bytes = BLOCK_BYTES if isinstance(rows, np.ndarray) else GPU_BLOCK_BYTES
    step = max(1, block_bytes * n // rows.nbytes) if rows.nbytes > block_bytes else n
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def _leaves(value):
    """What a nest of tuples holds, from left to right."""
    if isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _nest(like, leaves):
    """The nest of tuples of the shape of `like` that holds what the iterator `leaves` yields."""
    return tuple(_nest(item, leaves) for item in like) if isinstance(like, tuple) else next(leaves)
