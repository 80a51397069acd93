"""A network of your own from the layers of npgpt/layers: from a token and its position to the next
token.
"""

import numpy as np

from npgpt import layers

text = "to be, or not to be, that is the question. " * 20
chars = sorted(set(text))
ids = np.array([chars.index(char) for char in text])
V, T, C, F = len(chars), 8, 16, 64  # vocabulary, context, width, hidden width
rng = np.random.default_rng(0)
p = {
    "wte": rng.normal(0, 0.5, (V, C)),
    "wpe": rng.normal(0, 0.5, (T, C)),
    "weight": rng.normal(0, 0.2, (C, F)),
    "bias": np.zeros(F),
    "head": rng.normal(0, 0.2, (V, F)),
}

for _ in range(500):
    start = rng.integers(0, len(ids) - T, (16, 1))
    idx, targets = ids[start + np.arange(T)], ids[start + np.arange(1, T + 1)]  # (16, T)

    x, embedding = layers.embedding_forward(idx, p["wte"], p["wpe"])  # (16, T, C)
    hidden, linear = layers.linear_forward(x, p["weight"], p["bias"])  # (16, T, F)
    active, gelu = layers.gelu_tanh_forward(hidden)  # (16, T, F)
    logits, head = layers.head_forward(active, p["head"])  # (16, T, V)
    loss, cross_entropy = layers.cross_entropy_forward(logits, targets)

    g = {}
    dlogits = layers.cross_entropy_backward(1.0, cross_entropy)
    dactive, g["head"] = layers.head_backward(dlogits, head)
    dhidden = layers.gelu_tanh_backward(dactive, gelu)
    dx, g["weight"], g["bias"] = layers.linear_backward(dhidden, linear)
    g["wte"], g["wpe"] = layers.embedding_backward(dx, embedding)
    for name in p:
        p[name] -= 0.5 * g[name]
print(f"loss {loss:.3f}")
