"""The class GPT: a model, its forward and backward, and what it writes."""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from npgpt import layers
from npgpt.arrays import DTYPES, to_host
from npgpt.checkpoints.load import find_model, open_model
from npgpt.checkpoints.save import save_model
from npgpt.checks import (
    MOST_SEED,
    MOST_THREADS,
    check_choice,
    check_real,
    check_whole,
    require,
    shown,
)
from npgpt.data.tokenizers import AnyTokenizer
from npgpt.engine.activations import Activations, Arrays, ForwardTrace
from npgpt.engine.choose import KERNELS, make_engine
from npgpt.engine.kv_cache import KVCache, Reader
from npgpt.engine.ops import headless, without_caches, without_frozen
from npgpt.engine.reference import ReferenceEngine, counted
from npgpt.engine.threads import available_cores
from npgpt.errors import UserError
from npgpt.keywords import hinting
from npgpt.layers.loss import cross_entropy_backward, cross_entropy_forward
from npgpt.model import transformer
from npgpt.model.batch import (
    check_batch,
    check_ids,
    check_like,
    check_mask,
    check_padding,
    check_rng,
)
from npgpt.model.block import GPT2, read_block
from npgpt.model.config import GPTConfig
from npgpt.model.generate import check_sampling, check_writes, stream_tokens
from npgpt.model.losses import log_probs, weighted_loss
from npgpt.model.masks import draw_masks
from npgpt.model.parameters import INITS, frozen_names, initialize, parameter_shapes
from npgpt.model.variants import model_backward, model_forward

Name = str | os.PathLike[str]  # of a model or a folder
Names = str | Iterable[str]  # of parameters
BlockFile = Any  # a file, or an object with the same functions
Array = np.ndarray
Edit = Callable[[Array], Array | tuple[Array, Callable[[Array], Array]]]
Edits = Mapping[str, Edit] | None
Added = Mapping[str, ArrayLike] | None  # names and arrays
MaybeArray = ArrayLike | None
Rng = Any  # a np.random.Generator, or what engine.dropout_rng returns
Processor = Callable[[np.ndarray, np.ndarray], ArrayLike]  # tokens, logits -> logits
Loss = Callable[[np.ndarray], tuple[Any, ArrayLike]]  # logits -> loss, dlogits


