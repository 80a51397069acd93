"""The KV cache: a table of operations with which a model reads only new tokens."""

import math

import numpy as np

from npgpt.arrays import to_host
from npgpt.checks import check_memory
from npgpt.engine.ops import table, with_lora, without_caches
from npgpt.model.masks import draw_masks
from npgpt.model.transformer import gpt_forward


class KVCache:
    """The tokens of B texts so far, and each layer's keys and values of them.

    The next token then costs the work of one position instead of the whole context. When the tokens no longer fit into
    `block_size`, the last block_size // 2 are read again: one long pass for many short ones. (GPT-2's positions are
    learned and absolute, so a cached key cannot move to an earlier position.)

    pads: how many of each text's first tokens are padding, (B,) integers, or None. Each text is read as it would be
    alone: no token sees padding, and positions count tokens. looking: a `Looking`, whose lines and edits then run.
    """

    def __init__(self, engine, B, pads=None, looking=None):
        self.engine, self.params = engine, engine.params
        self.pads = np.zeros(B, dtype=np.int64) if pads is None else pads
        engine.params.config.block.check_continuing(engine.params.config)
        self.config = (looking or engine).config                    # with the block that is run
        config, params = self.config, self.params
        self.tokens = np.empty((B, 0), dtype=np.int64)
        self.length = 0                         # positions in the arrays
        shape = config.n_layer, 2, B, config.n_head, config.block_size, config.head_size
        if params.xp is np:
            check_memory(math.prod(shape) * params.dtype.itemsize, f"the keys and values of {B} texts")
        self.arrays = params.xp.zeros(shape, dtype=params.dtype)
        self.layers = iter(())                  # the layers that the current forward has yet to run
        self.gpt_forward = looking.forward if looking else gpt_forward
        self.layer_ops = without_caches(with_lora(looking.ops, config) if looking else engine.ops)

    def read(self, idx):
        """Read the next tokens, idx (B, T) integers, T at least 1 -> logits (B, V) of the token after them.

        Both are on the host, where tokens are drawn; on a GPU this is the only wait per token.
        """
        config = self.config
        self.tokens = np.concatenate([self.tokens, idx], axis=1)
        if self.length + idx.shape[1] > config.block_size:
            self.tokens, self.pads = latest(self.tokens, self.pads, config.block_size)
            idx, self.length = self.tokens, 0
        T = idx.shape[1]
        positions = np.maximum(self.length + np.arange(T) - self.pads[:, None], 0)      # (B, T), 0 if it is padding
        self.positions = self.params.xp.asarray(positions)
        self.layers = iter(range(config.n_layer))
        # A new table for each read: kept in self, it would be a reference cycle, which delays freeing the arrays.
        ops = table(self.layer_ops, embedding_forward=self.embedding_forward,
                    attention_forward=self.attention_forward, head_forward=self.head_forward)
        config, masks = config.at(self.positions), draw_masks(config, *idx.shape, self.params.dtype)
        with self.engine.running():
            logits, _ = self.gpt_forward(self.params.xp.asarray(idx), self.params.tree, config, masks, ops)
        self.length += T
        return to_host(logits[:, 0])

    def embedding_forward(self, idx, wte, wpe):
        """Embed tokens as one row, because each has its own position."""
        wpe = wpe[self.positions.reshape(-1)]                           # (B T, C)
        x, cache = self.layer_ops.embedding_forward(idx.reshape(1, -1), wte, wpe)
        return x.reshape(*idx.shape, -1), cache

    def attention_forward(self, q, k, v, scale, mask=None, dropout_mask=None):
        """Compute attention of the new queries on all keys; new keys are stored after the earlier ones."""
        T, end = q.shape[2], self.length + q.shape[2]
        keys, values = self.arrays[next(self.layers)]                   # 2 x (B, H, block_size, D)
        keys[:, :, self.length:end] = k
        values[:, :, self.length:end] = v
        if T == 1:
            mask = None                                                 # the last position sees all keys
        elif self.length:                                               # (T, end): all earlier keys are visible
            mask = np.concatenate([np.zeros_like(mask, shape=(T, self.length)), mask], axis=1)
        if self.pads.any():
            hidden = is_padding(np.arange(end), np.arange(self.length, end)[:, None], self.pads)
            padding = self.params.xp.asarray(np.where(hidden, -np.inf, 0.0).astype(q.dtype))
            mask = padding if mask is None else mask + padding
        return self.layer_ops.attention_forward(q, keys[:, :, :end], values[:, :, :end], scale, mask, dropout_mask)

    def head_forward(self, x, weight, bias):
        """Compute the logits of the last position only: the head is the largest matmul."""
        return self.layer_ops.head_forward(x[:, -1:], weight, bias)


def is_padding(key, query, pads):
    """Return where padding is, which only itself sees: key (S,), query (T, 1), pads (B,) -> (B, 1, T, S)."""
    return (key < pads[:, None, None, None]) & (key != query)


def latest(tokens, pads, block_size):
    """Return the latest tokens of each text, (B, T), T at most block_size, and how much of them is padding, (B,).

    A text that no longer fits keeps its last block_size // 2 tokens. tokens (B, n), the first `pads` of each padding.
    """
    lengths = tokens.shape[1] - pads
    lengths = np.where(lengths > block_size, max(1, block_size // 2), lengths)
    return tokens[:, -lengths.max():], lengths.max() - lengths
