"""The CPU engine's loops, compiled by Numba (extra `fast`): one pass over a row where NumPy makes one per operator.

Each pair replaces the lesson's pair of the same name: the same arguments and results, but the caches of GELU and
attention differ. A function that begins with an underscore is a loop over the rows of C-contiguous arrays. It releases
Python's lock, and writes to the arrays that are named after a layer's results.
"""

import numpy as np

from npgpt.engine.row_blocks import row_blocks
from npgpt.engine.threads import spread
from npgpt.engine.vectors import FAST, exp, loop, maximum
from npgpt.layers.gelu import SQRT_2_OVER_PI
from npgpt.layers.loss import IGNORE_INDEX


def over_blocks(run, arrays, *arguments):
    """Call a loop on blocks of rows of arrays, on all free cores; return [run(*blocks, *arguments), …]."""
    return spread(lambda block: run(*[array[block] for array in arrays], *arguments), row_blocks(arrays[0]))


def as_rows(x):
    """Return x (..., C) as C-contiguous rows (N, C)."""
    return np.ascontiguousarray(x.reshape(-1, x.shape[-1]))


def _layernorm_forward(x, rstd, y, xhat, weight, bias, eps):
    N, C = x.shape
    one, size = x.dtype.type(1), x.dtype.type(C)
    for n in range(N):
        total = x.dtype.type(0)
        for c in range(C):
            total += x[n, c]
        mean, squares = total / size, x.dtype.type(0)
        for c in range(C):
            squares += (x[n, c] - mean) * (x[n, c] - mean)
        rstd[n, 0] = one / np.sqrt(squares / size + eps)
        for c in range(C):
            xhat[n, c] = (x[n, c] - mean) * rstd[n, 0]
            y[n, c] = xhat[n, c] * weight[c]
            if bias is not None:
                y[n, c] += bias[c]


_layernorm_forward = loop(_layernorm_forward, FAST - {"arcp"})      # an estimated 1 / sqrt(inf) would be NaN


def layernorm_forward(x, weight, bias=None, eps=1e-5):
    rows = as_rows(x)
    rstd, y, xhat = np.empty_like(rows[:, :1]), np.empty_like(rows), np.empty_like(rows)
    over_blocks(_layernorm_forward, (rows, rstd, y, xhat), weight, bias, x.dtype.type(eps))
    return y.reshape(x.shape), (xhat, rstd, weight, bias is not None)


@loop
def _layernorm_backward(dy, xhat, rstd, dx, weight):
    """Return the sums over the rows, (2, C): dweight and dbias."""
    N, C = dy.shape
    zero, size, sums = dy.dtype.type(0), dy.dtype.type(C), np.zeros((2, C), dy.dtype)
    for n in range(N):
        mean_dxhat, mean_dxhat_xhat = zero, zero
        for c in range(C):
            dxhat = dy[n, c] * weight[c]
            mean_dxhat += dxhat
            mean_dxhat_xhat += dxhat * xhat[n, c]
            sums[0, c] += dy[n, c] * xhat[n, c]
            sums[1, c] += dy[n, c]
        mean_dxhat, mean_dxhat_xhat = mean_dxhat / size, mean_dxhat_xhat / size
        for c in range(C):
            dx[n, c] = rstd[n, 0] * (dy[n, c] * weight[c] - mean_dxhat - xhat[n, c] * mean_dxhat_xhat)
    return sums


def layernorm_backward(dy, cache):
    xhat, rstd, weight, has_bias = cache
    rows = as_rows(dy)
    dx = np.empty_like(rows)
    dweight, dbias = sum(over_blocks(_layernorm_backward, (rows, xhat, rstd, dx), weight))
    return dx.reshape(dy.shape), dweight, dbias if has_bias else None


@loop
def _gelu_tanh_forward(x, y, sigmoid):
    a, b, one = x.dtype.type(-2.0 * SQRT_2_OVER_PI), x.dtype.type(0.044715), x.dtype.type(1)
    for i in range(x.size):
        sigmoid[i] = one / (one + exp(a * (x[i] + b * (x[i] * x[i] * x[i]))))
        y[i] = x[i] * sigmoid[i]


def gelu_tanh_forward(x):
    """The cache holds x and (1 + tanh(inner)) / 2, which is 1 / (1 + exp(-2 inner))."""
    flat = np.ascontiguousarray(x).reshape(-1)
    y, sigmoid = np.empty_like(flat), np.empty_like(flat)
    over_blocks(_gelu_tanh_forward, (flat, y, sigmoid))
    return y.reshape(x.shape), (flat, sigmoid)


@loop
def _gelu_tanh_backward(dy, x, sigmoid, dx):
    a, b, one = x.dtype.type(2.0 * SQRT_2_OVER_PI), x.dtype.type(3.0 * 0.044715), x.dtype.type(1)
    for i in range(x.size):
        dinner = x[i] * (sigmoid[i] * (one - sigmoid[i])) * (a * (one + b * (x[i] * x[i])))
        dx[i] = dy[i] * (sigmoid[i] + dinner)


