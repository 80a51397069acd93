"""Generation: a KV cache in arrays of fixed shapes."""

import jax
import jax.numpy as jnp
import numpy as np

from npgpt.engine.kv_cache import is_padding, latest
from npgpt.engine.ops import table, without_caches
from npgpt.model.masks import draw_masks
from npgpt.model.parameters import nest


class Reader:
    """Reads the next tokens of B texts, and keeps the keys and values of each layer in arrays of one shape.

    So there is one program for a token, and one for a prompt, whose length is rounded up to a power of two. As in
    `KVCache`, only the last block_size // 2 tokens are kept when they no longer fit. pads: as there.
    """

    def __init__(self, engine, B, pads=None):
        self.engine, self.config, self.p = engine, engine.config, engine.params.on_device()
        engine.params.config.block.check_continuing(engine.params.config)
        self.pads = np.zeros(B, np.int32) if pads is None else pads
        self.tokens, self.length = np.empty((B, 0), np.int32), 0
        shape = B, self.config.n_head, self.config.block_size, self.config.head_size
        self.kept = [[engine.place.put(np.zeros(shape, engine.params.dtype)) for _ in range(2)]
                     for _ in range(self.config.n_layer)]
        # Compile now, not after the first token has been printed.
        engine.compiled("generation", *self._call(np.zeros((B, 1), np.int32), 0))

    def __call__(self, idx):
        """idx (B, T) -> logits (B, V) of the token after them, on the host."""
        what = "" if self.length else "generation"              # later a message would interrupt the text
        self.tokens = np.concatenate([self.tokens, idx], axis=1, dtype=np.int32)
        if self.length + idx.shape[1] > self.config.block_size:
            (self.tokens, self.pads), self.length = latest(self.tokens, self.pads, self.config.block_size), 0
        elif idx.shape[1] > 1:
            self.length = 0                                     # a prompt is read from its beginning
        idx = self.tokens[:, self.length:]
        T = idx.shape[1]
        padded = min(1 << (T - 1).bit_length(), self.config.block_size)
        idx = np.pad(idx, ((0, 0), (0, padded - T)))            # later positions, which no earlier one sees
        logits, self.kept = self.engine.run("generation" if T == 1 else what, *self._call(idx, T - 1))
        self.length += T
        return np.asarray(logits)

    def _call(self, idx, last):
        """Return the arguments of `XLAEngine.run` that read idx, whose last token is at `last`."""
        put, places = self.engine.place.put, np.array([self.length, last], np.int32)
        arguments = self.p, put(idx), self.kept, put(places), put(self.pads.astype(np.int32))
        return self._program, arguments, (), 2, (None, 2)

    def _program(self, p, idx, kept, places, pads):
        (length, last), T, layer_ops = places, idx.shape[1], without_caches(self.engine.lesson)
        key, query = jnp.arange(self.config.block_size), length + jnp.arange(T)[:, None]            # (T, 1)
        seen = jnp.where((key <= query) & ~is_padding(key, query, pads), 0.0, -jnp.inf)             # (B, 1, T, S)
        positions = jnp.maximum(query[:, 0] - pads[:, None], 0)                                     # (B, T)
        layers_left, now_kept = iter(kept), []

        def embedding_forward(idx, wte, wpe):       # as one row, because each token has its own position
            x, cache = layer_ops.embedding_forward(idx.reshape(1, -1), wte, wpe[positions.reshape(-1)])
            return x.reshape(*idx.shape, -1), cache

        def attention_forward(q, k, v, scale, mask=None, dropout_mask=None):
            now_kept.append([jax.lax.dynamic_update_slice_in_dim(old, new, length, axis=2)
                             for old, new in zip(next(layers_left), (k, v), strict=True)])
            return layer_ops.attention_forward(q, *now_kept[-1], scale, seen.astype(q.dtype), dropout_mask)

        def head_forward(x, weight, bias):
            return layer_ops.head_forward(jax.lax.dynamic_slice_in_dim(x, last, 1, axis=1), weight, bias)

        ops = table(layer_ops, embedding_forward=embedding_forward, attention_forward=attention_forward,
                    head_forward=head_forward)
        masks = draw_masks(self.config, *idx.shape, self.engine.params.dtype)
        logits, _ = self.engine.transformer.gpt_forward(idx, nest(p), self.config.at(positions), masks, ops)
        return logits[:, 0], [*now_kept, *layers_left]      # those of blocks without attention
