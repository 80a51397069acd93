"""The reference engine: the lesson's lines, called once on whole arrays."""

import functools
import math

import numpy as np

from npgpt import layers
from npgpt.arrays import is_on_host, to_scalar
from npgpt.engine import update
from npgpt.engine.kv_cache import KVCache
from npgpt.engine.ops import without_caches, without_frozen
from npgpt.engine.threads import sharing_cores, spread
from npgpt.layers.loss import IGNORE_INDEX, cross_entropy_forward
from npgpt.model.masks import draw_masks
from npgpt.model.parameters import Parameters
from npgpt.model.variants import model_backward, model_forward

DROPOUT = 1         # the stream of random numbers for dropout; the trainer draws batches from another one


class ReferenceEngine:
    """Runs each layer once on whole arrays, so that `print` and breakpoints in a layer show what a learner expects.

    params: the model's `Parameters`. threads: of BLAS. The attribute config has the block that is run.
    """

    adamw_update, kernels = staticmethod(update.adamw_update), "reference"
    model_backward = staticmethod(model_backward)
    synchronous = True          # whether results are ready when a call returns

    def __init__(self, params: Parameters, threads: int):
        self.params, self.threads = params, threads
        self.config, self.ops = params.config.with_block(), without_frozen(layers, params)

    @functools.cached_property
    def mixes_texts(self) -> bool:
        """Whether the texts of a batch depend on each other: then no batch may be divided."""
        return self.params.config.block.mixes_texts(self.params.config)

    @property
    def description(self) -> str:
        """What runs the model: threads, or a GPU."""
        return f"{self.threads} thread{'s' * (self.threads > 1)}, reference lines"

    def loss_and_grads(self, idx, targets, rng=None, count=None, mask=None):
        """Compute the loss, a scalar, and all gradients of one batch, a dict name -> array.

        count: by default the number of targets that are not ignored. The other arguments are those of `accumulated`.
        """
        return self.accumulated([(idx, targets)], [rng], count or counted(targets), mask)

    def accumulated(self, batches, rngs, count, mask=None):
        """Sum the losses and the gradients of the micro-batches of a step.

        batches: pairs (idx, targets) of (B, T) integers on the host; rngs: for the dropout masks of each, or None;
        count: the divisor of the summed losses; mask: added to the attention scores, (T, T) or (B, 1 or H, T, T) on the
        host, or None.
        """
        total, grads = 0.0, None
        with self.running():
            for (idx, targets), rng in zip(batches, rngs, strict=True):
                loss, new = self.run(idx, targets, rng, count, mask)
                total, grads = total + to_scalar(loss), self.added(new, grads)
        return total, grads

    def step(self, batches, rngs, count, moments, step):
        """Take a training step, as `accumulated` and `adamw_step`; return the loss and the norm."""
        loss, grads = self.accumulated(batches, rngs, count)
        if is_on_host(loss) and not math.isfinite(loss):
            raise update.NotFiniteError(f"the loss is {loss}")
        return loss, self.adamw_step(grads, moments, step)

    def run(self, idx, targets, rng, count, mask):
        """Run one forward and backward; return the loss times its share of `count`, and the gradients."""
        share = counted(targets) / count
        idx, targets, mask = self.on_device(idx, targets, mask)
        masks = draw_masks(self.config, *idx.shape, self.params.dtype, rng)
        logits, gpt = model_forward(idx, self.params.tree, self.config, masks, self.ops, mask)
        loss, cross_entropy = cross_entropy_forward(logits, targets)
        dlogits = self.ops.cross_entropy_backward(share, cross_entropy)
        return loss * share, self.params.flatten(self.model_backward(dlogits, gpt, self.ops))

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

    def adamw_step(self, grads, moments, step) -> float:
        """Clip the gradients, and update the parameters and AdamW's moments (m, v) for an `AdamWStep`; return the norm.

        Raises NotFiniteError, before anything has changed, if the norm is not finite; on a GPU it raises nothing, and
        the parameters become NaN. The bits of the result do not depend on the number of threads.
        """
        gs = [update.slice_of(grads, part) for part in self.slices]
        norm = update.norm_of(gs, self.threads)
        clip = update.clip_factor(norm, step.max_norm)
        p, m, v = (each.flat for each in (self.params, *moments))
        update.update_slices(step, p, m, v, self.slices, gs, clip, self.threads, self.adamw_update)
        return norm

    @functools.cached_property
    def slices(self):
        """The parts of the parameters that `adamw_step` updates."""
        return update.slices(self.params)

    def moments(self) -> tuple[Parameters, Parameters]:
        """Return AdamW's two moments, zero."""
        return self.params.zeros_like(), self.params.zeros_like()

    def dropout_rng(self, seed: int, step: int, micro_batch: int) -> object:
        """Return a generator for the dropout masks of a micro-batch: reproducible for one kind of device."""
        return np.random.default_rng([seed, DROPOUT, step, micro_batch])

    def reader(self, B, pads=None):
        """Return a function: the next tokens of B texts, (B, T) -> logits (B, V) after them. pads: as in `Texts`."""
        return KVCache(self, B, pads).read


def counted(targets):
    """Return the number of targets that are not ignored."""
    return int((targets != IGNORE_INDEX).sum())
