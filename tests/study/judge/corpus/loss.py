"""Softmax cross-entropy. probs (4, 5, 8), column (4, 5, 1), dloss a number."""

SOLUTIONS = r"""
layer cross_entropy
right | one-hot targets
    probs, column, counted, count = cache
    onehot = np.zeros_like(probs)
    np.put_along_axis(onehot, column, 1.0, axis=-1)
    dlogits = (probs - onehot) * counted * dloss / count
    return dlogits
right | fancy indexing of rows
    probs, column, counted, count = cache
    dlosses = np.where(counted, dloss / count, 0.0)
    rows = (probs * dlosses).reshape(-1, probs.shape[-1])
    rows[np.arange(len(rows)), column.ravel()] -= dlosses.ravel()
    return rows.reshape(probs.shape)
right | in two steps
    probs, column, counted, count = cache
    dlosses = np.where(counted, dloss / count, 0.0)
    dlogits = probs * dlosses
    at_target = np.take_along_axis(dlogits, column, axis=-1) - dlosses
    np.put_along_axis(dlogits, column, at_target, axis=-1)
    return dlogits
right | by way of dprobs
    probs, column, counted, count = cache
    dlosses = np.where(counted, dloss / count, 0.0)
    # losses = -log(probs[column])
    dprobs = np.zeros_like(probs)
    at_target = np.take_along_axis(probs, column, axis=-1)
    np.put_along_axis(dprobs, column, -dlosses / at_target, axis=-1)
    # probs = softmax(logits)
    dot = (dprobs * probs).sum(axis=-1, keepdims=True)
    dlogits = probs * (dprobs - dot)
    return dlogits
right | by way of dtotal and dexps
    probs, column, counted, count = cache
    exps, total = probs, 1.0            # the softmax of log(probs) is probs again
    dlosses = np.where(counted, dloss / count, 0.0)
    # losses = np.log(total) - at_target
    dtotal = dlosses / total
    dat_target = -dlosses
    # total = exps.sum(axis=-1, keepdims=True)
    dexps = np.broadcast_to(dtotal, exps.shape)
    # exps = np.exp(shifted)
    dshifted = dexps * exps
    # at_target = np.take_along_axis(shifted, column, axis=-1)
    dat_target = np.take_along_axis(dshifted, column, -1) + dat_target
    np.put_along_axis(dshifted, column, dat_target, axis=-1)
    dlogits = dshifted
    return dlogits
right | in place
    probs, column, counted, count = cache
    B, T, V = probs.shape
    dlogits = probs.copy()
    rows, steps = np.indices((B, T))
    dlogits[rows, steps, column[..., 0]] -= 1.0
    dlogits *= counted
    dlogits *= dloss
    dlogits /= count
    return dlogits
wrong | dlosses = np.where(counted, 1.0 / count, 0.0)
wrong | dlosses = np.where(counted, dloss * count, 0.0)
wrong | dlosses = np.where(counted, dloss, 0.0)
wrong | dlosses = dloss / count
wrong | dlosses = np.where(counted, dloss / counted.size, 0.0)
wrong | dlogits = probs * dlosses
wrong | dlogits = probs * dlosses - true
wrong | dlogits = (true - probs) * dlosses
wrong | dlogits = np.where(true, -dlosses, probs * dlosses)
wrong | dlogits = true * (probs - true) * dlosses
wrong | true = np.arange(probs.shape[-1]) >= column
wrong | true = np.arange(len(probs)) == column
wrong | at dlogits *= dlosses
    probs, column, counted, count = cache
    dlosses = np.where(counted, dloss / count, 0.0)
    dlogits = probs
    dlogits *= dlosses
    at_target = np.take_along_axis(dlogits, column, axis=-1) - dlosses
    np.put_along_axis(dlogits, column, at_target, axis=-1)
    return dlogits
wrong | at dlogits[column] -= dlosses
    probs, column, counted, count = cache
    dlosses = np.where(counted, dloss / count, 0.0)
    dlogits = probs * dlosses
    dlogits[column] -= dlosses
    return dlogits
wrong | np.put_along_axis(dlogits, column, -dlosses, axis=-1) | of in two steps
wrong | np.put_along_axis(probs, column, at_target, axis=-1) | of in two steps
wrong | np.put_along_axis(dlogits, column, at_target, axis=1) | of in two steps
wrong | axis=-1) - dlosses => axis=-1) - 1.0 | of in two steps
wrong | return dlogits, None
wrong | -dlosses / at_target => -dlosses | of by way of dprobs
wrong | /= count => /= B * T | of in place
wrong | ]] -= 1.0 => ]] += 1.0 | of in place
wrong | /= count => *= count | of in place
wrong | at np.zeros_like
    probs, column, counted, count = cache
    dlosses = np.where(counted, dloss / count, 0.0)
    dlogits = np.zeros_like(probs)
    at_target = np.take_along_axis(probs, column, axis=-1)
    np.put_along_axis(dlogits, column, dlosses * (at_target - 1.0), axis=-1)
    return dlogits
"""
