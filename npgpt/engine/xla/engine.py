"""The engine: the compiled programs and how they are called."""

import inspect
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from npgpt.arrays import DTYPES
from npgpt.checks import check_memory, in_gigabytes, require, shown
from npgpt.devices import check_tf32
from npgpt.display import tqdm
from npgpt.engine.ops import without_caches
from npgpt.engine.reference import ReferenceEngine, counted
from npgpt.engine.sources import TESTED, as_tested, edited_of
from npgpt.engine.threads import available_cores
from npgpt.engine.trial import run_block
from npgpt.engine.xla.devices import DeviceParameters, devices_of
from npgpt.engine.xla.lines import lines, loaded_again, rounded
from npgpt.engine.xla.reader import Reader
from npgpt.engine.xla.replaced import replaced, with_head_in_loss, with_sorted_embedding
from npgpt.errors import UserError
from npgpt.files import cache_folder
from npgpt.layers.loss import IGNORE_INDEX
from npgpt.model.batch import loss_of
from npgpt.model.block import GPT2
from npgpt.model.config import GPTConfig
from npgpt.model.masks import draw_masks
from npgpt.model.parameters import nest
from npgpt.model.variants import model_backward, model_forward

LOGITS_BYTES = 1 << 29  # at most, in a block of the loss
# What a cache may have beside arrays if it goes from one program to another.
PLAIN = int | float | complex | str | slice | np.generic | np.ndarray | GPTConfig


def on_xla(config, dtype, device, frozen):
    """Return the parameters of a model, zero, and its engine. Raises UserError if there is no such
    device.
    """
    params = DeviceParameters(config, DTYPES[dtype], devices_of(device), frozen)
    return params, XLAEngine(params, dtype)


def check_alike(config, by_xla, ops, dtype):
    """Raise UserError unless a block computes the same by XLA as by NumPy.

    by_xla: config with XLA's lines.
    """
    tolerance = {"bfloat16": 0.1, "tf32": 0.01}.get(dtype, 1e-3)
    ours, theirs = jax.tree.leaves(run_block(config)), run_block(by_xla, ops, jax.jit)
    for expected, found in zip(ours, jax.tree.leaves(theirs), strict=True):
        if not np.allclose(found, expected, tolerance, tolerance * abs(expected).max()):
            raise UserError(
                f"{config.block}: XLA computes something else than NumPy: there, a += b does not "
                "change other names of a"
            )


def compile_program(program, arguments, platform, donated=None, shardings=None):
    """Compile a program; tools/compile_for_gpu.py does so for GPUs that are not there.

    donated, shardings: as in `XLAEngine.call`.
    On a GPU, sums have a fixed order, so that the same program gives the same bits again. JAX
    0.8.3, 0.9.2 and 0.10.2 compile the step so. It has no scatter: XLA would sort all its values,
    or before 0.10 run a loop over the rows.
    """
    options = (
        {"xla_gpu_exclude_nondeterministic_ops": True} if platform in ("gpu", "cuda") else None
    )
    if donated is not None:
        shardings = jax.tree.map(lambda array: array.sharding, arguments[donated]), None
    made = jax.jit(program, donate_argnums=donated, out_shardings=shardings)
    return made.lower(*arguments).compile(options)


class Draws:
    """A random generator for `draw_masks`; each call has its own key. words: from `_words`;
    micro_batch: from 0.
    """

    def __init__(self, words, micro_batch):
        key = jax.random.wrap_key_data(words[:2], impl="threefry2x32")
        step_key = jax.random.fold_in(key, words[2])
        self.key, self.calls = jax.random.fold_in(step_key, words[3] + micro_batch), 0

    def random(self, shape, dtype):
        self.calls += 1
        return jax.random.uniform(jax.random.fold_in(self.key, self.calls), shape, dtype)


