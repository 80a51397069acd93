"""An optimizer's step on all parameters: they are updated in slices, on several threads."""

import inspect
import math

import numpy as np

from npgpt.arrays import is_on_host, on_device_of
from npgpt.engine.sources import digest
from npgpt.engine.threads import even_parts, in_threads

SLICE = (
    1 << 16
)  # values updated at a time: few enough that the temporaries of a slice stay in the cache
GPU_SLICE = 1 << 22  # there each operation on a slice costs a launch, and temporaries only memory
ELEMENTWISE = "b9d13226f195"  # the digest of `adamw_update`: other rules get whole parameters
LEAST = 16  # slices of a thread: fewer take less time than waking the thread


def update_slices(params, grads, moments, step, threads=1):
    """Update the parameters and AdamW's moments (m, v); return the norm of the gradients.

    step: an `AdamWStep`. Raises what its `clip` raises, before anything has changed. The bits of
    the result do not depend on the number of threads.
    """
    with on_device_of(params.flat):
        whole = digest(inspect.unwrap(step.rule).__code__) != ELEMENTWISE
        parts = slices(params, step.factor_and_decay, whole)
        gs = [slice_of(grads, part) for part in parts]
        norm = norm_of(gs, threads)
        clip = step.clip(norm)
        p, m, v = (each.flat for each in (params, *moments))

        def update(some):
            for (names, first, start, end), g in zip(parts[some], gs[some], strict=True):
                there = slice(first + start, first + end)
                # edited lines may return new arrays, `p = p - …`, or read shapes
                shape = params[names[0]].shape if whole else g.shape
                given = [each[there].reshape(shape) for each in (p, m, v)]
                made = step.update(names[0], given[0], g.reshape(shape), *given[1:], clip)
                for old, new in zip(given, made, strict=True):
                    if new is not old:
                        old[...] = new

        in_threads(update, shares(len(parts), threads))
        return norm


def slices(params, rates_of, whole=False):
    """Divide all parameters into parts: (names, their offset in `flat`, start, end).

    rates_of: a function, name -> what differs between parameters. whole: each is one part.
    Otherwise large arrays are cut, small neighbours joined. No part has both matrices and vectors,
    or parameters of different rates.
    """
    size = SLICE if params.xp is np else GPU_SLICE
    groups, end, last_kind = [], 0, None
    for name in params.flat_names:
        begin, end = end, end + params[name].size
        kind = begin < params.n_matrix, rates_of(name), whole and name
        if kind != last_kind or end - groups[-1][1] > size:
            groups.append(([], begin))
        groups[-1][0].append(name)
        last_kind = kind
    ends = [first for _, first in groups[1:]] + [end]
    if whole:
        size = max(params.size, 1)
    return [
        (names, first, start, min(start + size, last - first))
        for (names, first), last in zip(groups, ends, strict=True)
        for start in range(0, last - first, size)
    ]


def slice_of(grads, part):
    """Return the gradients of a part of the parameters, 1-D: a view of one array, or small arrays
    concatenated.
    """
    names, _, start, end = part
    flat = [grads[name].reshape(-1) for name in names]
    return flat[0][start:end] if len(flat) == 1 else np.concatenate(flat)


def norm_of(gs, threads):
    """Return the norm of all gradients as one vector, a scalar; gs: a list of slices.

    The slices are summed in order: so the norm has the same bits on any number of threads.
    """

    def square_sums(part):
        return [
            float(np.einsum("i,i->", g, g)) if is_on_host(g) else np.vdot(g, g) for g in gs[part]
        ]

    of_threads = in_threads(square_sums, shares(len(gs), threads))
    total = sum(square for squares in of_threads for square in squares)
    return math.sqrt(total) if is_on_host(total) else np.sqrt(total)


def shares(n, threads):
    return even_parts(n, min(threads, n // LEAST))
