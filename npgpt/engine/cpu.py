"""The CPU engine: the lesson's lines on parts of arrays that fit the cache, on several threads.

* Batch shards: each thread runs forward and backward on its part of the batch, with a single-threaded BLAS. If the
  gradients of a shard are larger than its activations, the batch stays whole, and the threads work inside the layers.
* Row blocks for LayerNorm, GELU and the loss; tiles for attention; a matmul or a sort for the embedding's gradient.
* kernels "numba": compiled loops instead of NumPy's operators; "mkl": Intel's matmuls as well, if asked for.
"""

import functools
import platform
from pathlib import Path

import numpy as np

from npgpt import layers
from npgpt.engine.embedding import ONE_HOT_LIMIT, fast_embedding_backward, tied_gpt_backward
from npgpt.engine.memory import number_of_shards
from npgpt.engine.ops import seen_as, table, with_lora, without_caches
from npgpt.engine.reference import ReferenceEngine, counted
from npgpt.engine.row_blocks import in_row_blocks, row_blocks
from npgpt.engine.sources import as_tested, say_once
from npgpt.engine.threads import even_parts, in_threads, sharing_cores, spread, using_cores
from npgpt.engine.tiles import in_tiles
from npgpt.engine.update import adamw_update
from npgpt.errors import UserError
from npgpt.layers.loss import cross_entropy_backward, cross_entropy_forward
from npgpt.model.masks import draw_masks
from npgpt.model.transformer import gpt_forward

BY = {"numpy": "", "numba": ", loops by Numba", "mkl": ", loops by Numba, matmuls by MKL"}


def is_intel():
    cpuinfo = Path("/proc/cpuinfo")
    return "GenuineIntel" in (cpuinfo.read_text() if cpuinfo.exists() else platform.processor())


def is_installed():
    import importlib.metadata  # here, because it takes long

    return any(importlib.metadata.distributions(name="mkl"))


def cpu_kernels(kernels="auto"):
    """Return the kernels to use on this machine's CPU: "numpy", "numba" or "mkl"; "auto" is numba if Numba works.

    Raises UserError, naming the extra, if what another choice needs does not work.
    """
    if kernels != "numpy":
        try:
            import numba

            from npgpt.engine import few_rows, matmul  # noqa: F401 (these rooms may be deleted)
            from npgpt.engine.loops import lines  # noqa: F401
            if numba.config.DISABLE_JIT:
                raise ImportError("NUMBA_DISABLE_JIT is set")
        except Exception as error:          # a broken Numba raises anything
            if kernels == "auto":
                return "numpy"
            raise UserError(f"--kernels {kernels} needs Numba ({error}): pip install "
                            f'"npgpt[{"mkl" if kernels == "mkl" else "fast"}]", or use --kernels numpy') from None
    if kernels == "mkl" and not is_installed():
        raise UserError('--kernels mkl needs Intel\'s MKL: pip install "npgpt[mkl]", or use --kernels numpy')
    return "numba" if kernels == "auto" else kernels


