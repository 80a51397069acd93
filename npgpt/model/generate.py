"""Writing text: one token after the other, each drawn from what the model expects next."""

import numpy as np

from npgpt.errors import UserError


def generate(model, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None, seed=0, eos_token_id=None):
    """Continue each row of idx by up to `max_new_tokens` tokens.

    idx (B, T) integers, T at least 1 -> (B, T + n) int64 array, n = max_new_tokens, or fewer where every row has
    reached `eos_token_id` (rows that have are filled up with it). See `stream_tokens` for the other arguments.
    """
    idx = np.asarray(idx)
    columns = list(stream_tokens(model, idx, max_new_tokens, temperature, top_k, top_p, seed, eos_token_id))
    return np.concatenate([idx, *[column[:, None] for column in columns]], axis=1).astype(np.int64)


def stream_tokens(model, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None, seed=0, eos_token_id=None):
    """Yield the next token of each row, (B,) integers, as soon as it is drawn.

    temperature divides the logits: below 1 safer, above 1 wilder, 0 always the likeliest token. top_k keeps the k
    likeliest tokens only, top_p the smallest set of likeliest tokens whose probabilities reach p (nucleus sampling,
    Holtzman et al. 2019, arXiv:1904.09751). The model sees the last `block_size` tokens. The same seed gives the same
    text. Raises UserError for values out of range.
    """
    check_sampling(model.config.vocab_size, max_new_tokens, temperature, top_k, top_p)
    idx, _ = model.check_batch(idx[:, -model.config.block_size:])
    rng = np.random.default_rng(seed)
    done = np.zeros(len(idx), dtype=bool)
    for _ in range(max_new_tokens):
        logits, _ = model.forward(idx)
        token = sample(logits[:, -1], rng, temperature, top_k, top_p)
        if eos_token_id is not None:
            token = np.where(done, eos_token_id, token)
            done |= token == eos_token_id
        yield token
        if done.all():
            return
        idx = np.concatenate([idx, token[:, None]], axis=1)[:, -model.config.block_size:]


def sample(logits, rng, temperature=1.0, top_k=None, top_p=None):
    """Draw one token id for each row of logits (B, V) -> (B,) integers."""
    if temperature == 0.0:
        return logits.argmax(axis=-1)
    logits = logits.astype(np.float64) / temperature        # float64: a small temperature overflows float32
    if top_k is not None and top_k < logits.shape[-1]:
        smallest_kept = np.partition(logits, -top_k, axis=-1)[:, [-top_k]]
        logits = np.where(logits < smallest_kept, -np.inf, logits)
    probs = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probs /= probs.sum(axis=-1, keepdims=True)
    if top_p is not None and top_p < 1.0:
        order = np.argsort(-probs, axis=-1, kind="stable")
        descending = np.take_along_axis(probs, order, axis=-1)
        before = np.cumsum(descending, axis=-1) - descending        # the mass of all likelier tokens
        np.put_along_axis(probs, order, np.where(before < top_p, descending, 0.0), axis=-1)
    cumulative = np.cumsum(probs, axis=-1)
    threshold = rng.random((len(probs), 1)) * cumulative[:, [-1]]
    return (cumulative <= threshold).sum(axis=-1)               # the first token whose cumulative mass passes it


def check_sampling(vocab_size, max_new_tokens, temperature, top_k, top_p):
    """UserError where a sampling argument is out of range."""
    if max_new_tokens < 0:
        raise UserError(f"max_new_tokens must be 0 or more, not {max_new_tokens}")
    if not 0.0 <= temperature < np.inf:
        raise UserError(f"temperature must be 0 (greedy) or more, not {temperature}")
    if top_k is not None and top_k < 1:
        raise UserError(f"top_k must be at least 1 (of {vocab_size} tokens), not {top_k}")
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise UserError(f"top_p must be above 0 and at most 1, not {top_p}")
