"""The peers of npgpt: GPT-2 in torch as nanoGPT has it, and transformers. Imported by their own processes only."""

import torch
from torch import nn
from torch.nn import functional as F

from npgpt.bench import shapes
from npgpt.model.parameters import Parameters, initialize


def use_threads(threads):
    """Let torch use so many threads."""
    torch.set_num_threads(threads)


class Attention(nn.Module):
    """Causal self-attention (B, T, C) -> (B, T, C), one product for queries, keys and values."""

    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.n_head, C // self.n_head).permute(2, 0, 3, 1, 4)   # (B, H, T, D)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class MLP(nn.Module):
    """Linear, GELU in OpenAI's form, linear."""

    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, config.n_inner)
        self.c_proj = nn.Linear(config.n_inner, config.n_embd)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    """Attention and MLP, each behind a LayerNorm and added to the stream."""

    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """GPT-2 with a tied head, without dropout: idx, targets (B, T) -> the mean loss."""

    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)        # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def initial_model(config, seed):
    """A GPT with the weights that npgpt begins with."""
    params = Parameters(config)
    initialize(params, seed)
    return from_parameters(params)


def from_parameters(params):
    """A GPT with the weights of a `Parameters`, whose linear weights are (in, out) where torch's are (out, in)."""
    model = GPT(params.config)
    model.load_state_dict({
        name: torch.from_numpy(array.T if name.startswith("h.") and array.ndim == 2 else array)
        for name, array in params.items()})
    return model


def adamw(model, lr, betas=(0.9, 0.95), weight_decay=0.1):
    """AdamW with decay for matrices only, in its fused form."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": weight_decay},
                              {"params": vectors, "weight_decay": 0.0}], lr=lr, betas=betas, fused=True)


def train_step(forward, model, optimizer, idx, targets, grad_clip=1.0):
    """Loss and gradients, clipping, AdamW. forward: the model, or what torch.compile made of it. Returns the loss."""
    optimizer.zero_grad(set_to_none=True)
    loss = forward(idx, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    return loss


def training(shape, lr, compiled):
    """The function () -> loss that is torch's training step of a `Training`."""
    model = initial_model(shape.config, shapes.SEED)
    forward = torch.compile(model) if compiled else model
    optimizer = adamw(model, lr)
    batches = ((torch.from_numpy(idx), torch.from_numpy(targets)) for idx, targets in shape.batches())
    return lambda: train_step(forward, model, optimizer, *next(batches)).item()


def generation(folder, shape):
    """The function () -> tokens that is transformers' greedy generation with the weights in a folder."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    idx = torch.from_numpy(shape.prompt())

    @torch.inference_mode()
    def step():
        return model.generate(idx, attention_mask=torch.ones_like(idx), max_new_tokens=shape.new_tokens,
                              do_sample=False, eos_token_id=None, pad_token_id=0).tolist()

    return step
