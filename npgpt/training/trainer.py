"""A training run: the steps of `loop`, with evaluation, checkpoints and metrics in between."""

import dataclasses
import inspect
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npgpt.checkpoints.run import (
    Checkpoint,
    find_checkpoint,
    fingerprint,
    read_checkpoint,
    save_checkpoint,
)
from npgpt.checks import check_real, require
from npgpt.data.batches import Crops, Tokens
from npgpt.data.tokenizer_base import Tokenizer
from npgpt.data.tokenizers import NoTokenizer
from npgpt.display import HIDE_BARS, tqdm
from npgpt.engine.memory import check_training_memory
from npgpt.engine.trial import check_trained
from npgpt.errors import NotFiniteError, UserError
from npgpt.interrupts import calling_on_signals
from npgpt.model.batch import check_batch
from npgpt.model.block import GPT2
from npgpt.training.adamw import AdamW
from npgpt.training.evaluation import mean_loss
from npgpt.training.loop import Batches, Loss, batch_starts, train_step
from npgpt.training.metrics import append_metrics, drop_metrics_after
from npgpt.training.optimizer import Optimizer, restore_optimizer
from npgpt.training.options import TrainOptions

NAMES = {"train": "train", "val": "validation"}     # of the splits, in what is printed
# The functions that a user gives, and what they are called with.
CALLS = {
    "schedule": ("step",),
    "batches": ("number",),
    "loss": ("logits", "targets"),
    "on_evaluation": ("trainer", "losses"),
}
OWN = "optimizer", "schedule", "batches", "loss"     # what only a run in Python can have


def check_causal(config):
    """Raise UserError for an encoder."""
    if not config.causal:
        raise UserError("a model with causal=False sees the next token, which it would have to predict: train it in "
                        "Python on other targets, with loss_and_grads and AdamW.step, or Trainer(batches=…)")


def check_function(name, function, arguments):
    """Raise UserError unless something can be called with positional arguments."""
    try:
        right = bool(inspect.signature(function).bind(*arguments))
    except ValueError:          # C functions may have no signature
        right = True
    except TypeError:
        right = False
    require(name, function, right, f"a function of {', '.join(arguments)}")


