"""The random masks of dropout, drawn outside the layers."""

from typing import NamedTuple

import numpy as np


class BlockMasks(NamedTuple):
    """The dropout masks of one block: on the attention weights, after attention, after the MLP;
    None: no dropout.
    """

    att: np.ndarray | None = None  # (B, H, T, T)
    attn: np.ndarray | None = None  # (B, T, C)
    mlp: np.ndarray | None = None  # (B, T, C)


class Masks(NamedTuple):
    """All dropout masks of a model: after the embedding, (B, T, C) or None, and those of every
    block.
    """

    embd: np.ndarray | None
    blocks: list[BlockMasks]


def dropout_mask(rng, shape, p, dtype):
    """Draw a mask for `dropout_forward`: 0 with probability p, else 1 / (1 - p), an array (shape,
    dtype).

    rng has the method `random` of a np.random.Generator. Returns None if nothing is dropped: rng is
    None, or p = 0.
    """
    if rng is None or p == 0.0:
        return None
    keep = rng.random(shape, dtype=np.float32) >= p
    return keep.astype(dtype) / (1.0 - p)


def draw_masks(config, B, T, dtype, rng=None):
    """Draw the `Masks` of a model for B rows of T tokens; without an rng all of them are None
    (evaluation).
    """
    C, H = config.n_embd, config.n_head
    embd = dropout_mask(rng, (B, T, C), config.resolved("embd_pdrop"), dtype)
    blocks = [
        BlockMasks(
            att=dropout_mask(rng, (B, H, T, T), config.resolved("attn_pdrop"), dtype),
            attn=dropout_mask(rng, (B, T, C), config.resolved("resid_pdrop"), dtype),
            mlp=dropout_mask(rng, (B, T, C), config.resolved("mlp_pdrop"), dtype),
        )
        for _ in range(config.n_layer)
    ]
    return Masks(embd, blocks)
