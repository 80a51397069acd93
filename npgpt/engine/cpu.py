"""The CPU engine: the lesson's lines on parts of arrays that fit the cache, on several threads.

* Batch shards: each thread runs forward and backward on its part of the batch, with a
  single-threaded BLAS. If the gradients of a shard are larger than its activations, the batch stays
  whole, and the threads work inside the layers.
* Row blocks for LayerNorm, GELU and the loss; tiles for attention; a matmul or a sort for the
  embedding's gradient.
* kernels "numba": compiled loops instead of NumPy's operators. bfloat16: see bfloat16.py.
"""

import functools
from types import SimpleNamespace

import numpy as np

from npgpt import layers
from npgpt.engine.embedding import ONE_HOT_LIMIT, fast_embedding_backward, tied_backward
from npgpt.engine.memory import number_of_shards
from npgpt.engine.ops import seen_as, table, without_caches, without_frozen
from npgpt.engine.reference import ReferenceEngine, counted
from npgpt.engine.row_blocks import in_row_blocks, row_blocks
from npgpt.engine.sources import as_tested, edited_of
from npgpt.engine.threads import even_parts, in_threads, sharing_cores, spread, using_cores
from npgpt.engine.tiles import in_tiles
from npgpt.errors import UserError, say_once
from npgpt.layers.loss import cross_entropy_backward, cross_entropy_forward
from npgpt.model.batch import loss_of
from npgpt.model.masks import draw_masks
from npgpt.model.variants import model_forward

BY = {"numpy": "", "numba": ", loops by Numba"}


def cpu_kernels(kernels="auto"):
    """Return the kernels to use on this machine's CPU: "numpy" or "numba"; "auto" is numba if Numba
    works.

    Raises UserError, naming the extra, if Numba is asked for and does not work.
    """
    if kernels == "numpy":
        return kernels
    try:
        import numba

        from npgpt.engine.loops import lines  # noqa: F401 (this room may be deleted)

        if numba.config.DISABLE_JIT:
            raise ImportError("NUMBA_DISABLE_JIT is set")
    except Exception as error:  # a broken Numba raises anything
        if kernels == "auto":
            return "numpy"
        raise UserError(
            f'--kernels numba needs Numba ({error}): pip install "npgpt[fast]", '
            "or use --kernels numpy"
        ) from None
    return "numba"


