"""Attention in tiles: the lesson's attention on parts that fit the cache, without the masked half.

A tile is some batch entries, some heads and a block of successive queries. Keys after the last one
that any query of the block sees are left out: of the T x T scores of causal attention little more
than half are computed. Batch entries and heads are independent, and run on all free cores.
"""

import numpy as np

from npgpt.engine.row_blocks import BLOCK_BYTES
from npgpt.engine.threads import spread

QUERIES = 128  # per tile, twice as many in long contexts: of fewer, BLAS is slower
KEPT = 1024  # keys: with more of them the backward recomputes the weights, to save memory


def in_tiles(attention_forward, attention_backward, blocks=1):
    """Return a pair, called like attention, that runs it on tiles, on all free cores.

    blocks: the size of a tile's scores, in `BLOCK_BYTES`.
    """

    def tile_forward(arguments, group, rows, keys):
        q, k, v, scale, mask, dropout_mask = arguments
        if mask is not None and mask.ndim == 4:  # (1 or B, 1 or H, T, S)
            mask = np.broadcast_to(mask, (*q.shape[:2], *mask.shape[2:]))[group]
        dropout_mask = None if dropout_mask is None else dropout_mask[group]
        return on_queries(
            attention_forward, (q[group], k[group], v[group], scale, mask, dropout_mask), rows, keys
        )

    def forward_in_tiles(q, k, v, scale, mask=None, dropout_mask=None):
        (B, H, T, _), S = q.shape, k.shape[2]
        arguments = q, k, v, scale, mask, dropout_mask
        small = B * H * T * S * q.itemsize <= blocks * BLOCK_BYTES
        if T == queries_of(T) and S <= KEPT and small:  # one tile
            mix, cache = attention_forward(*arguments)
            return mix, (None, None, None, cache)
        groups, tiles = head_groups(q, S, blocks * BLOCK_BYTES), query_blocks(T, S, mask)
        mix = np.empty_like(q)  # (B, H, T, D), in memory as q is

        def forward_group(group):
            caches = []
            for rows, keys in tiles:
                mix[group][:, :, rows], cache = tile_forward(arguments, group, rows, keys)
                caches.append(cache if S <= KEPT else None)
            return caches

        return mix, (arguments, groups, tiles, spread(forward_group, groups))

    def backward_in_tiles(dmix, cache):
        """Sum a key's gradient over the tiles that see it: the last one has all keys and comes
        first.
        """
        arguments, groups, tiles, caches = cache
        if groups is None:
            return attention_backward(dmix, caches)
        dq, dk, dv = (np.empty_like(each) for each in arguments[:3])

        def backward_group(i):
            group = groups[i]
            for (rows, keys), tile in reversed(list(zip(tiles, caches[i], strict=True))):
                if tile is None:
                    _, tile = tile_forward(arguments, group, rows, keys)
                dq[group][:, :, rows], dk_tile, dv_tile = attention_backward(
                    dmix[group][:, :, rows], tile
                )
                if rows.stop == dmix.shape[2]:
                    dk[group], dv[group] = dk_tile, dv_tile
                else:
                    dk[group][:, :, keys] += dk_tile
                    dv[group][:, :, keys] += dv_tile

        spread(backward_group, range(len(groups)))
        return dq, dk, dv

    return forward_in_tiles, backward_in_tiles


def on_queries(attention_forward, arguments, rows, keys):
    """Run attention on some queries and keys, two slices."""
    q, k, v, scale, mask, dropout_mask = arguments
    mask, dropout_mask = (
        None if each is None else each[..., rows, keys] for each in (mask, dropout_mask)
    )
    return attention_forward(q[:, :, rows], k[:, :, keys], v[:, :, keys], scale, mask, dropout_mask)


def queries_of(T):
    """Return how many of T queries are in a tile."""
    return min(T, QUERIES if T < 4 * QUERIES else 2 * QUERIES)


def query_blocks(T, S, mask):
    """Return (queries, keys) of each block, two slices: keys up to the last that is seen; the last
    block has all.
    """
    blocks, n = [], queries_of(T)
    for start in range(0, T, n):
        rows, end = slice(start, min(start + n, T)), S
        if mask is not None and rows.stop < T:
            seen = (mask[..., rows, :] > -np.inf).reshape(-1, S).any(axis=0)
            end = np.flatnonzero(seen)[-1] + 1
        blocks.append((rows, slice(0, end)))
    return blocks


def head_groups(q, S, block_bytes):
    """Return (batch entries, heads) of each group, two slices, so few that a tile's scores fit the
    cache.
    """
    B, H, T, _ = q.shape
    head_bytes = queries_of(T) * S * q.itemsize
    heads = min(H, max(1, block_bytes // head_bytes))
    entries = max(1, block_bytes // (head_bytes * H))
    return [
        (slice(b, b + entries), slice(h, h + heads))
        for b in range(0, B, entries)
        for h in range(0, H, heads)
    ]
