"""Overfit one batch, to check that model, loss and gradients work (`npgpt train --overfit`)."""

import math

from npgpt.display import HIDE_BARS, tqdm

NEAR = 0.1      # relative tolerance of the first loss of fresh weights
SMALL = 0.1     # largest last loss: the right tokens have a probability of 90%


def overfit(trainer, fresh):
    """Take all steps of a `Trainer` on the first batch, and print the verdict. fresh: the weights are untrained.

    Returns the exit code: 0, or 1 if the first or the last loss is not what it should be. Raises NotFiniteError.
    """
    options, config = trainer.options, trainer.model.config
    # Each logit is the product of a LayerNorm's C values and C weights: it has the variance C sigma^2, and the mean of
    # exp(logit) is exp(C sigma^2 / 2).
    ln_v, more = math.log(config.vocab_size), config.n_embd * config.initializer_range**2 / 2
    print(f"model: {trainer.model}")
    print(f"one batch of {options.batch_size * options.gradient_accumulation_steps} x {trainer.crop_length} tokens, "
          f"{options.max_iters} steps at learning rate {options.learning_rate:g}", flush=True)
    losses = []
    with tqdm(total=options.max_iters, unit="step", disable=HIDE_BARS, dynamic_ncols=True, smoothing=0) as bar:
        for step in range(options.max_iters):
            record = trainer.train_step(at=0)
            bar.update()
            if step % options.log_interval == 0 or step == options.max_iters - 1:
                losses.append(trainer.read(record)["loss"])
                bar.set_postfix_str(f"loss {losses[-1]:.4f}")
    first, last = losses[0], losses[-1]
    print(f"first loss {first:.4f}, ln V = {ln_v:.4f} (+ about {more:.4f}, as fresh logits differ); "
          f"last loss {last:.6f}")
    problems = []
    if fresh and abs(first - ln_v - more) > NEAR * (ln_v + more):
        problems.append("the first loss is far from that of a guess among V tokens: the initial weights are wrong, or "
                        "the loss")
    if last > SMALL:
        problems.append(f"the last loss is above {SMALL}, so the batch is not known by heart: take more --max-iters or "
                        "another --learning-rate; if none helps, a gradient is wrong, or the model is too small")
    print("\n".join(problems) or "good: the batch is known by heart")
    return int(bool(problems))
