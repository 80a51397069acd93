"""GPT: the model as its users hold it, with its two passes, generation, and reading and writing checkpoints."""

import math

import numpy as np

from npgpt.arrays import DTYPES, array_module, number
from npgpt.checkpoints.load import find_model, open_model
from npgpt.checkpoints.save import save_model
from npgpt.checks import MOST_SEED, as_array, check, check_memory, check_path, check_whole
from npgpt.engine.allocator import keep_freed_memory
from npgpt.engine.cuda.fused import FusedGPT, why_not_fused
from npgpt.engine.memory import number_of_shards
from npgpt.engine.philox import Philox
from npgpt.engine.shards import Shards
from npgpt.errors import UserError
from npgpt.layers.gelu import import_erf
from npgpt.layers.loss import IGNORE_INDEX, cross_entropy_backward, cross_entropy_forward
from npgpt.model.config import GPTConfig
from npgpt.model.generate import generate
from npgpt.model.parameters import Parameters, initialize, parameter_shapes
from npgpt.model.transformer import gpt_backward, gpt_forward, loss_and_dlogits

DROPOUT = 1         # the stream of random numbers that dropout takes


class GPT:
    """A GPT-2 model: its configuration, its parameters, and the two passes over them.

    >>> model = GPT(GPTConfig(vocab_size=65, block_size=64), seed=0)
    >>> logits, loss = model.forward(idx, targets)      # idx, targets: integers (B, T)
    >>> grads = model.backward()                        # grads["h.0.ln_1.weight"]

    config: a GPTConfig. seed: of the initial weights, the same for all dtypes; None leaves them zero.
    dtype: "float32" or "float64"; on a GPU also "tf32" and "bfloat16", where parameters are float32 and the factors of
    products are rounded. device: "cpu", "gpu", "gpu:N" or "auto". threads: how many shards of a batch are worked on at
    once in `loss_and_grads` and `evaluate` on a CPU; by default one a core. kernels: what those two use on a GPU,
    "fused" (where they can be, see `why_not_fused`) or "reference", the layers' own lines.
    Raises UserError for values that make no sense.
    """

    def __init__(self, config, seed=0, dtype="float32", device="cpu", threads=None, kernels="fused"):
        check("config", config, isinstance(config, GPTConfig), "a GPTConfig")
        if isinstance(dtype, type | np.dtype):          # np.float64 is welcome, too
            dtype = getattr(dtype, "__name__", str(dtype))
        check("dtype", dtype, isinstance(dtype, str) and dtype in DTYPES, f"one of {', '.join(DTYPES)}")
        check("kernels", kernels, kernels in ("fused", "reference"), '"fused" or "reference"')
        if seed is not None:
            check_whole("seed", seed, 0, MOST_SEED)
        if config.activation == "gelu":
            import_erf()        # complains now, not in the first forward
        self.config = config
        self.xp = array_module(device)
        keep_freed_memory()
        if self.xp is np:
            self.why_not_fused = "they need a GPU"
        elif kernels == "reference":
            self.why_not_fused = "the reference lines were asked for"
        else:
            self.why_not_fused = why_not_fused(config, dtype)       # None, or why the layers' own lines are used
        if self.why_not_fused and dtype not in ("float32", "float64"):
            raise UserError(f"dtype {dtype} needs the fused kernels, but {self.why_not_fused}: use --dtype float32")
        if self.xp is np:
            values = sum(map(math.prod, parameter_shapes(config).values()))
            check_memory(values * np.dtype(DTYPES[dtype]).itemsize, "the model")
        self.params = Parameters(config, DTYPES[dtype], self.xp)
        self.shards = Shards(threads if self.xp is np else 1)
        self.fused = None
        if not self.why_not_fused:
            from npgpt.engine.cuda.card import Card  # not needed, and not loaded, on a CPU
            self.fused = FusedGPT(self.params, Card(dtype, config.head_size))
        self._cache = None
        if seed is not None:
            initialize(self.params, seed)

    @classmethod
    def from_pretrained(cls, name_or_path, revision=None, dtype="float32", device="cpu", threads=None, kernels="fused"):
        """A model with the weights of a GPT-2 checkpoint.

        name_or_path: a hub id ("gpt2", "distilgpt2", any "owner/name"), a folder with config.json and
        model.safetensors (one file, or shards with their index; a checkpoint of npgpt is such a folder too), or a
        .safetensors file with its config.json beside it. revision: a branch, tag or commit of the hub. The weights
        are read as they are stored (float16 and bfloat16 are widened) and copied once.
        Raises UserError where anything is missing, damaged or not supported, before it allocates.
        """
        check_path("name_or_path", name_or_path)
        config, load = open_model(find_model(name_or_path, revision))
        model = cls(config, None, dtype, device, threads, kernels)
        load(model.params)
        return model

    def save_pretrained(self, folder):
        """Write model.safetensors and config.json, which transformers and `from_pretrained` read. See `save_model`."""
        check_path("folder", folder)
        save_model(self.params, folder)

    def forward(self, idx, targets=None, rng=None):
        """The model's logits, and its loss where targets are given.

        idx (B, T) integers in [0, V), targets the same shape, -1 where a position does not count; rng a
        np.random.Generator turns dropout on. Returns logits (B, T, V) and the mean loss in nats (a float, or None).
        Keeps what `backward` needs. Raises UserError for a context longer than `block_size` or ids out of range.
        """
        idx, targets = self.check_batch(idx, targets, targets is not None)
        check_rng(rng)
        idx = self.xp.asarray(idx)
        logits, gpt = gpt_forward(idx, self.params, rng)
        if targets is None:
            self._cache = None
            return logits, None
        count = int((targets != IGNORE_INDEX).sum())
        loss, cross_entropy = cross_entropy_forward(logits, self.xp.asarray(targets), count)
        self._cache = (gpt, cross_entropy)
        return logits, float(loss)

    def backward(self):
        """The gradient of the last `forward`'s loss: a mapping with the names and shapes of `params`, newly made.

        Raises UserError where the last forward had no targets.
        """
        if self._cache is None:
            raise UserError("backward needs a forward with targets before it: call forward(idx, targets) first")
        gpt, cross_entropy = self._cache
        grads = self.params.zeros_like()
        dlogits = cross_entropy_backward(1.0, cross_entropy)
        gpt_backward(dlogits, gpt, grads)
        return grads

    def loss_and_grads(self, idx, targets, rng=None, count=None, add=False):
        """The loss and all gradients of one batch, what training calls: split over threads, logits not kept.

        Arguments as in `forward`, on a GPU with an rng from `dropout_rng`; `count` is what the losses' sum is divided
        by, the number of targets that count unless given; with `add` the gradients are added to those of the last call
        (gradient accumulation gives the number of all micro-batches, and adds all but the first). Returns the loss, a
        float, and the gradients, a mapping that the next call overwrites. The same arguments and number of threads give
        the same bits. On a GPU the loss is a 0-d array there: nothing here waits for the card.
        """
        idx, targets = self.check_batch(idx, targets)
        check_rng(rng)
        if count is None:
            count = int((targets != IGNORE_INDEX).sum())
        check_whole("count", count, 1)
        if self.fused:
            return self.fused.loss_and_grads(idx, targets, rng, count, add)
        idx, targets = self.xp.asarray(idx), self.xp.asarray(targets)

        def shard(part, rng, grads):
            logits, gpt = gpt_forward(idx[part], self.params, rng)
            loss, dlogits = loss_and_dlogits(logits, targets[part], count)
            gpt_backward(dlogits, gpt, grads)
            return number(loss)

        n_parts = number_of_shards(self.config, *idx.shape, self.shards.threads)
        return self.shards.sum_with_grads(shard, len(idx), n_parts, rng, self.params, add)

    def evaluate(self, idx, targets):
        """The mean loss of one batch, in nats, without dropout and without keeping anything; split over threads.

        A float; on a GPU a 0-d array there.
        """
        idx, targets = self.check_batch(idx, targets)
        count = int((targets != IGNORE_INDEX).sum())
        if self.fused:
            return self.fused.loss(idx, targets, count)
        idx, targets = self.xp.asarray(idx), self.xp.asarray(targets)

        def shard(part):
            logits, _ = gpt_forward(idx[part], self.params)
            return number(cross_entropy_forward(logits, targets[part], count)[0])

        return self.shards.sum(shard, len(idx))

    @property
    def where(self):
        """What computes the model, in words."""
        if self.xp is np:
            return f"{self.shards.threads} threads"
        name = self.xp.cuda.runtime.getDeviceProperties(self.xp.cuda.Device().id)["name"].decode()
        return f"{name}, " + ("fused kernels" if self.fused else f"the layers' own lines ({self.why_not_fused})")

    def dropout_rng(self, seed, step, micro_batch):
        """What draws the dropout masks of one micro-batch: always the same for the same numbers, on one kind of device.

        On a GPU that is Philox, whose numbers the card makes where it needs them.
        """
        if self.xp is np:
            return np.random.default_rng([seed, DROPOUT, step, micro_batch])
        return Philox(seed, step, micro_batch, self.xp)

    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None, seed=0, eos_token_id=None):
        """Continue each row of idx (B, T) by up to `max_new_tokens` tokens; see `npgpt.model.generate.generate`."""
        return generate(self, idx, max_new_tokens, temperature, top_k, top_p, seed, eos_token_id)

    def check_ids(self, idx):
        """Token ids as an array on the host; UserError unless they are (B, T) integers in the vocabulary."""
        idx, V = _as_integers(idx, "idx"), self.config.vocab_size
        if idx.ndim != 2 or idx.size == 0:
            raise UserError(f"idx must have the shape (batch, time), both at least 1, not {idx.shape}")
        if idx.min() < 0 or idx.max() >= V:
            raise UserError(f"token ids must be from 0 to {V - 1}, but idx has {idx.min()} to {idx.max()}")
        return idx

    def check_batch(self, idx, targets, with_targets=True):
        """The batch as integer arrays on the host; UserError where they do not fit the model, or each other.

        Ids are looked at before they go to a GPU: there an index out of range reads another row, without an error.
        """
        V = self.config.vocab_size
        idx = self.check_ids(idx)
        if idx.shape[1] > self.config.block_size:
            raise UserError(f"a context of {idx.shape[1]} tokens is longer than block_size {self.config.block_size}")
        if not with_targets:
            return idx, None
        targets = _as_integers(targets, "targets")
        if targets.shape != idx.shape:
            raise UserError(f"targets have the shape {targets.shape}, but idx has {idx.shape}")
        if targets.min() < IGNORE_INDEX or targets.max() >= V:
            raise UserError(f"targets must be from 0 to {V - 1}, or -1 to be ignored, "
                            f"but there are {targets.min()} to {targets.max()}")
        if targets.max() == IGNORE_INDEX:
            raise UserError("every target is -1 (ignored): there is nothing to take a loss of")
        return idx, targets


def check_rng(rng):
    """UserError where what should draw the dropout masks is nothing that can."""
    check("rng", rng, rng is None or isinstance(rng, np.random.Generator | Philox), "a np.random.Generator or None")


def _as_integers(array, name):
    array = as_array(name, array)
    if array.dtype.kind not in "iu":
        raise UserError(f"{name} must be integers, not {array.dtype}")
    return array
