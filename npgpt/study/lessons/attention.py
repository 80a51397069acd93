"""The lesson of attention, and the long way of its backward."""

import math

import numpy as np

from npgpt import layers
from npgpt.model.masks import dropout_mask
from npgpt.study.lessons.lesson import Lesson


def attention_backward(dmix, cache):
    """Undo `attention_forward` line by line: dmix (B, H, T, D) -> dq (B, H, T, D), dk and dv (B, H, S, D)."""
    q, k, v, scale, att, dropout_mask = cache
    # the largest of exps is exp(0) = 1, so that of att is 1 / total
    total = 1.0 / att.max(axis=-1, keepdims=True)                       # (B, H, T, 1)
    exps = att * total                                                  # (B, H, T, S)
    # mix = kept @ v
    kept = att if dropout_mask is None else att * dropout_mask          # (B, H, T, S)
    dkept = dmix @ v.swapaxes(-1, -2)                                   # (B, H, T, S)
    dv = kept.swapaxes(-1, -2) @ dmix                                   # (B, H, S, D)
    # kept = att if dropout_mask is None else att * dropout_mask
    datt = dkept if dropout_mask is None else dkept * dropout_mask      # (B, H, T, S)
    # att = exps / total
    dtotal = -(datt * exps / total**2).sum(axis=-1, keepdims=True)      # (B, H, T, 1)
    # att = exps / total
    # total = exps.sum(axis=-1, keepdims=True)
    dexps = datt / total + dtotal                                       # (B, H, T, S)
    # exps = np.exp(masked - largest)
    dlargest = -(dexps * exps).sum(axis=-1, keepdims=True)              # (B, H, T, 1) 0, apart from rounding
    # exps = np.exp(masked - largest)
    # largest = masked.max(axis=-1, keepdims=True)
    dmasked = dexps * exps + dlargest * (att == att.max(axis=-1, keepdims=True))        # (B, H, T, S)
    # masked = scaled if mask is None else scaled + mask
    dscaled = dmasked                                                   # (B, H, T, S)
    # scaled = scores * scale
    dscores = dscaled * scale                                           # (B, H, T, S)
    # scores = q @ k.swapaxes(-1, -2)
    dq = dscores @ k                                                    # (B, H, T, D)
    dk = dscores.swapaxes(-1, -2) @ q                                   # (B, H, S, D)
    return dq, dk, dv


def scale_and_masks(setting, rng):
    """Return the scale, the mask that is added to the scores, and dropout's."""
    B, T, C, H, V, S, F, P = setting.sizes
    return {"scale": setting.scale or 1.0 / math.sqrt(C // H), "mask": setting.attention_mask(rng, S),
            "dropout_mask": dropout_mask(rng, (B, H, T, S), setting.dropout, np.float64)}


def in_torch(torch, q, k, v, scale, mask, dropout_mask):
    """Compute torch's own attention. Applied to unit vectors as values it gives the weights, on which dropout acts."""
    units = torch.eye(k.shape[2], dtype=k.dtype).expand(*k.shape[:2], -1, -1)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        att = torch.nn.functional.scaled_dot_product_attention(q, k, units, mask, scale=scale)
    return (att if dropout_mask is None else att * dropout_mask) @ v


LESSON = Lesson(
    "Attention", layers.attention_forward, layers.attention_backward,
    {"q": "B H T D", "k": "B H S D", "v": "B H S D"}, scale_and_masks, switches=("mask", "causal", "dropout"),
    skipped=("largest", "exps", "total"), torch=in_torch, long_way=attention_backward)
