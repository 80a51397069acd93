"""Engines run the model's lines, which know nothing about them.

`reference` calls each line once on whole arrays; `gpu` does so by CuPy; `cpu` runs them on parts
that fit the cache, on several threads, as loops that `loops` compiles from them, if Numba is
installed, and with matmuls by `bfloat16`, if asked for; `xla` compiles them for any device of JAX,
in several processes, too. Only `reference` and `cpu` are needed: the other rooms may be deleted.
`trial` tries a user's block before it runs. `watch` runs a function with a call after each line;
`activations` records and edits arrays by it. If an edited function would be replaced or run on
parts, `sources` notices, and its own lines run.
An engine's `config` has the `block` (`Block` in npgpt/model/block.py) whose forward and backward
`gpt_forward` calls; an engine may put compiled ones there. All engines have one interface:

    loss_and_grads(batches, rngs, count, mask) -> loss, grads of all micro-batches
    own_loss(function, idx, rng, mask) -> loss, grads; function: logits -> loss, dlogits
    for_user(loss, grads) -> the same as arrays of the model's library
    adamw_step(grads, moments, step) -> norm; step: the optimizer's `AdamWStep`, with its rule
    loss(idx, targets, mask) -> loss
    dropout_rng(seed, step, micro_batch) -> rng
    reader(B, pads) -> a KV cache with the calls of `KVCache`
    description, threads, kernels
    synchronous: whether results are ready when a call returns
"""
