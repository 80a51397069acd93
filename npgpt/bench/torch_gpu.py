"""The peer on a card: nanoGPT's model and training step in torch, with dropout, in three precisions.

Imported by its own process only.
"""

import torch
from torch.nn import functional as F

from npgpt.bench import shapes, torch_gpt

PRECISIONS = {"float32": "highest", "tf32": "high", "bfloat16": "high"}     # what torch calls them


class Attention(torch_gpt.Attention):
    """Causal self-attention with dropout on its weights and on its output."""

    def __init__(self, config):
        super().__init__(config)
        self.attn_pdrop, self.resid_pdrop = config.attn_pdrop, config.resid_pdrop

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.n_head, C // self.n_head).permute(2, 0, 3, 1, 4)   # (B, H, T, D)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_pdrop, is_causal=True)
        return F.dropout(self.c_proj(y.transpose(1, 2).reshape(B, T, C)), self.resid_pdrop)


class MLP(torch_gpt.MLP):
    """The MLP with dropout on its output."""

    def __init__(self, config):
        super().__init__(config)
        self.resid_pdrop = config.resid_pdrop

    def forward(self, x):
        return F.dropout(super().forward(x), self.resid_pdrop)


class GPT(torch_gpt.GPT):
    """GPT-2 with a tied head and with dropout, for training only: idx, targets (B, T) -> the mean loss."""

    def __init__(self, config):
        super().__init__(config)
        self.embd_pdrop = config.embd_pdrop
        for block in self.h:
            block.attn, block.mlp = Attention(config), MLP(config)

    def forward(self, idx, targets):
        positions = torch.arange(idx.shape[1], device=idx.device)
        x = F.dropout(self.wte(idx) + self.wpe(positions), self.embd_pdrop)
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)        # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def initial_model(shape):
    """A GPT with the weights that npgpt begins with, and a row of zeros for each token that only fills up.

    nanoGPT rounds GPT-2's 50257 tokens up to 50304 (`shape.padded_vocab_size`), because the head's product is faster
    then. The extra tokens take part in the softmax, which the loss hardly shows: ln(50304 / 50257) is 0.0009.
    """
    weights = torch_gpt.initial_model(shape.config, shapes.SEED).state_dict()
    weights["wte.weight"] = F.pad(weights["wte.weight"], (0, 0, 0, shape.padded_vocab_size - shape.vocab_size))
    model = GPT(shape.padded_config)
    model.load_state_dict(weights)
    return model


def training(shape, dtype, lr, compiled, device="cuda"):
    """The training step of a shape: (step(i), synchronize(), last_loss() -> float, memory() -> bytes of torch's pool).

    Parameters and moments are float32; dtype is that of the products. The batches wait in pinned memory and are copied
    to the card in the step, as nanoGPT does it.
    """
    torch.set_float32_matmul_precision(PRECISIONS[dtype])
    torch.manual_seed(shapes.SEED)
    model = initial_model(shape).to(device)
    optimizer = torch_gpt.adamw(model, lr)
    called = torch.compile(model) if compiled else model
    batches = [[torch.from_numpy(array) for array in batch] for batch in shape.batches()]
    if device == "cuda":
        batches = [[array.pin_memory() for array in batch] for batch in batches]
    loss = None

    def forward(idx, targets):
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            return called(idx, targets)

    def step(i):
        nonlocal loss
        idx, targets = (array.to(device, non_blocking=True) for array in batches[i % len(batches)])
        loss = torch_gpt.train_step(forward, model, optimizer, idx, targets, grad_clip=1.0).detach()

    return step, torch.cuda.synchronize, lambda: loss.item(), torch.cuda.max_memory_reserved


def products(n):
    """The same four functions, whose step is an n x n matrix product in bfloat16: the card's peak in practice."""
    torch.manual_seed(shapes.SEED)
    # Random values: a card does products of zeros faster, because they take less power.
    a, b = torch.randn(2, n, n, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    return (lambda i: torch.matmul(a, b, out=out), torch.cuda.synchronize, lambda: 0.0,
            torch.cuda.max_memory_reserved)


def free_memory():
    """Free bytes on the card, whoever took the others."""
    return torch.cuda.mem_get_info()[0]


def cuda_version():
    """The version of CUDA that torch was built with, such as "13.0", or None for a torch without."""
    return torch.version.cuda
