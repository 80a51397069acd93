"""Engines: how the model's lines are run. The lines know nothing of it.

`reference` runs them as they stand, on NumPy or CuPy; `cpu` in parts that fit the cache, on several threads; `cuda` has
kernels that compute the same. All have one interface:

    loss_and_grads(idx, targets, rng, count, add_to) -> loss, grads     loss(idx, targets) -> loss
    accumulated(batches, rngs, count) -> loss, grads of a step
    adamw_step(optimizer, grads, max_norm) -> norm                      dropout_rng(seed, step, micro_batch) -> rng
    reader(B) -> read, a function: next tokens (B, T) -> logits (B, V)  where, threads: what computes, in words
"""
