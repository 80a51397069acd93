"""nanoGPT's training loop in torch: a preset from start to end, with its evaluations, log and checkpoints.

    python -m npgpt.bench.torch_train PRESET VOCAB_SIZE DATA_FOLDER OUT_DIR THREADS

What it leaves to npgpt is what nanoGPT has as well, or slower: the recipe, the schedule, the first weights, the crops.
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch

from npgpt.bench.torch_gpt import adamw, initial_model, train_step, use_threads
from npgpt.data.batches import load_token_files, random_crops
from npgpt.model.config import GPTConfig
from npgpt.training.options import MODEL_FIELDS, TRAIN_FIELDS, TrainOptions, load_preset
from npgpt.training.schedule import learning_rate


def train(config, options, splits, out_dir):
    """Train a GPT on splits {"train", "val"} of tokens; ckpt.pt in out_dir is written when validation is better."""
    model = initial_model(config, options.seed)
    optimizer = adamw(model, options.learning_rate, (options.beta1, options.beta2), options.weight_decay)
    rng = np.random.default_rng(options.seed)

    def batch(split):
        return map(torch.from_numpy, random_crops(splits[split], options.batch_size, config.block_size, rng))

    @torch.no_grad()
    def evaluate(split):
        return torch.stack([model(*batch(split)) for _ in range(options.eval_iters)]).mean().item()

    best_loss, began = float("inf"), time.perf_counter()
    for step in range(options.max_iters + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options.learning_rate, options.min_lr, options.warmup_iters,
                                        options.lr_decay_iters)
        if step % options.eval_interval == 0 or step == options.max_iters:
            losses = {split: evaluate(split) for split in splits}
            print(f"step {step}: train loss {losses['train']:.4f}, validation loss {losses['val']:.4f}", flush=True)
            if losses["val"] < best_loss and step > 0:
                best_loss = losses["val"]
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step,
                            "best_loss": best_loss}, Path(out_dir) / "ckpt.pt")
        if step == options.max_iters:
            return
        loss = train_step(model, model, optimizer, *batch("train"), options.grad_clip)
        if step % options.log_interval == 0:
            print(f"iter {step}: loss {loss.item():.4f}, {time.perf_counter() - began:.1f} s", flush=True)


def main():
    preset, vocab_size, data, out_dir, threads = sys.argv[1:]
    use_threads(int(threads))
    fields = load_preset(preset)
    config = GPTConfig(int(vocab_size), **{name: fields[name] for name in fields.keys() & MODEL_FIELDS})
    options = TrainOptions(**{name: fields[name] for name in fields.keys() & TRAIN_FIELDS})
    train(config, options, dict(zip(("train", "val"), load_token_files(data), strict=True)), out_dir)


if __name__ == "__main__":
    main()
