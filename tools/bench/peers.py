"""The peers: nanoGPT's GPT-2 in PyTorch, and transformers. Does not import npgpt, which changes memory allocation.

As a program it is nanoGPT's training loop: python peers.py PRESET FOLDER OUT_DIR THREADS SEED
"""

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from safetensors.torch import load_file
from shapes import LR, Work, preset_fields
from torch import nn
from torch.nn import functional as F

PRECISION = {"tf32": "high"}        # torch's name of it


class Block(nn.Module):
    """Causal self-attention and MLP, each behind a LayerNorm and added to the residual stream, (B, T, C)."""

    def __init__(self, config):
        super().__init__()
        C, self.n_head, self.dropout = config.n_embd, config.n_head, config.dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(C, 3 * C), "c_proj": nn.Linear(C, C)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(C, 4 * C), "c_proj": nn.Linear(4 * C, C)})

    def forward(self, x):
        p, (B, T, C) = self.dropout, x.shape
        qkv = self.attn["c_attn"](self.ln_1(x)).view(B, T, 3, self.n_head, C // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)                                            # (B, H, T, D)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        x = x + F.dropout(self.attn["c_proj"](y.transpose(1, 2).reshape(B, T, C)), p)
        hidden = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")             # (B, T, 4 C)
        return x + F.dropout(self.mlp["c_proj"](hidden), p)


class GPT(nn.Module):
    """GPT-2 for training, with a tied head: idx, targets (B, T) -> the mean loss. n_rows: of the embedding."""

    def __init__(self, config, n_rows):
        super().__init__()
        self.dropout = config.dropout
        self.wte = nn.Embedding(n_rows, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)

    def forward(self, idx, targets):
        x = F.dropout(self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device)), self.dropout)
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)        # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def initial_model(config, folder, padded_vocab_size=0):
    """Return a GPT with the weights in a folder. Linear weights are stored as (in, out); torch has (out, in)."""
    weights = {name.removeprefix("transformer."): array.T if ".h." in name and array.ndim == 2 else array
               for name, array in load_file(folder / "model.safetensors").items()}
    n_more = max(0, padded_vocab_size - len(weights["wte.weight"]))
    weights["wte.weight"] = F.pad(weights["wte.weight"], (0, 0, 0, n_more))     # more rows, of zeros
    model = GPT(config, len(weights["wte.weight"]))
    model.load_state_dict(weights)
    return model


def adamw(model, lr, betas=(0.9, 0.95), weight_decay=0.1):
    """AdamW with decay for matrices only, in its fused form."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": weight_decay},
                              {"params": vectors, "weight_decay": 0.0}], lr=lr, betas=betas, fused=True)


def train_step(forward, model, optimizer, idx, targets, grad_clip=1.0):
    """Loss and gradients, clipping, AdamW. Returns the loss, a tensor."""
    optimizer.zero_grad(set_to_none=True)
    loss = forward(idx, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    return loss.detach()


def training(shape, folder, compiled):
    """PyTorch's training step; its batches are on the GPU from the start."""
    on_gpu = shape.device == "gpu"
    device = "cuda" if on_gpu else "cpu"
    free = torch.cuda.mem_get_info()[0] if on_gpu else 0
    torch.set_float32_matmul_precision(PRECISION.get(shape.dtype, "highest"))
    model = initial_model(shape, folder, shape.padded_vocab_size).to(device)
    optimizer = adamw(model, LR)
    called = torch.compile(model) if compiled else model
    batches = [[torch.from_numpy(array).to(device) for array in batch] for batch in shape.batches()]

    def forward(idx, targets):
        with torch.autocast(device, torch.bfloat16, enabled=shape.dtype == "bfloat16"):
            return called(idx, targets)

    def step(i):
        return train_step(forward, model, optimizer, *batches[i % len(batches)])

    return Work(step, torch.cuda.synchronize, lambda: free - torch.cuda.mem_get_info()[0]) if on_gpu else Work(step)


def gpu_matmul(shape, folder):
    """The floor's matmul on a GPU."""
    torch.set_float32_matmul_precision(PRECISION.get(shape.dtype, "highest"))
    dtype = torch.bfloat16 if shape.dtype == "bfloat16" else torch.float32
    # Random values: matmuls of zeros are faster, because they take less power.
    a, b = torch.randn(2, shape.floor_n, shape.floor_n, device="cuda", dtype=dtype)
    out = torch.empty_like(a)

    def step(i):
        torch.matmul(a, b, out=out)

    return Work(step, torch.cuda.synchronize)


def generation(shape, folder):
    """transformers' greedy generation with the weights in a folder; its result is the tokens."""
    import transformers

    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    idx = torch.from_numpy(shape.batches()[0][0])

    @torch.inference_mode()
    def step(i):
        return model.generate(idx, attention_mask=torch.ones_like(idx), max_new_tokens=shape.new_tokens,
                              do_sample=False, eos_token_id=None, pad_token_id=0).tolist()

    return Work(step)


def train(recipe, folder, out_dir, seed):
    """nanoGPT's training loop, for recipes without dropout; ckpt.pt in out_dir is written when validation is better."""
    model = initial_model(recipe, folder / f"seed-{seed}")
    optimizer = adamw(model, recipe.learning_rate, (recipe.beta1, recipe.beta2), recipe.weight_decay)
    splits = {split: np.fromfile(folder / f"{split}.bin", np.uint16).astype(np.int64) for split in ("train", "val")}
    rng, best_loss = np.random.default_rng(seed), math.inf

    def batch(split):
        starts = rng.integers(0, len(splits[split]) - recipe.block_size, recipe.batch_size)
        crops = torch.from_numpy(splits[split][starts[:, None] + np.arange(recipe.block_size + 1)])
        return crops[:, :-1].contiguous(), crops[:, 1:].contiguous()

    @torch.no_grad()
    def evaluate(split):
        return torch.stack([model(*batch(split)) for _ in range(recipe.eval_iters)]).mean().item()

    for step in range(recipe.max_iters + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe)
        if step % recipe.eval_interval == 0 or step == recipe.max_iters:
            losses = {split: evaluate(split) for split in splits}
            print(f"step {step}: train loss {losses['train']:.4f}, validation loss {losses['val']:.4f}")
            if losses["val"] < best_loss and step > 0:
                best_loss = losses["val"]
                torch.save([model.state_dict(), optimizer.state_dict(), step], out_dir / "ckpt.pt")
        if step == recipe.max_iters:
            return
        train_step(model, model, optimizer, *batch("train"), recipe.grad_clip)


def learning_rate(step, recipe):
    """Return the learning rate: linear warmup, then half a cosine down to min_lr."""
    if step < recipe.warmup_iters:
        return recipe.learning_rate * (step + 1) / (recipe.warmup_iters + 1)
    done = min(1.0, (step - recipe.warmup_iters) / (recipe.lr_decay_iters - recipe.warmup_iters))
    return recipe.min_lr + 0.5 * (1.0 + math.cos(math.pi * done)) * (recipe.learning_rate - recipe.min_lr)


if __name__ == "__main__":
    preset, folder, out_dir, threads, seed = sys.argv[1:]
    torch.set_num_threads(int(threads))
    train(SimpleNamespace(**preset_fields(preset)), Path(folder), Path(out_dir), int(seed))
