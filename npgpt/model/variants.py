"""What other models do otherwise than GPT-2, outside of its blocks: replaced operations.

An embedding without positions, or with a LayerNorm of its own ("ln_e"); no last LayerNorm; a head
with a matrix or a bias of its own ("lm_head"); attention to later positions. `model_forward` and
`model_backward` run the lesson's lines with the operations that a config chooses; engines call
them.
"""

from functools import partial
from types import SimpleNamespace

from npgpt.model import transformer


class Nothing(float):
    """0.0 in place of an array of zeros. NOTHING + array is the array, without a pass over it."""

    def __add__(self, other):
        return other


NOTHING = Nothing(0.0)


def model_forward(idx, p, config, dropout_masks, ops, mask=None, lesson=transformer.gpt_forward):
    """Compute the logits of a model, (B, T, V), and the cache.

    lesson: the `gpt_forward` to run, such as XLA's. The other arguments are its.
    """
    p = {"wpe": {"weight": None}, "ln_f": {"weight": None}} | p         # None: a model without it
    if config.positions == "none":
        ops = replaced(ops, embedding_forward=token_embedding_forward)
    if config.embedding_layer_norm:
        norm = p["ln_e"] | {"eps": config.layer_norm_epsilon}
        ops = replaced(ops, embedding_forward=partial(normed_embedding_forward, ops, norm))
    if not config.final_layer_norm:
        ops = replaced(ops, layernorm_forward=partial(optional_layernorm_forward, ops))
    if not config.tie_word_embeddings:
        ops = replaced(ops, head_forward=partial(untied_head_forward, ops, p["lm_head"]["weight"]))
    if config.lm_head_bias:
        ops = replaced(ops, head_forward=partial(biased_head_forward, ops, p["lm_head"]["bias"]))
    if not config.causal:
        ops = replaced(ops, causal_mask=lambda mask, x: mask)
    return lesson(idx, p, config, dropout_masks, ops, mask)


def model_backward(dlogits, cache, ops, lesson=transformer.gpt_backward):
    """Undo `model_forward`: dlogits (B, T, V) -> dp, the gradient of every parameter.

    What a model lacks is None or an empty dict there. lesson: the `gpt_backward` to run.
    """
    config, more = cache[-1], {"lm_head": {}}
    if config.positions == "none":
        ops = replaced(ops, embedding_backward=partial(token_embedding_backward, ops))
    if config.embedding_layer_norm:
        ops = replaced(ops, embedding_backward=partial(normed_embedding_backward, ops, more))
    if not config.final_layer_norm:
        ops = replaced(ops, layernorm_backward=partial(optional_layernorm_backward, ops))
    if not config.tie_word_embeddings:
        ops = replaced(ops, head_backward=partial(untied_head_backward, ops, more["lm_head"]))
    if config.lm_head_bias:
        ops = replaced(ops, head_backward=partial(biased_head_backward, ops, more["lm_head"]))
    return lesson(dlogits, cache, ops) | more


def replaced(ops, **functions):
    """Return a table with some operations replaced."""
    return SimpleNamespace(**vars(ops) | functions)


# Each pair: ops is the table before the replacement. more and lm_head are dicts to which a backward
# writes the gradients that GPT-2's tree lacks.


def token_embedding_forward(idx, wte, wpe):
    """Read the rows of the tokens alone: wpe is None. -> x (B, T, C), the lesson's cache.

    T, in place of the length of wpe, is the least for which the lesson's backward runs.
    """
    return wte[idx], (idx, len(wte), idx.shape[1])


def token_embedding_backward(ops, dx, cache):
    dwte, _ = ops.embedding_backward(dx, cache)
    return dwte, None


def normed_embedding_forward(ops, norm, idx, wte, wpe):
    """Normalise what the embedding returns. norm: weight, bias and eps of the LayerNorm."""
    x, embedding = ops.embedding_forward(idx, wte, wpe)
    x, ln_e = ops.layernorm_forward(x, **norm)
    return x, (embedding, ln_e)


def normed_embedding_backward(ops, more, dx, cache):
    embedding, ln_e = cache
    dx, dweight, dbias = ops.layernorm_backward(dx, ln_e)
    more["ln_e"] = {"weight": dweight, "bias": dbias}
    return ops.embedding_backward(dx, embedding)


def optional_layernorm_forward(ops, x, weight, bias=None, eps=1e-5):
    """Return x itself if there is no weight."""
    return (x, None) if weight is None else ops.layernorm_forward(x, weight, bias, eps)


def optional_layernorm_backward(ops, dy, cache):
    return (dy, None, None) if cache is None else ops.layernorm_backward(dy, cache)


def untied_head_forward(ops, weight, x, wte):
    """Compute logits = x weight^T: the head does not read wte."""
    return ops.head_forward(x, weight)


def untied_head_backward(ops, lm_head, dlogits, cache):
    dx, lm_head["weight"] = ops.head_backward(dlogits, cache)
    return dx, NOTHING


def biased_head_forward(ops, bias, x, weight):
    """Add a bias (V,) to the logits."""
    logits, head = ops.head_forward(x, weight)
    return logits + bias, head


def biased_head_backward(ops, lm_head, dlogits, cache):
    lm_head["bias"] = dlogits.reshape(-1, dlogits.shape[-1]).sum(axis=0)
    return ops.head_backward(dlogits, cache)
