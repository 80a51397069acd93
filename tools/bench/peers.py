"""The peers: nanoGPT's GPT-2 in PyTorch, and transformers. Does not import npgpt, which changes
memory allocation.
"""

import torch
from safetensors.torch import load_file
from shapes import LR, Work
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Causal self-attention and MLP, each behind a LayerNorm and added to the residual stream, (B,
    T, C).
    """

    def __init__(self, config):
        super().__init__()
        C, self.n_head, self.dropout = config.n_embd, config.n_head, config.dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(C, 3 * C), "c_proj": nn.Linear(C, C)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(C, 4 * C), "c_proj": nn.Linear(4 * C, C)})

    def forward(self, x):
        p, (B, T, C) = self.dropout, x.shape
        qkv = self.attn["c_attn"](self.ln_1(x)).view(B, T, 3, self.n_head, C // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, D)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        x = x + F.dropout(self.attn["c_proj"](y.transpose(1, 2).reshape(B, T, C)), p)
        hidden = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")  # (B, T, 4 C)
        return x + F.dropout(self.mlp["c_proj"](hidden), p)


class GPT(nn.Module):
    """GPT-2 for training, with a tied head: idx, targets (B, T) -> the mean loss. n_rows: of the
    embedding.
    """

    def __init__(self, config, n_rows):
        super().__init__()
        self.dropout = config.dropout
        self.wte = nn.Embedding(n_rows, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)

    def forward(self, idx, targets):
        x = F.dropout(
            self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device)), self.dropout
        )
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)  # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def initial_model(config, folder):
    """Return a GPT with the weights in a folder. Linear weights are stored as (in, out); torch has
    (out, in).
    """
    weights = {
        name.removeprefix("transformer."): array.T if ".h." in name and array.ndim == 2 else array
        for name, array in load_file(folder / "model.safetensors").items()
    }
    n_more = max(0, config.padded_vocab_size - len(weights["wte.weight"]))
    weights["wte.weight"] = F.pad(weights["wte.weight"], (0, 0, 0, n_more))  # more rows, of zeros
    model = GPT(config, len(weights["wte.weight"]))
    model.load_state_dict(weights)
    return model


def adamw(model):
    """AdamW with decay for matrices only, in its fused form."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=LR,
        betas=(0.9, 0.95),
        fused=True,
    )


def training(shape, folder, compiled):
    """PyTorch's training step; its batches are on the GPU from the start."""
    on_gpu = shape.device == "gpu"
    device = "cuda" if on_gpu else "cpu"
    free = torch.cuda.mem_get_info()[0] if on_gpu else 0
    torch.set_float32_matmul_precision("high" if shape.dtype == "tf32" else "highest")
    model = initial_model(shape, folder).to(device)
    optimizer = adamw(model)
    called = torch.compile(model) if compiled else model
    batches = []
    for idx, targets in shape.batches():
        batches.append((torch.from_numpy(idx).to(device), torch.from_numpy(targets).to(device)))

    def step(i):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=shape.dtype == "bfloat16"):
            idx, targets = batches[i % len(batches)]
            loss = called(idx, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return (
        Work(step, torch.cuda.synchronize, lambda: free - torch.cuda.mem_get_info()[0])
        if on_gpu
        else Work(step)
    )


def generation(shape, folder):
    """transformers' greedy generation with the weights in a folder; its result is the tokens."""
    import transformers

    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    idx = torch.from_numpy(shape.batches()[0][0])

    @torch.inference_mode()
    def step(i):
        return model.generate(
            idx,
            attention_mask=torch.ones_like(idx),
            max_new_tokens=shape.new_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        ).tolist()

    return Work(step)
