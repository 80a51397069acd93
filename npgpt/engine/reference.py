"""The reference engine: every layer's lines as they stand, on whole arrays, called once. NumPy or CuPy."""

import contextlib

import numpy as np

from npgpt import layers
from npgpt.arrays import number
from npgpt.engine.kv_cache import KVCache
from npgpt.engine.ops import with_block, with_lora, without_caches
from npgpt.engine.threads import sharing_cores
from npgpt.engine.update import adamw_step, adamw_update
from npgpt.layers.loss import IGNORE_INDEX, cross_entropy_forward
from npgpt.model.masks import draw_masks

DROPOUT = 1         # the stream of random numbers for dropout; the trainer draws batches from another one


class ReferenceEngine:
    """Runs a model's lines as they stand, so that `print` and breakpoints in a layer show whole arrays, once a call.

    params: the model's `Parameters`, in memory or on a GPU. threads: for BLAS, on a CPU. tf32: on a GPU, whether the
    factors of matmuls of matrices are rounded to 10 bits of mantissa. block: as in `with_block`.
    """

    adamw_update, kernels = staticmethod(adamw_update), "reference"
    fuses_steps = False         # whether `step` computes the gradients and AdamW in one program
    ranks = 1, 1                # how many processes train together, and how many of them on this machine

    def __init__(self, params, threads, tf32=False, block=None):
        self.params, self.threads, self.tf32 = params, threads, tf32
        self.ops = with_lora(layers, params.config)
        self.gpt_forward, self.gpt_backward = with_block(block)

    @property
    def waits(self):
        """Whether results are there when a call returns; on a GPU they are still being computed."""
        return self.params.xp is np

    @property
    def shows_gradients(self):
        """Whether a step has the whole gradient on the host."""
        return self.params.xp is np

    @property
    def rng_type(self):
        """What `dropout_rng` returns."""
        return self.params.xp.random.Generator

    @property
    def where(self):
        """What computes, in words."""
        if self.params.xp is np:
            return f"{self.threads} thread{'s' * (self.threads > 1)}, reference lines"
        device = self.params.xp.cuda.Device()
        return f"{self.params.xp.cuda.runtime.getDeviceProperties(device.id)['name'].decode()}, reference lines"

    def loss_and_grads(self, idx, targets, rng=None, count=None, add_to=None, mask=None):
        """Compute the loss and all gradients of one batch.

        idx, targets (B, T) integers on the host; rng draws the dropout masks, or None; count: what the sum of the
        losses is divided by, by default the number of targets that count; add_to: gradients that a call returned, to
        which these are added in place; mask: what is added to the attention scores, (T, T) or (B, 1 or H, T, T) on the
        host, or None. Returns the loss, a `number`, and the gradients, a dict name -> array.
        """
        count = count or counted(targets)
        with self.running():
            loss, grads = self.run(idx, targets, rng, count, mask)
        return number(loss), self.added(grads, add_to)

    def accumulated(self, batches, rngs, count):
        """Compute the loss and all gradients of a step: the sums over its micro-batches.

        batches: pairs (idx, targets); rngs: what draws the dropout masks of each, or None; the rest as in
        `loss_and_grads`. Several micro-batches have the shape of the first.
        """
        total, grads = 0.0, None
        for (idx, targets), rng in zip(batches, rngs, strict=True):
            loss, grads = self.loss_and_grads(idx, targets, rng, count, grads)
            total = total + loss
        return total, grads

    def run(self, idx, targets, rng, count, mask):
        """One forward and backward: the loss times its share of `count`, and the gradients."""
        share = counted(targets) / count
        idx, targets, mask = self.on_device(idx, targets, mask)
        masks = draw_masks(self.params.config, *idx.shape, self.params.dtype, rng)
        logits, gpt = self.gpt_forward(idx, self.params.tree, self.params.config, masks, self.ops, mask)
        loss, cross_entropy = cross_entropy_forward(logits, targets)
        dlogits = self.ops.cross_entropy_backward(share, cross_entropy)
        return loss * share, self.params.flatten(self.gpt_backward(dlogits, gpt, self.ops))

    def loss(self, idx, targets, mask=None, count=None):
        """The mean loss of one batch, a `number`, without dropout; no layer's cache is kept.

        count: what the sum of the losses is divided by, by default the number of targets that count.
        """
        with self.running():
            return number(self.run_forward(idx, targets, count or counted(targets), mask))

    def run_forward(self, idx, targets, count, mask):
        """One forward without caches: the loss times its share of `count`."""
        share = counted(targets) / count
        idx, targets, mask = self.on_device(idx, targets, mask)
        masks = draw_masks(self.params.config, *idx.shape, self.params.dtype)
        logits, _ = self.gpt_forward(idx, self.params.tree, self.params.config, masks, without_caches(self.ops), mask)
        loss, _ = cross_entropy_forward(logits, targets)
        return loss * share

    @contextlib.contextmanager
    def running(self):
        """Within it, the lines run: BLAS has the threads; or CuPy multiplies matrices with this model's precision."""
        if self.params.xp is np:
            with sharing_cores(1, self.threads):
                yield
            return
        from cupy._core import _routines_linalg as linalg  # where CuPy has the setting, for all of a process
        before = linalg.get_compute_type(np.float32)
        linalg.set_compute_type(np.float32, linalg.COMPUTE_TYPE_TF32 if self.tf32 else linalg.COMPUTE_TYPE_FP32)
        try:
            yield
        finally:
            linalg.set_compute_type(np.float32, before)

    def on_device(self, *arrays):
        """Arrays that may be None, where the model is."""
        return [None if array is None else self.params.xp.asarray(array) for array in arrays]

    def added(self, grads, add_to):
        """grads, or add_to with grads added to it."""
        if add_to is None:
            return grads
        for name in grads:
            add_to[name] += grads[name]
        return add_to

    def adamw_step(self, grads, moments, step):
        """Update the parameters and AdamW's moments (m, v) by gradients, for a `Step`; return the gradient norm."""
        return adamw_step(self.params, grads, moments, step, self.threads, self.adamw_update)

    def moments(self):
        """AdamW's two moments, zero."""
        return self.params.zeros_like(), self.params.zeros_like()

    def dropout_rng(self, seed, step, micro_batch):
        """What draws the dropout masks of one micro-batch: the same for the same numbers, on one kind of device."""
        xp, numbers = self.params.xp, [seed, DROPOUT, step, micro_batch]
        return np.random.default_rng(numbers) if xp is np else xp.random.Generator(xp.random.Philox4x3210(numbers))

    def reader(self, B):
        """A function that reads the next tokens of B texts, (B, T), and returns the logits (B, V) of the next ones."""
        cache = KVCache(self, B)

        def read(idx):
            with self.running():
                return cache.read(idx)

        return read


def counted(targets):
    """How many targets count."""
    return int((targets != IGNORE_INDEX).sum())
