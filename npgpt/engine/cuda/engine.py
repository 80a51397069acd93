"""GPT-2's two passes by fused CUDA kernels: the lines of `npgpt.model.transformer` in fewer and larger steps.

The steps are those of transformer.py, in the same order and under the same names; the file of each kernel in this
folder says which lines it computes. Three things differ. The residual stream x and its gradient dx are float32 even if
matmuls are bfloat16. A branch's dropout, its addition to the stream and the LayerNorm after it are one kernel, so that
x is read and written once. What the backward can recompute, attention's weights above all, is not kept.

Nothing here waits for the GPU, and once a batch of a shape has been seen, nothing allocates memory. So all of it can be
recorded as a CUDA graph and replayed, which saves the host the launch of every single kernel.
"""

import math

import numpy as np

from npgpt.engine.reference import ReferenceEngine, counted
from npgpt.model.parameters import Parameters, flatten

VOCABULARY_MULTIPLE = 64        # logits are padded to a multiple of this: matmuls of odd widths are far slower
SHAPES = 2                      # shapes of batches whose buffers are kept: training's, and evaluation's if it differs

# Launch geometry: threads per block, and how much of the array a thread or a block gets. The kernels' files say why.
ELEMENTWISE = 256               # threads per block of kernels that go through an array value by value
REDUCTION = 1024                # threads of a block that computes one sum, or 32 column sums
ATTENTION, ATTENTION_ROWS = 128, 64     # threads per block of the attention kernels; its queries, or its keys
QUAD, PACK = 4, 8               # values that a thread takes at once: floats, activations
LAYERNORM_COLUMNS = 12          # columns of a row that a thread of the LayerNorm kernels holds: three quads
COLUMNS = 32                    # columns that a block of column_sum_parts adds up
WTE_COLUMNS = 128               # columns of a token that a block of embedding_backward_wte has
WTE_THREADS, WTE_THREADS_REPEATED = 128, 512    # its threads; where most tokens are repeated many times
WPE = 128                       # threads per block of embedding_backward_wpe, a quad each
PARTS = 1056                    # blocks that share a sum over rows: 8 for each of the 132 multiprocessors of an H100


def why_not_fused(config, dtype):
    """Return None if there are kernels for this model in this dtype; else the reason, as a clause."""
    if dtype == "float64":
        return "there are none for float64"
    for name, has_kernels in (("embedding_layer_norm", False), ("final_layer_norm", True), ("lm_head_bias", False)):
        if getattr(config, name) != has_kernels:
            return f"there are none for {name}={not has_kernels}"
    if config.head_size % 16 or config.head_size > 128:
        return f"they need a head size of 16, 32, … or 128, and it is {config.head_size}"
    if config.n_embd % 8 or config.mlp_width % 8 or config.n_embd > 6144:
        return f"they need widths that 8 divides, up to 6144, and n_embd is {config.n_embd}, n_inner {config.mlp_width}"
    return None