class CPUEngine(ReferenceEngine):
    """Runs the model on `threads` cores. The same arguments and number of threads give the same bits."""

    def __init__(self, params, threads, kernels="numpy"):
        super().__init__(params, threads)
        lesson, losses, few_rows, matmul = layers, {}, None, None
        if kernels != "numpy":
            from npgpt.engine import few_rows, matmul  # import Numba
            from npgpt.engine.loops.lines import compile_lines
            lesson = table(**{name: compile_lines(getattr(layers, name)) for name in layers.__all__ if name.islower()})
            losses = {"forward": compile_lines(layers.cross_entropy_forward, donated=("logits",)),
                      "backward": compile_lines(layers.cross_entropy_backward, donated=("probs",))}
            self.adamw_update, block = compile_lines(adamw_update), params.config.block
            self.config = params.config.with_block(compile_lines(block.forward), compile_lines(block.backward))
        losses["in_blocks"] = as_tested("cross_entropy_forward", "cross_entropy_backward")
        self.kernels, self.cross_entropy = kernels, functools.partial(loss_in_blocks, **losses)
        pairs = {name: (getattr(lesson, f"{name}_forward"), getattr(lesson, f"{name}_backward"))
                 for name in ("layernorm", "gelu_tanh", "gelu_exact", "linear", "head", "attention")}
        if kernels == "numpy":
            pairs |= {name: in_row_blocks(*pairs[name]) for name in ("layernorm", "gelu_tanh", "gelu_exact")
                      if as_tested(f"{name}_forward", f"{name}_backward")}
            if as_tested("linear_forward"):
                pairs["linear"] = linear_forward_in_place, layers.linear_backward
        elif kernels == "mkl":
            pairs |= {name: seen_as(matmul.Intel, *pairs[name]) for name in ("linear", "head", "attention")}
        for name in ("linear", "head"):
            if as_tested(f"{name}_forward"):
                forward, backward = in_eights(pairs[name][0]), pairs[name][1]
                if kernels != "numpy" and (name == "head" or is_intel()):       # on AMD's CPUs, OpenBLAS with eight
                    multiply = few_rows.times_transposed if name == "head" else few_rows.times      # rows is as fast
                    forward = few_rows.by_loops(multiply, forward)
                pairs[name] = forward, backward
        if as_tested("attention_forward", "attention_backward"):
            pairs["attention"] = in_tiles(*pairs["attention"])
        replaced = {f"{name}_{way}": function for name, both in pairs.items()
                    for way, function in zip(("forward", "backward"), both, strict=True)}
        if as_tested("embedding_backward"):
            replaced["embedding_backward"] = fast_embedding_backward
            large, lora = params.config.vocab_size > ONE_HOT_LIMIT, params.config.lora_rank
            tied = params.config.tie_word_embeddings and large and not lora
            if tied and as_tested("gpt_backward"):
                self.gpt_backward = tied_gpt_backward
        self.in_place = as_tested("gpt_forward", "head_forward")    # edited lines may keep logits
        self.ops = with_lora(table(lesson, **replaced), params.config)

    @property
    def description(self):
        return f"{self.threads} thread{'s' * (self.threads > 1)}{BY[self.kernels]}"

    def accumulated(self, batches, rngs, count, mask=None):
        """As in `ReferenceEngine`; each shard sums over its micro-batches, then the shards are summed."""
        shape = batches[0][0].shape
        parts = self.parts(shape[0], number_of_shards(self.params.config, *shape, self.threads))
        n = len(parts)
        drawn = [[rng] * n if n == 1 or rng is None else rng.spawn(n) for rng in rngs]
        with sharing_cores(n, self.threads):
            results = in_threads(self.run_shard, [[(idx[part], targets[part]) for idx, targets in batches]
                                                  for part in parts], list(zip(*drawn, strict=True)), [count] * n,
                                 [mask_part(mask, part) for part in parts])
        grads = results[0][1]
        with using_cores(self.threads):
            for _, others in results[1:]:
                grads = self.added(others, grads)
        return sum(loss for loss, _ in results), grads

    def parts(self, B, shards):
        """Return the slices of a batch's shards; one, with a note, if its texts are dependent."""
        if self.mixes_texts:
            say_once(f"the texts of a batch depend on each other in {self.params.config.block}, so "
                     "batches are not divided among threads, which work inside the layers instead")
            shards = 1
        return even_parts(B, shards)

    def run_shard(self, batches, rngs, count, mask):
        """Run a shard of each micro-batch; return the sums of the losses and of the gradients."""
        config, total, grads = self.config, 0.0, None
        for (idx, targets), rng in zip(batches, rngs, strict=True):
            masks = draw_masks(config, *idx.shape, self.params.dtype, rng)
            logits, gpt = gpt_forward(idx, self.params.tree, config, masks, self.ops, mask)
            dlogits = logits if self.in_place else logits.copy()
            total += self.cross_entropy(dlogits, targets, count, gradient=True)     # in place
            new = self.params.flatten(self.gpt_backward(dlogits, gpt, self.ops))
            grads = self.added(new, grads)
        return total, grads

    def loss(self, idx, targets, mask=None, count=None):
        count, parts = count or counted(targets), self.parts(len(idx), self.threads)
        with sharing_cores(len(parts), self.threads):
            losses = in_threads(self.run_forward, [idx[part] for part in parts], [targets[part] for part in parts],
                                [count] * len(parts), [mask_part(mask, part) for part in parts])
        return sum(losses)

    def run_forward(self, idx, targets, count, mask):
        masks = draw_masks(self.config, *idx.shape, self.params.dtype)
        logits, _ = gpt_forward(idx, self.params.tree, self.config, masks, without_caches(self.ops), mask)
        return self.cross_entropy(logits, targets, count, gradient=False)


def mask_part(mask, part):
    """Return the mask of some batch entries; mask: (T, T), (B, 1 or H, T, T) or None."""
    return mask if mask is None or mask.ndim == 2 else mask[part]


def linear_forward_in_place(x, weight, bias=None):
    """Compute `linear_forward`, but add the bias in place, which saves an array of the size of y."""
    y, cache = layers.linear_forward(x, weight)
    if bias is not None:
        y += bias
    return y, (*cache[:-1], bias is not None)


def in_eights(forward):
    """Wrap a forward of `linear` or `head`: pad 2 to 15 rows to 8 or 16, because BLAS multiplies 8 faster than 5."""
    def padded(x, weight, bias=None):
        rows = x.reshape(-1, x.shape[-1])
        N = len(rows)
        if N == 1 or N > 16 or N % 8 == 0:
            return forward(x, weight, bias)
        y, _ = forward(np.concatenate([rows, np.zeros_like(rows, shape=(-N % 8, rows.shape[1]))]), weight, bias)
        return y[:N].reshape(*x.shape[:-1], -1), (x, weight, bias is not None)

    return padded


def loss_in_blocks(logits, targets, count, gradient, forward=cross_entropy_forward, backward=cross_entropy_backward,
                   in_blocks=True):
    """Return the summed losses of logits (B, T, V) divided by `count`, a float; if `gradient`, dlogits replace logits.

    In blocks of rows, neither probabilities nor dlogits need another array of that size, the largest of all.
    """
    rows, row_targets, blocks = logits, targets, [slice(None)]
    if in_blocks:
        rows, row_targets = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
        blocks = row_blocks(rows)

    def run(block):
        share = counted(row_targets[block]) / count
        if share == 0.0:
            rows[block] = 0.0
            return 0.0
        loss, cross_entropy = forward(rows[block], row_targets[block])
        if gradient:
            dlogits = backward(share, cross_entropy)
            if not np.may_share_memory(dlogits, rows):      # compiled functions put them there
                rows[block] = dlogits
        return float(loss) * share

    return sum(spread(run, blocks))