class CPUEngine(ReferenceEngine):
    """Runs the model on `threads` cores.

    The same arguments and number of threads give the same bits.
    bfloat16: whether the factors of matmuls are rounded.
    """

    def __init__(self, params, threads, kernels="numpy", bfloat16=False):
        super().__init__(params, threads)
        self.kernels, self.bfloat16 = kernels, bfloat16
        config, ops = params.config, vars(table())
        loss_pair = cross_entropy_forward, cross_entropy_backward
        if kernels == "numpy":
            for name in ("layernorm", "gelu_tanh", "gelu_exact"):
                wrap(ops, in_row_blocks, name)
            if as_tested("linear_forward"):
                ops["linear_forward"] = linear_forward_in_place
        else:
            from npgpt.engine.loops.lines import compile_lines

            for name in filter(str.islower, layers.__all__):
                ops[name] = compile_lines(ops[name])
            loss_pair = (
                compile_lines(cross_entropy_forward, donated=("logits",)),
                compile_lines(cross_entropy_backward, donated=("probs",)),
            )
            functions = config.block.forward, config.block.backward
            self.config = config.with_block(*map(compile_lines, functions))
        in_blocks = as_tested("cross_entropy_forward", "cross_entropy_backward")
        self.cross_entropy = functools.partial(loss_in_blocks, *loss_pair, in_blocks)
        for name in ("linear_forward", "head_forward"):
            if as_tested(name):
                ops[name] = in_eights(ops[name])
        tiles = functools.partial(in_tiles, blocks=1 + bfloat16)
        wrap(ops, tiles, "attention")
        if bfloat16:
            from npgpt.engine import bfloat16 as by

            by.library()  # says at once what is missing
            for name in ("linear", "head", "attention"):
                names = f"{name}_forward", f"{name}_backward"
                kind = by.Forgetful if edited_of(*names) else by.Rounding
                ops.update(zip(names, seen_as(kind, *map(ops.get, names)), strict=True))
        if as_tested("embedding_backward"):
            ops["embedding_backward"] = fast_embedding_backward
            large = config.vocab_size > ONE_HOT_LIMIT
            tied = config.tie_word_embeddings and large and "wte.weight" in params.trained
            if tied and as_tested("gpt_backward"):
                self.model_backward = tied_backward
        self.in_place = as_tested("gpt_forward", "head_forward")  # edited lines may keep logits
        self.reads_once = as_tested("gpt_forward", "gpt_backward")
        self.ops = without_frozen(SimpleNamespace(**ops), params)

    @property
    def description(self):
        rounded = ", matmuls by oneDNN" if self.bfloat16 else ""
        return f"{self.threads} thread{'s' * (self.threads > 1)}{BY[self.kernels]}{rounded}"

    def run_forward(self, *arguments):
        """As in `ReferenceEngine`; a block's cache is freed after its backward."""
        logits, cache = super().run_forward(*arguments)
        if self.reads_once:
            embedding, drop, blocks, *others = cache
            cache = embedding, drop, Once(blocks), *others
        return logits, cache

    def loss_and_grads(self, batches, rngs, count, mask=None):
        """As in `ReferenceEngine`; each shard sums over its micro-batches, then the shards are
        summed.
        """
        parts = self.shards(*batches[0][0].shape)
        n = len(parts)
        drawn = [rngs_of_shards(rng, n) for rng in rngs]

        def run_shard(part, rngs):
            """Run a shard of each micro-batch; return the sums of losses and gradients."""
            total, grads = 0.0, None
            for (idx, targets), rng in zip(batches, rngs, strict=True):
                logits, gpt = self.run_forward(idx[part], rng, mask_part(mask, part))
                dlogits = logits if self.in_place else logits.copy()  # it gets the gradients
                total += self.cross_entropy(dlogits, targets[part], count, True)
                new = self.params.flatten(self.model_backward(dlogits, gpt, self.ops))
                grads = self.added(new, grads)
            return total, grads

        with sharing_cores(n, self.threads):
            results = in_threads(run_shard, parts, list(zip(*drawn, strict=True)))
        return sum(loss for loss, _ in results), self.sum_of([grads for _, grads in results])

    def own_loss(self, function, idx, rng=None, mask=None):
        """As in `ReferenceEngine`; the function gets the logits of all shards."""
        parts = self.shards(*idx.shape)
        n = len(parts)

        def forward(part, rng):
            return self.run_forward(idx[part], rng, mask_part(mask, part))

        def backward(part, gpt):
            return self.params.flatten(self.model_backward(dlogits[part], gpt, self.ops))

        with sharing_cores(n, self.threads):
            results = in_threads(forward, parts, rngs_of_shards(rng, n))
        logits, caches = zip(*results, strict=True)
        with self.running():
            joined = logits[0] if n == 1 and self.in_place else np.concatenate(logits)
            loss, dlogits = loss_of(function, joined)
        with sharing_cores(n, self.threads):
            shards = in_threads(backward, parts, caches)
        return float(loss), self.sum_of(shards)

    def sum_of(self, shards):
        """Return the sum of the gradients of shards."""
        with using_cores(self.threads):
            return functools.reduce(lambda total, grads: self.added(grads, total), shards)

    def adamw_step(self, grads, moments, step):
        if self.kernels == "numba":
            from npgpt.engine.loops.lines import compile_lines

            step = step._replace(rule=compile_lines(step.rule))  # compiled once
        return super().adamw_step(grads, moments, step)

    def shards(self, B, T):
        """Return the slices of a batch's shards in training."""
        return self.parts(B, number_of_shards(self.params.config, B, T, self.threads))

    def parts(self, B, shards):
        """Return the slices of a batch's shards; one, with a note, if its texts are dependent."""
        if shards > 1 and self.mixes_texts:
            say_once(
                f"the texts of a batch depend on each other in {self.mixes_texts}, so batches are "
                "not divided among threads, which work inside the layers instead"
            )
            shards = 1
        return even_parts(B, shards)

    def loss(self, idx, targets, mask=None):
        count, parts = counted(targets), self.parts(len(idx), self.threads)
        masks = draw_masks(self.config, *idx.shape, self.params.dtype)
        ops = without_caches(self.ops)

        def loss_of_part(part):
            tree, seen = self.params.tree, mask_part(mask, part)
            logits, _ = model_forward(idx[part], tree, self.config, masks, ops, seen)
            return self.cross_entropy(logits, targets[part], count, False)

        with sharing_cores(len(parts), self.threads):
            return sum(in_threads(loss_of_part, parts))


