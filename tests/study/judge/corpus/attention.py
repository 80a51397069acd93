"""Attention. q, dmix (4, 2, 5, 3), k, v (4, 2, 7, 3), att (4, 2, 5, 7)."""

SOLUTIONS = r"""
layer attention
right | the long way
    q, k, v, scale, att, dropout_mask = cache
    kept = att if dropout_mask is None else att * dropout_mask
    dkept = dmix @ v.swapaxes(-1, -2)
    dv = kept.swapaxes(-1, -2) @ dmix
    datt = dkept if dropout_mask is None else dkept * dropout_mask
    # the forward's softmax once more: a key that is masked has the weight 0
    masked = np.where(att > 0, (q @ k.swapaxes(-1, -2)) * scale, -np.inf)
    largest = masked.max(axis=-1, keepdims=True)
    exps = np.exp(masked - largest)
    total = exps.sum(axis=-1, keepdims=True)
    # att = exps / total
    dtotal = -(datt * exps / total**2).sum(axis=-1, keepdims=True)
    dexps = datt / total + dtotal
    # exps = np.exp(masked - largest)
    dmasked = dexps * exps
    # scaled = scores * scale
    dscores = dmasked * scale
    # scores = q @ k.swapaxes(-1, -2)
    dq = dscores @ k
    dk = dscores.swapaxes(-1, -2) @ q
    return dq, dk, dv
right | a loop over heads
    q, k, v, scale, att, dropout_mask = cache
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    B, H, T, D = q.shape
    for b in range(B):
        for h in range(H):
            a = att[b, h]
            mask = 1.0 if dropout_mask is None else dropout_mask[b, h]
            dv[b, h] = (a * mask).T @ dmix[b, h]
            da = (dmix[b, h] @ v[b, h].T) * mask
            ds = a * (da - (da * a).sum(axis=1, keepdims=True)) * scale
            dq[b, h] = ds @ k[b, h]
            dk[b, h] = ds.T @ q[b, h]
    return dq, dk, dv
right | einsum, other names
    q, k, v, s, p, drop = cache
    m = p if drop is None else p * drop
    gv = np.einsum("bhts,bhtd->bhsd", m, dmix)
    gp = np.einsum("bhtd,bhsd->bhts", dmix, v)
    if drop is not None:
        gp = gp * drop
    gs = s * (p * gp - p * np.einsum("bhts,bhts->bht", p, gp)[..., None])
    return np.einsum("bhts,bhsd->bhtd", gs, k), np.einsum("bhts,bhtd->bhsd", gs, q), gv
right | dmasked = att * (datt - dot) => datt -= dot\n    datt *= att\n    dmasked = datt \
  | arrays of its own, changed in place
right |     dscores = dscaled * scale =>      @@ dq = dscaled @ (k * scale) \
  @@ dk = dscaled.swapaxes(-1, -2) @ (q * scale) | the scale put on q and k
right | dq = np.float64(scale) * (dscaled @ k) | np.float64(scale)
wrong | dkept = dmix @ v
wrong | dkept = dmix @ v.T
wrong | dq = dscores @ k.swapaxes(-1, -2)
wrong | dq = dscores @ q
wrong | dv = att.swapaxes(-1, -2) @ dmix
wrong | kept = att | at nowhere
wrong | datt = dkept
wrong | datt = dkept * dropout_mask
wrong | dot = (datt * att).sum(axis=-1)
wrong | dot = (datt * att).sum(axis=-2, keepdims=True)
wrong | dmasked = att * datt
wrong | dmasked = datt * att * (1.0 - att)
wrong | dscores = dscaled
wrong | dscores = dscaled / scale
wrong | return dk, dq, dv
wrong | kept = att if dropout_mask is None else att * dropout_mask \
  => kept = att\n    if dropout_mask is not None:\n        kept *= dropout_mask \
  | at kept *= dropout_mask
wrong | keepdims=True)) * scale => keepdims=True)) | at dq[b, h] = ds | of a loop over heads
wrong | scale, att, dropout_mask = cache => scale, att = cache
wrong | dq = np.einsum("bhts,bhsd->bhsd", dscores, k)
wrong | dexps = datt / total | of the long way
wrong | dtotal = -(datt * exps / total).sum(axis=-1, keepdims=True) | of the long way
wrong | dscores = dscaled / np.sqrt(q.shape[-1])
wrong | dot = (datt * att) => dot = (datt * kept) @@ dmasked = kept * (datt - dot) \
  | at dmasked = kept
wrong |     kept = att if dropout_mask is None else att * dropout_mask          # (B, H, T, S)\n \
  =>  @@ dv = att.swapaxes(-1, -2) @ dmix
"""
