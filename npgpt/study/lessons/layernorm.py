"""The lesson of LayerNorm, and the long way of its backward."""

from npgpt import layers
from npgpt.study.lessons.lesson import Lesson


def layernorm_backward(dy, cache):
    """Undo `layernorm_forward` line by line: dy (..., C) -> dx (..., C), dweight (C,), dbias (C,) or None."""
    xhat, rstd, weight, has_bias = cache
    C = xhat.shape[-1]
    centred = xhat / rstd                                               # (..., C) not in the cache
    # y = y + bias
    dbias = dy.reshape(-1, C).sum(axis=0) if has_bias else None         # (C,)
    # y = xhat * weight
    dweight = (dy * xhat).reshape(-1, C).sum(axis=0)                    # (C,)
    dxhat = dy * weight                                                 # (..., C)
    # xhat = centred * rstd
    drstd = (dxhat * centred).sum(axis=-1, keepdims=True)               # (..., 1)
    # rstd = 1.0 / np.sqrt(var + eps)
    dvar = drstd * (-0.5 * rstd * rstd * rstd)                          # (..., 1)
    # xhat = centred * rstd
    # var = (centred * centred).mean(axis=-1, keepdims=True)
    dcentred = dxhat * rstd + dvar * (2.0 / C * centred)                # (..., C)
    # centred = x - mean
    dmean = -dcentred.sum(axis=-1, keepdims=True)                       # (..., 1)
    # centred = x - mean
    # mean = x.mean(axis=-1, keepdims=True)
    dx = dcentred + dmean / C                                           # (..., C)
    return dx, dweight, dbias


LESSON = Lesson(
    "LayerNorm", layers.layernorm_forward, layers.layernorm_backward, {"x": "B T C", "weight": "C", "bias": "C"},
    lambda setting, rng: {"eps": setting.eps}, switches=("bias",), skipped=("mean", "centred", "var", "rstd"),
    torch=lambda torch, x, weight, bias, eps: torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps),
    long_way=layernorm_backward)
