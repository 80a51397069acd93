"""A training run: the steps of `loop`, with evaluation, checkpoints and metrics in between."""

import dataclasses
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from npgpt.checkpoints.run import Checkpoint, fingerprint, save_checkpoint
from npgpt.data.batches import Crops, Tokens
from npgpt.data.tokenizer_base import Tokenizer
from npgpt.data.tokenizers import given_tokenizer
from npgpt.display import HIDE_BARS, tqdm
from npgpt.engine.memory import check_training_memory
from npgpt.engine.trial import check_trained
from npgpt.errors import NotFiniteError, UserError
from npgpt.interrupts import calling_on_signals
from npgpt.model.block import GPT2
from npgpt.training.adamw import AdamW
from npgpt.training.evaluation import mean_loss
from npgpt.training.loop import train_step
from npgpt.training.metrics import append_metrics, drop_metrics_after
from npgpt.training.options import TrainOptions

NAMES = {"train": "train", "val": "validation"}     # of the splits, in what is printed


def check_causal(config):
    """Raise UserError for an encoder."""
    if not config.causal:
        raise UserError("a model with causal=False sees the next token, which it would have to predict: train it in "
                        "Python on other targets, with loss_and_grads and AdamW.step")


class Trainer:
    """One training run.

    model: a GPT. train_tokens, val_tokens: 1-D integer arrays, in which masked tokens
    (np.ma.MaskedArray) are read, but not learned, such as prompts; without val_tokens the latest
    checkpoint is the best. A split that is shorter than a crop is one crop, and a line says so.
    options: epochs, if given, replace max_iters. out_dir: a
    folder for checkpoints and metrics.jsonl, created if needed; the first checkpoint replaces all
    earlier ones; None: nothing is saved. tokenizer, corpus_name: saved with the checkpoints, for
    `load` and for --resume. on_evaluation: called as on_evaluation(trainer) after each evaluation,
    when its checkpoint is saved.
    Raises UserError for invalid values, too few tokens, or a step that does not fit into this
    machine's memory.

    Every random number comes from a generator seeded with (seed, stream, step, …). So the seed and
    the step determine all random streams and the position in the data, and a resumed run continues
    with the same bits.
    """

    def __init__(self, model, train_tokens: Tokens, val_tokens: Tokens | None,
                 options: TrainOptions | None = None, out_dir: str | os.PathLike | None = None,
                 tokenizer: Tokenizer | None = None, corpus_name: str | None = None,
                 on_evaluation: Callable[["Trainer"], None] | None = None):
        check_causal(model.config)
        if model.config.block != GPT2:
            check_trained(model.config, model.params.trained)
        self.model, self.on_evaluation = model, on_evaluation
        self.out_dir = None if out_dir is None else Path(out_dir)
        self.tokenizer = given_tokenizer(tokenizer, model.config.vocab_size)
        options = options or TrainOptions()
        self.crop_length = options.crop_length or model.config.block_size
        if self.crop_length > model.config.block_size:
            raise UserError(f"crop_length {self.crop_length} is more than block_size {model.config.block_size}")
        self.crops = {"train": Crops(train_tokens, self.crop_length)}
        if val_tokens is not None:
            self.crops["val"] = Crops(val_tokens, self.crop_length, NAMES["val"])
        for split, crops in self.crops.items():
            if crops.length < self.crop_length:
                print(
                    f"the {NAMES[split]} split has {crops.length + 1} tokens, so its crops have "
                    f"{crops.length} instead of {self.crop_length}"
                )
        self.crop_length = self.crops["train"].length
        self.options = options = options.for_crops(self.crops["train"])
        check_training_memory(model.engine, options.batch_size, self.crop_length, options.gradient_accumulation_steps)
        self.corpus = {"name": corpus_name or "", "fingerprint": fingerprint(train_tokens, val_tokens)}
        self.optimizer = AdamW(model.params, options.learning_rate, (options.beta1, options.beta2), options.eps,
                               options.weight_decay, engine=model.engine, decay=options.decay)
        self.step = 0                   # steps taken
        self.saved_step: int | None = None      # the step of the last checkpoint
        self.best_step, self.best_loss = 0, math.inf
        self.stop_requested, self.stop_signal = False, 0

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a `Checkpoint` of the same model shape and corpus."""
        self.optimizer.restore(checkpoint)
        state = checkpoint.state
        self.step = self.saved_step = state["step"]
        self.best_step, self.best_loss = state["best_step"], state["best_loss"]

    def run(self, progress: bool | None = None) -> bool:
        """Train to `max_iters`, or until Ctrl-C, SIGTERM or SIGHUP, and save. Return True if it
        reached the end.

        progress: whether to show a bar; by default, on a terminal and in a notebook.
        Raises NotFiniteError, leaving the last checkpoint, when the loss or the gradient is not
        finite, and UserError when a checkpoint cannot be written.
        """
        options = self.options
        disable = HIDE_BARS if progress is None else not progress
        # Without smoothing the time left includes the evaluations to come.
        with calling_on_signals(self.request_stop), tqdm(total=options.max_iters, initial=self.step, unit="step",
                                                         disable=disable, dynamic_ncols=True, smoothing=0) as bar:
            if self.step == 0:          # also if a run was killed between its first checkpoint and its first metrics
                self.evaluate_and_save(bar)
                bar.reset()             # its clock, to exclude the first evaluation
            tokens = options.batch_size * options.gradient_accumulation_steps * self.crop_length
            began, first, record = time.perf_counter(), self.step, {}
            while self.step < options.max_iters and not self.stop_requested:
                record = self.train_step()
                bar.update()
                logging = self.step % options.log_interval == 0
                evaluating = self.step % options.eval_interval == 0 or self.step == options.max_iters
                if not logging and not evaluating:
                    continue
                record = self.read(record)
                if logging:
                    seconds = time.perf_counter() - began
                    record["tokens_per_second"] = round(tokens * (self.step - first) / seconds)
                    if self.out_dir:
                        append_metrics(self.out_dir, record)
                    best = f", best val {self.best_loss:.4f}" * ("val" in self.crops)
                    bar.set_postfix_str(f"loss {record['loss']:.4f}{best}, "
                                        f"{record['tokens_per_second']:,} tokens/s")
                if evaluating:
                    self.evaluate_and_save(bar)
                began, first = time.perf_counter(), self.step
            if self.out_dir and self.saved_step != self.step:
                self.read(record)
                self.save()
        return self.step >= options.max_iters

    def request_stop(self, number: int = 0) -> None:
        """Let `run` end after the step in progress. number: of the signal that asks for it."""
        self.stop_requested, self.stop_signal = True, number

    def train_step(self) -> dict:
        """Take one step, and return its record. On a GPU its values are still being computed, see
        `read`.
        """
        try:
            loss, lr, norm = train_step(
                self.model, self.optimizer, self.crops["train"], self.options, self.step
            )
        except NotFiniteError as error:
            raise self._not_finite(str(error).partition(":")[0]) from None
        self.step += 1
        return {"step": self.step, "loss": loss, "lr": lr, "grad_norm": norm}

    def read(self, record: dict) -> dict:
        """Return the record of `train_step` with plain numbers. On a GPU this waits.

        Raises NotFiniteError if loss or gradient were not finite, which on a GPU is noticed only here.
        """
        read = {name: float(record[name]) for name in ("loss", "grad_norm")}
        for name, value in read.items():
            if not math.isfinite(value):
                raise self._not_finite(f"the {name} is {value}")
        return record | read

    def evaluate(self) -> dict[str, float]:
        """Return {"train": mean loss, "val": mean loss} over `eval_iters` batches, spread evenly over each split."""
        n, size = self.options.eval_iters, self.options.batch_size
        return {split: mean_loss(self.model, map(crops.at, crops.evenly(n, size)))[0]
                for split, crops in self.crops.items()}

    def evaluate_and_save(self, bar: tqdm) -> None:
        """Evaluate, log the losses, and save a checkpoint."""
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
        bar.write(f"step {self.step:>5}: " + ", ".join(f"{NAMES[split]} loss {losses[split]:.4f}" for split in losses))
        if self.on_evaluation:
            self.on_evaluation(self)

    def save(self) -> None:
        """Save a checkpoint of this step in `out_dir`."""
        assert self.out_dir is not None
        if self.saved_step is None:     # later, a folder that was deleted has lost its lock and metrics
            self.out_dir.mkdir(parents=True, exist_ok=True)
        state = {"best_step": self.best_step, "best_loss": self.best_loss, "options": dataclasses.asdict(self.options),
                 "threads": self.model.engine.threads, "kernels": self.model.engine.kernels, "corpus": self.corpus}
        if self.model.params.frozen:
            state["frozen"] = sorted(self.model.params.frozen)
        save_checkpoint(self.out_dir, self.step, self.model, self.optimizer, self.tokenizer, state,
                        replace=self.saved_step is None)
        self.saved_step = self.step

    def _not_finite(self, what):
        if self.optimizer.t == 0:
            return NotFiniteError(f"{what} before the first step: the initial weights are bad, choose another model")
        saved = f", the checkpoint of step {self.saved_step} in {self.out_dir} is good" if self.out_dir else ""
        return NotFiniteError(f"{what} at step {self.step}: training stopped{saved}; "
                              "start again with a lower --learning-rate")