class CudaEngine(ReferenceEngine):
    """Runs a model's forward and backward by kernels on one GPU; generation runs the reference lines there.

    params: the model's `Parameters`, float32, on the GPU. They are the only weights: what matmuls need in bfloat16 is
    rounded from them for each batch. gpu: a `GPU` for the model's head size.
    """

    reuses_grads = True

    def __init__(self, params, gpu):
        super().__init__(params, threads=1)
        self.gpu = gpu
        self.grads = params.zeros_like()
        rounded = gpu.precision == "bfloat16"
        self.weights = Parameters(params.config, gpu.real, gpu.xp) if rounded else params
        self._buffers = {}      # (B, T) -> Buffers
        self._graphs = {}       # (shape, …) of a step -> its graph; None after its first run
        self._norm = gpu.empty(1, params.flat.dtype)
        self._hyper = gpu.empty(3, params.flat.dtype)
        self._square_parts = gpu.empty(PARTS, params.flat.dtype)

    @property
    def where(self):
        return super().where.replace("reference lines", "fused kernels")

    def loss_and_grads(self, idx, targets, rng=None, count=None, add_to=None, mask=None):
        """As in `ReferenceEngine`, with rng a `Philox` or None. The gradients are always the same arrays: the next call
        overwrites them, or adds to them if it gets them as add_to. There are no kernels for a mask: with one the
        reference lines run, in float32.
        """
        if mask is not None:
            return super().loss_and_grads(idx, targets, rng, count, add_to, mask)
        add, dropout = add_to is self.grads, rng is not None

        def step():
            self._forward(s, dropout)
            self._loss(s, gradient=True)
            self._backward(s, add, dropout)

        with self.gpu.working():
            s = self._upload(idx, targets, rng, count or counted(targets))
            self._run((idx.shape, add, dropout), step)
            return s.loss[0].copy(), self.grads if add else self.added(self.grads, add_to)

    def loss(self, idx, targets, mask=None, count=None):
        """The mean loss of one batch without dropout, a 0-d array on the GPU."""
        if mask is not None:
            return super().loss(idx, targets, mask, count)

        def step():
            self._forward(s, dropout=False)
            self._loss(s, gradient=False)

        with self.gpu.working():
            s = self._upload(idx, targets, None, count or counted(targets))
            self._run((idx.shape,), step)
            return s.loss[0].copy()

    def adamw_step(self, optimizer, grads, max_norm):
        """Take a step of an `AdamW` in three kernels. Returns the norm; if it is not finite, nothing changes."""
        n, gpu = self.params.flat.size, self.gpu
        optimizer.t += 1
        beta1, beta2 = optimizer.betas
        correction = math.sqrt(1.0 - beta2**optimizer.t)
        step_size = optimizer.lr * correction / (1.0 - beta1**optimizer.t)
        with gpu.working():
            if grads is not self.grads:
                for name in self.grads:
                    self.grads[name] = grads[name]
            gpu.upload(self._hyper, np.array([optimizer.lr, step_size, correction], self._hyper.dtype))
            gpu.launch("square_sum", PARTS, ELEMENTWISE, self._square_parts, self.grads.flat, n)
            gpu.launch("global_norm", 1, REDUCTION, self._norm, self._square_parts, PARTS)
            gpu.launch("adamw", *elementwise(n, QUAD), self.params.flat, self.grads.flat, optimizer.m.flat,
                       optimizer.v.flat, self._norm, self._hyper, n, optimizer.n_decay, beta1, beta2, optimizer.eps,
                       optimizer.weight_decay, max_norm or 0.0)
            return self._norm[0].copy()

    def moments(self):
        with self.gpu.working():
            return super().moments()

    def _upload(self, idx, targets, rng, count):
        """Copy a batch to the GPU, with the order in which the embedding's gradient is summed. Returns its buffers."""
        if idx.shape not in self._buffers:
            if len(self._buffers) == SHAPES:
                self._buffers.pop(next(iter(self._buffers)))
                self._graphs.clear()            # they write to the buffers
            self._buffers[idx.shape] = Buffers(self.params, self.gpu, *idx.shape)
        s = self._buffers[idx.shape]
        ids = idx.reshape(-1)
        if self.params.config.vocab_size <= 1 << 16:
            ids = ids.astype(np.uint16)                                 # NumPy sorts these ten times as fast
        order = np.argsort(ids, kind="stable")                          # (N,) the rows of a token side by side
        starts = np.flatnonzero(np.diff(ids[order], prepend=-1))        # where a token's rows begin
        words = [0] * 4 if rng is None else [*rng.key, rng.step, rng.micro_batch]
        s.fill(idx=ids, targets=targets.reshape(-1), order=order, starts=np.append(starts, len(ids)),
               tokens=ids[order[starts]], n_tokens=[len(starts)], count=[count],
               stream=np.array(words, np.uint32).view(np.int32))
        self.gpu.upload(s.given, s.host)
        return s

    def _run(self, asked, step):
        """Run a step: the first time as it is; the second time record it as a graph; from then on replay the graph."""
        if asked not in self._graphs:
            step()
            self._graphs[asked] = None
            return
        if self._graphs[asked] is None:
            self._graphs[asked] = self.gpu.capture(step)
        self._graphs[asked].launch()

    def _forward(self, s, dropout):
        """Compute the logits of the uploaded batch."""
        config, gpu, params = self.params.config, self.gpu, self.params
        F, H = config.mlp_width, config.n_head
        attention_grid = (H, s.B, blocks(s.T, ATTENTION_ROWS))
        drop = dropout_sites(config, s.stream if dropout else None)
        if self.weights is not params:
            n = params.flat.size
            gpu.launch("round_to_bfloat16", *elementwise(n, QUAD), self.weights.flat, params.flat, n)

        # x, embedding = ops.embedding_forward(…); x, drop = ops.dropout_forward(x, masks.embd)
        gpu.launch("embedding_forward", s.N, row_threads(config.n_embd, QUAD), s.x[0], s.idx, params["wte.weight"],
                   params["wpe.weight"], s.T, config.n_embd, *drop["embd"])
        # norm_1, ln_1 = ops.layernorm_forward(x, …) of the first block
        self._add_and_normalise(s, 0, None, "h.0.ln_1", drop[None])
        for i in range(config.n_layer):
            w = flatten(self.weights.tree["h"][i])
            # attended, attn = self_attention_forward(norm_1, …)
            gpu.matmul(s.norm[2 * i], w["attn.c_attn.weight"], s.qkv[i], bias=w.get("attn.c_attn.bias"))
            gpu.launch("attention_forward", attention_grid, ATTENTION, s.merged[i], s.lse[i], s.qkv[i], s.T, H,
                       config.attention_scale(i), config.causal, *drop["att", i])
            gpu.matmul(s.merged[i], w["attn.c_proj.weight"], s.branch, bias=w.get("attn.c_proj.bias"))
            # x_mid = x + dropped_1; norm_2, ln_2 = ops.layernorm_forward(x_mid, …)
            self._add_and_normalise(s, 2 * i + 1, s.branch, f"h.{i}.ln_2", drop["attn", i])
            # mlp_out, mlp = mlp_forward(norm_2, …)
            gpu.matmul(s.norm[2 * i + 1], w["mlp.c_fc.weight"], s.hidden[i], bias=w.get("mlp.c_fc.bias"))
            gpu.launch("gelu_forward", *elementwise(s.N * F, PACK), s.active[i], s.hidden[i], s.N * F,
                       config.activation == "gelu")
            gpu.matmul(s.active[i], w["mlp.c_proj.weight"], s.branch, bias=w.get("mlp.c_proj.bias"))
            # x_out = x_mid + dropped_2, and the next LayerNorm: ln_1 of the next block, or ln_f
            following = f"h.{i + 1}.ln_1" if i + 1 < config.n_layer else "ln_f"
            self._add_and_normalise(s, 2 * i + 2, s.branch, following, drop["mlp", i])
        # logits, head = ops.head_forward(x, head_weight, …)
        gpu.matmul(s.norm[-1], self._padded_head(self.weights, s).T, s.logits)

    def _loss(self, s, gradient):
        """Compute the loss; with `gradient`, write dlogits over the logits (cross_entropy_forward and _backward)."""
        columns = s.logits.shape[1]
        self.gpu.launch("classifier", s.N, row_threads(columns, PACK), s.logits, s.losses, s.targets,
                        self.params.config.vocab_size, columns, s.count, gradient)
        self.gpu.launch("sum", 1, REDUCTION, s.loss, s.losses, s.N, False)

    def _backward(self, s, add, dropout):
        """Compute every gradient from dlogits, in reverse order; with `add`, add them to what is there."""
        config, gpu, grads = self.params.config, self.gpu, self.grads
        F, H = config.mlp_width, config.n_head
        attention_grid = (H, s.B, blocks(s.T, ATTENTION_ROWS))
        drop = dropout_sites(config, s.stream if dropout else None)

        # logits, head = ops.head_forward(x, head_weight, …)
        gpu.matmul(s.logits.T, s.norm[-1], self._padded_head(grads, s), add=add)
        gpu.matmul(s.logits, self._padded_head(self.weights, s), s.dnorm)
        # x, ln_f = ops.layernorm_forward(x, …): the first to set dx; dbranch is the last MLP's dmlp_out
        self._normalise_backward(s, -1, "ln_f", s.dbranch, drop["mlp", config.n_layer - 1], add, first=True)
        for i in reversed(range(config.n_layer)):
            w, g = flatten(self.weights.tree["h"][i]), flatten(grads.tree["h"][i])
            # mlp_out, mlp = mlp_forward(norm_2, …)
            self._linear_backward(s, s.dbranch, s.active[i], s.dhidden, w, g, "mlp.c_proj", add)
            gpu.launch("gelu_backward", *elementwise(s.N * F, PACK), s.dhidden, s.dhidden, s.hidden[i],
                       s.N * F, config.activation == "gelu")
            self._linear_backward(s, s.dhidden, s.norm[2 * i + 1], s.dnorm, w, g, "mlp.c_fc", add)
            # x_mid = x + dropped_1; norm_2, ln_2 = ops.layernorm_forward(x_mid, …): dbranch is dattended
            self._normalise_backward(s, 2 * i + 1, f"h.{i}.ln_2", s.dbranch, drop["attn", i], add)
            # attended, attn = self_attention_forward(norm_1, …)
            self._linear_backward(s, s.dbranch, s.merged[i], s.dmerged, w, g, "attn.c_proj", add)
            gpu.launch("attention_delta", attention_grid, ATTENTION, s.delta, s.dmerged, s.merged[i], s.T, H)
            for part in ("attention_backward_kv", "attention_backward_q"):
                gpu.launch(part, attention_grid, ATTENTION, s.dqkv, s.dmerged, s.qkv[i], s.lse[i], s.delta, s.T, H,
                           config.attention_scale(i), config.causal, *drop["att", i])
            self._linear_backward(s, s.dqkv, s.norm[2 * i], s.dnorm, w, g, "attn.c_attn", add)
            # norm_1, ln_1 = ops.layernorm_forward(x, …): dbranch is the dmlp_out of the block before, if there is one
            dbranch, dropped = (s.dbranch, drop["mlp", i - 1]) if i else (None, drop[None])
            self._normalise_backward(s, 2 * i, f"h.{i}.ln_1", dbranch, dropped, add)
        # x, drop = ops.dropout_forward(x, masks.embd)
        if drop["embd"] != drop[None]:
            gpu.launch("dropout_backward", *elementwise(s.dx.size, QUAD), s.dx, s.dx.size, *drop["embd"])
        # x, embedding = ops.embedding_forward(idx, wte, wpe)
        if not config.tie_word_embeddings and not add:
            gpu.zero(grads["wte.weight"])
        # Each warp of a block sums some of a token's rows: letters are repeated hundreds of times, most words are not.
        wte_threads = WTE_THREADS if config.vocab_size > s.N // 16 else WTE_THREADS_REPEATED
        gpu.launch("embedding_backward_wte", (min(s.N, config.vocab_size), blocks(config.n_embd, WTE_COLUMNS)),
                   wte_threads, grads["wte.weight"], s.dx, s.order, s.starts, s.tokens, s.n_tokens, config.n_embd)
        gpu.launch("embedding_backward_wpe", blocks(config.block_size * config.n_embd, WPE * QUAD), WPE,
                   grads["wpe.weight"], s.dx, s.B, s.T, config.n_embd, config.block_size, add)

    def _add_and_normalise(self, s, j, branch, name, drop):
        """Compute x[j] = x[j - 1] + dropped branch, if there is a branch, and norm[j], the LayerNorm `name` of x[j]."""
        config = self.params.config
        x, x_out = (s.x[j - 1], s.x[j]) if branch is not None else (s.x[j], None)
        self.gpu.launch("residual_layernorm_forward", s.N, row_threads(config.n_embd, LAYERNORM_COLUMNS), x_out,
                        s.norm[j], s.mean[j], s.rstd[j], x, branch, self.params[name + ".weight"],
                        self.params.get(name + ".bias"), config.n_embd, config.layer_norm_epsilon, *drop)

    def _normalise_backward(self, s, j, name, dbranch, drop, add, first=False):
        """From dnorm, add to dx (the first one sets it) and compute dbranch and the LayerNorm's dweight and dbias."""
        C, dbias = self.params.config.n_embd, self.grads.get(name + ".bias")
        self.gpu.launch("layernorm_backward", s.n_parts, row_threads(C, LAYERNORM_COLUMNS), s.dx, dbranch,
                        s.weight_parts, None if dbias is None else s.bias_parts, s.dnorm, s.x[j], s.mean[j], s.rstd[j],
                        self.params[name + ".weight"], s.N, C, first, *drop)
        self._sum_parts(self.grads[name + ".weight"], s.weight_parts, s.n_parts, add)
        if dbias is not None:
            self._sum_parts(dbias, s.bias_parts, s.n_parts, add)

    def _linear_backward(self, s, dy, x, dx, w, g, name, add):
        """Run `linear_backward` of the layer `name`: dy -> dx, and the gradients of its weight and bias."""
        self.gpu.matmul(x.T, dy, g[name + ".weight"], add=add)
        self.gpu.matmul(dy, w[name + ".weight"].T, dx)
        dbias = g.get(name + ".bias")
        if dbias is not None:
            n_parts = blocks(s.n_parts, 2)
            self.gpu.launch("column_sum", n_parts, row_threads(dbias.size, PACK), s.bias_parts, dy, s.N, dbias.size)
            self._sum_parts(dbias, s.bias_parts, n_parts, add)

    def _sum_parts(self, out, parts, n_parts, add):
        self.gpu.launch("column_sum_parts", blocks(out.size, COLUMNS), REDUCTION, out, parts, n_parts, out.size, add)

    def _padded_head(self, parameters, s):
        """The head's matrix and the rows that pad it: those of the next array in `flat`.

        As weights they give logits that nobody reads, and their dlogits are 0. As gradients they are set to 0 before
        their own gradient is written (or 0 is added to it).
        """
        rows, C = s.logits.shape[1], parameters.config.n_embd
        return parameters.flat[:rows * C].reshape(rows, C)


