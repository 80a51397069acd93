"""How much memory a model needs, worked out from its configuration."""

import math

from npgpt.model.parameters import parameter_shapes


def training_memory(config, batch_size, threads, itemsize=4):
    """Bytes that a training step holds at once, by what for: a dict, in the order in which they come to be.

    batch_size sequences of `block_size` tokens; threads: each has a gradient buffer of its own; itemsize: 4 for
    float32. The activations are those that the backward needs (the caches), and the last layer's temporaries.
    """
    parameters = sum(map(math.prod, parameter_shapes(config).values())) * itemsize
    tokens, C = batch_size * config.block_size, config.n_embd
    # Values a token that a block's caches hold: ln_1 xhat and its output 2 C, q, k and v 3 C, the merged heads C,
    # ln_2 xhat and its output 2 C, the MLP's hidden layer, its tanh and its GELU 3 F, and a row of attention weights.
    F = config.n_inner
    block = 8 * C + 3 * F + config.n_head * config.block_size
    if config.resid_pdrop:
        block += 2 * C                                              # two masks
    if config.attn_pdrop:
        block += 2 * config.n_head * config.block_size              # a mask, and the weights that it leaves
    # Beside the caches: logits, probabilities and dlogits, of which two are still there while the backward of the last
    # block makes its own temporaries, six of the MLP's width or four of the attention's.
    widest = max(3 * config.vocab_size, 2 * config.vocab_size + max(6 * F, 4 * config.n_head * config.block_size))
    outside = 4 * C + widest
    return {
        "parameters": parameters,
        "gradients": parameters * threads,
        "AdamW's two moments": parameters * 2,
        "activations": tokens * (config.n_layer * block + outside) * itemsize,
    }
