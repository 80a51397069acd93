"""Engines: how the model's lines are run. The lines know nothing of it.

`reference` runs them unchanged, on NumPy or CuPy; `cpu` runs them in parts that fit the cache, on several threads, and
uses compiled loops (`compiled`, `few_rows`) and Intel's matmuls (`matmul`) if these are installed; `xla` compiles them,
for any device that JAX has; `distributed` runs one of these in each of many processes. All have one interface:

    step(optimizer, batches, rngs, count, max_norm) -> loss, norm       loss(idx, targets) -> loss
    loss_and_grads(idx, targets, rng, count, add_to) -> loss, grads     moments() -> AdamW's m, v
    accumulated(batches, rngs, count) -> loss, grads of a step          dropout_rng(seed, step, micro_batch) -> rng
    adamw_step(optimizer, grads, max_norm) -> norm                      waits: whether results are there at once
    reader(B) -> read, a function: next tokens (B, T) -> logits (B, V)  where, threads, kernels: what computes
"""
