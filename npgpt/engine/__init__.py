"""Engines: how the model's lines are run. The lines know nothing of it.

`reference` runs them as they stand, on NumPy or CuPy; `cpu` in parts that fit the cache, on several threads; `cuda` has
kernels that compute the same; `distributed` runs one of these in each of many processes. All have one interface:

    loss_and_grads(idx, targets, rng, count, add_to) -> loss, grads     loss(idx, targets) -> loss
    accumulated(batches, rngs, count) -> loss, grads of a step          moments() -> AdamW's m, v
    adamw_step(optimizer, grads, max_norm) -> norm                      dropout_rng(seed, step, micro_batch) -> rng
    reader(B) -> read, a function: next tokens (B, T) -> logits (B, V)  where, threads: what computes, in words
"""
