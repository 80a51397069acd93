"""GPT: the model as its users hold it, with its two passes, generation, and reading and writing checkpoints."""

import numpy as np

from npgpt.backend.allocator import keep_freed_memory
from npgpt.backend.arrays import array_module
from npgpt.errors import UserError
from npgpt.layers.gelu import import_erf
from npgpt.layers.loss import IGNORE_INDEX, cross_entropy_backward, cross_entropy_forward
from npgpt.model.generate import generate
from npgpt.model.gpt import gpt_backward, gpt_forward, loss_and_dlogits
from npgpt.model.memory import number_of_shards
from npgpt.model.parameters import Parameters, initialize
from npgpt.model.shards import Shards
from npgpt.pretrained.load import find_model, open_model
from npgpt.pretrained.save import save_model


class GPT:
    """A GPT-2 model: its configuration, its parameters, and the two passes over them.

    >>> model = GPT(GPTConfig(vocab_size=65, block_size=64), seed=0)
    >>> logits, loss = model.forward(idx, targets)      # idx, targets: integers (B, T)
    >>> grads = model.backward()                        # grads["h.0.ln_1.weight"]

    config: a GPTConfig. seed: of the initial weights, the same for both dtypes; None leaves them zero.
    dtype: "float32" or "float64". device: "cpu", "gpu", "gpu:N" or "auto". threads: how many shards of a batch are
    worked on at once in `loss_and_grads` and `evaluate`; by default one a core. Raises UserError for values that make
    no sense.
    """

    def __init__(self, config, seed=0, dtype="float32", device="cpu", threads=None):
        if str(np.dtype(dtype)) not in ("float32", "float64"):
            raise UserError(f"dtype must be float32 or float64, not {dtype}")
        if config.activation == "gelu":
            import_erf()        # complains now, not in the first forward
        self.config = config
        self.xp = array_module(device)
        keep_freed_memory()
        self.params = Parameters(config, dtype, self.xp)
        self.shards = Shards(threads)
        self._cache = None
        if seed is not None:
            initialize(self.params, seed)

    @classmethod
    def from_pretrained(cls, name_or_path, revision=None, dtype="float32", device="cpu", threads=None):
        """A model with the weights of a GPT-2 checkpoint.

        name_or_path: a hub id ("gpt2", "distilgpt2", any "owner/name"), a folder with config.json and
        model.safetensors (one file, or shards with their index; a checkpoint of npgpt is such a folder too), or a
        .safetensors file with its config.json beside it. revision: a branch, tag or commit of the hub. The weights
        are read as they are stored (float16 and bfloat16 are widened) and copied once.
        Raises UserError where anything is missing, damaged or not supported, before it allocates.
        """
        config, load = open_model(find_model(name_or_path, revision))
        model = cls(config, None, dtype, device, threads)
        load(model.params)
        return model

    def save_pretrained(self, folder):
        """Write model.safetensors and config.json, which transformers and `from_pretrained` read. See `save_model`."""
        save_model(self.params, folder)

    def forward(self, idx, targets=None, rng=None):
        """The model's logits, and its loss where targets are given.

        idx (B, T) integers in [0, V), targets the same shape, -1 where a position does not count; rng a
        np.random.Generator turns dropout on. Returns logits (B, T, V) and the mean loss in nats (a float, or None).
        Keeps what `backward` needs. Raises UserError for a context longer than `block_size` or ids out of range.
        """
        idx, targets = self.check_batch(idx, targets)
        logits, gpt = gpt_forward(idx, self.params, rng)
        if targets is None:
            self._cache = None
            return logits, None
        loss, cross_entropy = cross_entropy_forward(logits, targets)
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

    def loss_and_grads(self, idx, targets, rng=None, count=None):
        """The loss and all gradients of one batch, what training calls: split over threads, logits not kept.

        Arguments as in `forward`; `count` is what the losses' sum is divided by, the number of targets that count
        unless given (gradient accumulation gives the number of all micro-batches). Returns the loss, a float, and the
        gradients, a mapping that the next call overwrites. The same arguments and number of threads give the same bits.
        """
        idx, targets = self.check_batch(idx, targets)
        count = count or int((targets != IGNORE_INDEX).sum())

        def shard(part, rng, grads):
            logits, gpt = gpt_forward(idx[part], self.params, rng)
            loss, dlogits = loss_and_dlogits(logits, targets[part], count)
            gpt_backward(dlogits, gpt, grads)
            return float(loss)

        n_parts = number_of_shards(self.config, *idx.shape, self.shards.threads)
        return self.shards.sum_with_grads(shard, len(idx), n_parts, rng, self.params)

    def evaluate(self, idx, targets):
        """The mean loss of one batch, in nats, without dropout and without keeping anything; split over threads."""
        idx, targets = self.check_batch(idx, targets)
        count = int((targets != IGNORE_INDEX).sum())

        def shard(part):
            logits, _ = gpt_forward(idx[part], self.params)
            return float(cross_entropy_forward(logits, targets[part], count)[0])

        return self.shards.sum(shard, len(idx))

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

    def check_batch(self, idx, targets=None):
        """The batch as integer arrays on the model's device; UserError where they do not fit the model.

        Ids are looked at on the host: an index out of range reads another token's row on a GPU, without an error.
        """
        V = self.config.vocab_size
        idx = self.check_ids(idx)
        if idx.shape[1] > self.config.block_size:
            raise UserError(f"a context of {idx.shape[1]} tokens is longer than block_size {self.config.block_size}")
        if targets is None:
            return self.xp.asarray(idx), None
        targets = _as_integers(targets, "targets")
        if targets.shape != idx.shape:
            raise UserError(f"targets have the shape {targets.shape}, but idx has {idx.shape}")
        if targets.min() < IGNORE_INDEX or targets.max() >= V:
            raise UserError(f"targets must be from 0 to {V - 1}, or -1 to be ignored, "
                            f"but there are {targets.min()} to {targets.max()}")
        if targets.max() == IGNORE_INDEX:
            raise UserError("every target is -1 (ignored): there is nothing to take a loss of")
        return self.xp.asarray(idx), self.xp.asarray(targets)


def _as_integers(array, name):
    array = np.asarray(array)
    if array.dtype.kind not in "iu":
        raise UserError(f"{name} must be integers, not {array.dtype}")
    return array
