"""The step of AdamW on arrays: the update rule, and how it is applied to all parameters."""

import math

import numpy as np

from npgpt.arrays import is_on_host, number
from npgpt.engine.threads import even_parts, in_threads
from npgpt.errors import UserError

SLICE = 1 << 17     # values updated at a time: few enough that the temporaries of a slice stay in the cache


class NotFiniteError(UserError):
    """A loss or a gradient norm that is infinite or NaN; the step that raised it changed nothing."""


def adamw_update(p, g, m, v, t, lr, beta1, beta2, eps, weight_decay, clip=1.0):
    """Apply one step to arrays of equal shape: p, m and v change in place; g clip is the gradient, t counts from 1.

    Both moments begin at zero; without m / (1 - beta1^t) and v / (1 - beta2^t) the first steps would be too small. As
    Kingma & Ba 2014 (arXiv:1412.6980, end of section 2) note, the two factors can be taken out of the arrays:

        lr m_hat / (sqrt(v_hat) + eps) = step_size m / (sqrt(v) + eps correction)
    """
    m *= beta1                                  # m = beta1 m + (1 - beta1) g
    m += ((1.0 - beta1) * clip) * g
    v *= beta2                                  # v = beta2 v + (1 - beta2) g^2
    v += ((1.0 - beta2) * clip * clip) * (g * g)
    correction = math.sqrt(1.0 - beta2**t)
    step_size = lr * correction / (1.0 - beta1**t)
    p *= 1.0 - lr * weight_decay
    p -= step_size * m / (np.sqrt(v) + eps * correction)


def adamw_step(optimizer, grads, max_norm, threads):
    """Take a step of an `AdamW` on any arrays: clip, then update slices on several threads. Returns the gradient norm.

    Raises NotFiniteError, before anything has changed, if the norm is not finite; on a GPU it raises nothing, and the
    parameters become NaN. The bits of the result do not depend on the number of threads.
    """
    params = optimizer.params
    norm = global_norm(grads)
    if is_on_host(norm) and not math.isfinite(norm):
        raise NotFiniteError(f"the gradient norm is {norm}: lower the learning rate, or clip at a smaller norm")
    clip = 1.0 if max_norm is None else at_most_one(max_norm / (norm + 1e-6))
    optimizer.t += 1
    parts = slices(params, SLICE if is_on_host(params.flat) else params.flat.size)

    def update(some):
        for names, first, start, end in parts[some]:        # start and end within the arrays of those names
            p, m, v = (each.flat[first + start:first + end] for each in (params, optimizer.m, optimizer.v))
            flat = [grads[name].reshape(-1) for name in names]
            g = flat[0][start:end] if len(flat) == 1 else np.concatenate(flat)
            weight_decay = optimizer.weight_decay if first < optimizer.n_decay else 0.0
            adamw_update(p, g, m, v, optimizer.t, optimizer.lr, *optimizer.betas, optimizer.eps, weight_decay, clip)

    in_threads(update, even_parts(len(parts), threads))
    return norm


def slices(params, size):
    """Divide all parameters into parts of at most `size` values: (names, where they begin in `flat`, start, end).

    A large array is cut, start and end say where. Small ones that lie side by side are one part: fewer calls.
    """
    groups, end = [], 0
    for name in params.flat_names:
        begin, end = end, end + params[name].size
        if groups and groups[-1][1] < params.n_matrix <= begin or not groups or end - groups[-1][1] > size:
            groups.append(([], begin))
        groups[-1][0].append(name)
    ends = [first for _, first in groups[1:]] + [end]
    return [(names, first, start, min(start + size, last - first))
            for (names, first), last in zip(groups, ends, strict=True) for start in range(0, last - first, size)]


def at_most_one(value):
    """min(1, value), on the device of the value."""
    return min(1.0, value) if is_on_host(value) else np.minimum(1.0, value)


def global_norm(grads):
    """The length of all gradients as one vector, a `number`."""
    return number(np.sqrt(sum(np.vdot(g, g) for g in grads.values())))
