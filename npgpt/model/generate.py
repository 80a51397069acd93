"""Generation: one token after the other, drawn from the model's distribution."""

import numpy as np

from npgpt.checks import MOST_SEED, check_real, check_whole, is_real, require
from npgpt.errors import UserError
from npgpt.model.batch import check_like


def stream_tokens(
    read, idx, max_new_tokens, temperature, top_k, top_p, rng, eos_token_id, stop, processor
):
    """Yield the next token of each row, (B,) integers, as soon as it is drawn.

    read: a function that reads the next tokens of each row, (B, T), and returns the logits (B, V)
    of the one after them. rng: a np.random.Generator. stop: lists of token ids. processor:
    `logits_processor`, or None. The other arguments are those of `GPT.stream`.
    """
    done, begin, ids = np.zeros(len(idx), dtype=bool), idx.shape[1], idx

    def stops(row):
        return any(row[-len(end) :].tolist() == end for end in stop)

    for _ in range(max_new_tokens):
        padding = idx[:, -1] if eos_token_id is None else eos_token_id
        logits = read(idx)
        if processor:
            new = processor(ids, logits)
            logits = check_like("what logits_processor returns", new, logits)
            logits = np.where(done[:, None], 0.0, logits)  # a row that has ended may forbid all
        token = np.where(done, padding, sample(logits, rng, temperature, top_k, top_p))
        if eos_token_id is not None:
            done |= token == eos_token_id
        if stop or processor:
            ids = np.concatenate([ids, token[:, None]], axis=1)
        if stop:
            done |= [stops(row) for row in ids[:, begin:]]
        yield token
        if done.all():
            return
        idx = token[:, None]


def sample(logits, rng, temperature=1.0, top_k=None, top_p=None):
    """Draw a token id for each row of logits, (B, V) -> (B,). Raises UserError if a largest logit
    is not finite.
    """
    largest = logits.max(axis=-1, keepdims=True)
    if not np.isfinite(largest).all():
        raise UserError(
            "the largest logit is not finite, so no token can be drawn: choose another model, or "
            "leave a token allowed in logits_processor"
        )
    if temperature == 0.0:
        return logits.argmax(axis=-1)
    V, ids = logits.shape[-1], np.arange(logits.shape[-1])[None]
    if top_k is not None and top_k < V:
        ids = likeliest(logits, top_k)  # (B, top_k)
        logits = np.take_along_axis(logits, ids, axis=-1)
    # The largest logit becomes 0, which no temperature makes infinite; the others may become -inf.
    logits = logits.astype(np.float64) - largest
    with np.errstate(over="ignore"):
        logits /= temperature
    probs = np.exp(logits)
    probs /= probs.sum(axis=-1, keepdims=True)
    if top_p is not None and top_p < 1.0:
        # Tokens of probability (1 - top_p) / V or less add up to at most 1 - top_p, so none of them
        # is kept.
        some = likeliest(probs, max(1, (probs > (1.0 - top_p) / V).sum(axis=-1).max()))
        likely = np.take_along_axis(probs, some, axis=-1)
        order = np.take_along_axis(some, np.argsort(-likely, axis=-1, kind="stable"), axis=-1)
        descending = np.take_along_axis(probs, order, axis=-1)
        before = np.cumsum(descending, axis=-1) - descending  # the mass of all likelier tokens
        probs = np.zeros_like(probs)
        np.put_along_axis(probs, order, np.where(before < top_p, descending, 0.0), axis=-1)
    cumulative = np.cumsum(probs, axis=-1)
    threshold = rng.random((len(probs), 1)) * cumulative[:, [-1]]
    drawn = (cumulative <= threshold).sum(axis=-1)  # the first whose cumulative mass passes it
    return np.take_along_axis(np.broadcast_to(ids, probs.shape), drawn[:, None], axis=-1)[:, 0]


def likeliest(values, n):
    """Return the columns of the n largest values of each row (B, V) -> (B, n), ascending."""
    return np.sort(np.argpartition(values, -n, axis=-1)[:, -n:], axis=-1)


def check_writes(config):
    """Raise UserError for an encoder."""
    if not config.causal:
        raise UserError(
            "a model with causal=False is an encoder: it cannot write text from left to right"
        )


def check_sampling(config, max_new_tokens, temperature, top_k, top_p, seed, eos_token_id):
    """Raise UserError if a sampling argument is out of range, or the model is an encoder."""
    check_writes(config)
    check_whole("max_new_tokens", max_new_tokens)
    check_real("temperature", temperature)
    check_whole("top_k", top_k, 1, or_none=True)
    is_share = top_p is None or is_real(top_p) and 0.0 < top_p <= 1.0
    require("top_p", top_p, is_share, "above 0 and at most 1")
    check_whole("seed", seed, 0, MOST_SEED)
    check_whole("eos_token_id", eos_token_id, 0, config.vocab_size - 1, or_none=True)