@hinting
class GPT:
    """A GPT-2 model: its configuration, its parameters, and its forward and backward.

    >>> model = GPT(GPTConfig(vocab_size=65, block_size=64), seed=0)
    >>> logits, loss = model.forward(idx, targets)      # idx, targets: integers (B, T)
    >>> grads = model.backward()                        # grads["h.0.ln_1.weight"]

    Parameters
    ----------
    config : GPTConfig
    seed : int, or None
        Of the initial weights, which are the same for all dtypes; None leaves them zero.
    dtype : "float32", "float64", "tf32" or "bfloat16"
        "tf32" (on a GPU) and "bfloat16" (with "xla", or on a CPU that has AVX512_BF16 or AMX_BF16,
        extra bfloat16) keep float32 parameters and round the factors of matmuls.
    device : str
        "cpu", "gpu" (or "cuda"), or "gpu:N".
    threads : int, or None
        How many cores `loss_and_grads`, `evaluate` and generation use on a CPU; None: all. With 1,
        "auto" is "reference", and every layer runs once on whole arrays. XLA always uses all cores
        of the process.
    kernels : "auto", "reference", "numpy", "numba" or "xla"
        What runs the layers. "auto": CuPy on a GPU; on a CPU "numba" if it is installed, else
        "numpy". "reference": the plain lines. "numpy": parts of arrays that fit the cache. "numba":
        compiled loops as well (extra fast). "xla": compiled by XLA (extra xla).
    init : "gpt2", "half-wpe", "torch" or "normal"
        How weights are drawn, see `initialize`.
    freeze : str, or strings
        Parameters that are not trained, by name, prefix or pattern, "wte,wpe,h.0,*.bias". They have
        no gradients and no moments.
    block : path or object, or None
        Instead of GPT-2's block, one with parameters of its own: a Python file, which is run, or an
        object, with the functions parameters, forward and backward. See `Block` in
        npgpt/model/block.py, and modern_block.py and lora_block.py in tools/examples.

    Attributes
    ----------
    params : Parameters
        Name -> array, with the names of GPT-2's checkpoints: "h.0.attn.c_attn.weight".
    engine : ReferenceEngine
        What runs the lines, see npgpt/engine.

    Raises
    ------
    UserError
        A value is invalid, or the results of a block do not fit.
    """

    def __init__(
        self,
        config: GPTConfig,
        seed: int | None = 0,
        dtype: str = "float32",
        device: str = "cpu",
        threads: int | None = None,
        kernels: str = "auto",
        init: str = "gpt2",
        freeze: Names = (),
        block: BlockFile = None,
    ):
        check_choice("dtype", dtype, DTYPES)
        check_choice("kernels", kernels, KERNELS)
        check_choice("init", init, INITS)
        check_whole("seed", seed, 0, MOST_SEED, or_none=True)
        check_whole("threads", threads, 1, MOST_THREADS, or_none=True)
        if config.activation == "gelu":
            check_scipy()
        if block is not None:
            config = dataclasses.replace(config, block=read_block(block))
        frozen = frozen_names(config, freeze)
        self.params, self.engine = make_engine(
            config, dtype, device, threads or available_cores(), kernels, frozen
        )
        self.config = config
        self.dtype = dtype
        self._where: dict[str, Any] = {
            "dtype": dtype,
            "device": device,
            "threads": threads,
            "kernels": kernels,
        }
        self.ops = without_frozen(layers, self.params)
        self._cache: tuple | None = None
        self._passing: set[str] = set()  # names of arrays that `check_passing` has tried
        if seed is not None:
            initialize(self.params, seed, init)

    def __deepcopy__(self, memo: dict) -> "GPT":
        """Make another model with the same weights, such as a moving average's."""
        return self.copied()

    def copied(self, **where: Any) -> "GPT":
        """Make another model with the same weights.

        Parameters
        ----------
        where
            dtype, device, threads and kernels, if they differ.
        """
        copied = GPT(self.config, None, **self._where | where, freeze=self.params.frozen)
        copied.params.flat[:] = copied.params.xp.asarray(to_host(self.params.flat))
        return copied

    def use_engine(self, engine: ReferenceEngine) -> None:
        """Train, evaluate and generate by another engine of the same `params`.

        Call it before you make an AdamW, which keeps the engine that it is given.
        """
        self.engine = engine

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: Name,
        revision: str | None = None,
        dtype: str | None = "float32",
        device: str = "cpu",
        threads: int | None = None,
        kernels: str = "auto",
        freeze: Names = (),
        block: BlockFile = None,
        **config_fields: Any,
    ) -> "GPT":
        """Make a model with the weights of a GPT-2 checkpoint.

        Parameters
        ----------
        name_or_path : str or path
            A hub id ("gpt2", "distilgpt2", any "owner/name"), a folder with config.json and
            model.safetensors (one file, or shards with their index; a checkpoint of npgpt is such a
            folder too), or a .safetensors file with its config.json beside it.
        revision : str, or None
            A branch, tag or commit of the hub.
        dtype : str, or None
            As in `GPT`; None: float64 if the weights are stored so, else float32. Weights stored as
            float16 or bfloat16 are widened.
        device, threads, kernels, freeze
            As in `GPT`.
        block : path or object, or None
            As in `GPT`. If it has all parameters of GPT-2's and more, the others are drawn, and
            named on standard error.
        config_fields
            Fields of the config to replace, such as dropout=0.1.

        Raises
        ------
        UserError
            Something is missing, damaged or not supported. It is raised before arrays are
            allocated.
        """
        config, stored, read = open_model(find_model(name_or_path, revision), read_block(block))
        config = dataclasses.replace(config, **config_fields)
        model = cls(config, None, dtype or stored, device, threads, kernels, freeze=freeze)
        read(model.params)
        return model

    def save_pretrained(
        self, folder: Name, tokenizer: AnyTokenizer | None = None, dtype: str | None = None
    ) -> None:
        """Write what `npgpt.load` reads: model.safetensors and config.json, and the tokenizer.

        transformers reads the folder too, unless its GPT-2 cannot compute the model; then
        config.json has another "model_type". Of a block of one's own, the names of its file and its
        functions and the SHA-256 of the file are saved, not what an object holds: `load` needs the
        file, as block=. What is frozen is not saved.

        Parameters
        ----------
        folder : str or path
        tokenizer : a tokenizer or a name, or None
            npgpt's, one of the `tokenizers` library, a fast one of transformers, or a name as for
            `make_tokenizer`. None: none is written, and one that is there stays.
        dtype : "float16", "float32" or "float64", or None
            In which the weights are stored; None: the parameters' own.

        Raises
        ------
        UserError
            The folder is a run; or the tokenizer has more tokens than the model, or `load` could
            not give it back, such as a subclass of npgpt's.
        """
        save_model(self.params, folder, tokenizer, dtype)

    def __repr__(self):
        config = self.config
        return (
            f"GPT({self.params.size:,} parameters: {config.n_layer} layers, {config.n_head} heads, "
            f"{config.n_embd} wide, context {config.block_size}, vocabulary {config.vocab_size:,}; "
            f"{self.dtype}, {self.engine.description})"
        )

    def forward(
        self,
        idx: ArrayLike,
        targets: MaybeArray = None,
        rng: Rng = None,
        mask: MaybeArray = None,
        edit: Edits = None,
        add: Added = None,
    ) -> tuple[np.ndarray, float | None]:
        """Compute the logits, and the loss if there are targets. `model(idx, targets)` is the same.

        Every layer runs once, on whole arrays, and keeps its cache for `backward`, until the next
        forward.

        Parameters
        ----------
        idx : integers (B, T), in [0, V)
        targets : integers (B, T), or None
            -1 for a position that is ignored.
        rng : np.random.Generator, or None
            Turns dropout on.
        mask : array, or None
            Floats (T, T), (B, 1, T, T) or (B, H, T, T) are added to the attention scores: 0 where a
            position sees another, -inf where not. A causal model still hides later positions, and a
            position that would see none sees itself. Integers or bools (B, T) mark padding: 1 for a
            token, as `tokenizer.batch` returns it.
        edit : dict name -> function, or None
            Replaces arrays, named as in `run_with_cache`: {"h.3.attn.mix": function, …}. Each
            function gets a copy of its array and returns one of the same shape, or (array,
            backward); see Notes.
        add : dict name -> floats, or None
            Adds to arrays, after edits of the same name: {"h.2.x_out": vector, …}; (C,), or any
            shape that broadcasts to the array's.

        Returns
        -------
        logits : array (B, T, V)
        loss : float, in nats per token, or None

        Raises
        ------
        UserError
            The context is longer than `block_size`, ids are out of range, no array has such a name,
            or something does not fit. `backward` raises UserError if a fused gradient skips an
            edited array, or if several arrays have its name.

        Notes
        -----
        For `backward` each row (along the last axis) that an edit has changed is a constant: no
        gradient flows through it, unless the function returns (array, backward). backward(dnew) ->
        dold is called once, with a copy of the whole gradient of the new array, and returns that of
        the old one, of the same shape. So soft masks and spliced autoencoders train; their own
        gradients are theirs to keep:

        >>> def gate(x):
        ...     def backward(dnew):
        ...         grads["gain"] = (dnew * x).sum(axis=(0, 1))
        ...         return dnew * gain
        ...     return x * gain, backward
        >>> logits, loss = model.forward(idx, targets, edit={"h.2.x_out": gate})

        After a forward with `add`, `backward` returns the gradient of each array that was added as
        well, under the same name, in its shape and dtype: pop it before `AdamW.step`. So a steering
        vector trains:

        >>> logits, loss = model.forward(idx, targets, add={"h.2.x_out": v})
        >>> v -= 0.1 * model.backward()["h.2.x_out"]

        Gradients are found by their names, dv for v. An array that its own layer's backward reads,
        such as "h.2.ln_1.xhat", takes another pass of the backward, with the old array. For that a
        block's cache must hold the array itself, alone or in a tuple: in a block of your own, an
        edit that passes a gradient is tried on a small model first, and refused if it is wrong.
        """
        trace = None if edit is None and add is None else ForwardTrace(self.config, edit, add)
        return self._forward(idx, targets, rng, mask, trace)

    __call__ = forward

    def run_with_cache(
        self,
        idx: ArrayLike,
        targets: MaybeArray = None,
        rng: Rng = None,
        mask: MaybeArray = None,
        edit: Edits = None,
        add: Added = None,
    ) -> tuple[np.ndarray, Activations]:
        """Compute the logits, and return every float array of the forward with them.

        The arguments and errors are those of `forward`.

        Returns
        -------
        logits : array (B, T, V)
        activations : Activations
            activations["h.3.attn.att"] is the variable `att` in the attention of block 3, a
            read-only view. With targets, `backward` adds the gradients:
            activations.grads["h.3.attn.att"]; that of an edited array is the gradient of the new
            one.
        """
        trace = ForwardTrace(self.config, edit, add, keep=True)
        return self._forward(idx, targets, rng, mask, trace)[0], trace.activations

    def logit_lens(
        self, activations: Mapping[str, np.ndarray], names: Iterable[str] | None = None
    ) -> Arrays:
        """Compute the logits of the residual stream: what the model would predict after each block.

        That is the head on the last LayerNorm. For the last block these are the model's own logits.
        Nothing is kept for `backward`.

        >>> logits, activations = model.run_with_cache(idx)
        >>> model.logit_lens(activations)["h.3.x_out"].argmax(axis=-1)

        Parameters
        ----------
        activations : of `run_with_cache`
        names : strings, or None
            Of arrays (B, T, C) among them; None: "drop.y", the embedding's output, and each block's
            x_out.

        Returns
        -------
        dict
            Name -> logits (B, T, V).

        Raises
        ------
        UserError
            The activations lack a name, such as x_out if a block of your own calls its result
            otherwise, or an array does not fit this model.

        References
        ----------
        nostalgebraist 2020, "interpreting GPT: the logit lens".
        """
        right = isinstance(activations, Mapping)
        require("activations", type(activations), right, "those that run_with_cache returns")
        config = self.config
        p = self.params.tree
        found = Arrays()
        head = {**p["wte"], "bias": 0.0, **p.get("lm_head", {})}
        if names is None:
            names = ["drop.y", *(f"h.{i}.x_out" for i in range(config.n_layer))]
        for name in names:
            if name not in activations:
                raise UserError(
                    f"logit_lens: there is no array {shown(name)}; give names, those "
                    "of the residual stream's arrays"
                )
            with self.engine.running():
                (x,) = self.engine.on_device(activations[name])
                right = x.shape[2:] == (config.n_embd,)
                require(f"the shape of {name}", x.shape, right, f"(B, T, {config.n_embd})")
                if config.final_layer_norm:
                    norm = p["ln_f"] | {"eps": config.layer_norm_epsilon}
                    x, _ = self.ops.layernorm_forward(x, **norm)
                found[name] = self.ops.head_forward(x, head["weight"])[0] + head["bias"]
        return found

    def _forward(self, idx, targets, rng, mask, trace):
        """Compute `forward`. trace: a `ForwardTrace`, which records or edits arrays, or None."""
        idx, targets = check_batch(self.config, idx, targets, targets is not None)
        ops = trace.ops if trace else self.ops
        logits, gpt = self._run_forward(idx, rng, mask, ops, trace)
        loss = cross_entropy = None
        if targets is not None:
            with self.engine.running():
                (targets,) = self.engine.on_device(targets)
                loss, cross_entropy = cross_entropy_forward(logits, targets)
        self._cache = gpt, cross_entropy, logits, trace, ops
        return logits, None if loss is None else float(loss)

    def hidden(self, idx: ArrayLike, rng: Rng = None, mask: MaybeArray = None) -> np.ndarray:
        """Compute what the head would read, the last hidden state: the output of an encoder.

        `backward(dhidden)` then returns the gradients. The arguments and errors are those of
        `forward`.

        Returns
        -------
        array (B, T, C)
        """
        idx, _ = check_batch(self.config, idx, None, with_targets=False)
        ops = headless(self.ops)
        logits, gpt = self._run_forward(idx, rng, mask, ops)
        self._cache = gpt, None, logits, None, ops
        return ops.x

    def score(self, idx: ArrayLike) -> np.ndarray:
        """Compute the log-probability of each token given those before it.

        Parameters
        ----------
        idx : integers (B, T), T from 2 to block_size + 1

        Returns
        -------
        array (B, T - 1), in nats

        Raises
        ------
        UserError
            T is out of range, or the model is not causal.
        """
        idx = check_ids(self.config, idx)
        if not self.config.causal:
            raise UserError(
                "a model with causal=False sees the tokens that it would score: use a causal one"
            )
        context, _ = check_batch(self.config, idx[:, :-1], None, with_targets=False)
        logits, _ = self._run_forward(context, None, None, without_caches(self.ops))
        with self.engine.running():
            return log_probs(logits, *self.engine.on_device(idx[:, 1:]))

    def _run_forward(self, idx, rng, mask, ops, trace=None):
        mask = check_mask(self.config, mask, self.params.dtype, *idx.shape)
        check_rng(rng)
        with self.engine.running():
            masks = draw_masks(self.config, *idx.shape, self.params.dtype, rng)
            idx, mask = self.engine.on_device(idx, mask)
            config = trace.config if trace else self.config.with_block()
            lesson = (trace or transformer).gpt_forward
            return model_forward(idx, self.params.tree, config, masks, ops, mask, lesson)

    def backward(
        self, dhidden: MaybeArray = None, dlogits: MaybeArray = None
    ) -> dict[str, np.ndarray]:
        """Compute the gradients of the last `forward`'s loss.

        Parameters
        ----------
        dhidden : array (B, T, C), or None
            After `hidden`, the gradient of its result. The head's gradients are 0; with a tied
            head, wte's has the embedding's share alone.
        dlogits : array (B, T, V), or None
            The gradient of the logits, of a loss of one's own. It replaces that of the loss, and is
            needed after a forward without targets.

        Returns
        -------
        dict
            Name -> array, newly made, without frozen parameters. After a forward with `add`, it has
            the gradients of what was added as well.

        Raises
        ------
        UserError
            A gradient is missing, unexpected, or of another shape.
        """
        if self._cache is None:
            raise UserError("backward needs a forward before it: call forward(idx, targets) first")
        gpt, cross_entropy, logits, trace, ops = self._cache
        hidden = hasattr(ops, "x")
        if (dhidden is not None) != hidden or hidden and dlogits is not None:
            raise UserError(
                "backward takes dhidden after hidden, and after forward the gradient of the "
                "logits by name, backward(dlogits=...)"
            )
        if cross_entropy is None and not hidden and dlogits is None:
            raise UserError(
                "backward needs the gradient of the logits, backward(dlogits=...), or a forward "
                "with targets before it"
            )
        with self.engine.running():
            if hidden:
                ops.dx, dlogits = check_like("dhidden", dhidden, ops.x), np.zeros_like(logits)
            elif dlogits is not None:
                dlogits = check_like("dlogits", dlogits, logits)
            else:
                dlogits = cross_entropy_backward(1.0, cross_entropy)
            if trace:
                grads = trace.backward(dlogits, gpt, ops, self.params.flatten)
                own = trace.passing if self.config.block != GPT2 else set()
                for name in own - self._passing:
                    check_passing(self.config, name, self.params.frozen)
                    self._passing.add(name)
                return grads
            return self.params.flatten(model_backward(dlogits, gpt, ops))

    def loss_and_grads(
        self,
        idx: ArrayLike,
        targets: MaybeArray = None,
        rng: Rng = None,
        count: float | None = None,
        mask: MaybeArray = None,
        *,
        weights: MaybeArray = None,
        dlogits: Loss | None = None,
    ) -> tuple[float, dict[str, np.ndarray]]:
        """Compute the loss and all gradients of one batch by the engine, as in training.

        No logits are kept. Equal arguments and threads give equal bits, on a GPU unless the kernels
        are "reference".

        Parameters
        ----------
        idx, targets, rng, mask
            As in `forward`; for XLA, rng comes from `engine.dropout_rng`.
        count : float, or None
            The divisor of the summed losses; None: the number of targets other than -1. The
            gradients of several micro-batches, each with the count of all, add up to those of their
            batch.
        weights : array (B, T), or None
            A factor of each target's loss. The divisor stays count: a mean over the weights has
            count=weights.sum().
        dlogits : function, or None
            Instead of targets, a loss of one's own: logits (B, T, V) -> loss, dlogits (B, T, V). It
            is called once, for the whole batch, with an array that it may write to: CuPy's on a GPU
            (not with XLA), else NumPy's.

        Returns
        -------
        loss : float, in nats per token; with CuPy a 0-d array on the GPU: nothing waits
        grads : dict, name -> array, newly made

        Raises
        ------
        UserError
            An argument is invalid.
        """
        if dlogits is None and targets is None:
            raise UserError("loss_and_grads needs targets, or dlogits, a function of the logits")
        idx, targets = check_batch(self.config, idx, targets, targets is not None)
        mask = check_mask(self.config, mask, self.params.dtype, *idx.shape)
        if self.engine.kernels != "xla":  # which has numbers instead, and checks them
            check_rng(rng)
        if dlogits is None:
            assert targets is not None
            check_real("count", count, above=0.0, or_none=True)
            count = count or counted(targets)
            if weights is None:
                results = self.engine.loss_and_grads([(idx, targets)], [rng], count, mask)
                return self.engine.for_user(*results)
            weights = check_like("weights", weights, np.empty(idx.shape, self.params.dtype))
            require("weights", weights, np.isfinite(weights).all(), "finite")
            targets, weights = self.engine.on_device(targets, weights)
            dlogits = partial(weighted_loss, targets=targets, weights=weights, count=count)
        elif targets is not None or weights is not None or count is not None:
            raise UserError("dlogits computes the loss: leave targets, weights and count out")
        require("dlogits", dlogits, callable(dlogits), "a function: logits -> loss, dlogits")
        return self.engine.for_user(*self.engine.own_loss(dlogits, idx, rng, mask))

    def evaluate(self, idx: ArrayLike, targets: ArrayLike, mask: MaybeArray = None) -> float:
        """Compute the mean loss of one batch, without dropout and without caches.

        The arguments and errors are those of `forward`.

        Returns
        -------
        float, in nats per token; on a GPU, or with XLA, a 0-d array there
        """
        idx, targets = check_batch(self.config, idx, targets)
        mask = check_mask(self.config, mask, self.params.dtype, *idx.shape)
        return self.engine.loss(idx, targets, mask)

    def generate(
        self,
        idx: ArrayLike,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        eos_token_id: int | None = None,
        mask: MaybeArray = None,
        stop: Iterable[Sequence[int]] = (),
        edit: Edits = None,
        add: Added = None,
        logits_processor: Processor | None = None,
        rng: np.random.Generator | None = None,
    ) -> np.ndarray:
        """Continue each row of idx by up to `max_new_tokens` tokens.

        The arguments and errors are those of `stream`.

        Returns
        -------
        int64 array (B, T + N)
            N is max_new_tokens, or fewer if all rows have ended; shorter rows are padded.
        """
        columns = self.stream(
            idx,
            max_new_tokens,
            temperature,
            top_k,
            top_p,
            seed,
            eos_token_id,
            mask,
            stop,
            edit,
            add,
            logits_processor,
            rng,
        )
        return np.column_stack([check_ids(self.config, idx), *columns])

    def stream(
        self,
        idx: ArrayLike,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        eos_token_id: int | None = None,
        mask: MaybeArray = None,
        stop: Iterable[Sequence[int]] = (),
        edit: Edits = None,
        add: Added = None,
        logits_processor: Processor | None = None,
        rng: np.random.Generator | None = None,
    ) -> Iterator[np.ndarray]:
        """Return an iterator over the next token of each row, each drawn on demand.

        Parameters
        ----------
        idx : integers (B, T), T at least 1
        max_new_tokens : int
            When a text no longer fits into block_size, all but its last block_size // 2 tokens are
            forgotten: those are read again as a new text.
        temperature : float
            Divides the logits: below 1 safer, above 1 wilder, 0 always the most likely token.
        top_k : int, or None
            Keep the k most likely tokens only.
        top_p : float, or None
            Keep the smallest set of most likely tokens whose probabilities reach p (nucleus
            sampling).
        seed : int
            The same seed gives the same text.
        eos_token_id : int, or None
            A row ends after it, and is padded with it; without one, with the row's last token.
        mask : integers (B, T), or None
            For prompts of different lengths, 1 for a token and 0 for padding before it, from
            `tokenizer.batch(texts, length, left=True)`: each row is continued as it would be alone.
        stop : lists of token ids
            A row also ends when its new tokens end with one of them.
        edit, add
            As in `forward`. They change the arrays of the prompt, then those of one token at a
            time, with keys that earlier edits made; the embedding's have all texts as one row. So a
            vector that is added has the shape (C,).
        logits_processor : function, or None
            All tokens (B, N), logits of the next one (B, V) -> other logits, before the
            temperature; -inf forbids a token.
        rng : np.random.Generator, or None
            Draws the tokens; None: one made of the seed.

        Yields
        ------
        integers (B,)

        Raises
        ------
        UserError
            A value is out of range, or the model is not causal.

        References
        ----------
        Nucleus sampling: Holtzman et al. 2019, arXiv:1904.09751.
        """
        idx = check_ids(self.config, idx)
        check_sampling(self.config, max_new_tokens, temperature, top_k, top_p, seed, eos_token_id)
        stops = [list(ids) for ids in stop]
        require("stop", stop, all(stops), "lists of token ids, none of them empty")
        pads = check_padding(mask, *idx.shape)
        if edit is None and add is None:
            cache = self.engine.reader(len(idx), pads)
        else:
            cache = KVCache(self.engine, len(idx), pads, ForwardTrace(self.config, edit, add))
        check_rng(rng)
        processor = logits_processor
        right = processor is None or callable(processor)
        require("logits_processor", processor, right, "a function: tokens, logits -> logits")
        rng = np.random.default_rng(seed) if rng is None else rng
        return stream_tokens(
            cache.read,
            idx,
            max_new_tokens,
            temperature,
            top_k,
            top_p,
            rng,
            eos_token_id,
            stops,
            processor,
        )

    def reader(self, B: int = 1, mask: MaybeArray = None) -> Reader:
        """Return a `Reader` of B texts, the KV cache: what it has read is not computed again.

        Parameters
        ----------
        B : int
        mask : integers (B, T), or None
            For texts that begin with padding, as in `stream`; their first T tokens are read with
            it.

        Raises
        ------
        UserError
            The model is not causal, or its block cannot continue texts.
        """
        check_whole("B", B, 1)
        check_writes(self.config)
        pads = None
        if mask is not None:
            mask = np.asarray(mask)
            pads = check_padding(mask, B, mask.shape[-1] if mask.ndim else 0)
        return Reader(self.config, self.engine.reader(B, pads))


