"""The KV cache: a table of operations with which a model reads only new tokens."""

import functools
import math

import numpy as np
from numpy.typing import ArrayLike

from npgpt import layers
from npgpt.arrays import on_device_of, to_host
from npgpt.checks import check_memory, check_whole, require
from npgpt.engine.ops import table, without_caches
from npgpt.engine.sources import as_tested
from npgpt.engine.trial import check_continuing, differing, lesson_codes, random_model, small_gpt2
from npgpt.errors import UserError
from npgpt.model import transformer
from npgpt.model.batch import as_integers, check_ids
from npgpt.model.masks import draw_masks
from npgpt.model.variants import model_forward


class Texts:
    """The tokens of B texts that are continued.

    When they no longer fit into `block_size`, the last block_size // 2 are read again: one long
    pass for many short ones. (GPT-2's positions are learned and absolute, so a cached key cannot
    move to an earlier position.)

    pads: how many of each text's first tokens are padding, (B,) integers, or None. Each text is
    read as it would be alone: no token sees padding, and positions count tokens.
    """

    def __init__(self, config, B, pads=None):
        check_continuing(config)
        if config.causal and not lesson_continues(small_gpt2(config), lesson_codes()):
            raise UserError(
                "edited lines cannot continue texts: token by token they compute something else "
                "than at once, so the model trains, but cannot generate; in attention the T "
                "queries are the last of the S keys, and elsewhere a token sees no other one"
            )
        self.block_size, self.tokens = config.block_size, np.empty((B, 0), np.int64)
        self.pads = np.zeros(B, np.int64) if pads is None else pads

    def add(self, idx):
        """Add the next tokens of each text, (B, T). Return those to read, and how many are before
        them.
        """
        begin, self.tokens = self.tokens.shape[1], np.concatenate([self.tokens, idx], axis=1)
        if self.tokens.shape[1] > self.block_size:
            lengths = self.tokens.shape[1] - self.pads
            lengths = np.where(lengths > self.block_size, max(1, self.block_size // 2), lengths)
            self.tokens = self.tokens[:, -lengths.max() :]
            self.pads = lengths.max() - lengths
            begin = 0
        return self.tokens[:, begin:], begin

    def reorder(self, rows):
        """Replace the texts by those of some rows, (B',) integers."""
        self.tokens, self.pads = self.tokens[rows], self.pads[rows]

    def back(self, n):
        """Forget the last n tokens."""
        self.tokens = self.tokens[:, : self.tokens.shape[1] - n]


class Reader:
    """Reads B texts part by part, and keeps the keys and values of what it has read; `GPT.reader`
    makes one.

    >>> reader = model.reader(B)
    >>> logits = reader.read(tokens)        # (B, T) integers -> (B, T, V)

    What was read stays as it was when weights change: begin a new reader then.
    """

    def __init__(self, config, cache):
        check_continuing(config, ends=(1, 3))
        self._config, self._cache = config, cache

    @property
    def tokens(self) -> np.ndarray:
        """All tokens that were read, (B, N) int64, a copy."""
        return self._cache.texts.tokens.copy()

    def read(self, tokens: ArrayLike) -> np.ndarray:
        """Read the next tokens of each text.

        Parameters
        ----------
        tokens : integers, shape (B, T)
            Token ids.

        Returns
        -------
        logits : array, shape (B, T, V)
            Those after each token, as a NumPy array, on a GPU as well.

        Raises
        ------
        UserError
            For other shapes or ids, and if more than `block_size` tokens would be read.
        """
        tokens = check_ids(self._config, tokens)
        B, N = self.tokens.shape
        require("the number of texts", len(tokens), len(tokens) == B, f"{B}, as the reader has")
        most = self._config.block_size
        if N + tokens.shape[1] > most:
            raise UserError(
                f"the reader has read {N} tokens, and {tokens.shape[1]} more do not fit into "
                f"block_size {most}: go back(n), or begin a new reader"
            )
        texts = self._cache.texts
        before = texts.tokens
        try:
            return self._cache.read(tokens, every=True)
        except BaseException:  # such as Ctrl-C: its keys may be missing
            texts.tokens = before
            raise

    def reorder(self, rows: ArrayLike) -> None:
        """Continue text rows[i] in row i.

        Parameters
        ----------
        rows : integers, shape (B',)
            Some may be equal, such as the beams that survive.

        Raises
        ------
        UserError
            For rows that are not there.
        """
        rows, last = as_integers(rows, "rows"), len(self.tokens) - 1
        there = rows.ndim == 1 and rows.size and (rows.clip(0, last) == rows).all()
        require("rows", rows, there, f"1-D integers from 0 to {last}")
        self._cache.reorder(rows)

    def back(self, n: int) -> None:
        """Forget the last tokens of each text.

        Parameters
        ----------
        n : integer
            How many tokens.

        Raises
        ------
        UserError
            If so many were not read.
        """
        texts = self._cache.texts
        check_whole("n", n, 0, max(0, texts.tokens.shape[1] - texts.pads.max()))
        texts.back(n)


class KVCache:
    """Reads the next tokens of B texts, and keeps each layer's keys and values of the earlier ones.

    The next token then costs the work of one position instead of the whole context. pads: as in
    `Texts`. trace: a `ForwardTrace`, whose lines and edits then run.
    """

    def __init__(self, engine, B, pads=None, trace=None):
        self.engine, self.params = engine, engine.params
        self.texts = Texts(engine.params.config, B, pads)
        self.config = config = (trace or engine).config  # with the block that is run
        shape = config.n_layer, 2, B, config.n_head, config.block_size, config.head_size
        if self.params.xp is np:
            needed = math.prod(shape) * self.params.dtype.itemsize
            check_memory(needed, f"the keys and values of {B} texts")
        xp, dtype = self.params.xp, self.params.dtype
        with on_device_of(self.params.flat):
            self.arrays = xp.zeros(shape, dtype=dtype)
            self.mask = engine.ops.causal_mask(
                None, xp.zeros((1, config.block_size, 1), dtype=dtype)
            )
        self.lesson = (trace or transformer).gpt_forward
        self.ops = without_caches((trace or engine).ops)

    def reorder(self, rows):
        """As in `Texts`."""
        self.texts.reorder(rows)
        (rows,) = self.engine.on_device(rows)
        with on_device_of(self.params.flat):
            self.arrays = self.arrays[:, :, rows]

    def read(self, idx, every=False):
        """Read the next tokens, idx (B, T) integers, T at least 1 -> logits (B, V) of the token
        after them.

        every: -> logits (B, T, V) after each. All are on the host, where tokens are drawn; on a GPU
        this is the only wait per token.
        """
        idx, begin = self.texts.add(idx)
        end, padded = begin + idx.shape[1], self.texts.pads.any()
        layers = iter(self.arrays)  # of the layers that this forward has yet to run

        def store(k, v):
            keys, values = (each[:, :, :end] for each in next(layers))  # 2 x (B, H, S, D)
            keys[:, :, begin:], values[:, :, begin:] = k, v
            return keys, values

        last = (lambda x: x) if every else (lambda x: x[:, -1:])
        masks = draw_masks(self.config, *idx.shape, self.params.dtype)
        with self.engine.running():
            idx, pads = self.engine.on_device(idx, self.texts.pads)
            mask = self.mask[begin:end, :end]  # (T, S)
            ops, config = reading(
                self.params.xp, self.ops, self.config, begin, pads, padded, mask, store, last
            )
            logits, _ = model_forward(idx, self.params.tree, config, masks, ops, lesson=self.lesson)
        return to_host(logits if every else logits[:, -1])


@functools.lru_cache(64)
def lesson_continues(config, codes):
    """Return whether GPT-2 computes token by token what it computes at once; edited lines may not.

    codes: `lesson_codes`.
    """
    params, idx = random_model(config)
    (B, T), kept, rows = idx.shape, [], []
    causal = layers.causal_mask(None, np.zeros((1, T, 1), params.dtype))

    def store(k, v):
        kept.append((k, v))
        return [np.concatenate(each, axis=2) for each in zip(*kept, strict=True)]

    def logits_of(begin, end, ops, at):
        masks = draw_masks(config, B, end - begin, params.dtype)
        with np.errstate(all="ignore"):
            return model_forward(idx[:, begin:end], params.tree, at, masks, ops)[0]

    try:
        whole = logits_of(0, T, layers, config)
    except Exception:  # edited lines may need other sizes
        return True
    try:
        for i in range(T):
            mask, pads = causal[i : i + 1, : i + 1], np.zeros(B, int)
            ops, at = reading(np, layers, config, i, pads, False, mask, store, lambda x: x)
            rows.append(logits_of(i, i + 1, ops, at))
    except Exception:
        return False
    return not differing({"logits": whole}, {"logits": np.concatenate(rows, axis=1)})


def reading(xp, ops, config, begin, pads, padded, causal, store, last):
    """Return the table and the config with which a model reads T tokens after `begin` others.

    pads: as in `Texts`; padded: whether some may not be 0; causal: the mask of the new tokens,
    (T, S). store: a function of a layer's new keys and values that returns all, (B, H, S, D).
    last: a function of x (B, T, C) that returns what the head reads, such as its last token's,
    (B, 1, C): the head is the largest matmul. It computes all logits if edited lines may read them.
    """
    T, S = causal.shape
    key, query = xp.arange(S), begin + xp.arange(T)[:, None]  # (S,), (T, 1)
    positions = xp.maximum(query[:, 0] - pads[:, None], 0)  # (B, T), 0 if it is padding
    if padded:
        hidden = (key < pads[:, None, None, None]) & (key != query)  # (B, 1, T, S)
        padding = xp.where(hidden, -np.inf, 0.0).astype(causal.dtype)

    def attention_forward(q, k, v, scale, mask=None, dropout_mask=None):
        mask = causal if mask is None else mask  # a block may have another mask
        mask = mask + padding if padded else mask
        return ops.attention_forward(q, *store(k, v), scale, mask, dropout_mask)

    def embedding_forward(idx, wte, wpe):  # as one row, because each token has its own position
        x, cache = ops.embedding_forward(idx.reshape(1, -1), wte, wpe[positions.reshape(-1)])
        return x.reshape(*idx.shape, -1), cache

    def head_forward(x, weight):
        return ops.head_forward(last(x), weight)

    replaced = table(
        ops,
        embedding_forward=embedding_forward,
        attention_forward=attention_forward,
        causal_mask=lambda _, x: causal,
        head_forward=head_forward if as_tested("gpt_forward") else ops.head_forward,
    )
    return replaced, config.at(positions=positions, distances=(query - key)[None, None])
