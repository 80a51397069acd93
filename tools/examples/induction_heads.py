"""Find the head with which a small model repeats random tokens, and see the loss without each head.

With `load("gpt2")` instead of the training, and all its layers and heads, this looks for GPT-2's
induction heads.
"""

import numpy as np

from npgpt import GPT, AdamW, GPTConfig

model = GPT(
    GPTConfig(vocab_size=20, block_size=32, n_layer=2, n_head=2, n_embd=32, initializer_range=0.1)
)
optimizer, rng = AdamW(model.params, lr=5e-3), np.random.default_rng(0)
for _ in range(300):
    idx = np.tile(rng.integers(0, 20, (32, 16)), 2)  # 16 random tokens, twice
    optimizer.step(model.loss_and_grads(idx[:, :-1], idx[:, 1:])[1])

x, targets = idx[:, :-1], np.where(np.arange(1, 32) < 16, -1, idx[:, 1:])  # the second half counts
logits, activations = model.run_with_cache(x, targets)
for name in ("h.0.attn", "h.1.attn"):
    for head in range(2):
        att = np.diagonal(
            activations[f"{name}.att"][:, head], -15, 1, 2
        ).mean()  # on the token after the same one
        zeroed = {f"{name}.mix": lambda mix, head=head: mix * (np.arange(2) != head)[:, None, None]}
        print(
            f"{name} head {head}: attention {att:.2f}, loss without it "
            f"{model(x, targets, edit=zeroed)[1]:.2f}"
        )