class Buffers:
    """The arrays on the GPU that a batch of B rows of T tokens needs, N = B T; each batch overwrites them."""

    def __init__(self, params, gpu, B, T):
        config = params.config
        C, F, H, L = config.n_embd, config.mlp_width, config.n_head, config.n_layer
        self.B, self.T, self.N = B, T, B * T
        N = self.N

        def real(*shape):
            return gpu.empty(shape, gpu.real)

        def floats(*shape):
            return gpu.empty(shape, params.flat.dtype)

        # What comes from the host, in one copy: name -> how many 32-bit integers.
        sizes = {"idx": N, "targets": N, "order": N, "starts": N + 1, "tokens": N, "n_tokens": 1, "count": 1,
                 "stream": 4}
        self.host, self.given, self._parts = np.zeros(sum(sizes.values()), np.int32), None, {}
        self.given = gpu.empty(self.host.shape, np.int32)
        begin = 0
        for name, size in sizes.items():
            self._parts[name] = slice(begin, begin + size)
            begin += size
        self.idx, self.targets, self.order, self.starts, self.tokens, self.n_tokens, self.count, stream = (
            self.given[part] for part in self._parts.values())
        self.stream = stream.view(np.uint32)            # seed low and high, step, micro-batch

        # Kept from the forward. The residual stream before and after each half of a block, and its LayerNorms:
        self.x = [floats(N, C) for _ in range(2 * L + 1)]
        self.norm = [real(N, C) for _ in range(2 * L + 1)]
        self.mean = [floats(N) for _ in range(2 * L + 1)]
        self.rstd = [floats(N) for _ in range(2 * L + 1)]
        self.qkv = [real(N, 3 * C) for _ in range(L)]
        self.merged = [real(N, C) for _ in range(L)]
        self.lse = [floats(B, H, T) for _ in range(L)]  # log of the sum of a row's exponentials
        self.hidden = [real(N, F) for _ in range(L)]
        self.active = [real(N, F) for _ in range(L)]
        padded = -(-config.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
        self.logits = real(N, padded)                   # and then dlogits
        self.losses, self.loss = floats(N), floats(1)

        # Reused by every block.
        self.branch = real(N, C)                        # what attention or the MLP adds to the stream
        self.dx = floats(N, C)
        self.dbranch, self.dnorm, self.dmerged = real(N, C), real(N, C), real(N, C)
        self.dqkv, self.dhidden = real(N, 3 * C), real(N, F)
        self.delta = floats(B, H, T)
        width = max(3 * C, F)
        self.n_parts = min(N, PARTS)
        self.weight_parts, self.bias_parts = floats(self.n_parts, width), floats(self.n_parts, width)

    def fill(self, **arrays):
        """Write what comes from the host into `host`, each under its name."""
        for name, values in arrays.items():
            begin = self._parts[name].start
            self.host[begin:begin + len(values)] = values


def dropout_sites(config, stream):
    """A dict: place of a dropout -> the kernels' three dropout arguments: p, the stream, the number of the mask.

    The places are "embd", ("att", i), ("attn", i), ("mlp", i), numbered as `draw_masks` draws them. The place None has
    no dropout, and without a stream no place has.
    """
    nothing, n = (0.0, None, 0), 0
    drop = {None: nothing}
    for kind, p, *layer in [("embd", config.used("embd_pdrop"))] + [
            (kind, config.used(field), i) for i in range(config.n_layer)
            for kind, field in (("att", "attn_pdrop"), ("attn", "resid_pdrop"), ("mlp", "mlp_pdrop"))]:
        drop[(kind, *layer) if layer else kind] = nothing if stream is None or p == 0.0 else (p, stream, n)
        n += p > 0.0
    return drop


def blocks(n, each):
    """n / each, rounded up: the number of blocks if each does `each` of n values."""
    return -(-n // each)


def elementwise(n, each):
    """The grid and the block of a kernel that goes through n values, `each` a thread."""
    return blocks(n, ELEMENTWISE * each), ELEMENTWISE


def row_threads(columns, each):
    """The number of threads for a row, whole warps and at most 1024, if each thread does `each` columns at a time."""
    return min(1024, blocks(columns, 32 * each) * 32)
