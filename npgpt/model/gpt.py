"""GPT-2: the layers put together. Forward in order, backward in exactly the reverse order, one line a layer."""

import math

import numpy as np

from npgpt.backend.allocator import keep_freed_memory
from npgpt.backend.arrays import array_module
from npgpt.errors import UserError
from npgpt.layers.attention import self_attention_backward, self_attention_forward
from npgpt.layers.dropout import dropout_backward, dropout_forward, dropout_mask
from npgpt.layers.embedding import embedding_backward, embedding_forward
from npgpt.layers.layernorm import layernorm_backward, layernorm_forward
from npgpt.layers.linear import head_backward, head_forward
from npgpt.layers.loss import IGNORE_INDEX, cross_entropy_backward, cross_entropy_forward
from npgpt.layers.mlp import mlp_backward, mlp_forward
from npgpt.model.generate import generate
from npgpt.model.parameters import Parameters
from npgpt.model.shards import Shards


def block_forward(x, p, config, rng=None):
    """One transformer block: x + attention(norm(x)), then the same with the MLP.

    x (B, T, C), p the block's parameters by short name, rng for dropout (None: no dropout) -> x_out (B, T, C), cache.
    The two additions are the residual stream: each layer adds to what is there, none replaces it.
    """
    B, T, C = x.shape
    eps, p_drop = config.layer_norm_epsilon, config.dropout
    mask_att = dropout_mask(rng, (B, config.n_head, T, T), p_drop, x.dtype)
    mask_attn = dropout_mask(rng, (B, T, C), p_drop, x.dtype)
    mask_mlp = dropout_mask(rng, (B, T, C), p_drop, x.dtype)

    norm_1, ln_1 = layernorm_forward(x, p["ln_1.weight"], p.get("ln_1.bias"), eps)                  # (B, T, C)
    attended, attn = self_attention_forward(
        norm_1, p["attn.c_attn.weight"], p.get("attn.c_attn.bias"), p["attn.c_proj.weight"], p.get("attn.c_proj.bias"),
        config.n_head, config.attention_scale, config.causal, mask_att)                             # (B, T, C)
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
     g["mlp.c_proj.weight"], g["mlp.c_proj.bias"]) = mlp_backward(dthought, mlp)
    # norm_2, ln_2 = layernorm_forward(x_mid, …)
    dx_mid_normed, g["ln_2.weight"], g["ln_2.bias"] = layernorm_backward(dnorm_2, ln_2)
    dx_mid = dx_out + dx_mid_normed         # x_mid was used twice: by the MLP's branch and by the residual stream
    # x_mid = x + dropped_1
    ddropped_1 = dx_mid
    # dropped_1, drop_1 = dropout_forward(attended, mask_attn)
    dattended = dropout_backward(ddropped_1, drop_1)
    # attended, attn = self_attention_forward(norm_1, …)
    (dnorm_1, g["attn.c_attn.weight"], g["attn.c_attn.bias"],
     g["attn.c_proj.weight"], g["attn.c_proj.bias"]) = self_attention_backward(dattended, attn)
    # norm_1, ln_1 = layernorm_forward(x, …)
    dx_normed, g["ln_1.weight"], g["ln_1.bias"] = layernorm_backward(dnorm_1, ln_1)
    dx = dx_mid + dx_normed                 # and x likewise
    return dx


def gpt_forward(idx, params, rng=None):
    """Tokens to logits: idx (B, T) integers -> logits (B, T, V), cache. `rng` draws the dropout masks, if given."""
    config = params.config
    x, embedding = embedding_forward(idx, params["wte.weight"], params["wpe.weight"])               # (B, T, C)
    ln_e = None
    if config.embedding_layer_norm:
        x, ln_e = layernorm_forward(x, params["ln_e.weight"], params.get("ln_e.bias"), config.layer_norm_epsilon)
    x, drop = dropout_forward(x, dropout_mask(rng, x.shape, config.dropout, x.dtype))
    blocks = []
    for i in range(config.n_layer):
        x, block = block_forward(x, params.block(i), config, rng)
        blocks.append(block)
    x, ln_f = layernorm_forward(x, params["ln_f.weight"], params.get("ln_f.bias"), config.layer_norm_epsilon)
    logits, head = head_forward(x, params["lm_head.weight"])                                        # (B, T, V)
    return logits, (embedding, ln_e, drop, blocks, ln_f, head)


def gpt_backward(dlogits, cache, grads):
    """Undo `gpt_forward`: dlogits (B, T, V) -> nothing; every gradient in grads is overwritten, none is added to."""
    embedding, ln_e, drop, blocks, ln_f, head = cache
    # logits, head = head_forward(x, params["lm_head.weight"])
    dx, grads["lm_head.weight"] = head_backward(dlogits, head)
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
    dwte, grads["wpe.weight"] = embedding_backward(dx, embedding)
    if grads.config.tie_word_embeddings:
        dwte += grads["lm_head.weight"]     # one matrix, used twice: the head's part was written above
    grads["wte.weight"] = dwte


