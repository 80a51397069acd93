"""Writing text: one token after the other, each drawn from what the model expects next."""

import math

import numpy as np

from npgpt.arrays import to_host
from npgpt.checks import MOST_SEED, check, check_memory, check_real, check_whole, is_real
from npgpt.errors import UserError
from npgpt.model.transformer import gpt_forward


class KVCache:
    """What B rows of text have said so far: their last tokens, and each layer's keys and values of those.

    With it the next token costs one position's work instead of the whole context's. When the tokens no longer fit into
    `block_size`, only the last half of a context (block_size // 2 tokens) is kept and read anew: one long pass for many
    short ones. (GPT-2's positions are learned and absolute: a cached key cannot move to an earlier position.)
    """

    def __init__(self, params, B):
        self.params, self.B, config = params, B, params.config
        self.tokens = np.empty((B, 0), dtype=np.int64)
        self.length = 0                         # how many positions the arrays hold
        # For speed, more than 4 rows are filled up to a multiple of 8: BLAS multiplies 8 by a matrix faster than 5.
        self.rows = B if B <= 4 else -(-B // 8) * 8
        shape = config.n_layer, 2, self.rows, config.n_head, config.block_size, config.n_embd // config.n_head
        if params.xp is np:
            check_memory(math.prod(shape) * params.flat.itemsize, f"the keys and values of {B} texts")
        self.arrays = params.xp.zeros(shape, dtype=params.flat.dtype)

    def read(self, idx):
        """Take in the next tokens, idx (B, T) integers, T at least 1 -> logits (B, V) of the token after them.

        Both are on the host, where tokens are drawn: where there is a GPU, that is the one wait for it a token.
        """
        block_size = self.params.config.block_size
        self.tokens = np.concatenate([self.tokens, idx], axis=1)
        if self.length + idx.shape[1] > block_size:
            self.tokens = idx = self.tokens[:, -max(1, block_size // 2):]
            self.length = 0
        T = idx.shape[1]
        if T == 1:
            idx = np.concatenate([idx, np.zeros((self.rows - self.B, 1), dtype=idx.dtype)])
        logits, _ = gpt_forward(self.params.xp.asarray(idx), self.params, kv_cache=self)
        self.length += T
        return to_host(logits[:self.B, 0])

    def extend(self, layer):
        """What `self_attention_forward` is given for a layer: a function (k, v) -> all its keys, all its values."""
        def extended(k, v):
            keys, values = self.arrays[layer, :, :len(k)]       # 2 x (B, H, block_size, D)
            end = self.length + k.shape[2]
            keys[:, :, self.length:end] = k
            values[:, :, self.length:end] = v
            return keys[:, :, :end], values[:, :, :end]
        return extended


def generate(model, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None, seed=0, eos_token_id=None):
    """Continue each row of idx by up to `max_new_tokens` tokens.

    idx (B, T) integers, T at least 1 -> (B, T + n) int64 array, n = max_new_tokens, or fewer where every row has
    reached `eos_token_id` (rows that have are filled up with it). See `stream_tokens` for the other arguments.
    """
    idx = model.check_ids(idx)
    columns = list(stream_tokens(model, idx, max_new_tokens, temperature, top_k, top_p, seed, eos_token_id))
    return np.concatenate([idx, *[column[:, None] for column in columns]], axis=1).astype(np.int64)


def stream_tokens(model, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None, seed=0, eos_token_id=None):
    """Give the next token of each row, (B,) integers, as soon as it is drawn: an iterator.

    temperature divides the logits: below 1 safer, above 1 wilder, 0 always the likeliest token. top_k keeps the k
    likeliest tokens only, top_p the smallest set of likeliest tokens whose probabilities reach p (nucleus sampling,
    Holtzman et al. 2019, arXiv:1904.09751). The same seed gives the same text. Raises UserError for values out of
    range, and for a model that is not causal: its earlier positions would change with each new token.
    """
    check_sampling(model.config, max_new_tokens, temperature, top_k, top_p, seed, eos_token_id)
    return _stream(model, model.check_ids(idx), max_new_tokens, temperature, top_k, top_p, seed, eos_token_id)


def _stream(model, idx, max_new_tokens, temperature, top_k, top_p, seed, eos_token_id):
    cache = KVCache(model.params, len(idx))
    rng = np.random.default_rng(seed)
    done = np.zeros(len(idx), dtype=bool)
    for _ in range(max_new_tokens):
        logits = model.shards.whole(cache.read, idx)
        token = sample(logits, rng, temperature, top_k, top_p)
        if eos_token_id is not None:
            token = np.where(done, eos_token_id, token)
            done |= token == eos_token_id
        yield token
        if done.all():
            return
        idx = token[:, None]


def sample(logits, rng, temperature=1.0, top_k=None, top_p=None):
    """Draw one token id for each row of logits (B, V) -> (B,) integers."""
    if temperature == 0.0:
        return logits.argmax(axis=-1)
    # The largest logit becomes 0, which no temperature makes infinite; the others then may go to -inf.
    logits = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):
        logits /= temperature
    if top_k is not None and top_k < logits.shape[-1]:
        smallest_kept = np.partition(logits, -top_k, axis=-1)[:, [-top_k]]
        logits = np.where(logits < smallest_kept, -np.inf, logits)
    probs = np.exp(logits)
    probs /= probs.sum(axis=-1, keepdims=True)
    if top_p is not None and top_p < 1.0:
        order = np.argsort(-probs, axis=-1, kind="stable")
        descending = np.take_along_axis(probs, order, axis=-1)
        before = np.cumsum(descending, axis=-1) - descending        # the mass of all likelier tokens
        np.put_along_axis(probs, order, np.where(before < top_p, descending, 0.0), axis=-1)
    cumulative = np.cumsum(probs, axis=-1)
    threshold = rng.random((len(probs), 1)) * cumulative[:, [-1]]
    return (cumulative <= threshold).sum(axis=-1)               # the first token whose cumulative mass passes it


def check_sampling(config, max_new_tokens, temperature, top_k, top_p, seed, eos_token_id):
    """UserError where a sampling argument is out of range."""
    if not config.causal:
        raise UserError("a model with causal=False is an encoder: it cannot write text from left to right")
    check_whole("max_new_tokens", max_new_tokens)
    check_real("temperature", temperature)
    if top_k is not None:
        check_whole("top_k", top_k, 1)
    if top_p is not None:
        check("top_p", top_p, is_real(top_p) and 0.0 < top_p <= 1.0, "above 0 and at most 1")
    check_whole("seed", seed, 0, MOST_SEED)
    if eos_token_id is not None:
        check_whole("eos_token_id", eos_token_id, 0, config.vocab_size - 1)
