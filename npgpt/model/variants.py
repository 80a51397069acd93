"""How other models differ from GPT-2 outside of its blocks: replaced operations.

An embedding without positions, or with a LayerNorm of its own ("ln_e"); no last LayerNorm; a head
with a matrix or a bias of its own ("lm_head"); attention to later positions. `model_forward` and
`model_backward` run the lesson's lines with the operations that a config chooses; engines call
them.
"""

from types import SimpleNamespace

from npgpt.model import transformer


class Nothing(float):
    """0.0 in place of an array of zeros. NOTHING + array is the array, without a pass over it."""

    def __add__(self, other):
        return other


NOTHING = Nothing(0.0)


def replaced(ops, **functions):
    """Return a table with some operations replaced."""
    return SimpleNamespace(**vars(ops) | functions)


def model_forward(idx, p, config, dropout_masks, ops, mask=None, lesson=transformer.gpt_forward):
    """Compute the logits of a model, (B, T, V), and the cache.

    lesson: the `gpt_forward` to run, such as XLA's. The other arguments are its.
    """
    p = {"wpe": {"weight": None}, "ln_f": {"weight": None}} | p  # None: a model without it

    def embedding_forward(idx, wte, wpe):
        if config.positions == "none":
            # T, in place of the length of wpe, is the least for which the lesson's backward runs.
            x, cache = wte[idx], (idx, len(wte), idx.shape[1])  # (B, T, C)
        else:
            x, cache = ops.embedding_forward(idx, wte, wpe)
        if not config.embedding_layer_norm:
            return x, cache
        x, ln_e = ops.layernorm_forward(x, **p["ln_e"], eps=config.layer_norm_epsilon)
        return x, (cache, ln_e)

    def layernorm_forward(x, weight, bias=None, eps=1e-5):
        return (x, None) if weight is None else ops.layernorm_forward(x, weight, bias, eps)

    def head_forward(x, wte):
        weight = wte if config.tie_word_embeddings else p["lm_head"]["weight"]
        logits, cache = ops.head_forward(x, weight)
        return logits + p["lm_head"]["bias"] if config.lm_head_bias else logits, cache

    changes = {}
    if config.positions == "none" or config.embedding_layer_norm:
        changes["embedding_forward"] = embedding_forward
    if not config.final_layer_norm:
        changes["layernorm_forward"] = layernorm_forward
    if config.lm_head_bias or not config.tie_word_embeddings:
        changes["head_forward"] = head_forward
    if not config.causal:
        changes["causal_mask"] = lambda mask, x: mask
    return lesson(idx, p, config, dropout_masks, replaced(ops, **changes), mask)


def model_backward(dlogits, cache, ops, lesson=transformer.gpt_backward):
    """Undo `model_forward`: dlogits (B, T, V) -> dp, the gradient of every parameter.

    What a model lacks is None or an empty dict there. lesson: the `gpt_backward` to run.
    """
    config, more = cache[-1], {"lm_head": {}}  # more: the gradients that GPT-2's tree lacks

    def embedding_backward(dx, cache):
        if config.embedding_layer_norm:
            cache, ln_e = cache
            dx, dweight, dbias = ops.layernorm_backward(dx, ln_e)
            more["ln_e"] = {"weight": dweight, "bias": dbias}
        dwte, dwpe = ops.embedding_backward(dx, cache)
        return dwte, None if config.positions == "none" else dwpe

    def layernorm_backward(dy, cache):
        return (dy, None, None) if cache is None else ops.layernorm_backward(dy, cache)

    def head_backward(dlogits, cache):
        if config.lm_head_bias:
            more["lm_head"]["bias"] = dlogits.reshape(-1, dlogits.shape[-1]).sum(axis=0)
        dx, dweight = ops.head_backward(dlogits, cache)
        if config.tie_word_embeddings:
            return dx, dweight
        more["lm_head"]["weight"] = dweight
        return dx, NOTHING

    changes = {}
    if config.positions == "none" or config.embedding_layer_norm:
        changes["embedding_backward"] = embedding_backward
    if not config.final_layer_norm:
        changes["layernorm_backward"] = layernorm_backward
    if config.lm_head_bias or not config.tie_word_embeddings:
        changes["head_backward"] = head_backward
    return lesson(dlogits, cache, replaced(ops, **changes)) | more
