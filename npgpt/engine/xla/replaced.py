"""How layers run to save memory: attention on blocks of queries, GELU is recomputed in its
backward.

The head runs in the loss, block by block (engine.py), unless edited lines may read its logits. The
embedding's gradient runs without a scatter-add.
"""

import jax
import jax.numpy as jnp

from npgpt.engine import embedding
from npgpt.engine.ops import table
from npgpt.engine.sources import as_tested
from npgpt.engine.tiles import on_queries
from npgpt.engine.xla.lines import loaded_again, rounded

KEPT = 512  # keys: with more, attention runs on QUERIES, and its backward recomputes it
QUERIES = 256


def replaced(ops, config, dtype):
    """Return the table of operations to compile. ops: the lesson's for XLA; dtype: what matmuls
    read.
    """
    attention = ops.attention_forward, ops.attention_backward
    if as_tested("attention_forward", "attention_backward"):
        causal = (
            config.causal
            and config.block_size > KEPT
            and as_tested("causal_mask", "gpt_forward", "block_forward", "self_attention_forward")
        )
        attention = attention_in_blocks(*attention, causal, dtype)
    gelu = recomputed(ops.gelu_tanh_forward, ops.gelu_tanh_backward, dtype)
    return table(
        ops,
        attention_forward=attention[0],
        attention_backward=attention[1],
        gelu_tanh_forward=gelu[0],
        gelu_tanh_backward=gelu[1],
    )


def with_head_in_loss(ops):
    """Return the table whose logits are the head's arguments, and whose dlogits its gradients."""
    return table(
        ops,
        head_forward=lambda x, weight: ((x, weight), None),
        head_backward=lambda gradients, cache: gradients,
    )


def with_sorted_embedding(ops, n):
    """Return the table with `sorted_embedding_backward`, on each of n devices' rows; then the parts
    are added.

    In a fixed order, XLA would do a scatter-add by sorting all values of the rows.
    """
    if not as_tested("embedding_backward"):
        return ops
    backward = loaded_again(embedding, jnp).sorted_embedding_backward

    def embedding_backward(dx, cache):
        idx, *lengths = cache
        # (n, B / n, T, C), (n, B / n, T)
        parts = [each.reshape(n, -1, *each.shape[1:]) for each in (dx, idx)]
        gradients = jax.vmap(lambda dx, idx: backward(dx, (idx, *lengths)))(*parts)
        return tuple(each.sum(axis=0) for each in gradients)

    return table(ops, embedding_backward=embedding_backward)


def attention_in_blocks(forward, backward, causal, dtype):
    """Return attention on blocks of queries: only the scores of one block exist at a time."""

    def blocks(T, S):
        """Yield the slices of queries and keys of each block. In causal training (T = S) no query
        sees later keys.
        """
        for start in range(0, T, QUERIES):
            end = min(start + QUERIES, T)
            yield slice(start, end), slice(0, end if causal and T == S else S)

    def attention_forward(q, k, v, scale, mask=None, dropout_mask=None):
        arguments = *(rounded(dtype, each) for each in (q, k, v)), scale, mask, dropout_mask
        if k.shape[2] <= KEPT:
            return forward(*arguments)
        mixes = [
            on_queries(forward, arguments, *block)[0] for block in blocks(q.shape[2], k.shape[2])
        ]
        return jnp.concatenate(mixes, axis=2), arguments

    def attention_backward(dmix, cache):
        q, k, v, *others = cache
        if k.shape[2] <= KEPT:
            return backward(dmix, cache)
        dq, dk, dv = [], jnp.zeros(k.shape, dmix.dtype), jnp.zeros(v.shape, dmix.dtype)
        for rows, keys in blocks(q.shape[2], k.shape[2]):
            # Recompute in order: without the barrier XLA would keep the forward's weights.
            q, k, v, dk, dv = jax.lax.optimization_barrier((q, k, v, dk, dv))
            _, block = on_queries(forward, (q, k, v, *others), rows, keys)
            dq_rows, dk_keys, dv_keys = backward(dmix[:, :, rows], block)
            dq.append(dq_rows)
            dk, dv = (
                jax.lax.dynamic_update_slice_in_dim(total, total[:, :, keys] + part, 0, axis=2)
                for total, part in ((dk, dk_keys), (dv, dv_keys))
            )
        return jnp.concatenate(dq, axis=2), dk, dv

    return attention_forward, attention_backward


def recomputed(forward, backward, dtype):
    """Return GELU that caches only x, rounded as for matmuls; its backward recomputes tanh."""

    def gelu_forward(x):
        y, _ = forward(x)
        return y, rounded(dtype, x)

    def gelu_backward(dy, x):
        _, cache = forward(jax.lax.optimization_barrier(x).astype(dy.dtype))
        return backward(dy, cache)

    return gelu_forward, gelu_backward