class GPT:
    """A GPT-2 model: its configuration, its parameters, and the two passes over them.

    >>> model = GPT(GPTConfig(vocab_size=65, block_size=64), seed=0)
    >>> logits, loss = model.forward(idx, targets)      # idx, targets: integers (B, T)
    >>> grads = model.backward()                        # grads["h.0.ln_1.weight"]

    config: a GPTConfig. seed: of the initial weights, the same for both dtypes. dtype: "float32" or "float64".
    device: "cpu", "gpu", "gpu:N" or "auto". threads: how many shards of a batch are worked on at once in
    `loss_and_grads` and `evaluate`; by default one a core. Raises UserError for values that make no sense.
    """

    def __init__(self, config, seed=0, dtype="float32", device="cpu", threads=None):
        if str(np.dtype(dtype)) not in ("float32", "float64"):
            raise UserError(f"dtype must be float32 or float64, not {dtype}")
        self.config = config
        self.xp = array_module(device)
        keep_freed_memory()
        self.params = Parameters(config, dtype, self.xp)
        self.shards = Shards(threads)
        self._cache = None
        initialize(self.params, seed)

    def forward(self, idx, targets=None, rng=None):
        """The model's logits, and its loss where targets are given.

        idx (B, T) integers in [0, V), targets the same shape, -1 where a position does not count; rng a
        np.random.Generator turns dropout on. Returns logits (B, T, V) and the mean loss in nats (a float, or None).
        Keeps what `backward` needs. Raises UserError for a context longer than `block_size` or ids out of range.
        """
        idx, targets = self.check_batch(idx, targets)
        logits, gpt = gpt_forward(idx, self.params, rng)
        if targets is None:
            self._cache = None
            return logits, None
        loss, cross_entropy = cross_entropy_forward(logits, targets)
        self._cache = (gpt, cross_entropy)
        return logits, float(loss)

    def backward(self):
        """The gradient of the last `forward`'s loss: a mapping with the names and shapes of `params`, newly made.

        Raises UserError where the last forward had no targets.
        """
        if self._cache is None:
            raise UserError("backward needs a forward with targets before it: call forward(idx, targets) first")
        gpt, cross_entropy = self._cache
        grads = self.params.zeros_like()
        dlogits = cross_entropy_backward(1.0, cross_entropy)
        gpt_backward(dlogits, gpt, grads)
        return grads

    def loss_and_grads(self, idx, targets, rng=None, count=None):
        """The loss and all gradients of one batch, what training calls: split over threads, logits not kept.

        Arguments as in `forward`; `count` is what the losses' sum is divided by, the number of targets that count
        unless given (gradient accumulation gives the number of all micro-batches). Returns the loss, a float, and the
        gradients, a mapping that the next call overwrites. The same arguments and number of threads give the same bits.
        """
        idx, targets = self.check_batch(idx, targets)
        count = count or int((targets != IGNORE_INDEX).sum())

        def shard(part, rng, grads):
            logits, gpt = gpt_forward(idx[part], self.params, rng)
            loss, cross_entropy = cross_entropy_forward(logits, targets[part], count)
            del logits
            gpt_backward(cross_entropy_backward(1.0, cross_entropy), gpt, grads)
            return float(loss)

        return self.shards.sum_with_grads(shard, len(idx), rng, self.params)

    def evaluate(self, idx, targets):
        """The mean loss of one batch, in nats, without dropout and without keeping anything; split over threads."""
        idx, targets = self.check_batch(idx, targets)
        count = int((targets != IGNORE_INDEX).sum())

        def shard(part):
            logits, _ = gpt_forward(idx[part], self.params)
            return float(cross_entropy_forward(logits, targets[part], count)[0])

        return self.shards.sum(shard, len(idx))

    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None, seed=0, eos_token_id=None):
        """Continue each row of idx (B, T) by up to `max_new_tokens` tokens; see `npgpt.model.generate.generate`."""
        return generate(self, idx, max_new_tokens, temperature, top_k, top_p, seed, eos_token_id)

    def check_batch(self, idx, targets=None):
        """The batch as integer arrays on the model's device; UserError where they do not fit the model.

        Ids are looked at on the host: an index out of range reads another token's row on a GPU, without an error.
        """
        V = self.config.vocab_size
        idx = _as_integers(idx, "idx")
        if idx.ndim != 2 or idx.size == 0:
            raise UserError(f"idx must have the shape (batch, time), both at least 1, not {idx.shape}")
        if idx.shape[1] > self.config.block_size:
            raise UserError(f"a context of {idx.shape[1]} tokens is longer than block_size {self.config.block_size}")
        if idx.min() < 0 or idx.max() >= V:
            raise UserError(f"token ids must be from 0 to {V - 1}, but idx has {idx.min()} to {idx.max()}")
        if targets is None:
            return self.xp.asarray(idx), None
        targets = _as_integers(targets, "targets")
        if targets.shape != idx.shape:
            raise UserError(f"targets have the shape {targets.shape}, but idx has {idx.shape}")
        if targets.min() < IGNORE_INDEX or targets.max() >= V:
            raise UserError(f"targets must be from 0 to {V - 1}, or -1 to be ignored, "
                            f"but there are {targets.min()} to {targets.max()}")
        if targets.max() == IGNORE_INDEX:
            raise UserError("every target is -1 (ignored): there is nothing to take a loss of")
        return self.xp.asarray(idx), self.xp.asarray(targets)


def initialize(params, seed):
    """GPT-2's initial weights: normal with deviation 0.02, biases 0, LayerNorm gains 1.

    The two projections that write to the residual stream have 0.02 / sqrt(2 n_layer), so that the variance of the
    stream does not grow with the number of layers that add to it. Drawn by NumPy in float32 on any device and for any
    dtype: a seed means the same model everywhere.
    """
    rng = np.random.default_rng(seed)
    for name, shape in params.shapes.items():
        if len(shape) == 2:
            deviation = 0.02 / math.sqrt(2 * params.config.n_layer) if name.endswith("c_proj.weight") else 0.02
            params[name] = params.xp.asarray(rng.standard_normal(shape, dtype=np.float32) * deviation)
        elif name.endswith(".weight"):
            params[name] = 1.0


def _as_integers(array, name):
    array = np.asarray(array)
    if array.dtype.kind not in "iu":
        raise UserError(f"{name} must be integers, not {array.dtype}")
    return array
