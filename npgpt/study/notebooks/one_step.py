"""The notebook of one training step of a tiny GPT-2, with every number in it.

Its cells are in `TEXT`: the Python blocks are code, all between them is Markdown.
"""

import re

from npgpt.study.notebooks.write import CODE, INSTALL, MARKDOWN

TEXT = '''\
# One training step, every number in it

A GPT-2 with four channels, one block and two heads reads eight bytes, and after each guesses the
next one. Below are all numbers of one step: the forward, the loss, each gradient, the update, and
the loss after it, which is smaller. Each layer is a function of `npgpt/layers`, called in the order
of `gpt_forward` and `gpt_backward` in `npgpt/model/transformer.py`. It takes 15 minutes to read.
Run the cells from the first to the last.

```python
import math
from itertools import zip_longest

import numpy as np

from npgpt import GPT, AdamW, GPTConfig
from npgpt.data.tokenizers import ByteTokenizer
from npgpt.layers import (
    attention_backward, attention_forward, causal_mask, cross_entropy_backward,
    cross_entropy_forward, embedding_backward, embedding_forward, gelu_tanh_backward,
    gelu_tanh_forward, head_backward, head_forward, layernorm_backward, layernorm_forward,
    linear_backward, linear_forward)
from npgpt.training.adamw import adamw_update, corrections

np.set_printoptions(formatter={"float": "{: .2f}".format}, linewidth=110)

def show(**arrays):
    """Print arrays side by side, each below its name and shape; axes of length 1 are left out."""
    columns = [[f"{name} {np.shape(array)}", *str(np.squeeze(array)).splitlines()]
               for name, array in arrays.items()]
    for row in zip_longest(*columns, fillvalue=""):
        print("".join(part.ljust(max(map(len, column)) + 4) for part, column in zip(row, columns)))
    print()
```

## The text

A model reads numbers, tokens; here a token is a byte. Of all 256 bytes the text has only seven. We
number these from 0 to 6, so that all arrays fit on the screen: a vocabulary of V = 7. The model
learns to guess the next token, so the targets are the text shifted by one: at `I` the right answer
is the space. B = 1 text of T = 8 tokens.

```python
text = "I like it"
tokens = ByteTokenizer().encode(text)
vocabulary, ids = np.unique(tokens, return_inverse=True)
idx, targets = ids[None, :-1], ids[None, 1:]            # (B, T)
print("bytes     ", tokens)
print("vocabulary", dict(enumerate(map(chr, vocabulary))))
show(idx=idx, targets=targets)
```

## The parameters

These 240 numbers are all that will be learned. They begin as random numbers. The biases, not
shown, begin as 0, and the weights of the three LayerNorms as 1. `wte` has a row for each token,
`wpe` one for each position. C = 4 channels; a linear layer has the shape (channels in, channels
out). The names are those of GPT-2's checkpoints.

```python
config = GPTConfig(vocab_size=len(vocabulary), block_size=8, n_layer=1, n_head=2, n_embd=4,
                   n_inner=8, initializer_range=0.5)
model = GPT(config, seed=1, dtype="float64")
p = model.params.tree
h = p["h"][0]                   # the only block
eps = config.layer_norm_epsilon
show(wte=p["wte"]["weight"], wpe=p["wpe"]["weight"], attn_c_proj=h["attn"]["c_proj"]["weight"])
show(attn_c_attn=h["attn"]["c_attn"]["weight"])
show(mlp_c_fc=h["mlp"]["c_fc"]["weight"], mlp_c_proj=h["mlp"]["c_proj"]["weight"])
```

# The forward

## Embedding

Each token becomes a vector of C numbers: its row of `wte` plus the row of `wpe` for its position.
The two spaces, rows 1 and 6 of `x`, have the same row of `wte`, but different positions.

`x` is the **residual stream**: one vector for each position, to which the layers that follow add,
and which they read, but never replace.

Each forward returns a second result, its **cache**: what its backward will need again. Here these
are `idx`, which says which rows were read, and the lengths of the two tables.

```python
x, embedding = embedding_forward(idx, p["wte"]["weight"], p["wpe"]["weight"])
show(token=p["wte"]["weight"][idx], position=p["wpe"]["weight"], x=x)
```

## The block: LayerNorm

Before a layer reads the stream, each position, each row, is brought to mean 0 and variance 1. Then
it is multiplied by a weight and a bias is added, for each channel, which so far are 1 and 0.

```python
norm_1, ln_1 = layernorm_forward(x, **h["ln_1"], eps=eps)
show(x=x, norm_1=norm_1)
show(mean=norm_1.mean(axis=-1), variance=norm_1.var(axis=-1))
```

## The block: queries, keys and values

One matrix product makes 3 C = 12 numbers of each position: a query (what do I look for?), a key
(what do I have?) and a value (what do I pass on?). Each of the two heads gets D = 2 of the four
channels of each. `q` and `k` and `v` are the same numbers as `qkv`, in another order: (B, H, T, D).

```python
B, T, C = x.shape
qkv, c_attn = linear_forward(norm_1, **h["attn"]["c_attn"])             # (B, T, 3 C)
heads = qkv.reshape(B, T, 3, config.n_head, -1)                         # (B, T, 3, H, D)
q, k, v = heads.transpose(2, 0, 3, 1, 4)                                # 3 x (B, H, T, D)
show(qkv=qkv)
show(q=q, k=k, v=v)
```

## The block: attention

A position compares its query with the keys of all positions up to its own: the mask hides the
later ones, which it must not see, because it has to guess them. The softmax of these scores is
`att`: each row sums to 1, and says how much this position takes of the value of each other one.
The first row can only take all of itself. `mix` is that weighted average of the values.

`att` is in the cache, because the backward needs it.

```python
mask = causal_mask(None, x)                                             # (T, T): 0, and -inf above
scale = 1.0 / math.sqrt(q.shape[-1])
mix, attention = attention_forward(q, k, v, scale, mask)                # (B, H, T, D)
att = attention[4]                                                      # (B, H, T, T)
show(att_head_0=att[:, 0], att_head_1=att[:, 1])
show(mix=mix)
```

The results of the heads are put side by side, and one more linear layer mixes them. The sum with
`x` is the residual stream after attention.

```python
merged = mix.transpose(0, 2, 1, 3).reshape(B, T, C)
attended, attn_c_proj = linear_forward(merged, **h["attn"]["c_proj"])
x_mid = x + attended
show(merged=merged, attended=attended, x_mid=x_mid)
```

## The block: the MLP

Attention has moved numbers between positions. The MLP computes at each position alone. It reads the
stream through a LayerNorm of its own; a linear layer makes it wider, here 8 channels, in GPT-2 4 C.

```python
norm_2, ln_2 = layernorm_forward(x_mid, **h["ln_2"], eps=eps)
hidden, c_fc = linear_forward(norm_2, **h["mlp"]["c_fc"])
show(norm_2=norm_2, hidden=hidden)
```

GELU lets positive numbers pass and almost stops negative ones. Without it, two linear layers would
be no more than one.

```python
active, gelu = gelu_tanh_forward(hidden)
show(hidden=hidden, active=active)
```

Back to C channels; and again the result is added to the residual stream.

```python
mlp_out, mlp_c_proj = linear_forward(active, **h["mlp"]["c_proj"])
x_out = x_mid + mlp_out
show(x_mid=x_mid, mlp_out=mlp_out, x_out=x_out)
```

## The head

After the last block, here the only one, comes a last LayerNorm. Then each position is compared with
the vector of each token: the dot product with each row of `wte`, the same table as at the
beginning. The results are the **logits**: V = 7 scores for each position, any numbers, one for each
token that may come next. A larger one means more likely.

```python
norm_f, ln_f = layernorm_forward(x_out, **p["ln_f"], eps=eps)
logits, head = head_forward(norm_f, p["wte"]["weight"])
show(norm_f=norm_f, logits=logits)
```

## The loss

The softmax makes probabilities of the logits. The loss of a position is -ln(the probability of
the right next token): 0 if it is 1, large if it is small. The loss is their mean. Because it is a
natural logarithm, its unit is called **nat**: a model that finds all seven tokens equally likely
has ln 7 = 1.946 nats. Ours is not even as good as that.

```python
loss, cross_entropy = cross_entropy_forward(logits, targets)
probs = cross_entropy[0]                                                # (B, T, V)
show(probs=probs)
for t in range(T):
    prob = probs[0, t, targets[0, t]]
    print(f"{text[t]!r} -> {text[t + 1]!r}  probability {prob:.3f}  loss {-math.log(prob):.3f}")
print(f"loss {loss:.6f} nats, ln 7 = {math.log(7):.6f}")
```

# The backward

How does the loss change if one number moves a little? The answer, for each number of an array `v`,
is its gradient, an array of the same shape. It is called `dv` here, in all lines. The backward goes
through the forward's lines from the last to the first. Each function gets the gradient of its
result, and the cache, and returns the gradients of what it was given.

You need not believe any of it, for a slope can be measured. `compare` moves each number of an array
up and down by 0.00001, computes the loss each time, and divides the difference by 0.00002: a
central difference. It prints the first number of the gradient, what was measured for it, and the
largest error of all numbers of the array. Gradients are small, so from here on there are three
digits.

```python
np.set_printoptions(formatter={"float": "{: .3f}".format})
grads, errors = {}, {}          # by name

def loss_of(**options):
    return model.forward(idx, targets, **options)[1]

def compare(name, gradient, step=1e-5):
    """Keep a gradient, and print it beside central differences of the loss."""
    if name in model.params:                    # move the parameter itself
        moved, options = model.params[name], {}
    else:                                       # add what is moved to an array of the forward
        moved = np.zeros_like(gradient)
        options = {"add": {name: moved}}
    measured = np.zeros_like(gradient)
    for i in np.ndindex(moved.shape):
        old = moved[i]
        moved[i] = old + step
        up = loss_of(**options)
        moved[i] = old - step
        measured[i] = (up - loss_of(**options)) / (2 * step)
        moved[i] = old
    grads[name], errors[name] = gradient, np.abs(gradient - measured).max()
    print(f"{name:24} {gradient.flat[0]:+.9f}  measured {measured.flat[0]:+.9f}  "
          f"largest error of {gradient.size:2}: {errors[name]:.0e}")
```

## Back through the loss

The gradient of the logits is short: the predicted probabilities minus the true ones (1 at the
target, else 0), divided by the T = 8 positions of the mean. It is negative at the target: to raise
that logit lowers the loss. Each row sums to 0.

```python
dlogits = cross_entropy_backward(1.0, cross_entropy)
show(dlogits=dlogits)
compare("logits", dlogits)
```

## Back through the head

A product has two factors, and the gradient of each needs the other one. `wte` is used twice, here
and in the embedding. So `dwte_head` is one of two terms of its gradient; we wait for the other.

```python
dnorm_f, dwte_head = head_backward(dlogits, head)
show(dnorm_f=dnorm_f, dwte_head=dwte_head)
```

Through the last LayerNorm, to the residual stream:

```python
dx_out, dln_f_weight, dln_f_bias = layernorm_backward(dnorm_f, ln_f)
show(dx_out=dx_out, dln_f_weight=dln_f_weight, dln_f_bias=dln_f_bias)
compare("h.0.x_out", dx_out)
compare("ln_f.weight", dln_f_weight)
compare("ln_f.bias", dln_f_bias)
```

## Back through the MLP

In `x_out = x_mid + mlp_out` both terms get the whole gradient: on one way it goes back through
the MLP, on the other it goes past it, unchanged. That is why deep models can be trained: the
residual stream carries the gradient to every layer.

```python
dmlp_out = dx_out
dactive, dmlp_c_proj_weight, dmlp_c_proj_bias = linear_backward(dmlp_out, mlp_c_proj)
show(dactive=dactive)
show(dmlp_c_proj_weight=dmlp_c_proj_weight, dmlp_c_proj_bias=dmlp_c_proj_bias)
compare("h.0.mlp.active", dactive)
compare("h.0.mlp.c_proj.weight", dmlp_c_proj_weight)
compare("h.0.mlp.c_proj.bias", dmlp_c_proj_bias)
```

Where GELU has almost stopped a number, it almost stops the gradient, too.

```python
dhidden = gelu_tanh_backward(dactive, gelu)
show(dhidden=dhidden)
compare("h.0.mlp.hidden", dhidden)
```

The other linear layer gives the gradient of what the MLP has read.

```python
dnorm_2, dc_fc_weight, dc_fc_bias = linear_backward(dhidden, c_fc)
show(dnorm_2=dnorm_2, dc_fc_weight=dc_fc_weight)
show(dc_fc_bias=dc_fc_bias)
compare("h.0.norm_2", dnorm_2)
compare("h.0.mlp.c_fc.weight", dc_fc_weight)
compare("h.0.mlp.c_fc.bias", dc_fc_bias)
```

`x_mid` is used by both ways, so its gradient is the sum of two.

```python
dx_mid_normed, dln_2_weight, dln_2_bias = layernorm_backward(dnorm_2, ln_2)
dx_mid = dx_out + dx_mid_normed
show(dx_out=dx_out, dx_mid_normed=dx_mid_normed, dx_mid=dx_mid)
show(dln_2_weight=dln_2_weight, dln_2_bias=dln_2_bias)
compare("h.0.ln_2.weight", dln_2_weight)
compare("h.0.ln_2.bias", dln_2_bias)
compare("h.0.x_mid", dx_mid)
```

## Back through attention

The same two ways: past attention, and through it. What was put side by side is taken apart again:

```python
dattended = dx_mid
dmerged, dattn_c_proj_weight, dattn_c_proj_bias = linear_backward(dattended, attn_c_proj)
dmix = dmerged.reshape(B, T, config.n_head, -1).transpose(0, 2, 1, 3)   # (B, H, T, D)
show(dmerged=dmerged, dmix=dmix)
show(dattn_c_proj_weight=dattn_c_proj_weight, dattn_c_proj_bias=dattn_c_proj_bias)
compare("h.0.attn.mix", dmix)
compare("h.0.attn.c_proj.weight", dattn_c_proj_weight)
compare("h.0.attn.c_proj.bias", dattn_c_proj_bias)
```

A value gets a gradient from every position that has looked at it, and so does a key. The first
position has no choice: with another query it would still see only itself, so its row of `dq`, the
first in each head, is 0.

```python
dq, dk, dv = attention_backward(dmix, attention)
show(dq=dq, dk=dk, dv=dv)
compare("h.0.attn.q", dq)
compare("h.0.attn.k", dk)
compare("h.0.attn.v", dv)
```

The three are put together again, in the order of `qkv`. The middle four of `dc_attn_bias`, the bias
of the keys, are 0: what is added to all keys adds the same to all scores of a row, and the softmax
does not see it.

```python
dheads = np.stack([d.transpose(0, 2, 1, 3) for d in (dq, dk, dv)], axis=2)
dqkv = dheads.reshape(B, T, 3 * C)
dnorm_1, dc_attn_weight, dc_attn_bias = linear_backward(dqkv, c_attn)
show(dqkv=dqkv)
show(dc_attn_weight=dc_attn_weight)
show(dc_attn_bias=dc_attn_bias)
compare("h.0.attn.qkv", dqkv)
compare("h.0.attn.c_attn.weight", dc_attn_weight)
compare("h.0.attn.c_attn.bias", dc_attn_bias)
```

The first LayerNorm, and the sum of the two ways:

```python
dx_normed, dln_1_weight, dln_1_bias = layernorm_backward(dnorm_1, ln_1)
dx = dx_mid + dx_normed
show(dx_mid=dx_mid, dx_normed=dx_normed, dx=dx)
show(dln_1_weight=dln_1_weight, dln_1_bias=dln_1_bias)
compare("h.0.ln_1.weight", dln_1_weight)
compare("h.0.ln_1.bias", dln_1_bias)
compare("h.0.x", dx)
```

## Back through the embedding

A row of `wte` gets the sum of `dx` at all positions of its token: the row of the space, row 0, gets
two, and so does `i`, row 3. The row of `t`, row 6, was never read: `t` is only a target. But the
head has compared every position with it, so its gradient is not 0.

```python
dwte_embedding, dwpe = embedding_backward(dx, embedding)
dwte = dwte_head + dwte_embedding
show(dwte_head=dwte_head, dwte_embedding=dwte_embedding, dwte=dwte)
show(dwpe=dwpe)
compare("wte.weight", dwte)
compare("wpe.weight", dwpe)
print(f"the largest error of all {len(errors)} gradients: {max(errors.values()):.0e}")
```

# The update

Every parameter now moves against its gradient. AdamW keeps two numbers for each: **m**, a running
mean of its gradients, and **v**, a running mean of their squares. It moves by `lr * m / sqrt(v)`:
the learning rate, times a number near 1 if the gradients of many steps agree, and near 0 if they
contradict each other. Both means begin at 0, and `corrections` makes up for that.

So in the first step `m / sqrt(v)` is the gradient divided by its size: each number moves by
`lr` = 0.1, up or down, whether its gradient was large or small. Weight decay also draws the
matrices towards 0, here by 1% (`lr * weight_decay`).

```python
lr, beta1, beta2, weight_decay = 0.1, 0.9, 0.95, 0.1
step_size, adam_eps = corrections(lr, 1e-8, beta1, beta2, t=1)
before = {name: array.copy() for name, array in model.params.items()}
m = {name: np.zeros_like(array) for name, array in before.items()}
v = {name: np.zeros_like(array) for name, array in before.items()}
for name, array in model.params.items():
    decay = weight_decay if array.ndim > 1 else 0.0         # only matrices
    adamw_update(array, grads[name], m[name], v[name], lr, step_size, adam_eps, beta1, beta2, decay)

name = "h.0.attn.c_proj.weight"
show(before=before[name], gradient=grads[name], m=m[name])
show(v_times_1000=1000 * v[name], after=model.params[name], moved=model.params[name] - before[name])
```

The same forward with the new numbers. Not every guess is better, but their mean is:

```python
logits_after, _ = model.forward(idx)
loss_after, cross_entropy_after = cross_entropy_forward(logits_after, targets)
probs_after = cross_entropy_after[0]
for t in range(T):
    target = targets[0, t]
    print(f"{text[t]!r} -> {text[t + 1]!r}  probability {probs[0, t, target]:.3f} -> "
          f"{probs_after[0, t, target]:.3f}")
print(f"loss {loss:.6f} -> {loss_after:.6f} nats")
```

# These lines are what `npgpt train` runs

A new model of the same seed has the numbers from which we began. `loss_and_grads` and `AdamW.step`
are what `npgpt train` calls in each step. They run the lines above (`kernels="reference"`; other
kernels compile them, or run them in parts), and are equal to them to the last digit.

```python
other = GPT(config, seed=1, dtype="float64", kernels="reference")
other_loss, other_grads = other.loss_and_grads(idx, targets)
AdamW(other.params, lr=lr, betas=(beta1, beta2), weight_decay=weight_decay).step(other_grads)
print("equal loss:          ", other_loss == loss)
print("equal gradients:     ", all(np.array_equal(other_grads[n], grads[n]) for n in other_grads))
print("equal new parameters:", all(np.array_equal(other.params[n], model.params[n])
                                   for n in model.params))
```

GPT-2 does this with 12 blocks, 768 channels and 50257 tokens, step after step. Now write the
backward functions yourself: [start here](00-start-here.ipynb).
'''


def step_cells():
    """Return the cells of the notebook."""
    parts = re.split(r"^```(?:python)?\n", TEXT, flags=re.MULTILINE)
    cells = [((MARKDOWN, CODE)[i % 2], part.strip()) for i, part in enumerate(parts)]
    return [cells[0], (CODE, INSTALL), *cells[1:]]