class Once(list):
    """A list that forgets an item when it is read."""

    def __getitem__(self, i):
        item, self[i] = super().__getitem__(i), None
        return item


def wrap(ops, wrapper, layer):
    """Replace the pair of a layer by what a wrapper returns, unless one was edited."""
    names = f"{layer}_forward", f"{layer}_backward"
    if as_tested(*names):
        ops.update(zip(names, wrapper(*map(ops.get, names)), strict=True))


def rngs_of_shards(rng, n):
    """Return a generator of dropout masks for each of n shards; None without dropout."""
    return [rng] * n if n == 1 or rng is None else rng.spawn(n)


def mask_part(mask, part):
    """Return the mask of some batch entries; mask: (T, T), (B, 1 or H, T, T) or None."""
    return mask if mask is None or mask.ndim == 2 else mask[part]


def linear_forward_in_place(x, weight, bias=None):
    """Compute `linear_forward`, but add the bias in place, which saves an array like y."""
    y, cache = layers.linear_forward(x, weight)
    if bias is not None:
        y += bias
    return y, (*cache[:-1], bias is not None)


def in_eights(forward):
    """Wrap a forward of `linear` or `head`: pad 2 to 15 rows to 8 or 16, because BLAS multiplies 8
    faster than 5.
    """

    def padded(x, *others, **named):
        rows = x.reshape(-1, x.shape[-1])
        N = len(rows)
        if N == 1 or N > 16 or N % 8 == 0:
            return forward(x, *others, **named)
        more = np.zeros_like(rows, shape=(-N % 8, rows.shape[1]))
        y, (_, *cache) = forward(np.concatenate([rows, more]), *others, **named)
        return y[:N].reshape(*x.shape[:-1], -1), (x, *cache)

    return padded


def loss_in_blocks(forward, backward, in_blocks, logits, targets, count, gradient):
    """Return the summed losses of logits (B, T, V) divided by `count`, a float; if `gradient`,
    dlogits replace logits.

    In blocks of rows, neither probabilities nor dlogits need another array of that size, the
    largest of all. forward, backward: of the cross-entropy.
    """
    rows, row_targets, blocks = logits, targets, [slice(None)]
    if in_blocks:
        rows, row_targets = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
        blocks = row_blocks(rows)

    def loss_of_block(block):
        share = counted(row_targets[block]) / count
        if share == 0.0:
            rows[block] = 0.0
            return 0.0
        loss, cross_entropy = forward(rows[block], row_targets[block])
        if gradient:
            dlogits = backward(share, cross_entropy)
            if not np.may_share_memory(dlogits, rows):  # compiled functions put them there
                rows[block] = dlogits
        return float(loss) * share

    return sum(spread(loss_of_block, blocks))
