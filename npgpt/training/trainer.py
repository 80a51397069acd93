"""A training run: the steps of `loop`, with evaluation, checkpoints and metrics in between."""

import dataclasses
import inspect
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

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
from npgpt.data.tokenizers import AnyTokenizer, given_tokenizer
from npgpt.display import HIDE_BARS, tqdm
from npgpt.engine.memory import check_training_memory
from npgpt.engine.trial import check_trained
from npgpt.errors import NotFiniteError, UserError, remark
from npgpt.files import AnyPath
from npgpt.interrupts import calling_on_signals
from npgpt.model.batch import check_batch
from npgpt.model.block import GPT2
from npgpt.training.adamw import AdamW
from npgpt.training.evaluation import mean_loss
from npgpt.training.loop import Batches, Loss, Schedule, batch_starts, train_step
from npgpt.training.metrics import append_metrics, drop_metrics_after
from npgpt.training.optimizer import Optimizer, restore_optimizer
from npgpt.training.options import TrainOptions

NAMES = {"train": "train", "val": "validation"}  # of the splits, in what is printed
OWN = "groups", "schedule", "batches", "loss"  # which only a run in Python has


def check_causal(config):
    """Raise UserError for an encoder."""
    if not config.causal:
        raise UserError(
            "a model with causal=False sees the next token, which it would have to predict: train "
            "it in Python on other targets, with loss_and_grads and AdamW.step, or "
            "Trainer(batches=)"
        )


def check_called(name, function, arguments):
    """Raise UserError unless a function, or None, can be called with these arguments."""
    require(name, function, function is None or callable(function), "a function")
    try:
        inspect.signature(function or (lambda *_: None)).bind(*arguments)
    except TypeError as error:
        text = f"{name} cannot be called with {len(arguments)} arguments: {error}"
        raise UserError(text) from None
    except ValueError:  # a builtin has no signature
        pass


