"""GPT-2: the layers put together. Forward in order, backward in exactly the reverse order, one line a layer."""

from npgpt.engine.rowwise import row_blocks
from npgpt.engine.threads import spread
from npgpt.layers.dropout import dropout_backward, dropout_forward, dropout_mask
from npgpt.layers.embedding import embedding_backward, embedding_forward
from npgpt.layers.layernorm import layernorm_backward, layernorm_forward
from npgpt.layers.linear import head_backward, head_forward
from npgpt.layers.loss import cross_entropy_backward, cross_entropy_forward
from npgpt.layers.mlp import mlp_backward, mlp_forward
from npgpt.layers.self_attention import self_attention_backward, self_attention_forward


def block_forward(x, p, config, layer, rng=None, extend=None):
    """One transformer block: x + attention(norm(x)), then the same with the MLP.

    x (B, T, C), p the parameters of block number `layer` by short name, rng for dropout (None: no dropout), extend as
    in `self_attention_forward` -> x_out (B, T, C), cache.
    The two additions are the residual stream: each layer adds to what is there, none replaces it.
    """
    B, T, C = x.shape
    eps = config.layer_norm_epsilon
    mask_att = dropout_mask(rng, (B, config.n_head, T, T), config.attn_pdrop, x.dtype)
    mask_attn = dropout_mask(rng, (B, T, C), config.resid_pdrop, x.dtype)
    mask_mlp = dropout_mask(rng, (B, T, C), config.resid_pdrop, x.dtype)

    norm_1, ln_1 = layernorm_forward(x, p["ln_1.weight"], p.get("ln_1.bias"), eps)                  # (B, T, C)
    attended, attn = self_attention_forward(
        norm_1, p["attn.c_attn.weight"], p.get("attn.c_attn.bias"), p["attn.c_proj.weight"], p.get("attn.c_proj.bias"),
        config.n_head, config.attention_scale(layer), config.causal, mask_att, extend)              # (B, T, C)
    dropped_1, drop_1 = dropout_forward(attended, mask_attn)                                        # (B, T, C)
    x_mid = x + dropped_1                                                                           # (B, T, C)
    norm_2, ln_2 = layernorm_forward(x_mid, p["ln_2.weight"], p.get("ln_2.bias"), eps)              # (B, T, C)
    thought, mlp = mlp_forward(
        norm_2, p["mlp.c_fc.weight"], p.get("mlp.c_fc.bias"), p["mlp.c_proj.weight"], p.get("mlp.c_proj.bias"),
        config.activation)                                                                          # (B, T, C)
    dropped_2, drop_2 = dropout_forward(thought, mask_mlp)                                          # (B, T, C)
    x_out = x_mid + dropped_2                                                                       # (B, T, C)
    return x_out, (ln_1, attn, drop_1, ln_2, mlp, drop_2)


def block_backward(dx_out, cache, g):
    """Undo `block_forward`: dx_out (B, T, C) -> dx (B, T, C); the parameters' gradients are written to g."""
    ln_1, attn, drop_1, ln_2, mlp, drop_2 = cache
    # x_out = x_mid + dropped_2: both terms get the whole gradient
    ddropped_2 = dx_out
    # dropped_2, drop_2 = dropout_forward(thought, mask_mlp)
    dthought = dropout_backward(ddropped_2, drop_2)
    # thought, mlp = mlp_forward(norm_2, …)
    (dnorm_2, g["mlp.c_fc.weight"], g["mlp.c_fc.bias"],
     g["mlp.c_proj.weight"], g["mlp.c_proj.bias"]) = mlp_backward(
         dthought, mlp, g["mlp.c_fc.weight"], g["mlp.c_proj.weight"])
    # norm_2, ln_2 = layernorm_forward(x_mid, …)
    dx_mid_normed, g["ln_2.weight"], g["ln_2.bias"] = layernorm_backward(dnorm_2, ln_2)
    dx_mid = dx_out + dx_mid_normed         # x_mid was used twice: by the MLP's branch and by the residual stream
    # x_mid = x + dropped_1
    ddropped_1 = dx_mid
    # dropped_1, drop_1 = dropout_forward(attended, mask_attn)
    dattended = dropout_backward(ddropped_1, drop_1)
    # attended, attn = self_attention_forward(norm_1, …)
    (dnorm_1, g["attn.c_attn.weight"], g["attn.c_attn.bias"],
     g["attn.c_proj.weight"], g["attn.c_proj.bias"]) = self_attention_backward(
         dattended, attn, g["attn.c_attn.weight"], g["attn.c_proj.weight"])
    # norm_1, ln_1 = layernorm_forward(x, …)
    dx_normed, g["ln_1.weight"], g["ln_1.bias"] = layernorm_backward(dnorm_1, ln_1)
    dx = dx_mid + dx_normed                 # and x likewise
    return dx


