"""Train the same weights on the same batches with npgpt and with torch, and compare the two loss curves.

    python tools/torch_curves.py [--steps 200] [--corpus pydocs]
    python tools/torch_curves.py --gpt2 --steps 20

The recipe is nanoGPT's character model for a CPU. Both sides are in float32: torch's autograd, AdamW and clipping
against ours. --gpt2 is fine-tuning: random weights of GPT-2's 124M shape, its tokens, batches of 4 x 64 and a constant
low rate.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from npgpt import GPT, AdamW, GPTConfig
from npgpt.data.batches import crops_of
from npgpt.data.corpora import open_corpus
from npgpt.data.dataset import open_dataset
from npgpt.training.schedule import learning_rate
from tests.torch_gpt import torch_gpt, torch_loss, torch_parameters


def curves(steps, corpus, gpt2):
    """Return our losses and torch's, two lists of `steps` numbers."""
    tokens, _, tokenizer = open_dataset(open_corpus(corpus), "gpt2" if gpt2 else "char")
    if gpt2:
        config = GPTConfig(vocab_size=tokenizer.vocab_size, block_size=1024, n_layer=12, n_head=12, n_embd=768)
        batch_size, crop_length, schedule = 4, 64, (3e-5, 3e-5, 0, 0)
    else:
        config = GPTConfig(vocab_size=tokenizer.vocab_size, bias=False, activation="gelu")
        batch_size, crop_length, schedule = 12, config.block_size, (1e-3, 1e-4, 100, 2000)
    model = GPT(config, seed=1337)
    tensors = torch_parameters(model.params)
    optimizer = AdamW(model.params, betas=(0.9, 0.99), weight_decay=0.1)
    reference = torch.optim.AdamW([
        {"params": [tensor for tensor in tensors.values() if tensor.ndim == 2], "weight_decay": 0.1},
        {"params": [tensor for tensor in tensors.values() if tensor.ndim < 2], "weight_decay": 0.0}], betas=(0.9, 0.99))
    ours, theirs = [], []
    rng, crops = np.random.default_rng(0), crops_of(tokens, crop_length)
    for step in range(steps):
        idx, targets = crops.at(crops.random(batch_size, rng))
        optimizer.lr = learning_rate(step, *schedule)
        loss, grads = model.loss_and_grads(idx, targets)
        optimizer.step(grads, max_norm=1.0)
        ours.append(loss)

        for group in reference.param_groups:
            group["lr"] = optimizer.lr
        reference.zero_grad()
        loss = torch_loss(torch_gpt(tensors, config, idx), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tensors.values(), 1.0)
        reference.step()
        theirs.append(loss.item())
    return ours, theirs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--gpt2", action="store_true", help="fine-tuning at GPT-2's 124M shape")
    parser.add_argument("--corpus", help="by default TinyShakespeare, or pydocs")
    args = parser.parse_args()
    ours, theirs = curves(args.steps, args.corpus, args.gpt2)
    difference = np.abs(np.subtract(ours, theirs))
    for step in range(0, args.steps, max(1, args.steps // 10)):
        print(f"step {step:>4}: npgpt {ours[step]:.6f}, torch {theirs[step]:.6f}, difference {difference[step]:.1e}")
    print(f"largest difference over {args.steps} steps: {difference.max():.1e}")


if __name__ == "__main__":
    main()
