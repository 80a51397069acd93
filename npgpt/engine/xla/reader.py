"""Generation: a KV cache in arrays of fixed shapes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from npgpt.engine.kv_cache import Texts, reading
from npgpt.engine.ops import without_caches
from npgpt.model.masks import draw_masks


class Reader:
    """Reads the next tokens of B texts, and keeps the keys and values of each layer in arrays of
    one shape.

    There is one program for a token, and one for several, whose number is rounded up to a power of
    two.
    """

    def __init__(self, engine, B, pads=None):
        self.engine, self.config, self.p = engine, engine.config, engine.params.on_device()
        self.texts = Texts(engine.params.config, B, pads)
        shape = B, self.config.n_head, self.config.block_size, self.config.head_size
        self.kept = []
        for _ in range(self.config.n_layer):
            keys, values = np.zeros((2, *shape), engine.params.dtype)
            self.kept.append([engine.devices.put(keys), engine.devices.put(values)])
        # Compile now, not after the first token has been printed. The prompt overwrites what this
        # writes.
        self.read_part("generation", np.zeros((B, 1), np.int64), 0, 0)

    def reorder(self, rows):
        """As in `KVCache`."""
        B = len(self.texts.tokens)  # before, and so in the shapes of what is kept
        self.texts.reorder(rows)
        rows = self.engine.devices.put(rows.astype(np.int32))
        self.kept = self.engine.call("", of_rows, (self.kept, rows), ("reorder", B))

    def read(self, idx, every=False):
        """As in `KVCache`; the logits are on the host."""
        # Later a message would interrupt the text.
        what = "" if self.texts.tokens.size else "generation"
        idx, begin = self.texts.add(idx)
        T = idx.shape[1]
        padded = min(1 << (T - 1).bit_length(), self.config.block_size - begin)
        idx = np.pad(idx, ((0, 0), (0, padded - T)))  # later positions, which no earlier one sees
        what = "generation" if T == 1 else what
        logits = np.array(self.read_part(what, idx, begin, T - 1, every))
        return logits[:, :T] if every else logits

    def read_part(self, what, idx, begin, last, every=False):
        """Read idx after `begin` tokens; its last token is at `last`."""
        arrays = idx, np.array([begin, last]), self.texts.pads
        arrays = [self.engine.devices.put(each.astype(np.int32)) for each in arrays]
        arguments = self.p, *arrays, self.kept
        program = partial(self._program, every)
        self.kept, logits = self.engine.call(what, program, arguments, every, donated=4)
        return logits

    def _program(self, every, p, idx, numbers, pads, kept):
        (begin, last), T = numbers, idx.shape[1]
        P, dtype = self.config.block_size, self.engine.params.dtype
        ops = without_caches(self.engine.lesson)
        causal = ops.causal_mask(None, jnp.zeros((1, P, 1), dtype))  # (P, P)
        causal = jax.lax.dynamic_slice_in_dim(causal, begin, T)  # (T, P)
        layers_left, now_kept = iter(kept), []

        def store(k, v):
            pairs = zip(next(layers_left), (k, v), strict=True)
            now_kept.append(
                [jax.lax.dynamic_update_slice_in_dim(*pair, begin, axis=2) for pair in pairs]
            )
            return now_kept[-1]

        def of_last(x):  # it gets one token of the head's result
            return x if every else jax.lax.dynamic_slice_in_dim(x, last, 1, axis=1)

        ops, config = reading(jnp, ops, self.config, begin, pads, True, causal, store, of_last)
        masks = draw_masks(self.config, *idx.shape, dtype)
        logits, _ = self.engine.forward(idx, p, config, masks, ops)
        kept = [*now_kept, *layers_left]  # those of blocks without attention
        return kept, logits if every else of_last(logits)[:, 0]


def of_rows(kept, rows):
    """Return the keys and values of some texts."""
    return jax.tree.map(lambda each: each[rows], kept)
