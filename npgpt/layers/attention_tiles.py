"""Attention in tiles, for speed: the lines of attention.py on parts that fit into the cache, without the masked half.

A tile is some batch entries, some heads and a block of successive queries. In causal attention no query of a block sees
a key after the block's last query, so those keys are left out: of T x T scores little more than half is worked out, and
kept for the backward. Batch entries and heads are independent, and are worked on at the same time where cores are free.
"""

import numpy as np

from npgpt.arrays import causal_mask
from npgpt.engine.rowwise import BLOCK_BYTES
from npgpt.engine.threads import spread
from npgpt.layers.attention import attention_backward, attention_forward

QUERIES = 128       # of a tile; half as many would skip more of the mask, but make products that BLAS is slower at
KEPT = 512          # keys: where there are more, the weights are not kept, to save memory, but worked out again


def tiled_attention_forward(q, k, v, scale, causal=True, dropout_mask=None):
    """The same as `attention_forward`, with `causal` in place of the mask: query i sees the keys up to i + S - T."""
    T, S = q.shape[2], k.shape[2]
    mask = causal_mask(S, like=q)[S - T:] if causal and T > 1 else None         # (T, S): the last T of S positions
    mix = np.empty_like(q)                                                      # (B, H, T, D), in memory as q is
    arguments = (q, k, v, scale, mask, dropout_mask)
    groups = head_groups(q, S)

    def forward(group):
        caches = []
        for rows, keys in tiles(T, S, causal):
            mix[group][:, :, rows], cache = tile_forward(arguments, group, rows, keys)
            caches.append(cache if S <= KEPT else None)
        return caches

    caches = spread(forward, groups)
    return mix, (arguments, groups, caches, causal)


def tiled_attention_backward(dmix, cache):
    """Undo `tiled_attention_forward`, where S = T: dmix (B, H, T, D) -> dq, dk and dv, one array (3, B, H, T, D).

    A key gets a gradient from every block of queries that sees it. The last block sees all keys, so it comes first and
    sets their gradients; the blocks before it add theirs.
    """
    arguments, groups, caches, causal = cache
    B, H, T, D = dmix.shape
    dheads = np.empty((B, T, 3, H, D), dtype=dmix.dtype, like=dmix).transpose(2, 0, 3, 1, 4)    # in memory as qkv is
    dq, dk, dv = dheads

    def backward(i):
        group = groups[i]
        for (rows, keys), tile in reversed(list(zip(tiles(T, T, causal), caches[i], strict=True))):
            if tile is None:
                _, tile = tile_forward(arguments, group, rows, keys)
            dq[group][:, :, rows], dk_tile, dv_tile = attention_backward(dmix[group][:, :, rows], tile)
            if rows.stop == T:
                dk[group], dv[group] = dk_tile, dv_tile
            else:
                dk[group][:, :, keys] += dk_tile
                dv[group][:, :, keys] += dv_tile

    spread(backward, range(len(groups)))
    return dheads


def tile_forward(arguments, group, rows, keys):
    """`attention_forward` on one tile of its arguments."""
    q, k, v, scale, mask, dropout_mask = arguments
    mask = None if mask is None else mask[rows, keys]
    dropout_mask = None if dropout_mask is None else dropout_mask[group][:, :, rows, keys]
    q, k, v = q[group][:, :, rows], k[group][:, :, keys], v[group][:, :, keys]
    return attention_forward(q, k, v, scale, mask, dropout_mask)


def tiles(T, S, causal):
    """(queries, keys) of each tile, two slices: keys up to the last that any of the queries sees."""
    blocks = [slice(start, min(start + QUERIES, T)) for start in range(0, T, QUERIES)]
    return [(rows, slice(0, S - T + rows.stop if causal else S)) for rows in blocks]


def head_groups(q, S):
    """(batch entries, heads) of each group, two slices, so few that a tile's scores fit into the cache.

    All of them where q is not in this machine's memory: a GPU is given as much at once as there is.
    """
    B, H, T, _ = q.shape
    if not isinstance(q, np.ndarray):
        return [(slice(B), slice(H))]
    head_bytes = min(T, QUERIES) * S * q.itemsize
    heads = min(H, max(1, BLOCK_BYTES // head_bytes))
    entries = max(1, BLOCK_BYTES // (head_bytes * H))
    return [(slice(b, b + entries), slice(h, h + heads)) for b in range(0, B, entries) for h in range(0, H, heads)]