def gelu_tanh_backward(dy, cache):
    flat = np.ascontiguousarray(dy).reshape(-1)
    dx = np.empty_like(flat)
    over_blocks(_gelu_tanh_backward, (flat, *cache, dx))
    return dx.reshape(dy.shape)


def _largest(row):
    largest = row[0]
    for i in range(row.size):
        largest = maximum(largest, row[i])
    return largest


_largest = loop(_largest, {"nnan", "nsz"})      # a NaN may be ignored here: its row's sum becomes NaN anyway


@loop
def _softmax_forward(scale, mask, dropout_mask, att, kept):
    """att (B H, T, S) holds the scores on entry; mask (1, B or B H, T, S) or None, dropout_mask (B H, T, S) or None."""
    one = att.dtype.type(1)
    for i in range(att.shape[0]):
        for t in range(att.shape[1]):
            row, total = att[i, t], att.dtype.type(0)
            for s in range(row.size):
                row[s] *= scale
            if mask is not None:
                added = mask[i // (len(att) // len(mask)), t]
                for s in range(row.size):
                    row[s] += added[s]
            largest = _largest(row)
            for s in range(row.size):
                row[s] = exp(row[s] - largest)
                total += row[s]
            factor = one / total
            for s in range(row.size):
                row[s] *= factor
                if dropout_mask is not None:
                    kept[i, t, s] = row[s] * dropout_mask[i, t, s]


def attention_forward(q, k, v, scale, mask=None, dropout_mask=None):
    att = np.ascontiguousarray(q @ k.swapaxes(-1, -2))      # (B, H, T, S)
    kept = att if dropout_mask is None else np.empty_like(att)
    mask, dropout_mask, *rows = (None if each is None else np.ascontiguousarray(each).reshape(-1, *att.shape[-2:])
                                 for each in (mask, dropout_mask, att, kept))
    _softmax_forward(att.dtype.type(scale), mask, dropout_mask, *rows)
    return kept @ v, (q, k, v, scale, att, dropout_mask)


@loop
def _softmax_backward(scale, dropout_mask, att, dscores):
    """dscores (B H, T, S) holds dkept on entry."""
    for i in range(att.shape[0]):
        for t in range(att.shape[1]):
            row, drow, dot = att[i, t], dscores[i, t], att.dtype.type(0)
            for s in range(row.size):
                if dropout_mask is not None:
                    drow[s] *= dropout_mask[i, t, s]
                dot += drow[s] * row[s]
            for s in range(row.size):
                drow[s] = scale * (row[s] * (drow[s] - dot))


def attention_backward(dmix, cache):
    q, k, v, scale, att, dropout_mask = cache
    kept = att if dropout_mask is None else att * dropout_mask.reshape(att.shape)
    dscores = np.ascontiguousarray(dmix @ v.swapaxes(-1, -2))       # (B, H, T, S)
    dv = kept.swapaxes(-1, -2) @ dmix
    rows = (each.reshape(-1, *att.shape[-2:]) for each in (att, dscores))
    _softmax_backward(att.dtype.type(scale), dropout_mask, *rows)
    return dscores @ k, dscores.swapaxes(-1, -2) @ q, dv


@loop
def _cross_entropy(logits, targets, weight):
    """Return the sum of the losses of logits (N, V) times weight; dlogits replace the logits."""
    N, V = logits.shape
    zero, sum_of_losses = logits.dtype.type(0), 0.0
    for n in range(N):
        row, total = logits[n], zero
        if targets[n] == IGNORE_INDEX:
            row[:] = zero
            continue
        largest, at_target = _largest(row), row[targets[n]]
        for i in range(V):
            row[i] = exp(row[i] - largest)
            total += row[i]
        for i in range(V):
            row[i] *= weight / total
        row[targets[n]] -= weight
        sum_of_losses += np.log(total) - (at_target - largest)
    return sum_of_losses * weight


def cross_entropy_in_place(logits, targets, count, gradient):
    """Replace `npgpt.engine.cpu.loss_in_blocks`; dlogits always overwrite the logits."""
    arrays = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    return sum(over_blocks(_cross_entropy, arrays, logits.dtype.type(1.0 / count)))


@loop
def _adamw(p, g, m, v, beta1, beta2, of_g, of_g2, decay, step_size, eps):
    for i in range(p.size):
        m[i] = beta1 * m[i] + of_g * g[i]
        v[i] = beta2 * v[i] + of_g2 * (g[i] * g[i])
        p[i] = decay * p[i] - step_size * m[i] / (np.sqrt(v[i]) + eps)


def adamw_update(p, g, m, v, lr, step_size, eps, beta1, beta2, weight_decay, clip=1.0):
    numbers = (beta1, beta2, (1.0 - beta1) * clip, (1.0 - beta2) * clip * clip, 1.0 - lr * weight_decay, step_size, eps)
    _adamw(p, g, m, v, *map(p.dtype.type, numbers))
    return p, m, v
