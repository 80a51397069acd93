"""Validate a model's inputs: token ids, targets and masks."""

import numpy as np

from npgpt.arrays import library_of
from npgpt.checks import as_floats, require
from npgpt.errors import UserError
from npgpt.layers.loss import IGNORE_INDEX


def check_ids(config, idx) -> np.ndarray:
    """Return a copy of token ids, int64 on the host. Raises UserError unless they are (B, T)
    integers below V.
    """
    idx, V = as_integers(idx, "idx"), config.vocab_size
    if idx.ndim != 2 or idx.size == 0:
        raise UserError(f"idx must have the shape (batch, time), both at least 1, not {idx.shape}")
    if idx.min() < 0 or idx.max() >= V:
        raise UserError(
            f"token ids must be from 0 to {V - 1}, but idx has {idx.min()} to {idx.max()}"
        )
    return idx.astype(np.int64)


def check_batch(config, idx, targets, with_targets=True) -> tuple[np.ndarray, np.ndarray]:
    """Return idx and targets (B, T) as int64 arrays on the host; without targets, idx and None.

    On a GPU, an index out of range would read another row, without an error. Raises UserError if
    they do not fit.
    """
    V, idx = config.vocab_size, check_ids(config, idx)
    if idx.shape[1] > config.block_size:
        raise UserError(
            f"a context of {idx.shape[1]} tokens is longer than block_size {config.block_size}"
        )
    if not with_targets:
        return idx, targets
    targets = as_integers(targets, "targets")
    if targets.shape != idx.shape:
        raise UserError(f"targets have the shape {targets.shape}, but idx has {idx.shape}")
    if targets.min() < IGNORE_INDEX or targets.max() >= V:
        raise UserError(
            f"targets must be from 0 to {V - 1}, or -1 to be ignored, "
            f"but there are {targets.min()} to {targets.max()}"
        )
    if targets.max() == IGNORE_INDEX:
        raise UserError("every target is -1 (ignored): the loss would be the mean of nothing")
    return idx, targets.astype(np.int64)


def check_mask(config, mask, dtype, B, T):
    """Return a mask on the host, an array of a dtype, (T, T), (B, 1, T, T) or (B, H, T, T); None
    stays None.

    Raises UserError for another dtype, NaN and +inf, and ValueError unless it can be broadcast.
    """
    if mask is None:
        return None
    mask = np.asarray(mask)
    if mask.dtype.kind in "biu" and mask.shape == (B, T):  # padding
        mask = np.where(mask, 0.0, -np.inf)[:, None, None, :]
    # (mask < np.inf) is false for NaN, too.
    is_added = mask.dtype.kind == "f" and mask.ndim in (2, 4) and (mask < np.inf).all()
    what = (
        f"floats ({T}, {T}) or ({B}, 1 or {config.n_head}, {T}, {T}) that are added to the scores"
    )
    what += f", such as np.where(seen, 0.0, -np.inf), or ({B}, {T}) of 0 and 1"
    require("mask", mask, is_added, what)
    H = 1 if mask.shape[1] == 1 else config.n_head
    mask = np.broadcast_to(mask.astype(dtype), (T, T) if mask.ndim == 2 else (B, H, T, T))
    seen = mask > -np.inf
    if config.causal:
        seen &= np.tri(T, dtype=bool)
    blind = ~seen.any(axis=-1, keepdims=True)  # (..., T, 1)
    # A position that sees nothing sees itself: its softmax would be 0 / 0.
    return np.where(blind & np.eye(T, dtype=bool), mask.dtype.type(0), mask)


def check_padding(mask, B, T):
    """Return how many first tokens of each row are padding, (B,) integers; mask: (B, T), 1 for a
    token, or None.

    Raises UserError unless padding comes first in each row, before at least one token.
    """
    if mask is None:
        return np.zeros(B, dtype=np.int64)
    if np.shape(mask) == (B, T):
        pads = T - np.count_nonzero(mask, axis=-1)
        if (pads < T).all() and np.array_equal(mask, np.arange(T) >= pads[:, None]):
            return pads
    raise UserError(
        f"mask must be {(B, T)}, in each row 0 for padding and then 1 for tokens: "
        "tokenizer.batch(texts, length, left=True) makes it"
    )


def loss_of(function, logits):
    """Call a user's function(logits) -> loss, dlogits. Raises UserError for other results."""
    found = function(logits)
    loss, dlogits = found if isinstance(found, tuple) and len(found) == 2 else (None, None)
    is_number = isinstance(loss, int | float) or getattr(loss, "ndim", None) == 0
    name = "what the function of the logits returns"
    require(name, found, is_number, "a number, the loss, and dlogits")
    loss = loss if isinstance(loss, type(logits)) else float(loss)  # CuPy's stays on its GPU
    return loss, check_like("dlogits", dlogits, logits)


def check_rng(rng):
    """Raise UserError unless a generator of random numbers is NumPy's or CuPy's, or None."""
    # The `random` of a RandomState only draws float64.
    draws = hasattr(rng, "random") and not isinstance(rng, np.random.RandomState)
    what = "a np.random.Generator, or what engine.dropout_rng returns"
    require("rng", rng, rng is None or draws, what)


def check_like(name, values, like) -> np.ndarray:
    """Return values as an array of the shape, dtype and library of `like`. Raises UserError."""
    values = as_floats(name, values, like.dtype, library_of(like))
    require(f"the shape of {name}", values.shape, values.shape == like.shape, str(like.shape))
    return values


def as_integers(array, name) -> np.ndarray:
    array = np.asarray(array)
    if array.dtype.kind not in "iu":
        raise UserError(f"{name} must be integers, not {array.dtype}")
    return array