class XLAEngine(ReferenceEngine):
    """Runs the model by XLA. params: `DeviceParameters`; dtype: "float32", "float64", "tf32" or
    "bfloat16".
    """

    kernels, synchronous = "xla", False

    def __init__(self, params, dtype):
        super().__init__(params, available_cores())
        self.devices, self.dtype = params.devices, dtype
        if dtype == "tf32":
            first = self.devices.first
            if first.platform not in ("gpu", "cuda"):
                raise UserError("dtype tf32 needs a GPU: use --dtype float32")
            check_tf32(first.device_kind, getattr(first, "compute_capability", ""))
        lesson, self.transformer, block = lines(dtype, params.config.block)
        self.config = params.config.with_block(*block)
        self.lesson = with_sorted_embedding(lesson, self.devices.n)
        self.ops, self.loss_of = replaced(self.lesson, self.config, dtype), self._loss
        self.ops_with_head = self.ops
        if params.config.block != GPT2 or edited_of(*TESTED):
            check_alike(params.config, self.config, self.ops, dtype)
        in_loss = "gpt_forward gpt_backward head_forward head_backward"
        in_loss += " cross_entropy_forward cross_entropy_backward"
        if not self.config.lm_head_bias and as_tested(*in_loss.split()):
            self.ops, self.loss_of = with_head_in_loss(self.ops), self._loss_in_blocks
        self.shardings = {  # of gradients
            name: self.devices.sharding(*self.devices.divided(shape))
            for name, shape in params.trained.items()
        }
        self._executables = {}  # by name, options and shapes
        self._caches = {}  # of `own_loss` by shapes: their structure, and what is no array
        cache = cache_folder()  # without a home, each process compiles
        if jax.config.jax_compilation_cache_dir is None and cache:
            jax.config.update("jax_compilation_cache_dir", str(cache / "xla"))

    @property
    def description(self):
        n = self.devices.n
        return f"XLA on {self.devices.first.device_kind}" + f", {n} devices" * (n > 1)

    def dropout_rng(self, seed, step, micro_batch):
        return seed, step, micro_batch

    def loss_and_grads(self, batches, rngs, count, mask=None):
        """As in `ReferenceEngine`, in one program. The results stay on the device."""
        given = *self._batch(batches), self._mask(mask), self._numbers([count])
        arguments = self.params.on_device(), *given, self._words(rngs[0])
        shardings = None, self.shardings
        return self.call("loss and gradients", self._sums, arguments, shardings=shardings)

    def own_loss(self, function, idx, rng=None, mask=None):
        """As in `ReferenceEngine`, as two programs; the function runs on the host, by NumPy."""
        B, ops = len(idx), self.ops_with_head
        idx, _ = self._batch([(idx, idx)])
        given = idx, self._mask(mask), self._words(rng)
        key = tuple(getattr(each, "shape", None) for each in given)

        def forward(p, idx, mask, words):
            logits, cache = self._forward(p, idx[0], ops, mask, words)
            leaves, structure = jax.tree.flatten(cache)
            others = [None if isinstance(each, jax.Array) else each for each in leaves]
            for each in others:
                if each is not None and not isinstance(each, PLAIN):
                    raise UserError(
                        f"a loss of your own needs a cache of arrays in tuples, lists and dicts "
                        f"with XLA, and {self.params.config.block} has {shown(each)} in it"
                    )
            self._caches[key] = structure, others
            return logits, [each for each in leaves if isinstance(each, jax.Array)]

        def backward(dlogits, arrays):
            (structure, others), arrays = self._caches[key], iter(arrays)
            leaves = [next(arrays) if each is None else each for each in others]
            cache = jax.tree.unflatten(structure, leaves)
            dp = model_backward(dlogits, cache, ops, self.transformer.gpt_backward)
            return self.params.flatten(dp)

        logits, arrays = self.call("logits", forward, (self.params.on_device(), *given))
        whole = np.zeros(logits.shape, self.params.dtype)
        loss, whole[:B] = loss_of(function, np.array(logits[:B]))
        dlogits = self.devices.put(whole, "batch")
        grads = self.call("gradients", backward, (dlogits, arrays), key, shardings=self.shardings)
        return loss, grads

    def for_user(self, loss, grads):
        """Copy a loss and gradients to the host. This waits."""
        return float(loss), {name: np.array(grads[name]) for name in self.params.trained}

    def adamw_step(self, grads, moments, step):
        """As in `ReferenceEngine`, as one program. grads: on the device, or on the host."""
        state, trained = (self.params, *moments), self.params.trained
        if not isinstance(grads[next(iter(trained))], jax.Array):
            grads = {
                name: self.devices.put(np.array(grads[name]), *self.devices.divided(shape))
                for name, shape in trained.items()
            }
        numbers = self._numbers([step.lr, step.step_size, step.eps])
        options = step._replace(lr=None, step_size=None, eps=None)  # the others are constants

        def program(state, grads, numbers):
            p, m, v = state
            lesson = loaded_again(inspect.getmodule(type(step)), jnp)
            rates = dict(zip(("lr", "step_size", "eps"), numbers, strict=True))
            now = lesson.AdamWStep(*options)._replace(**rates, rule=lesson.adamw_update)
            norm = jnp.sqrt(sum((grads[name] * grads[name]).sum() for name in trained))
            clip = now.clip(norm)
            for name in trained:
                new = now.update(name, p[name], grads[name], m[name], v[name], clip)
                p[name], m[name], v[name] = new
            return state, norm

        arguments = [each.on_device() for each in state], grads, numbers
        new, norm = self.call("AdamW's step", program, arguments, options, 0)
        for each, arrays in zip(state, new, strict=True):
            each.there = arrays
        return norm

    def loss(self, idx, targets, mask=None):
        def program(p, idx, targets, mask, numbers):
            logits, _ = self._forward(p, idx[0], without_caches(self.ops), mask, None)
            return self.loss_of(logits, targets[0], numbers[0])[0]  # JAX drops unread gradients

        given = *self._batch([(idx, targets)]), self._mask(mask)
        arguments = self.params.on_device(), *given, self._numbers([counted(targets)])
        return self.call("the loss", program, arguments)

    def reader(self, B, pads=None):
        return Reader(self, B, pads)

    # Programs; p, m, v are dicts name -> array.

    def _sums(self, p, idx, targets, mask, numbers, words):
        """Sum the losses and the gradients of n micro-batches; idx, targets (n, B, T)."""
        (count,) = numbers

        def accumulate(total, batch):
            idx, targets, i = batch
            new = self._loss_and_grads(p, idx, targets, mask, count, words, i)
            return jax.tree.map(jnp.add, total, new), None

        zeros = {name: jnp.zeros_like(p[name]) for name in self.params.trained}
        begin = jnp.zeros((), self.params.dtype), zeros
        return jax.lax.scan(accumulate, begin, (idx, targets, jnp.arange(len(idx))))[0]

    def _loss_and_grads(self, p, idx, targets, mask, count, words, micro_batch):
        """Return the loss of a micro-batch times its share of `count`, and gradients. words: None
        without dropout.
        """
        logits, gpt = self._forward(p, idx, self.ops, mask, words, micro_batch)
        loss, dlogits = self.loss_of(logits, targets, count)
        dp = model_backward(dlogits, gpt, self.ops, self.transformer.gpt_backward)
        return loss, self.params.flatten(dp)

    def _forward(self, p, idx, ops, mask, words, micro_batch=0):
        """Return the logits and the cache; with words, the masks are drawn."""
        rng = None if words is None else Draws(words, micro_batch)
        masks = draw_masks(self.config, *idx.shape, self.params.dtype, rng)
        return self.forward(idx, p, self.config, masks, ops, mask)

    def forward(self, idx, p, *others):
        """Run `model_forward` with XLA's lines."""
        return model_forward(idx, nest(p), *others, lesson=self.transformer.gpt_forward)

    def _loss(self, logits, targets, count):
        """Return the summed losses divided by `count`, and dlogits."""
        loss, cross_entropy = self.lesson.cross_entropy_forward(logits, targets)
        share = (targets != IGNORE_INDEX).sum() / count
        loss = jnp.where(share > 0, loss * share, 0.0)  # the mean of no loss is NaN
        return loss, self.ops.cross_entropy_backward(share, cross_entropy)

    def _loss_in_blocks(self, head, targets, count):
        """As `_loss`, in blocks of positions. head: its arguments; its gradients are dlogits."""
        x, weight = head
        B, T, C = x.shape
        least = min(T, B * T * len(weight) * x.dtype.itemsize / LOGITS_BYTES)
        n = next(n for n in range(1, T + 1) if T % n == 0 and n >= least)
        read_weight = rounded(self.dtype, weight)  # once, not in each block

        def block(total, part):
            x, targets = part  # (B, T / n, C), (B, T / n)
            logits, head = self.lesson.head_forward(x, read_weight)  # (B, T / n, V)
            loss, dlogits = self._loss(logits, targets, count)
            dx, dweight = self.lesson.head_backward(dlogits, head)
            return jax.tree.map(jnp.add, total, (loss, dweight)), dx

        zeros = jnp.zeros((), x.dtype), jnp.zeros_like(weight)
        parts = x.reshape(B, n, T // n, C), targets.reshape(B, n, T // n)
        total, dx = jax.lax.scan(block, zeros, [part.swapaxes(0, 1) for part in parts])
        loss, dweight = total
        dx = dx.swapaxes(0, 1).reshape(B, T, C)
        return loss, (dx, dweight)

    # Calls and compilation.

    def _batch(self, batches):
        """Copy idx and targets of micro-batches, (n, B, T), to the devices; ignored rows make B
        divisible.
        """
        idx, targets = np.array([list(batch) for batch in batches], np.int32).swapaxes(0, 1)
        B, n = idx.shape[1], self.devices.n
        if B % n and self.mixes_texts:
            raise UserError(
                f"the texts of a batch depend on each other in {self.mixes_texts}, so none can be "
                f"added to these {B}: choose a batch size divisible by the {n} devices"
            )
        rows = (0, 0), (0, -B % n), (0, 0)
        idx = np.pad(idx, rows)
        targets = np.pad(targets, rows, constant_values=IGNORE_INDEX)
        return [self.devices.put(array, None, "batch") for array in (idx, targets)]

    def _mask(self, mask):
        if mask is None:
            return None
        if mask.ndim == 2:
            return self.devices.put(np.array(mask))
        rows = (0, -len(mask) % self.devices.n), (0, 0), (0, 0), (0, 0)
        return self.devices.put(np.pad(mask, rows), "batch")

    def _numbers(self, numbers):
        return self.devices.put(np.array(numbers, self.params.dtype))

    def _words(self, rng):
        if rng is None:
            return None
        what = "None, or what engine.dropout_rng(seed, step, micro_batch) returns"
        require("rng with XLA", rng, isinstance(rng, tuple) and len(rng) == 3, what)
        seed, step, micro_batch = rng
        words = np.array([seed >> 32, seed & 0xFFFFFFFF, step, micro_batch], np.uint32)
        return self.devices.put(words)

    def call(self, what, program, arguments, options=(), donated=None, shardings=None):
        """Call a program; compile it first, unless that is done for these options and shapes.

        what: its name in messages, empty for none.
        donated: the number of an argument that the first of two results updates in place.
        shardings: of the results, by default XLA's choice
        """
        # The shapes in an argument that is a dict or a list depend on these, or are the model's.
        key = what, options, *(getattr(each, "shape", None) for each in arguments)
        with jax.enable_x64(self.dtype == "float64"):
            if key not in self._executables:
                executable = self._compiled(what, program, arguments, donated, shardings)
                self._executables[key] = executable
            return self._executables[key](*arguments)

    def _compiled(self, what, program, arguments, donated, shardings):
        """Compile a program. Raises UserError if a CPU's machine has too little memory for it."""
        device, began = self.devices.first, time.perf_counter()
        title, tokens = what or "generation", getattr(arguments[1], "shape", None)
        if tokens:
            title += f" of {' x '.join(map(str, tokens))} tokens"
        says = what and jax.process_index() == 0
        if says:
            tqdm.write(f"XLA compiles {title} …", file=sys.stderr)
        found = compile_program(program, arguments, device.platform, donated, shardings)
        memory = found.memory_analysis()
        needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes
        needed += memory.output_size_in_bytes - memory.alias_size_in_bytes
        needed += self.params.beside * (donated is None)
        if device.platform == "cpu":
            check_memory(needed, title)
        if says:
            seconds = time.perf_counter() - began
            tqdm.write(f"… in {seconds:.1f} s; it needs {in_gigabytes(needed)}", file=sys.stderr)
        return found
