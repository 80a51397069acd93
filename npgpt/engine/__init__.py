"""Engines: how the model's lines are run. The lines know nothing of it.

`reference` runs them as they stand, on NumPy or CuPy; `cpu` in parts that fit the cache, on several threads, or by
compiled loops in their place (`compiled`, `few_rows`) and Intel's matmuls (`matmul`), where these are installed; `xla`
compiles them, for any device that JAX has; `distributed` runs one of these in each of many processes. All have one
interface:

    accumulated(batches, rngs, count) -> loss, grads of a step          loss(idx, targets) -> loss
    loss_and_grads(idx, targets, rng, count, add_to) -> loss, grads     moments() -> AdamW's m, v
    adamw_step(grads, moments, step) -> norm                            dropout_rng(seed, step, micro_batch) -> rng
    reader(B) -> read, a function: next tokens (B, T) -> logits (B, V)  where, threads, kernels: what computes
    waits: whether results are ready when a call returns                fuses_steps: whether it has `step`, too:
    step(batches, rngs, count, moments, step) -> loss, norm             a whole training step as one program
"""
