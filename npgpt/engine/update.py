"""AdamW's update on arrays: the rule, and how engines apply it to all parameters."""

import math
from typing import NamedTuple

import numpy as np

from npgpt.arrays import is_on_host
from npgpt.engine.threads import even_parts, in_threads
from npgpt.errors import UserError

SLICE = 1 << 16     # values updated at a time: few enough that the temporaries of a slice stay in the cache
GPU_SLICE = 1 << 22     # there each operation on a slice costs a launch, and temporaries only memory
LEAST = 16          # slices of a thread: fewer take less time than waking the thread


class NotFiniteError(UserError):
    """A loss or a gradient norm that is infinite or NaN; the step that raised it changed nothing."""


class AdamWStep(NamedTuple):
    """The numbers of one step. n_decay: how many values of `Parameters.flat`, from its start, decay; t: from 1."""

    lr: float
    betas: tuple
    eps: float
    weight_decay: float
    n_decay: int
    t: int
    max_norm: float | None

    def corrected(self):
        """Return step_size and eps for `adamw_update`.

        Both moments begin at zero; without m / (1 - beta1^t) and v / (1 - beta2^t) the first steps would be too small.
        The two factors can be moved out of the arrays (Kingma & Ba 2014, arXiv:1412.6980, end of section 2):

            lr m_hat / (sqrt(v_hat) + eps) = step_size m / (sqrt(v) + eps correction)
        """
        beta1, beta2 = self.betas
        correction = math.sqrt(1.0 - beta2**self.t)
        return self.lr * correction / (1.0 - beta1**self.t), self.eps * correction


def adamw_update(p, g, m, v, lr, step_size, eps, beta1, beta2, weight_decay, clip=1.0):
    """Apply one step to arrays of equal shape, in place, and return p, m, v; g clip is the gradient.

    step_size, eps: from `AdamWStep.corrected`. XLA's arrays cannot be written to: there, new ones are returned.
    """
    m *= beta1                                  # m = beta1 m + (1 - beta1) g
    m += ((1.0 - beta1) * clip) * g
    v *= beta2                                  # v = beta2 v + (1 - beta2) g^2
    v += ((1.0 - beta2) * clip * clip) * (g * g)
    p *= 1.0 - lr * weight_decay
    p -= step_size * m / (np.sqrt(v) + eps)
    return p, m, v


def slices(params):
    """Divide all parameters into parts: (names, their offset in `flat`, start, end).

    Large arrays are cut, small neighbours joined.
    """
    size = SLICE if params.xp is np else GPU_SLICE
    groups, end = [], 0
    for name in params.flat_names:
        begin, end = end, end + params[name].size
        if groups and groups[-1][1] < params.n_matrix <= begin or not groups or end - groups[-1][1] > size:
            groups.append(([], begin))
        groups[-1][0].append(name)
    ends = [first for _, first in groups[1:]] + [end]
    return [(names, first, start, min(start + size, last - first))
            for (names, first), last in zip(groups, ends, strict=True) for start in range(0, last - first, size)]


def slice_of(grads, part):
    """Return the gradients of a part of the parameters, 1-D: a view of one array, or small arrays concatenated."""
    names, _, start, end = part
    flat = [grads[name].reshape(-1) for name in names]
    return flat[0][start:end] if len(flat) == 1 else np.concatenate(flat)


def norm_of(gs, threads):
    """Return the norm of all gradients as one vector, a scalar; gs: a list of slices.

    The slices are summed in order: so the norm has the same bits on any number of threads.
    """
    def square_sums(part):
        return [float(np.einsum("i,i->", g, g)) if is_on_host(g) else np.vdot(g, g)
                for g in gs[part]]

    of_threads = in_threads(square_sums, shares(len(gs), threads))
    total = sum(square for squares in of_threads for square in squares)
    return math.sqrt(total) if is_on_host(total) else np.sqrt(total)


def clip_factor(norm, max_norm):
    """Return the factor of the gradients, min(1, max_norm / norm). Raises NotFiniteError if the norm is not finite."""
    if is_on_host(norm) and not math.isfinite(norm):
        raise NotFiniteError(f"the gradient norm is {norm}: lower the learning rate, or clip at a smaller norm")
    if max_norm is None:
        return 1.0
    factor = max_norm / (norm + 1e-6)
    return min(1.0, factor) if is_on_host(factor) else np.minimum(1.0, factor)


def update_slices(step, p, m, v, parts, gs, clip, threads, rule):
    """Update all slices on several threads. p, m, v: `flat` of the parameters and the moments."""
    step_size, eps = step.corrected()

    def update(some):
        for (_, first, start, end), g in zip(parts[some], gs[some], strict=True):
            there = slice(first + start, first + end)
            weight_decay = step.weight_decay if first < step.n_decay else 0.0
            rule(p[there], g, m[there], v[there], step.lr, step_size, eps, *step.betas, weight_decay, clip)

    in_threads(update, shares(len(parts), threads))


def shares(n, threads):
    return even_parts(n, min(threads, n // LEAST))
