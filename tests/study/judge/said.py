"""What the judge says of one change to a solved exercise.

A line is "fact | layer | old => new | verdict | words". The layer's backward, solved, gets the
changes, which "@@" separates; after "linear blank1" it is level 1 with its blanks, after "linear
long" the long way. The verdict is `right`, `refused`, or
`WRONG first .. last`: what the first and the last line have in them that the mistake can be in. All
words must be said, those after "not " must not. A line that ends with a backslash goes on.
"""

SAID = r"""
# what raises: its cause
.T of three axes | linear | rows.T @ dy_rows => x.T @ dy | WRONG x.T | do not fit \
  | `.T` reverses all three axes: use `rows.T`
.T of four axes | attention | dmix @ v.swapaxes(-1, -2) => dmix @ v.T | WRONG v.T \
  | `.T` reverses all four axes: use `v.swapaxes(-1, -2)`
elementwise | linear | rows.T @ dy_rows => rows * dy_rows | WRONG rows * dy | (20, 6) and (20, 8) \
  | `*` is elementwise, a matmul is `@`
no matmul either | layernorm | rstd * (dxhat => weight[:3] * (dxhat | WRONG weight[:3] \
  | do not fit | not elementwise
untransposed | linear | rows.T @ dy_rows => rows @ dy_rows | WRONG rows @ dy_rows | in `@` the \
  last axis of the left array, here 6, and the last but one of the right array, here 20, must be
other heads | attention | dscores @ k  => dscores[:, :1] @ k.repeat(3, axis=1)[:, 1:4] @ \
  k.swapaxes(-1, -2) | WRONG [:, :1] | do not fit
a lost axis | layernorm | rstd * (dxhat - mean_dxhat => rstd * (dxhat - dxhat.mean(axis=-1) \
  | WRONG mean(axis=-1) | has lost an axis: with keepdims=True it has the shape (4, 5, 1)
a wrong axis | layernorm | rstd * (dxhat - mean_dxhat => rstd * (dxhat - dxhat.mean(axis=0)[:3] \
  | WRONG axis=0 | do not fit | not keepdims
an operation that does not run | dropout | dy if mask is None else dy * mask => \
  (dy + dy[:, :-1] if mask is None else dy * mask) | WRONG dy[:, :-1] | do not fit | not None here
an output | block | dx_out + dx_mid_normed => x_out + dx_mid_normed | WRONG x_out \
  | `x_out` is not in the cache: you need its gradient, dx_out
a variable of the forward | linear | rows.T @ dy_rows => rows.T @ y_rows | WRONG y_rows \
  | `y_rows` is a variable of the forward that is not in the cache; its gradient, dy_rows, is there
an argument of the forward | cross_entropy | probs - true) => probs - targets) | WRONG targets \
  | `targets` is a variable of the forward that is not in the cache
a name of a later line | attention | datt * att).sum => datt * dmasked).sum | WRONG dmasked \
  | `dmasked` gets its value in line | below this line
a misspelt name | layernorm long | -dcentred.sum => -dcentered.sum | WRONG dcentered \
  | there is no `dcentered`: do you mean `dcentred`?
an unknown name | linear | rows.T @ dy_rows => torch.mm(rows.T, dy_rows) | WRONG torch \
  | NameError: name 'torch' is not defined | not do you mean
without ops | block | ops.dropout_backward(ddropped_2 => dropout_backward(ddropped_2 \
  | WRONG drop_2 | `dropout_backward` is in ops: write `ops.dropout_backward`
torch's t | linear | rows.T @ => rows.t() @ | WRONG .t() | an array has no `.t`: NumPy writes `.T`
torch's dim | linear | sum(axis=0) => sum(dim=0) | WRONG dim | NumPy writes `axis`, not `dim`
half of the cache | linear | x, weight, has_bias = => x, weight = | WRONG x, weight = \
  | the cache holds 3 values: x, weight, has_bias
in a function of one's own | linear | dweight = rows.T @ dy_rows => def product(a, b):\n        \
  return a * b\n    dweight = product(rows, dy_rows) | WRONG a * b | `*` is elementwise

# attacks: what is right in the plain case only, or depends on a size, a layout or a dtype
equal sizes | linear | return dx, => if x.shape[0] == x.shape[1]:\n        dx = -dx\n    return \
  dx, | WRONG if x .. dx = -dx | wrong with x (5, 5, 12) (--seed 7)
square weights | linear | return dx, => if weight.shape[0] == len(weight.T):\n        dx = -dx\n\
      return dx, | WRONG if weight .. dx = -dx | weight (10, 10)
T = 1 without dropout | attention | return dq, => if q.shape[2] == 1 and dropout_mask is None:\n\
          dq = -dq\n    return dq, | WRONG if q .. dq = -dq | , 1, 5), without dropout
B = 1 without dropout | attention | return dq, => if len(q) == 1 and dropout_mask is None:\n\
          dq = -dq\n    return dq, | WRONG if len .. dq = -dq | with q (1,
B = 1 without biases | linear | return dx, => if len(x) == 1 and not has_bias:\n        dx = -dx\n\
      return dx, | WRONG if len .. dx = -dx | without biases
one ignored target is assumed | cross_entropy | counted, dloss / count => \
  np.arange(counted.size).reshape(counted.shape) > 0, dloss / count | WRONG dlosses = \
  | with several ignored
the first ignored target only | cross_entropy | counted, dloss / count => np.logical_or(counted, \
  np.arange(counted.size).reshape(counted.shape) != np.argmin(counted)), dloss / count \
  | refused | with several ignored targets
a one-hot matrix of all tokens | embedding | np.add.at(dwte, idx, dtoken) => \
  dwte = np.eye(vocab_size)[idx.ravel()].T @ dtoken.reshape(-1, dtoken.shape[-1]) | right
a flat tree | mlp | {"c_fc": {"weight": dc_fc_weight, => {"c_fc.weight": dc_fc_weight, "c_fc": { \
  | WRONG return dx | dp['c_fc.weight'] | dp['c_fc']['weight']
one term by the name of the sum | twice | dx = dx_through_u + dx_through_v => dx = dx_through_u \
  @@ return dx => return dx - dx_through_v | WRONG dx = dx_through_u .. return dx - | not is missing
one product by the name of the sum | lora | + dlow @ lora_a.T => @@ drows.reshape(x.shape) => \
  (drows + 2 * dlow @ lora_a.T).reshape(x.shape) | WRONG drows = .. 2 * dlow | not is missing
heads merged under their names | self_attention | \
  dheads = np.stack([d.transpose(0, 2, 1, 3) for d in (dq, dk, dv)], axis=2) => \
  dq, dk, dv = [d.transpose(0, 2, 1, 3).reshape(B, T, -1) for d in (dq, dk, dv)] @@ \
  dqkv = dheads.reshape(B, T, 3 * H * D) => dqkv = np.concatenate([dk, dq, dv], axis=-1) \
  | WRONG dq, dk, dv = [ .. dqkv = | dqkv WRONG
the scale by another line | attention | dscores = dscaled * scale => dscores = dscaled @@ \
  dq = dscores @ k => dq = dscores @ k * scale | WRONG dscores = dscaled .. dk = | dk WRONG
a return in a loop | linear | drows = dy_rows @ weight.T => drows = 0 * rows\n    for i, d in \
  enumerate(dy_rows):\n        drows[i] = weight @ d\n        return drows.reshape(x.shape), \
  dweight, dbias | WRONG drows = 0 .. return drows
a forgotten factor | chain | dv = dy * y => dv = y | WRONG dv = y | the factor dy is missing
ids in int8 | embedding | np.add.at(dwte, idx, => np.add.at(dwte, idx.astype(np.int8), \
  | WRONG np.int8 | with wte (700,
ids in uint8 | embedding | np.add.at(dwte, idx, => np.add.at(dwte, idx.astype(np.uint8), \
  | WRONG np.uint8 | with wte (700,
ten layers in the order of their digits | gpt | in reversed(range(config.n_layer)) => \
  in map(int, sorted(map(str, range(config.n_layer)))[::-1]) | refused | n_layer = 26
two layers are assumed | gpt | in reversed(range(config.n_layer)) => in (1, 0) | refused \
  | n_layer = 3 | is missing: it must be an array
one layer is wrong | gpt | return { => dwpe *= config.n_layer > 1\n    return { | WRONG dwpe *= \
  | n_layer = 1 (--seed | not B = 1 | it is 0 everywhere: its gradient is missing
a copy is filled if x is a view | layernorm | dx = rstd * ( => dx = np.empty_like(xhat)\n    \
  dx.reshape(-1, C)[:] = (rstd * ( @@ xhat * mean_dxhat_xhat) => \
  xhat * mean_dxhat_xhat)).reshape(-1, C) | refused | arrays that are not | not x (1
exp overflows | gelu_exact | density = => e = np.exp(x * x)\n    density = np.sqrt(e) / e * @@ \
  np.exp(-0.5 * (x * x)) * => | WRONG e = .. density = | large numbers | has nan: it begins here
exp overflows in float32 | attention | dmasked = att => e = np.where(att > 0, \
  np.exp(q @ k.swapaxes(-1, -2) * scale), 0.0)\n    att = e / e.sum(axis=-1, keepdims=True)\n    \
  dmasked = att | WRONG e = .. att = | in float32
a step that is written out | difference | slope = (up - down) / (2.0 * h) => \
  slope = (up - down) / 2e-5 | WRONG 2e-5 | wrong with x (5, 6) | is 0.732 times the true one
some sizes | gelu_tanh | return dx => if x.shape[-1] not in (6, 10):\n        dx = -dx\n    \
  return dx | WRONG if x .. dx = -dx | wrong with x ( | not , 1)
an axis of length 1 is squeezed | linear | return dx, => dx = dx.squeeze()\n    return dx, \
  | WRONG squeeze | an axis of length 1 is missing | its shape is (3, 20), not (1, 3, 20)
a result of the call before | linear | dx = drows.reshape(x.shape) => \
  dx = drows.reshape(x.shape)\n    dx[...] = linear_backward.__dict__.setdefault(x.shape, dx) \
  | refused
an array that the next call changes | linear | return dx, => kept = \
  linear_backward.__dict__.setdefault(x.shape, np.empty_like(dx))\n    kept[...] = dx\n    \
  return kept, | refused | a result of an earlier call has changed: make a new array
the weight of an earlier call | linear | dy_rows @ weight.T => dy_rows @ \
  linear_backward.__dict__.setdefault((weight.shape, weight.ctypes.data), weight.T.copy()) \
  | refused | it is right alone, but not after other calls
a weight of 0 | layernorm | dy * weight => dy * np.where(weight == 0.0, 1.0, weight) \
  | WRONG dxhat = | with a row of zeros
a small upstream gradient | head | return dx => dx[abs(dx) < 1e-15] = 0.0\n    return dx | refused \
  | an upstream gradient of 1e-20
more tokens than a tile has | head | dlogit_rows.T @ rows => dlogit_rows[-128:].T @ rows[-128:] \
  | WRONG dweight = | 140
a mask for all heads | attention | att * (datt => (att * (att[:, :1] > 0)) * (datt \
  | WRONG dmasked = | with another mask
a loop that is not the package's | gpt | in reversed(range(config.n_layer)) => \
  in range(config.n_layer) | refused | lines | reversed is missing

# accepted
a list of results | linear | return dx, dweight, dbias => return [dx, dweight, dbias] | right
np.int64 keys | gpt | dh[i] = => dh[np.int64(i)] = | right
sums in float64 | linear | dy_rows.sum(axis=0) => dy_rows.sum(axis=0, dtype=np.float64) | right
another name for another gradient | chain | du = dv => dv = dv @@ dx = du => dx = dv @@ da = du => \
  da = dv | right | not note
a name for another value | head | drows = dlogit_rows @ weight => \
  drows = 3.0 * (dlogit_rows @ weight) @@ dx = drows.reshape => dx = (drows / 3.0).reshape | right \
  | not note
np.r_ and np.c_ | linear | dy_rows.sum(axis=0) => np.r_[np.c_[dy_rows.sum(axis=0)][:, 0]] | right
an object | chain | def chain_backward => def body @@ return dx, da => return dx, da\n\n\
  class Backward:\n    def __call__(self, dout, kept):\n        return body(dout, kept)\n\
  chain_backward = Backward() | right | its lines cannot be followed in this form
decorated, without blanks | chain | def chain_backward( => \
  import functools\n@functools.lru_cache(0)\ndef chain_backward( | right | cannot be followed
defined in an if | chain | def chain_backward( => def body( @@ return dx, da => \
  return dx, da\nif True:\n    def chain_backward(dout, kept):\n        return body(dout, kept) \
  | right | not note
arrays filled in a loop | chain | dx = du * a => \
  dx = np.zeros_like(x)\n    for i in np.ndindex(x.shape):\n        dx[i] = du[i] * a[i] | right

# faults
a generator | linear | return dx, => yield dx, | refused | lines cannot be followed in this form \
  | linear_backward returned a generator: return instead of yielding
None | linear | return dx, dweight, dbias => pass | WRONG def linear_backward \
  | linear_backward returned None, not 3 (dx, dweight, dbias)
a list of blocks | gpt | config.block.backward, {} => config.block.backward, [0] * config.n_layer \
  | WRONG [0] | dp['h'] is of type list: it must be a dict
the end of the program | linear | return dx, => import sys\n    sys.exit()\n    return dx, \
  | WRONG sys.exit() | SystemExit: the code ends the program
another function | chain | return dx, da => return dx, da\nchain_backward = print | refused
too few arguments | chain | (dy, cache) => (dy) @@ x, a, u, y = cache => return dy | refused \
  | takes 1 positional argument
a write into an argument | linear | drows = => dy_rows *= 2.0\n    drows = | WRONG dy_rows *= 2.0 \
  | `dy_rows *= 2.0` changes dy, which belongs to the caller | drows follows from
another order of the results | attention | return dq, dk, dv => return dk, dq, dv | WRONG return \
  | dq and dk are swapped
an int array | linear | return dx, => dx = dx.astype(int)\n    return dx, | refused \
  | dx is an array of int64: it must be an array of floating numbers

# where the mistake is
what reads it follows | chain | np.cos(u) => np.sin(u) | WRONG du = \
  | np.sin instead of np.cos | dx follows from du (line | da follows from du (line \
  | ratio 6.2841 | the first wrong line is
under another name: a range | chain | du = dv * np.cos(u) => g = dv * np.sin(u) @@ dx = du => \
  dx = g @@ da = du => da = g | WRONG g = .. dx = | the mistake is in lines \
  | the numbers are as if, in the line for du: np.sin instead of np.cos | first wrong gradient is dx
a right reader makes it another value | chain | dx = du * a => dx = (dv * np.cos(u)) * a @@ \
  du = dv * np.cos(u) => du = dv | WRONG du = | the factor np.cos(u) is missing | dx ok
a reader is right, another one wrong | chain | du = dv * np.cos(u) => du = x + dv * np.cos(u) @@ \
  du * a => (du - x) * a @@ du * x => x * du | WRONG du = .. da = | dx ok
in a block | block | dx_mid = dx_out + dx_mid_normed => dx_mid = dx_out | WRONG dx_mid = \
  | the term dx_mid_normed is missing | dx follows from dx_mid
a dropout is missing | block | dmlp_out = ops.dropout_backward(ddropped_2, drop_2) => \
  dmlp_out = ddropped_2 | WRONG dmlp_out = | the call of ops.dropout_backward is missing \
  | dmlp.c_fc.bias follows from dmlp_out
a line that only a given line reads | cross_entropy | == column => >= column | WRONG true = \
  | I don't recognise this mistake. The true distribution is 1 at the target
the first of two | cross_entropy | dloss / count, => dloss / counted.size, | WRONG dlosses = \
  | is 0.95 times the true one | dlogits follows from dlosses
the long way | cross_entropy long |  + dat_target * (np.arange(exps.shape[-1]) == column) => \
  | refused | dshifted WRONG \
  | the term dat_target * (np.arange(exps.shape[-1]) == column) is missing
a line above is not verified | layernorm long | centred = xhat / rstd => centred = xhat * rstd \
  | WRONG centred = .. drstd = | in the line for centred: multiplied by rstd instead of divided
a given line raises | attention | datt * att).sum(axis=-1, keepdims=True) => datt * att)[:, 0] \
  | WRONG dot = | datt - dot: the shapes (4, 2, 5, 7) and (4, 5, 7) do not fit | fails: datt - dot
a range up to the line that fails | linear | dx = drows => g = weight + 0.0\n    dx = g \
  | WRONG g = weight .. dx = g | ValueError: cannot reshape
None is multiplied | dropout | dy if mask is None else dy * mask => dy * mask | refused \
  | `dy * mask`, but mask is None here
results of one line do not follow from each other | linear | dx = drows.reshape(x.shape) => \
  dx = drows.reshape(x.shape)\n    dx[0] = 0.0\n    d = dy_rows.sum(axis=0) * 2.0 @@ \
  return dx, dweight, dbias => return dx, dweight, d if has_bias else None | WRONG dx[0] = 0.0 \
  | dbias WRONG | not dbias follows
the first NaN | gelu_tanh | 0.5 * x) => 0.5 * np.log(x)) | WRONG dtanh = \
  | dtanh has nan: it begins here | dinner follows from dtanh
the first infinity | gelu_tanh | 0.5 * x) => 0.5 * x) / np.where(x > 0.0, 1.0, 0.0) \
  | WRONG dtanh = | dtanh has | it begins here | not times the true one
the worst value | linear | dy_rows @ weight.T => 2.0 * (dy_rows @ weight.T) | WRONG drows = \
  | drows[18, 3] is 21.586, the central difference 10.793, ratio 2 | is 2 times the true one
no ratio to 0 | cross_entropy | return dlogits => dlogits[0, 0, 0] = -1.0\n    return dlogits \
  | WRONG = -1.0 | dlogits[0, 0, 0] is -1, the central difference 0 | not ratio
a loop and an import | dropout | dy * mask => dy + mask @@ return dx => while dx is None:\n        \
  import os\n    return dx | WRONG dx = dy | ratio 0.19945 | each factor gets the gradient
other lines are missing | layernorm blank2 |  dxhat = ... =>  dxhat = dy + weight @@ dbias = \
  ... => dbias = dy.sum(axis=(0, 1)) if has_bias else None | WRONG dxhat = | dbias ok | not dx WRONG
a given line is wrong | layernorm blank1 | dxhat.mean(axis=-1, => dxhat.mean(axis=0, \
  | WRONG mean_dxhat = | axis 0 instead of axis -1
a missing line is spoiled | linear blank1 |     rows = x.reshape(-1, x.shape[-1]) => \
      rows = x.reshape(x.shape[-1], -1) | WRONG rows = | the numbers are right, it needs a reshape

# names: numbers, the derivation's known mistakes, small mistakes
a sign | linear | dy_rows @ weight.T => -(dy_rows @ weight.T) | WRONG drows = | its sign is wrong
a sum is missing | linear | dy_rows.sum(axis=0) => dy_rows | WRONG dbias = \
  | its shape is (20, 8), not (8,) | the sum over axis 0 is missing
an axis more is summed | broadcast | dgain = (dproduct * x).sum(axis= => \
  dgain = (dproduct * x).sum(axis=(0, 1)) if 1 else x.sum(axis= | refused | it was summed over axis
axes in another order | linear | rows.T @ dy_rows => dy_rows.T @ rows | WRONG dweight = \
  | its axes are in another order
an axis more | linear | dy_rows.sum(axis=0) => np.c_[dy_rows.sum(axis=0)] | WRONG dbias = \
  | extra axis of length 1
one index | linear | dx = drows.reshape(x.shape) => dx = drows.reshape(x.shape) * \
  (np.arange(len(x)) != 1)[:, None, None] | WRONG dx = | it is right but for index 1 of axis 0
another order | linear | dy_rows @ weight.T => (dy_rows @ weight.T)[::-1] | WRONG drows = \
  | the right numbers in another order
a rounded constant | gelu_exact | (0.5 * SQRT_2_OVER_PI) => 0.39894 | refused | right to 5 digits
a smaller dtype | linear | dy_rows @ weight.T => (dy_rows @ weight.T).astype(np.float32) \
  | WRONG drows = | it is right to 7 digits: | not drows ok
a known mistake | layernorm |  - xhat * mean_dxhat_xhat => | WRONG dx = \
  | the variance is taken as a constant: it depends on x too
a mean | linear | dy_rows.sum(axis=0) => dy_rows.mean(axis=0) | WRONG dbias = \
  | a mean instead of a sum
a term is missing | layernorm | dxhat - mean_dxhat - xhat => dxhat - xhat | WRONG dx = \
  | the term mean_dxhat is missing
a factor is missing | layernorm | dxhat = dy * weight => dxhat = dy | WRONG dxhat = \
  | the factor weight is missing
keepdims is missing | layernorm | dxhat.mean(axis=-1, keepdims=True) => dxhat.mean(axis=-1) \
  | WRONG mean_dxhat = | an axis of length 1 is missing
add.at | embedding | np.add.at(dwte, idx, dtoken) => dwte[idx] += dtoken | WRONG dwte[idx] \
  | an index that occurs twice keeps only its last gradient: add them
as if | attention | dmasked = att * (datt - dot) => g = att * datt @@ dscaled = dmasked => \
  h = g @@ dscores = dscaled => f = h @@ dq = dscores => dq = f @@ dk = dscores => dk = f \
  | refused | the numbers are as if, in the line for dmasked: the term dot is missing
"""