def gpt_forward(idx, params, rng=None, kv_cache=None):
    """Tokens to logits: idx (B, T) integers -> logits (B, T, V), cache. `rng` draws the dropout masks, if given.

    With a `KVCache`, for generation: idx continues what the cache holds, and logits (B, 1, V) are the last position's.
    """
    config = params.config
    start = 0 if kv_cache is None else kv_cache.length
    x, embedding = embedding_forward(idx, params["wte.weight"], params["wpe.weight"], start)        # (B, T, C)
    ln_e = None
    if config.embedding_layer_norm:
        x, ln_e = layernorm_forward(x, params["ln_e.weight"], params.get("ln_e.bias"), config.layer_norm_epsilon)
    x, drop = dropout_forward(x, dropout_mask(rng, x.shape, config.embd_pdrop, x.dtype))
    blocks = []
    for i in range(config.n_layer):
        extend = None if kv_cache is None else kv_cache.extend(i)
        x, block = block_forward(x, params.block(i), config, i, rng, extend)
        blocks.append(block)
    if kv_cache is not None:
        x = x[:, -1:]                   # only the last position's logits are wanted: the head is the largest product
    x, ln_f = layernorm_forward(x, params["ln_f.weight"], params.get("ln_f.bias"), config.layer_norm_epsilon)
    logits, head = head_forward(x, params["lm_head.weight"])                                        # (B, T, V)
    return logits, (embedding, ln_e, drop, blocks, ln_f, head)


def gpt_backward(dlogits, cache, grads):
    """Undo `gpt_forward`: dlogits (B, T, V) -> nothing; every gradient in grads is overwritten, none is added to."""
    embedding, ln_e, drop, blocks, ln_f, head = cache
    # logits, head = head_forward(x, params["lm_head.weight"])
    dx, grads["lm_head.weight"] = head_backward(dlogits, head, grads["lm_head.weight"])
    # x, ln_f = layernorm_forward(x, …)
    dx, grads["ln_f.weight"], grads["ln_f.bias"] = layernorm_backward(dx, ln_f)
    # for i in range(config.n_layer): x, block = block_forward(x, …)
    for i in reversed(range(len(blocks))):
        dx = block_backward(dx, blocks[i], grads.block(i))
    # x, drop = dropout_forward(x, …)
    dx = dropout_backward(dx, drop)
    # x, ln_e = layernorm_forward(x, …)
    if ln_e is not None:
        dx, grads["ln_e.weight"], grads["ln_e.bias"] = layernorm_backward(dx, ln_e)
    # x, embedding = embedding_forward(idx, params["wte.weight"], params["wpe.weight"])
    if not grads.config.tie_word_embeddings:
        grads["wte.weight"] = 0.0
    # A tied matrix is used twice: the head's part of its gradient was written above, the embedding's is added to it.
    grads["wte.weight"], grads["wpe.weight"] = embedding_backward(dx, embedding, grads["wte.weight"])


def loss_and_dlogits(logits, targets, count):
    """The loss of logits (B, T, V), and its gradient dlogits, written over them: a few rows at a time.

    They are the largest arrays of all; so there is one of them, and no second one for the probabilities or dlogits.
    Returns the loss, a number, and dlogits.
    """
    rows, row_targets = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)

    def block(part):
        loss, cross_entropy = cross_entropy_forward(rows[part], row_targets[part], count)
        rows[part] = cross_entropy_backward(1.0, cross_entropy)
        return loss

    return sum(spread(block, row_blocks(rows))), logits
