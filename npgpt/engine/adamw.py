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
    pieces = slices(optimizer, grads, SLICE if is_on_host(params.flat) else params.flat.size)

    def update(some):
        for p, g, m, v, weight_decay in pieces[some]:
            adamw_update(p, g, m, v, optimizer.t, optimizer.lr, *optimizer.betas, optimizer.eps, weight_decay, clip)

    in_threads(update, even_parts(len(pieces), threads))
    return norm


def slices(optimizer, grads, size):
    """(p, g, m, v, weight decay) of at most `size` values each: every matrix, then all vectors, which do not decay."""
    params, start = optimizer.params, 0
    matrices, vectors = ([name for name in params.shapes if (len(params.shapes[name]) == 2) == is_matrix]
                         for is_matrix in (True, False))
    arrays = [(*(each[name].reshape(-1) for each in (params, grads, optimizer.m, optimizer.v)), optimizer.weight_decay)
              for name in matrices]
    if vectors:             # they are small: one call for all of them
        start = params.n_matrix
        arrays.append((params.flat[start:], np.concatenate([grads[name] for name in vectors]),
                       optimizer.m.flat[start:], optimizer.v.flat[start:], 0.0))
    return [(p[i:i + size], g[i:i + size], m[i:i + size], v[i:i + size], decay)
            for p, g, m, v, decay in arrays for i in range(0, p.size, size)]


def at_most_one(value):
    """min(1, value), on the device of the value."""
    return min(1.0, value) if is_on_host(value) else np.minimum(1.0, value)


def global_norm(grads):
    """The length of all gradients as one vector, a `number`."""
    return number(np.sqrt(sum(np.vdot(g, g) for g in grads.values())))
