"""The lesson: one file a layer, `x_forward` directly followed by `x_backward`.

Every layer is a pair of pure functions of arrays, `y, cache = x_forward(…)` and `dx, … = x_backward(dy, cache)`. They
write to no argument, keep no state and draw no random numbers. Three conventions make them readable line by line:

* the gradient of `v` is called `dv`, everywhere: `dv` has the shape of `v` and holds d(loss)/d(v);
* a backward undoes its forward's lines in reverse order, and quotes the line that it is undoing;
* dtype follows the input: constants are Python floats, so that float32 stays float32.

Shapes: B batch, T time (tokens), C channels (`n_embd`), H heads, D = C / H channels of a head, V vocabulary.
`...` stands for any leading axes. The lines are plain `np.…`; CuPy arrays take the same lines by NumPy's dispatch.

Read them in this order: linear, gelu, layernorm, loss, embedding, dropout, attention, mlp.
"""
