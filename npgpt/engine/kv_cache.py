"""The KV cache: a table of operations with which a model reads only new tokens."""

import math

import numpy as np

from npgpt.arrays import to_host
from npgpt.checks import check_memory
from npgpt.engine.ops import table, without_caches
from npgpt.errors import UserError
from npgpt.model.masks import draw_masks


class KVCache:
    """The tokens of B texts so far, and each layer's keys and values of them.

    The next token then costs the work of one position instead of the whole context. When the tokens no longer fit into
    `block_size`, the last block_size // 2 are read again: one long pass for many short ones. (GPT-2's positions are
    learned and absolute, so a cached key cannot move to an earlier position.)
    """

    def __init__(self, engine, B):
        self.engine, self.params = engine, engine.params
        config, params = self.params.config, self.params
        self.tokens = np.empty((B, 0), dtype=np.int64)
        self.length = 0                         # positions in the arrays
        shape = config.n_layer, 2, B, config.n_head, config.block_size, config.head_size
        if params.xp is np:
            check_memory(math.prod(shape) * params.dtype.itemsize, f"the keys and values of {B} texts")
        self.arrays = params.xp.zeros(shape, dtype=params.dtype)
        self.layers = iter(())                  # the layers that the current forward has yet to run
        self.layer_ops = without_caches(engine.ops)

    def read(self, idx):
        """Read the next tokens, idx (B, T) integers, T at least 1 -> logits (B, V) of the token after them.

        Both are on the host, where tokens are drawn; on a GPU this is the only wait per token.
        """
        config = self.params.config
        self.tokens = np.concatenate([self.tokens, idx], axis=1)
        if self.length + idx.shape[1] > config.block_size:
            self.tokens = idx = self.tokens[:, -max(1, config.block_size // 2):]
            self.length = 0
        T = idx.shape[1]
        self.layers = iter(range(config.n_layer))
        # A new table for each read: kept in self, it would be a reference cycle, which delays freeing the arrays.
        ops = table(self.layer_ops, embedding_forward=self.embedding_forward,
                    attention_forward=self.attention_forward, head_forward=self.head_forward)
        masks = draw_masks(config, *idx.shape, self.params.dtype)
        with self.engine.running():
            logits, _ = self.engine.gpt_forward(self.params.xp.asarray(idx), self.params.tree, config, masks, ops)
        self.length += T
        return to_host(logits[:, 0])

    def embedding_forward(self, idx, wte, wpe):
        """Embed tokens that follow `length` others."""
        return self.layer_ops.embedding_forward(idx, wte, wpe[self.length:])

    def attention_forward(self, q, k, v, scale, mask, dropout_mask):
        """Compute attention of the new queries on all keys; new keys are stored after the earlier ones."""
        T, end = q.shape[2], self.length + q.shape[2]
        layer = next(self.layers, None)
        if layer is None:
            raise UserError("a block used for generation must call ops.attention_forward only once")
        keys, values = self.arrays[layer]                               # 2 x (B, H, block_size, D)
        keys[:, :, self.length:end] = k
        values[:, :, self.length:end] = v
        if T == 1:
            mask = None                                                 # the last position sees all keys
        elif self.length:                                               # (T, end): all earlier keys are visible
            mask = np.concatenate([np.zeros_like(mask, shape=(T, self.length)), mask], axis=1)
        return self.layer_ops.attention_forward(q, keys[:, :, :end], values[:, :, :end], scale, mask, dropout_mask)

    def head_forward(self, x, weight, bias):
        """Compute the logits of the last position only: the head is the largest matmul."""
        return self.layer_ops.head_forward(x[:, -1:], weight, bias)
