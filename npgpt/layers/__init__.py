"""The lesson: one file a layer, `x_forward` directly followed by `x_backward`, in plain NumPy.

Every layer is a pair of pure functions, `y, cache = x_forward(…)` and `dx, … = x_backward(dy,
cache)`. They write to no argument, keep no state and draw no random numbers. Three conventions make
them readable line by line:

* the gradient of `v` is called `dv`, everywhere: `dv` has the shape of `v` and holds d(loss)/d(v);
* a backward undoes the lines of its forward in reverse order; a comment quotes the lines that the
  next ones undo;
* dtype follows the input: constants are Python floats, so float32 stays float32.

Shapes: B batch, T time (tokens), C channels (`n_embd`), H heads, D = C / H channels of a head,
S keys, V vocabulary. `...` stands for any leading axes. CuPy arrays take the same lines, because
NumPy dispatches `np.…` to CuPy.

Read them in this order: linear, gelu, layernorm, loss, embedding, dropout, attention. Then read
model/transformer.py, which builds GPT-2 from them, and lora, which finetunes it. This package is
also the model's default table of operations (`ops`). An engine replaces entries of the table, never
lines.
"""

from npgpt.layers.attention import attention_backward, attention_forward, causal_mask
from npgpt.layers.dropout import dropout_backward, dropout_forward
from npgpt.layers.embedding import embedding_backward, embedding_forward
from npgpt.layers.gelu import (
    gelu_exact_backward,
    gelu_exact_forward,
    gelu_tanh_backward,
    gelu_tanh_forward,
)
from npgpt.layers.layernorm import layernorm_backward, layernorm_forward
from npgpt.layers.linear import head_backward, head_forward, linear_backward, linear_forward
from npgpt.layers.lora import lora_backward, lora_forward
from npgpt.layers.loss import IGNORE_INDEX, cross_entropy_backward, cross_entropy_forward

__all__ = [
    "IGNORE_INDEX",
    "attention_backward",
    "attention_forward",
    "causal_mask",
    "cross_entropy_backward",
    "cross_entropy_forward",
    "dropout_backward",
    "dropout_forward",
    "embedding_backward",
    "embedding_forward",
    "gelu_exact_backward",
    "gelu_exact_forward",
    "gelu_tanh_backward",
    "gelu_tanh_forward",
    "head_backward",
    "head_forward",
    "layernorm_backward",
    "layernorm_forward",
    "linear_backward",
    "linear_forward",
    "lora_backward",
    "lora_forward",
]
