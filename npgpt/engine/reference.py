"""The reference engine: the lesson's lines, called once on whole arrays."""

import functools

import numpy as np

from npgpt import layers
from npgpt.arrays import to_scalar
from npgpt.engine.kv_cache import KVCache
from npgpt.engine.ops import without_caches, without_frozen
from npgpt.engine.threads import sharing_cores, spread
from npgpt.engine.trial import mixes_texts
from npgpt.engine.update import update_slices
from npgpt.layers.loss import IGNORE_INDEX, cross_entropy_forward
from npgpt.model.batch import loss_of
from npgpt.model.masks import draw_masks
from npgpt.model.parameters import Parameters
from npgpt.model.variants import model_backward, model_forward

DROPOUT = 1  # the stream of random numbers for dropout; the trainer draws batches from another one


class ReferenceEngine:
    """Runs each layer once on whole arrays, so that `print` and breakpoints in a layer show what a
    learner expects.

    params: the model's `Parameters`. threads: of BLAS. The attribute config has the block that is
    run.
    """

    model_backward, kernels = staticmethod(model_backward), "reference"
    synchronous = True  # whether results are ready when a call returns

    def __init__(self, params: Parameters, threads: int):
        self.params, self.threads = params, threads
        self.config, self.ops = params.config.with_block(), without_frozen(layers, params)

    @functools.cached_property
    def mixes_texts(self) -> str:
        """Where the texts of a batch depend on each other, or "": then no batch may be divided."""
        return mixes_texts(self.params.config)

    @property
    def description(self) -> str:
        """What runs the model: threads, or a GPU."""
        return f"{self.threads} thread{'s' * (self.threads > 1)}, reference lines"

    def loss_and_grads(self, batches, rngs, count, mask=None):
        """Sum the losses, a scalar, and the gradients, a dict name -> array, of micro-batches.

        batches: pairs (idx, targets) of (B, T) integers on the host
        rngs: for the dropout masks of each, or None for each
        count: the divisor of the summed losses, the number of all targets that are not ignored
        mask: added to the attention scores, (T, T) or (B, 1 or H, T, T) on the host, or None
        """
        total, grads = 0.0, None
        with self.running():
            for (idx, targets), rng in zip(batches, rngs, strict=True):
                share = counted(targets) / count
                idx, targets, where = self.on_device(idx, targets, mask)
                logits, gpt = self.run_forward(idx, rng, where)
                loss, cross_entropy = cross_entropy_forward(logits, targets)
                dlogits = self.ops.cross_entropy_backward(share, cross_entropy)
                dp = self.model_backward(dlogits, gpt, self.ops)
                total += to_scalar(loss * share)
                grads = self.added(self.params.flatten(dp), grads)
                del logits, gpt, cross_entropy, dlogits, dp  # before the next forward
        return total, grads

    def for_user(self, loss, grads):
        """Return what `loss_and_grads` has returned, in arrays of the model's library."""
        return loss, grads

    def run_forward(self, idx, rng, mask):
        """Return the logits (B, T, V) and the cache. The arguments are on the model's device."""
        masks = draw_masks(self.config, *idx.shape, self.params.dtype, rng)
        return model_forward(idx, self.params.tree, self.config, masks, self.ops, mask)

    def own_loss(self, function, idx, rng=None, mask=None):
        """Return a loss of the user's, and the gradients of one batch, as `loss_and_grads` does.

        function: logits (B, T, V) -> loss, dlogits. It is called once, for the whole batch.
        """
        with self.running():
            logits, gpt = self.run_forward(*self.on_device(idx), rng, *self.on_device(mask))
            loss, dlogits = loss_of(function, logits)
            dp = self.model_backward(dlogits, gpt, self.ops)
            return to_scalar(loss), self.params.flatten(dp)

    def loss(self, idx, targets, mask=None):
        """Compute the mean loss of one batch, a scalar, without dropout and caches."""
        masks = draw_masks(self.config, *idx.shape, self.params.dtype)
        ops = without_caches(self.ops)
        with self.running():
            idx, targets, mask = self.on_device(idx, targets, mask)
            logits, _ = model_forward(idx, self.params.tree, self.config, masks, ops, mask)
            return to_scalar(cross_entropy_forward(logits, targets)[0])

    def running(self):
        """Return a context in which BLAS has this engine's threads."""
        return sharing_cores(1, self.threads)

    def on_device(self, *arrays):
        """Copy arrays to the model's device; None stays None."""
        return [None if array is None else self.params.xp.asarray(array) for array in arrays]

    def added(self, grads, add_to):
        """Return grads, or add_to with grads added in place, on the cores that are free."""

        def add(name):
            add_to[name] += grads[name]

        if add_to is None:
            return grads
        spread(add, list(grads))
        return add_to

    def adamw_step(self, grads, moments, step):
        """Let an `AdamWStep` update the parameters and the moments (m, v); return the norm."""
        return update_slices(self.params, grads, moments, step, self.threads)

    def dropout_rng(self, seed: int, step: int, micro_batch: int) -> object:
        """Return a generator for the dropout masks of a micro-batch: reproducible for one kind of
        device.
        """
        return np.random.default_rng([seed, DROPOUT, step, micro_batch])

    def reader(self, B, pads=None):
        """Return a `KVCache`, which reads B texts. pads: as in `Texts`."""
        return KVCache(self, B, pads)


def counted(targets):
    """Return the number of targets that are not ignored."""
    return int((targets != IGNORE_INDEX).sum())
