"""The CPU engine: the same lines on parts of the arrays that fit the cache, on several threads.

* Batch shards: each thread runs forward and backward on its part of the batch, with a single-threaded BLAS. If the
  gradients of a shard are larger than its activations, the batch stays whole, and the threads work inside the layers.
* Row blocks for LayerNorm, GELU and the loss; tiles for attention; a matmul or a sort for the embedding's gradient.
"""

import functools

from npgpt import layers
from npgpt.engine.embedding import fast_embedding_backward
from npgpt.engine.memory import number_of_shards
from npgpt.engine.ops import table, without_caches
from npgpt.engine.reference import ReferenceEngine, counted
from npgpt.engine.row_blocks import in_row_blocks, row_blocks
from npgpt.engine.threads import even_parts, in_threads, sharing_cores, spread, using_cores
from npgpt.engine.tiles import tiled_attention_backward, tiled_attention_forward
from npgpt.layers.loss import cross_entropy_backward, cross_entropy_forward
from npgpt.model.masks import draw_masks
from npgpt.model.transformer import gpt_backward, gpt_forward


class CPUEngine(ReferenceEngine):
    """Runs the model on `threads` cores. The same arguments and number of threads give the same bits."""

    def __init__(self, params, threads):
        super().__init__(params, threads)
        blocked = {}
        for name in ("layernorm", "gelu_tanh", "gelu_exact"):
            pair = [f"{name}_forward", f"{name}_backward"]
            blocked |= zip(pair, in_row_blocks(*(getattr(layers, each) for each in pair)), strict=True)
        tied = params.config.tie_word_embeddings
        self.ops = table(**blocked, linear_forward=linear_forward_in_place, attention_forward=tiled_attention_forward,
                         attention_backward=tiled_attention_backward,
                         embedding_backward=functools.partial(fast_embedding_backward, tied=tied))

    @property
    def where(self):
        return f"{self.threads} thread{'s' * (self.threads > 1)}"

    def loss_and_grads(self, idx, targets, rng=None, count=None, add_to=None, mask=None):
        loss, grads = self.accumulated([(idx, targets)], [rng], count or counted(targets), mask)
        with using_cores(self.threads):
            return loss, self.added(grads, add_to)

    def accumulated(self, batches, rngs, count, mask=None):
        """As in `ReferenceEngine`; each shard adds up its own micro-batches, and then the shards are added up."""
        shape = batches[0][0].shape
        parts = even_parts(shape[0], number_of_shards(self.params.config, *shape, self.threads))
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

    def run_shard(self, batches, rngs, count, mask):
        """Forward and backward of a shard of each micro-batch: the sums of the losses and of the gradients."""
        config, total, grads = self.params.config, 0.0, None
        for (idx, targets), rng in zip(batches, rngs, strict=True):
            masks = draw_masks(config, *idx.shape, self.params.dtype, rng)
            logits, gpt = gpt_forward(idx, self.params.tree, config, masks, self.ops, mask)
            total += loss_in_blocks(logits, targets, count, gradient=True)      # the logits are dlogits now
            grads = self.added(self.params.flatten(gpt_backward(logits, gpt, self.ops)), grads)
        return total, grads

    def loss(self, idx, targets, mask=None, count=None):
        count, parts = count or counted(targets), even_parts(len(idx), self.threads)
        with sharing_cores(len(parts), self.threads):
            losses = in_threads(self.run_forward, [idx[part] for part in parts], [targets[part] for part in parts],
                                [count] * len(parts), [mask_part(mask, part) for part in parts])
        return sum(losses)

    def run_forward(self, idx, targets, count, mask):
        masks = draw_masks(self.params.config, *idx.shape, self.params.dtype)
        logits, _ = gpt_forward(idx, self.params.tree, self.params.config, masks, without_caches(self.ops), mask)
        return loss_in_blocks(logits, targets, count, gradient=False)

    def added(self, grads, add_to):
        if add_to is None:
            return grads

        def add(name):
            add_to[name] += grads[name]

        spread(add, list(grads))
        return add_to


def mask_part(mask, part):
    """What is added to the attention scores of some batch entries: mask (T, T) or (B, 1, T, T), or None."""
    return mask if mask is None or mask.ndim == 2 else mask[part]


def linear_forward_in_place(x, weight, bias=None):
    """Compute what `linear_forward` does; the bias is added in place, which saves an array as large as y."""
    y, cache = layers.linear_forward(x, weight)
    if bias is not None:
        y += bias
    return y, (*cache[:-1], bias is not None)


def loss_in_blocks(logits, targets, count, gradient):
    """The sum of the losses of logits (B, T, V) divided by `count`, a float; if `gradient`, dlogits replace the logits.

    The logits are the largest array of all. Block by block, neither the probabilities nor dlogits need another one.
    """
    rows, row_targets = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)

    def run(block):
        share = counted(row_targets[block]) / count
        if share == 0.0:
            rows[block] = 0.0
            return 0.0
        loss, cross_entropy = cross_entropy_forward(rows[block], row_targets[block])
        if gradient:
            rows[block] = cross_entropy_backward(share, cross_entropy)
        return float(loss) * share

    return sum(spread(run, row_blocks(rows)))