class Trainer:
    """One training run: steps, evaluations, checkpoints and metrics.

    Every random number comes from a generator seeded with (seed, stream, step, …). So the seed and
    the step determine all random streams and the position in the data, and a resumed run continues
    with the same bits.

    Parameters
    ----------
    model : GPT
    train_tokens, val_tokens : 1-D integer arrays, or None
        Masked tokens (np.ma.MaskedArray) are read, but not learned, such as prompts. Without
        val_tokens the latest checkpoint is the best. A split that is shorter than a crop is one
        crop, and a line says so.
    options : TrainOptions, or None
        Its epochs, if given, replace max_iters.
    out_dir : path, or None
        A folder for checkpoints and metrics.jsonl, created if needed; the first checkpoint replaces
        all earlier ones. None: nothing is saved.
    tokenizer, corpus_name : saved with the checkpoints, for `load` and for --resume
    on_evaluation : function, or None
        Called as on_evaluation(trainer, losses) after each evaluation, when its checkpoint is
        saved; losses: {"train": mean loss, "val": mean loss}.
    optimizer : AdamW or Optimizer, or None
        An `AdamW` of this model's params, or an object as `npgpt.training.optimizer` describes. The
        options' betas, eps, weight_decay and decay are not for it. Without a schedule, each step
        has the optimizer's own lr.
    schedule : function, or None
        Step, from 0 -> learning rate, instead of `options.rate`: warm-up and cosine.
    groups : dict, or None
        Name pattern -> factor of the learning rate, as in `AdamW`.
    batches : function, or None
        Number -> (idx, targets), integers (B, T) each, instead of train_tokens; a target of -1 is
        ignored. Each number may have a shape of its own, T up to block_size. With n
        gradient_accumulation_steps, step s reads the numbers s n to s n + n - 1. The same number
        must give the same batch again: a resumed run asks for its next ones, and the train loss of
        each evaluation is the mean over eval_iters of them, taken evenly from all max_iters steps.
    loss : function, or None
        Logits (B, T, V), targets (B, T), of which -1 is to be ignored -> loss, dlogits. It is
        trained on instead of the cross-entropy, as the mean over micro-batches. Evaluations and the
        best checkpoint are of the cross-entropy.

    Raises
    ------
    UserError
        A value is invalid, there are too few tokens, or a step does not fit into this machine's
        memory.

    Notes
    -----
    Between runs, and in on_evaluation, you may set `options`, `schedule` (a function, or None for
    the options' rate), `batches`, `loss`, `on_evaluation`, and `step`, the steps taken. Each step
    sets the lr of an AdamW to its schedule's. Set the other options of AdamW on the optimizer:
    `optimizer.betas`, `eps` and `weight_decay`.

    A run with functions, groups or an optimizer of your own continues in Python: make the same
    Trainer, then `restore(out_dir)`. Its checkpoints cannot tell if a function is the same.
    """

    optimizer: Optimizer

    def __init__(
        self,
        model,
        train_tokens: Tokens | None = None,
        val_tokens: Tokens | None = None,
        options: TrainOptions | None = None,
        out_dir: AnyPath | None = None,
        tokenizer: AnyTokenizer | None = None,
        corpus_name: str | None = None,
        on_evaluation: Callable[["Trainer", dict[str, float]], object] | None = None,
        *,
        optimizer: Optimizer | None = None,
        schedule: Schedule | None = None,
        groups: Mapping[str, float] | None = None,
        batches: Batches | None = None,
        loss: Loss | None = None,
    ):
        if batches is None or val_tokens is not None:
            check_causal(model.config)
        if model.config.block != GPT2:
            check_trained(model.config, model.params.trained)
        if (batches is None) == (train_tokens is None):
            raise UserError("a Trainer needs train_tokens or batches, one of them")
        self.model = model
        self.on_evaluation = on_evaluation
        self.schedule, self.groups, self.batches, self.loss = schedule, groups, batches, loss
        self._check(optimizer)
        self.out_dir = None if out_dir is None else Path(out_dir)
        self.tokenizer = given_tokenizer(tokenizer, model.config.vocab_size)
        options = options or TrainOptions()
        require("options", options, isinstance(options, TrainOptions), "TrainOptions(…)")
        most = model.config.block_size
        self.crop_length = options.crop_length or most
        if self.crop_length > most:
            raise UserError(f"crop_length {self.crop_length} is more than block_size {most}")
        self.crops = {}
        for split, tokens in {"train": train_tokens, "val": val_tokens}.items():
            if tokens is None:
                continue
            crops = self.crops[split] = Crops(tokens, self.crop_length, NAMES[split])
            if crops.length < self.crop_length:
                remark(
                    f"the {NAMES[split]} split has {crops.length + 1} tokens, so its crops have "
                    f"{crops.length} instead of {self.crop_length}"
                )
        self.corpus = {
            "name": corpus_name or "",
            "fingerprint": fingerprint(train_tokens, val_tokens),
        }
        self.step = self.tokens_read = 0  # steps taken; tokens of train_tokens or batches
        if batches:
            B, T = check_batch(model.config, *self._batch(0))[0].shape
            if options.epochs:
                raise UserError("epochs are of train_tokens: with batches, set max_iters")
        else:
            self.crop_length = T = self.crops["train"].length
            options = options.for_crops(self.crops["train"])
            B = options.batch_size
        self.options = options
        check_training_memory(model.engine, B, T, options.gradient_accumulation_steps)
        if groups and optimizer:
            raise UserError("groups are of the Trainer's AdamW: give yours to AdamW(…, groups=…)")
        self.optimizer = optimizer or AdamW(
            model.params,
            options.learning_rate,
            (options.beta1, options.beta2),
            options.eps,
            options.weight_decay,
            model.engine,
            options.decay,
            groups,
        )
        if optimizer:
            self.schedule = schedule or (lambda step: self.optimizer.lr)
        self.saved_step: int | None = None  # the step of the last checkpoint
        self.best_step = 0
        self.best_loss = math.inf
        self.stop_requested = False
        self.stop_signal = 0

    def _check(self, optimizer):
        """Raise UserError for what would fail after hours or train another model in silence."""
        called = {"on_evaluation": (self, {}), "schedule": (0,), "batches": (0,), "loss": ({}, {})}
        for name, arguments in called.items():
            check_called(name, getattr(self, name), arguments)
        if optimizer is not None:
            known = not isinstance(optimizer, type) and hasattr(optimizer, "step")
            known = known and (self.schedule is not None or hasattr(optimizer, "lr"))
            require(
                "optimizer", optimizer, known, "an object with step(grads, max_norm, lr) and lr"
            )
            check_called("optimizer.step", optimizer.step, ({}, None, 0.0))
        if isinstance(optimizer, AdamW) and optimizer.params is not self.model.params:
            raise UserError("the optimizer has the params of another model: AdamW(model.params, …)")

    def restore(self, checkpoint: Checkpoint | AnyPath) -> None:
        """Continue from a checkpoint of a run with the same model shape, corpus and optimizer.

        Parameters
        ----------
        checkpoint : Checkpoint or path
            A path is that of a checkpoint's folder, or of a run, whose latest checkpoint is read.

        Raises
        ------
        UserError
            It is damaged, or of another model or optimizer.
        """
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = read_checkpoint(find_checkpoint(Path(checkpoint)), self.model.config.block)
        state = checkpoint.state
        own = any(getattr(self, name) for name in OWN)
        same = state.get("optimizer", "AdamW") == type(self.optimizer).__name__
        if same and own != state.get("own", False):
            raise UserError(
                f"{checkpoint.folder} was trained with{'out' * own} groups, a schedule, batches or "
                "a loss of its own: make the same Trainer, or begin a new run from npgpt.load"
            )
        restore_optimizer(self.optimizer, self.model.params, checkpoint)
        self.step = self.saved_step = state["step"]
        self.best_step = state["best_step"]
        self.best_loss = state["best_loss"]
        if self.out_dir:
            self.out_dir.mkdir(parents=True, exist_ok=True)
            drop_metrics_after(self.out_dir, self.step)

    def __repr__(self):
        return (
            f"Trainer({self.model}, step {self.step:,} of {self.options.max_iters:,}, "
            f"best loss {self.best_loss:.4f}, out_dir={self.out_dir})"
        )

    def run(self, progress: bool | None = None) -> bool:
        """Train to `max_iters`, or until Ctrl-C, SIGTERM or SIGHUP, and save.

        Parameters
        ----------
        progress : bool, or None
            Whether to show a bar; None: on a terminal and in a notebook. With False, nothing is
            printed, nor are the losses of evaluations.

        Returns
        -------
        bool
            Whether it reached the end.

        Raises
        ------
        NotFiniteError
            The loss or the gradient is not finite. The last checkpoint stays.
        UserError
            A checkpoint cannot be written.
        """
        self._check(self.optimizer)
        self.stop_requested = False  # of an earlier run
        lines = progress is not False
        # Without smoothing the time left includes the evaluations to come.
        with (
            calling_on_signals(self.request_stop),
            tqdm(
                total=self.options.max_iters,
                initial=self.step,
                unit="step",
                dynamic_ncols=True,
                smoothing=0,
                disable=HIDE_BARS if progress is None else not progress,
            ) as bar,
        ):
            if (
                self.step == 0
            ):  # also if a run was killed between its first checkpoint and its first metrics
                self.evaluate_and_save(lines)
                bar.reset()  # its clock, to exclude the first evaluation
            began = time.perf_counter()
            first = self.tokens_read
            record = {}
            while self.step < (options := self.options).max_iters and not self.stop_requested:
                record = self.train_step()
                bar.update()
                logging = self.step % options.log_interval == 0
                evaluating = (
                    self.step % options.eval_interval == 0 or self.step == options.max_iters
                )
                if not logging and not evaluating:
                    continue
                record = self.read(record)
                if logging:
                    speed = round((self.tokens_read - first) / (time.perf_counter() - began))
                    if self.out_dir:
                        append_metrics(self.out_dir, record | {"tokens_per_second": speed})
                    best = f", best val {self.best_loss:.4f}" * ("val" in self.crops)
                    bar.set_postfix_str(f"loss {record['loss']:.4f}{best}, {speed:,} tokens/s")
                if evaluating:
                    self.evaluate_and_save(lines)
                began = time.perf_counter()
                first = self.tokens_read
            if self.out_dir and self.saved_step != self.step:
                if record:
                    self.read(record)
                self.save()
        return self.step >= self.options.max_iters

    def request_stop(self, number: int = 0) -> None:
        """Let `run` end after the step in progress. number: of the signal that asks for it."""
        self.stop_requested = True
        self.stop_signal = number

    def train_step(self) -> dict:
        """Take one step, and return its record.

        On a GPU its values are still being computed, see `read`.
        """
        lr = (self.schedule or self.options.rate)(self.step)
        check_real(f"the learning rate of step {self.step}", lr)
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

        Raises
        ------
        NotFiniteError
            Loss or gradient were not finite, which on a GPU is noticed only here.
        """
        read = {name: float(record[name]) for name in ("loss", "grad_norm", "lr")}
        for name, value in read.items():
            if not math.isfinite(value):
                raise self._not_finite(f"the {name} is {value}")
        return record | read

    def evaluate(self) -> dict[str, float]:
        """Compute the mean losses over `eval_iters` batches, spread evenly over each split.

        Those of a function `batches` are spread evenly over the numbers of all steps.

        Returns
        -------
        dict
            {"train": mean loss, "val": mean loss}, in nats per token.
        """
        options = self.options
        n = options.eval_iters
        read = {}
        if self.batches:
            total = options.max_iters * options.gradient_accumulation_steps
            read["train"] = map(self._batch, [i * total // n for i in range(n)])
        for split, crops in self.crops.items():
            read[split] = map(crops.at, crops.evenly(n, options.batch_size))
        return {split: mean_loss(self.model, batches)[0] for split, batches in read.items()}

    def _batch(self, number):
        """Return the micro-batch of a number, and count its tokens."""
        if self.batches:
            found = self.batches(number)
            right = isinstance(found, tuple | list) and len(found) == 2
            require(f"batches({number})", found, right, "a pair (idx, targets)")
            idx, targets = found
        else:
            step, i = divmod(number, self.options.gradient_accumulation_steps)
            crops = self.crops["train"]
            idx, targets = crops.at(batch_starts(crops, self.options, step, i))
        self.tokens_read += math.prod(np.shape(idx))
        return idx, targets

    def evaluate_and_save(self, lines: bool) -> None:
        """Evaluate, save a checkpoint, and if `lines` print the losses in a line."""
        losses = self.evaluate()
        split, loss = list(losses.items())[-1]
        if not math.isfinite(loss):
            raise self._not_finite(f"the {NAMES[split]} loss is {loss}")
        if split == "train" or loss < self.best_loss:
            self.best_step = self.step
            self.best_loss = loss
        if self.out_dir:
            if self.step == 0:  # the checkpoint comes first, because it replaces an earlier run
                if self.saved_step is None:
                    self.save()
                drop_metrics_after(self.out_dir, -1)
            named = {f"{split}_loss": losses[split] for split in losses}
            append_metrics(self.out_dir, {"step": self.step, **named})
            if self.step > 0:
                self.save()
        if lines:
            shown = ", ".join(f"{NAMES[split]} loss {losses[split]:.4f}" for split in losses)
            tqdm.write(f"step {self.step:>5}: {shown}")
        if self.on_evaluation:
            self.on_evaluation(self, losses)

    def save(self) -> None:
        """Save a checkpoint of this step in `out_dir`."""
        assert self.out_dir is not None
        if (
            self.saved_step is None
        ):  # later, a folder that was deleted has lost its lock and metrics
            self.out_dir.mkdir(parents=True, exist_ok=True)
        state = {
            "best_step": self.best_step,
            "best_loss": self.best_loss,
            "options": dataclasses.asdict(self.options),
            "threads": self.model.engine.threads,
            "kernels": self.model.engine.kernels,
            "corpus": self.corpus,
        }
        own = any(getattr(self, name) for name in OWN)
        t = getattr(self.optimizer, "t", self.step)
        if own or t != self.step:
            state |= {"own": own, "optimizer": type(self.optimizer).__name__, "t": t}
        if frozen := self.model.params.frozen:
            state["frozen"] = sorted(frozen)
        save_checkpoint(
            self.out_dir,
            self.step,
            self.model,
            self.optimizer,
            self.tokenizer,
            state,
            replace=self.saved_step is None,
        )
        self.saved_step = self.step

    def _not_finite(self, what):
        if self.step == 0:
            return NotFiniteError(
                f"{what} before the first step: the initial weights are bad, choose another model"
            )
        saved = (
            f", the checkpoint of step {self.saved_step} in {self.out_dir} is good"
            if self.out_dir
            else ""
        )
        return NotFiniteError(
            f"{what} at step {self.step}: training stopped{saved}; "
            "start again with a lower --learning-rate"
        )