def check_passing(config, name, frozen):
    """Raise UserError unless a gradient passes an edit of an array of the user's block.

    It is found by names and caches, so it is tried: on a small model, in float64, the derivative
    along all parameters and what is added is compared with a difference.
    """
    config = dataclasses.replace(
        config, vocab_size=5, block_size=min(4, config.block_size), n_layer=1
    )
    name = re.sub(r"^h\.\d+", "h.0", name)
    freeze = frozen & parameter_shapes(config).keys()
    model, rng = GPT(config, None, "float64", threads=1, freeze=freeze), np.random.default_rng(0)
    start, along = rng.standard_normal((2, model.params.size))
    start /= math.sqrt(config.n_embd)
    idx, targets = rng.integers(0, 5, (2, 2, config.block_size))
    along[model.params.n_trained :] = 0.0

    def loss(step):
        model.params.flat[:] = start + step * along
        return model.forward(idx, targets, add={name: np.array(0.1 + step)})[1]

    step = 1e-6
    difference = (loss(step) - loss(-step)) / (2 * step)
    loss(0.0)
    assert model._cache is not None
    gpt, cross_entropy, _, trace, ops = model._cache
    dlogits = cross_entropy_backward(1.0, cross_entropy)
    grads = trace.backward(dlogits, gpt, ops, model.params.flatten)
    total = float(grads.pop(name))
    flat = np.concatenate([grads[each].ravel() for each in model.params.flat_names])
    total += flat @ along[: len(flat)]
    if abs(total - difference) > 1e-4 * max(abs(total), abs(difference), 1e-3):
        raise UserError(
            f"no gradient passes an edit of {name} in {config.block}: its backward reads something "
            "that was computed from the array; edit a result of it"
        )


def check_scipy():
    """Raise UserError, naming the extra, if SciPy is missing: the exact GELU needs its error
    function.
    """
    try:
        import scipy.special  # noqa: F401
    except ImportError:
        raise UserError(
            'activation "gelu" needs SciPy for erf: pip install "npgpt[gelu]", '
            'or choose activation "gelu_tanh"'
        ) from None
