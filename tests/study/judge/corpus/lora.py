"""LoRA: x (4, 5, 6), weight (6, 8), lora_a (6, 3), lora_b (3, 8); low (20, 3)."""

SOLUTIONS = r"""
layer lora
right | einsum
    import numpy as np
    x, W, A, B, _ = cache
    dA = np.einsum("btc,btv,rv->cr", x, dy, B)
    dB = np.einsum("btc,cr,btv->rv", x, A, dy)
    dx = np.einsum("btv,cv->btc", dy, W + A @ B)
    return dx, dA, dB
right | two linear layers
    from npgpt.layers import linear_backward
    x, weight, lora_a, lora_b, low = cache
    low = low.reshape(*x.shape[:-1], -1)
    dx_frozen, _, _ = linear_backward(dy, (x, weight, False))
    dlow, dlora_b, _ = linear_backward(dy, (low, lora_b, False))
    dx_update, dlora_a, _ = linear_backward(dlow, (x, lora_a, False))
    return dx_frozen + dx_update, dlora_a, dlora_b
right | dfrozen = dy_rows => dboth = dy_rows @@ dupdate = dy_rows =>  @@ dlora_b = low.T @ dboth \
  @@ dlow = dboth @ lora_b.T @@ drows = dfrozen @ weight.T + dlow @ lora_a.T \
  => drows = dboth @ weight.T\n    drows += dlow @ lora_a.T \
  | one gradient for both branches, drows in two lines
right | dlora_b = (rows @ lora_a).T @ dupdate | low computed again
wrong | dlow = dupdate @ lora_b
wrong | x, weight, lora_a, lora_b, low = cache => x, weight, lora_b, lora_a, low = cache
wrong | drows = dfrozen @ weight.T
wrong | dupdate = 0.5 * dy_rows
wrong | dlow = dupdate @ lora_b.T / lora_b.shape[0]
wrong | dlora_a = low.T @ dlow
wrong | drows = dfrozen @ weight.T + dlow @ lora_a.T \
  => dfrozen += low @ lora_b\n    drows = dfrozen @ weight.T + dlow @ lora_a.T
wrong | drows = dy_rows @ (weight + lora_a @ lora_b)
wrong | dlow = 0.0 * dupdate @ lora_b.T
wrong | dlora_a = rows.T @ dlow / len(rows) @@ drows = dfrozen @ weight.T
wrong | drows = dlow @ lora_a.T
wrong | dx_frozen + dx_update => dx_update | of two linear layers
"""