class Trainer:
    """One training run.

    model: a GPT.
    train_tokens, val_tokens: 1-D integer arrays, in which masked tokens (np.ma.MaskedArray) are
        read, but not learned, such as prompts; without val_tokens the latest checkpoint is the
        best. A split that is shorter than a crop is one crop, and a line says so.
    options: epochs, if given, replace max_iters.
    out_dir: a folder for checkpoints and metrics.jsonl, created if needed; the first checkpoint
        replaces all earlier ones; None: nothing is saved.
    tokenizer, corpus_name: saved with the checkpoints, for `load` and for --resume.
    on_evaluation: called as on_evaluation(trainer, losses) after each evaluation, when its
        checkpoint is saved; losses: {"train": mean loss, "val": mean loss}.
    optimizer: an `AdamW` of this model's params, or an object as `npgpt.training.optimizer`
        describes. The options' betas, eps, weight_decay and decay are not for it. Without a
        schedule, each step has the optimizer's own lr.
    schedule: a function, step -> learning rate, counted from 0, instead of the options' warm-up and
        cosine, which are `options.rate`.
    groups: name pattern -> factor of the learning rate, as in `AdamW`.
    batches: a function, number -> (idx, targets), integers (B, T) each, instead of train_tokens;
        a target of -1 is ignored. Each number may have a shape of its own, T up to block_size. With
        n gradient_accumulation_steps, step s reads the numbers s n to s n + n - 1. The same number
        must give the same batch again: a resumed run asks for its next ones, and the train loss of
        each evaluation is the mean over eval_iters of them, taken evenly from all max_iters steps.
        Checkpoints cannot tell whether it is the same function.
    loss: a function, logits (B, T, V) and targets (B, T) -> loss, dlogits, which is trained on
        instead of the cross-entropy, as the mean over micro-batches. Evaluations and the best
        checkpoint are of the cross-entropy.
    Raises UserError for invalid values, too few tokens, or a step that does not fit into this
    machine's memory.

    Between runs you may set `options`, `schedule`, `batches`, `loss`, `on_evaluation`, `optimizer`
    and `step`, the steps taken. `schedule` is a function or None, for the optimizer's own lr; with
    a function it sets `optimizer.lr` in each step. The optimizer keeps the betas, eps and
    weight_decay that it was made with: set its own. A run with such functions, groups or optimizer
    continues in Python: make the same Trainer, then `restore(out_dir)`.

    Every random number comes from a generator seeded with (seed, stream, step, …). So the seed and
    the step determine all random streams and the position in the data, and a resumed run continues
    with the same bits.
    """

    optimizer: Optimizer
    schedule: Callable[[int], float] | None
    batches: Batches

    def __init__(
        self,
        model,
        train_tokens: Tokens | None = None,
        val_tokens: Tokens | None = None,
        options: TrainOptions | None = None,
        out_dir: str | os.PathLike | None = None,
        tokenizer: Tokenizer | None = None,
        corpus_name: str | None = None,
        on_evaluation: Callable[["Trainer", dict[str, float]], object] | None = None,
        *,
        optimizer: Optimizer | None = None,
        schedule: Callable[[int], float] | None = None,
        groups: Mapping[str, float] | None = None,
        batches: Batches | None = None,
        loss: Loss | None = None,
    ):
        if batches is None or val_tokens is not None:
            check_causal(model.config)
        if model.config.block != GPT2:
            check_trained(model.config, model.params.trained)
        if (batches is None) == (train_tokens is None):
            raise UserError("a Trainer needs either train_tokens or batches")
        self.model, self.on_evaluation, self.loss = model, on_evaluation, loss
        self.out_dir = None if out_dir is None else Path(out_dir)
        self.tokenizer = tokenizer or NoTokenizer(model.config.vocab_size)
        options = options or TrainOptions()
        self.crop_length = options.crop_length or model.config.block_size
        if self.crop_length > model.config.block_size:
            raise UserError(f"crop_length {self.crop_length} is more than block_size {model.config.block_size}")
        self.crops = {}
        if train_tokens is not None:
            self.crops["train"] = Crops(train_tokens, self.crop_length)
        if val_tokens is not None:
            self.crops["val"] = Crops(val_tokens, self.crop_length, NAMES["val"])
        for split, crops in self.crops.items():
            if crops.length < self.crop_length:
                print(
                    f"the {NAMES[split]} split has {crops.length + 1} tokens, so its crops have "
                    f"{crops.length} instead of {self.crop_length}"
                )
        self.corpus = {"name": corpus_name or "", "fingerprint": ""}        # of a function there is none
        if batches is None:
            self.crop_length = self.crops["train"].length
            options = options.for_crops(self.crops["train"])
            self.corpus["fingerprint"] = fingerprint(train_tokens, val_tokens)
        elif options.epochs:
            raise UserError("epochs are of train_tokens: with batches, set max_iters")
        self.options = options
        # What a run of the command has; a run with anything else is resumed in Python.
        self._defaults: dict = {"batches": self._crops, "schedule": self._rate, "loss": None}
        self.batches = batches or self._defaults["batches"]
        self.schedule = schedule
        if optimizer is None:
            betas = options.beta1, options.beta2
            self.optimizer = AdamW(model.params, options.learning_rate, betas, options.eps, options.weight_decay,
                                   engine=model.engine, decay=options.decay, groups=groups)
            self.schedule = schedule or self._defaults["schedule"]
            if not groups:
                self._defaults["optimizer"] = self.optimizer
        elif groups:
            raise UserError("groups are of the Trainer's AdamW: give them to yours, as AdamW(…, groups=…)")
        else:
            self.optimizer = optimizer
        self.step = 0                   # steps taken
        self.tokens_read = 0
        self._check()
        shape = options.batch_size, self.crop_length
        if batches is not None:
            shape = check_batch(model.config, *self._batch(0))[0].shape
        check_training_memory(model.engine, *shape, options.gradient_accumulation_steps)
        self.saved_step: int | None = None      # the step of the last checkpoint
        self.best_step, self.best_loss = 0, math.inf
        self.stop_requested, self.stop_signal = False, 0

    def _check(self):
        """Raise UserError unless the user's functions and optimizer can do what is asked of them."""
        for name, arguments in CALLS.items():
            if (function := getattr(self, name)) is not None:
                check_function(name, function, arguments)
        optimizer = self.optimizer
        check_function("optimizer.step", getattr(optimizer, "step", None), ("grads", "max_norm", "lr"))
        if isinstance(optimizer, AdamW) and optimizer.params is not self.model.params:
            raise UserError("the optimizer has the params of another model: AdamW(model.params, …)")
        if self.schedule is None:
            check_real("without a schedule, optimizer.lr", getattr(optimizer, "lr", None))

    def restore(self, checkpoint: Checkpoint | str | os.PathLike) -> None:
        """Continue from a checkpoint of a run with the same model shape, corpus and optimizer.

        checkpoint: a `Checkpoint`, its folder, or that of a run, of which it is the latest.
        Raises UserError if it is damaged, or of another model or optimizer.
        """
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = read_checkpoint(find_checkpoint(Path(checkpoint)), self.model.config.block)
        restore_optimizer(self.optimizer, self.model.params, checkpoint)
        state = checkpoint.state
        self.step, self.saved_step = state["step"], None
        self.best_step, self.best_loss = state["best_step"], state["best_loss"]
        if self.out_dir is None:
            return
        self.out_dir.mkdir(parents=True, exist_ok=True)
        if self.out_dir.resolve() == checkpoint.folder.resolve().parent:
            self.saved_step = self.step
            drop_metrics_after(self.out_dir, self.step)

    def run(self, progress: bool | None = None) -> bool:
        """Train to `max_iters`, or until Ctrl-C, SIGTERM or SIGHUP, and save. Return True if it
        reached the end.

        progress: whether to show a bar; by default, on a terminal and in a notebook. With False,
            nothing is printed, nor are the losses of evaluations.
        Raises NotFiniteError, leaving the last checkpoint, when the loss or the gradient is not
        finite, and UserError when a checkpoint cannot be written.
        """
        self._check()
        self.stop_requested = False         # of an earlier run
        disable = HIDE_BARS if progress is None else not progress
        # Without smoothing the time left includes the evaluations to come.
        with calling_on_signals(self.request_stop), tqdm(total=self.options.max_iters, initial=self.step, unit="step",
                                                         disable=disable, dynamic_ncols=True, smoothing=0) as bar:
            lines = None if progress is False else bar
            if self.step == 0:          # also if a run was killed between its first checkpoint and its first metrics
                self.evaluate_and_save(lines)
                bar.reset()             # its clock, to exclude the first evaluation
            began, first, record = time.perf_counter(), self.tokens_read, {}
            while self.step < self.options.max_iters and not self.stop_requested:
                record = self.train_step()
                bar.update()
                options = self.options
                logging = self.step % options.log_interval == 0
                evaluating = self.step % options.eval_interval == 0 or self.step == options.max_iters
                if not logging and not evaluating:
                    continue
                record = self.read(record)
                if logging:
                    seconds = time.perf_counter() - began
                    record["tokens_per_second"] = round((self.tokens_read - first) / seconds)
                    if self.out_dir:
                        append_metrics(self.out_dir, record)
                    best = f", best val {self.best_loss:.4f}" * ("val" in self.crops)
                    bar.set_postfix_str(f"loss {record['loss']:.4f}{best}, "
                                        f"{record['tokens_per_second']:,} tokens/s")
                if evaluating:
                    self.evaluate_and_save(lines)
                began, first = time.perf_counter(), self.tokens_read
            if self.out_dir and self.saved_step != self.step:
                if record:
                    self.read(record)
                self.save()
        return self.step >= self.options.max_iters

    def request_stop(self, number: int = 0) -> None:
        """Let `run` end after the step in progress. number: of the signal that asks for it."""
        self.stop_requested, self.stop_signal = True, number

    def train_step(self) -> dict:
        """Take one step, and return its record. On a GPU its values are still being computed, see
        `read`.
        """
        own_lr: Any = getattr(self.optimizer, "lr", None)
        lr = own_lr if self.schedule is None else self.schedule(self.step)
        check_real(f"the learning rate of step {self.step}", lr)
        lr = float(lr)
        try:
            loss, norm = train_step(
                self.model, self.optimizer, self._batch, self.options, self.step, lr, self.loss
            )
        except NotFiniteError as error:
            raise self._not_finite(str(error).partition(":")[0]) from None
        self.step += 1
        return {"step": self.step, "loss": loss, "lr": lr, "grad_norm": norm}

    def read(self, record: dict) -> dict:
        """Return the record of `train_step` with plain numbers. On a GPU this waits.

        Raises NotFiniteError if loss or gradient were not finite, which on a GPU is noticed only here.
        """
        norm = record["grad_norm"]
        require("what optimizer.step returns", norm, norm is not None, "the norm of the gradients")
        read = {name: float(record[name]) for name in ("loss", "grad_norm")}
        for name, value in read.items():
            if not math.isfinite(value):
                raise self._not_finite(f"the {name} is {value}")
        return record | read

    def evaluate(self) -> dict[str, float]:
        """Return {"train": mean loss, "val": mean loss} over `eval_iters` batches, spread evenly over each split.

        Of a function `batches`, they are spread evenly over the numbers of all steps.
        """
        n, size = self.options.eval_iters, self.options.batch_size
        read = {split: map(crops.at, crops.evenly(n, size)) for split, crops in self.crops.items()}
        if "train" not in read:
            last = self.options.max_iters * self.options.gradient_accumulation_steps - 1
            numbers = np.unique(np.linspace(0, last, n).astype(int))
            read = {"train": map(self._batch, numbers.tolist()), **read}
        return {split: mean_loss(self.model, batches)[0] for split, batches in read.items()}

    def _rate(self, step):
        return self.options.rate(step)

    def _crops(self, number):
        """Return the micro-batch of a number: crops of train_tokens."""
        step, i = divmod(number, self.options.gradient_accumulation_steps)
        crops = self.crops["train"]
        return crops.at(batch_starts(crops, self.options, step, i))

    def _batch(self, number):
        """Return the micro-batch of a number, and count its tokens."""
        batch = self.batches(number)
        pair = isinstance(batch, tuple | list) and len(batch) == 2
        require(f"batches({number})", batch, pair, "a pair (idx, targets)")
        self.tokens_read += np.size(batch[0])
        return batch

    def evaluate_and_save(self, bar: tqdm | None) -> None:
        """Evaluate, log the losses in a line unless bar is None, and save a checkpoint."""
        losses = self.evaluate()
        split, loss = list(losses.items())[-1]
        if not math.isfinite(loss):
            raise self._not_finite(f"the {NAMES[split]} loss is {loss}")
        if split == "train" or loss < self.best_loss:
            self.best_step, self.best_loss = self.step, loss
        record = {"step": self.step} | {f"{split}_loss": loss for split, loss in losses.items()}
        if self.step > 0 and self.out_dir:
            append_metrics(self.out_dir, record)
            self.save()
        elif self.out_dir:          # at step 0 the checkpoint comes first, because it replaces an earlier run
            if self.saved_step is None:
                self.save()
            drop_metrics_after(self.out_dir, -1)
            append_metrics(self.out_dir, record)
        if bar is not None:
            shown = ", ".join(f"{NAMES[split]} loss {losses[split]:.4f}" for split in losses)
            bar.write(f"step {self.step:>5}: {shown}")
        if self.on_evaluation:
            self.on_evaluation(self, losses)

    def save(self) -> None:
        """Save a checkpoint of this step in `out_dir`."""
        assert self.out_dir is not None
        if self.saved_step is None:     # later, a folder that was deleted has lost its lock and metrics
            self.out_dir.mkdir(parents=True, exist_ok=True)
        state = {"best_step": self.best_step, "best_loss": self.best_loss, "options": dataclasses.asdict(self.options),
                 "threads": self.model.engine.threads, "kernels": self.model.engine.kernels, "corpus": self.corpus}
        if own := [name for name in OWN if getattr(self, name) is not self._defaults.get(name)]:
            state["own"] = ", ".join(own)
        if (name := type(self.optimizer).__name__) != "AdamW":
            state["optimizer"] = name
        if (t := getattr(self.optimizer, "t", self.step)) != self.step:
            state["t"] = t
        if self.model.params.frozen:
            state["frozen"] = sorted(self.model.params.frozen)
        save_checkpoint(self.out_dir, self.step, self.model, self.optimizer, self.tokenizer, state,
                        replace=self.saved_step is None)
        self.saved_step = self.step

    def _not_finite(self, what):
        if self.step == 0:
            return NotFiniteError(f"{what} before the first step: the initial weights are bad, choose another model")
        saved = f", the checkpoint of step {self.saved_step} in {self.out_dir} is good" if self.out_dir else ""
        return NotFiniteError(f"{what} at step {self.step}: training stopped{saved}; "
                              "start again with a lower --learning-rate")
