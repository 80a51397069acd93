"""The step of AdamW on arrays: the update rule, and how it is applied to all parameters."""

import math

import numpy as np

from npgpt.arrays import is_on_host
from npgpt.checks import check, check_real, check_whole
from npgpt.engine.threads import even_parts, in_threads
from npgpt.errors import UserError

SLICE = 1 << 16     # values updated at a time: few enough that the temporaries of a slice stay in the cache


class NotFiniteError(UserError):
    """A loss or a gradient norm that is infinite or NaN; the step that raised it changed nothing."""


def check_numbers(optimizer, max_norm=None):
    """Raise UserError if a number that the next step of an `AdamW` uses is out of range, also after its cast."""
    check_real("lr", optimizer.lr)
    betas = optimizer.betas
    check("betas", betas, isinstance(betas, tuple | list) and len(betas) == 2, "two numbers")
    for beta in betas:
        check_real("each of betas", beta, below=1.0)
    check_real("eps", optimizer.eps, above=0.0)
    check_real("weight_decay", optimizer.weight_decay)
    check_whole("t", optimizer.t)
    params = optimizer.params
    sizes = params.n_matrix, params.n_trained
    check("n_decay", optimizer.n_decay, isinstance(optimizer.n_decay, int) and optimizer.n_decay in sizes,
          f"{sizes[0]} or {sizes[1]}, the matrices or all")
    if max_norm is not None:
        check_real("max_norm", max_norm, above=0.0)
    lr, eps, weight_decay = float(optimizer.lr), float(optimizer.eps), float(optimizer.weight_decay)
    with np.errstate(over="ignore"):
        used = np.array([lr, eps, weight_decay, lr * weight_decay, *bias_correction(optimizer.t + 1, lr, *betas, eps)])
        used = used.astype(params.dtype)
    if not np.isfinite(used).all() or used[-1] == 0.0:
        raise UserError(f"lr {lr:g}, eps {eps:g} or weight_decay {weight_decay:g} is too large or too small "
                        f"for {params.dtype}")


def bias_correction(t, lr, beta1, beta2, eps):
    """Compute step_size and eps of `adamw_update` for step t, which counts from 1.

    Both moments begin at zero; without m / (1 - beta1^t) and v / (1 - beta2^t) the first steps would be too small. As
    Kingma & Ba 2014 (arXiv:1412.6980, end of section 2) note, the two factors can be taken out of the arrays:

        lr m_hat / (sqrt(v_hat) + eps) = step_size m / (sqrt(v) + eps correction)
    """
    correction = math.sqrt(1.0 - beta2**t)
    return lr * correction / (1.0 - beta1**t), eps * correction


def adamw_update(p, g, m, v, lr, step_size, eps, beta1, beta2, weight_decay, clip=1.0):
    """Apply one step to arrays of equal shape, in place, and return p, m, v; g clip is the gradient.

    step_size, eps: those of `bias_correction`. XLA's arrays cannot change: there, new ones are returned.
    """
    m *= beta1                                  # m = beta1 m + (1 - beta1) g
    m += ((1.0 - beta1) * clip) * g
    v *= beta2                                  # v = beta2 v + (1 - beta2) g^2
    v += ((1.0 - beta2) * clip * clip) * (g * g)
    p *= 1.0 - lr * weight_decay
    p -= step_size * m / (np.sqrt(v) + eps)
    return p, m, v


def adamw_step(optimizer, grads, max_norm, threads, rule=adamw_update):
    """Take a step of an `AdamW` on any arrays: clip, then update slices on several threads. Returns the gradient norm.

    Raises NotFiniteError, before anything has changed, if the norm is not finite; on a GPU it raises nothing, and the
    parameters become NaN. The bits of the result do not depend on the number of threads.
    """
    params = optimizer.params
    parts = slices(params, SLICE if params.xp is np else params.size)
    gs = [slice_of(grads, part) for part in parts]
    norm = norm_of(square_sums(gs, threads))
    clip = clip_factor(norm, max_norm)
    optimizer.t += 1
    update_slices(optimizer, params.flat, optimizer.m.flat, optimizer.v.flat, 0, parts, gs, clip, threads, rule)
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


def slice_of(grads, part):
    """The gradients of a part of the parameters, 1-D: a view of one array, or small arrays side by side."""
    names, _, start, end = part
    flat = [grads[name].reshape(-1) for name in names]
    return flat[0][start:end] if len(flat) == 1 else np.concatenate(flat)


def square_sums(gs, threads):
    """The sum of squares of each slice of the gradient, a list of `number`s.

    One by one, because then the norm has the same bits wherever a slice is added up: on another thread or machine.
    """
    def some(part):
        return [float(np.einsum("i,i->", g, g)) if is_on_host(g) else np.vdot(g, g) for g in gs[part]]

    return [square for squares in in_threads(some, even_parts(len(gs), threads)) for square in squares]


def norm_of(squares):
    """The length of all gradients as one vector, a `number`, from the sum of squares of each slice."""
    total = sum(squares)
    return math.sqrt(total) if is_on_host(total) else np.sqrt(total)


def clip_factor(norm, max_norm):
    """What the gradients are multiplied with: min(1, max_norm / norm). Raises NotFiniteError if the norm is not finite.
    """
    if is_on_host(norm) and not math.isfinite(norm):
        raise NotFiniteError(f"the gradient norm is {norm}: lower the learning rate, or clip at a smaller norm")
    if max_norm is None:
        return 1.0
    factor = max_norm / (norm + 1e-6)
    return min(1.0, factor) if is_on_host(factor) else np.minimum(1.0, factor)


def update_slices(optimizer, p, m, v, begin, parts, gs, clip, threads, rule):
    """Update consecutive slices on several threads: p, m and v are 1-D and hold the parameters from `begin` on."""
    step_size, eps = bias_correction(optimizer.t, optimizer.lr, *optimizer.betas, optimizer.eps)

    def update(some):
        for (_, first, start, end), g in zip(parts[some], gs[some], strict=True):
            there = slice(first + start - begin, first + end - begin)
            weight_decay = optimizer.weight_decay if first < optimizer.n_decay else 0.0
            rule(p[there], g, m[there], v[there], optimizer.lr, step_size, eps, *optimizer.betas, weight_decay, clip)

    in_threads(update, even_parts(len(parts), threads))
