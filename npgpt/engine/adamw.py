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
    pieces = list(slices(optimizer, grads, SLICE if is_on_host(params.flat) else params.flat.size))

    def update(some):
        for p, g, m, v, weight_decay in pieces[some]:
            adamw_update(p, g, m, v, optimizer.t, optimizer.lr, *optimizer.betas, optimizer.eps, weight_decay, clip)

    in_threads(update, even_parts(len(pieces), threads))
    return norm


def slices(optimizer, grads, size):
    """(p, g, m, v, weight decay) of at most `size` values each; vectors do not decay.

    A large matrix is cut; small arrays that lie side by side are taken together, with a copy of their gradients.
    """
    params, flat = optimizer.params, [each.flat for each in (optimizer.params, optimizer.m, optimizer.v)]
    groups, start = [], 0                           # [names, first value, end, whether they are matrices]
    for name in params.flat_names:
        is_matrix, end = len(params.shapes[name]) == 2, start + params[name].size
        if groups and groups[-1][3] == is_matrix and end - groups[-1][1] <= size:
            groups[-1] = [*groups[-1][0], name], groups[-1][1], end, is_matrix
        else:
            groups.append(([name], start, end, is_matrix))
        start = end
    for names, start, end, is_matrix in groups:
        g = grads[names[0]].reshape(-1) if len(names) == 1 else np.concatenate([grads[n].reshape(-1) for n in names])
        for i in range(0, end - start, size):
            p, m, v = (each[start + i:min(start + i + size, end)] for each in flat)
            yield p, g[i:i + size], m, v, optimizer.weight_decay if is_matrix else 0.0


def at_most_one(value):
    """min(1, value), on the device of the value."""
    return min(1.0, value) if is_on_host(value) else np.minimum(1.0, value)


def global_norm(grads):
    """The length of all gradients as one vector, a `number`."""
    return number(np.sqrt(sum(np.vdot(g, g) for g in grads.values())))
