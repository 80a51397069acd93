"""Train a model, or continue a run with --resume.

Without --corpus, TinyShakespeare is used if it is present or can be downloaded, else the texts of
Python's help. With --backward, the learner's functions replace the package's: they are checked,
then they run in this process, as the user, without limits.
"""

import contextlib
import dataclasses
import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from npgpt.api import GPT
from npgpt.arrays import DTYPES
from npgpt.checkpoints.run import (
    checkpoints,
    find_checkpoint,
    keep_only,
    locked,
    read_checkpoint,
    tidy,
)
from npgpt.checks import check_path
from npgpt.cli.arguments import (
    add_block_argument,
    add_data_dir_argument,
    add_device_arguments,
    add_field_arguments,
    add_model_arguments,
    add_quiet_argument,
    add_special_argument,
    given_fields,
    only,
)
from npgpt.cli.output import READER_GONE, is_reader_gone, say
from npgpt.cli.plot import save_picture
from npgpt.cli.processes import connected, end_if_failed, is_first, launched
from npgpt.cli.sample import default_prompt, print_samples, sample_line
from npgpt.cli.training_data import open_run_tokens, open_tokens, print_special
from npgpt.data.corpora import CORPORA, open_corpus
from npgpt.data.dataset import tokenizer_of
from npgpt.data.tokenizers import NoTokenizer, given_tokenizer, is_called
from npgpt.devices import array_module
from npgpt.display import tqdm
from npgpt.errors import BackwardError, UserError, one_line, remark
from npgpt.files import tool
from npgpt.loading import load_model
from npgpt.model.block import GPT2, read_block
from npgpt.model.config import GPTConfig
from npgpt.training.metrics import METRICS_FILE
from npgpt.training.options import (
    MODEL_FIELDS,
    TRAIN_FIELDS,
    TrainOptions,
    load_preset,
    options_of,
    with_mup,
)
from npgpt.training.trainer import Trainer, check_causal

SAMPLE_TOKENS = 300
# What nanoGPT's other values of init_from are here.
INSTEAD = {
    "resume": "to continue the run in --out-dir, give --resume instead of --init-from",
    "scratch": "to start with fresh weights, leave --init-from out",
}
DROPOUTS = {"dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop", "mlp_pdrop"}
RATE_FIELDS = {"learning_rate", "min_lr", "warmup_iters", "lr_decay_iters"}
EXAMPLES = """examples:
  npgpt train                                           TinyShakespeare, preset char-cpu
  npgpt train --corpus my.txt --out-dir mine            a text file
  npgpt train --resume --out-dir mine                   continue, bit for bit
  npgpt train --init-from gpt2 --corpus my.txt          fine-tune GPT-2, preset finetune
  npgpt train --init-from gpt2 --freeze wte,wpe --corpus answers.jsonl
  npgpt train --corpus my.txt --val-fraction 0 --sampling sequential --epochs 1

Ctrl-C saves and stops (exit code 130), and so do SIGTERM and a terminal that is closed. At each
evaluation, a line of sampled text is shown; at the end, loss.png is drawn (extra plot).
"""


def add_arguments(parser):
    parser.usage = "npgpt train [OPTION ...]"
    parser.epilog = EXAMPLES
    run = parser.add_argument_group("the run")
    run.add_argument(
        "--out-dir", default="out", help="folder of checkpoints and metrics; by default out"
    )
    again = run.add_mutually_exclusive_group()
    again.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in --out-dir from its last checkpoint",
    )
    again.add_argument(
        "--overwrite", action="store_true", help="delete the run in --out-dir and start a new one"
    )
    add_quiet_argument(run)
    data = parser.add_argument_group("the data")
    data.add_argument(
        "--corpus",
        help=f"{', '.join(CORPORA)}, a UTF-8 text file, a folder with token files (see npgpt "
        'data), or a .jsonl file with a {"prompt": …, "completion": …} in each line, of '
        "which only the completions are learned; by default tinyshakespeare, or pydocs "
        "without a network",
    )
    data.add_argument(
        "--tokenizer",
        help="char, byte, gpt2 or hf:PATH_OR_ID (a tokenizer.json, extra hf); by default the "
        "preset's",
    )
    add_special_argument(data)
    add_data_dir_argument(data)
    start = parser.add_argument_group("starting from a trained model")
    start.add_argument(
        "--init-from",
        metavar="MODEL",
        help="fine-tune a model: gpt2, owner/name, a folder, a .safetensors file, or a run",
    )
    start.add_argument(
        "--freeze",
        metavar="NAMES",
        help="do not train these parameters: names, prefixes of names, or patterns, as in "
        "wte,h.0,*.bias; for LoRA see " + tool("tools/examples/lora_block.py").replace("%", "%%"),
    )
    add_block_argument(start)
    device = parser.add_argument_group("the device")
    add_device_arguments(device)
    device.add_argument(
        "--backward",
        metavar="FOLDER",
        help="train with your own functions, the solved exercises in FOLDER, on a CPU (also with "
        "--resume). They are checked, but then run without limits: use only files that you trust",
    )
    add_model_arguments(parser)
    add_field_arguments(parser, TrainOptions, "training", TRAIN_FIELDS)


def run_train(args):
    check_path("--out-dir", args.out_dir)
    if args.init_from in INSTEAD and not os.path.exists(args.init_from):
        raise UserError(f"there is no model {args.init_from!r} here: {INSTEAD[args.init_from]}")
    trainer = None
    with contextlib.ExitStack() as stack:
        if args.backward is None:
            backwards = None
            stack.enter_context(connected())
        else:
            backwards = learners_backwards(args, stack)
        try:
            trainer = begin(args, backwards, stack)
            finished = trainer.run()
            print_end(trainer, args, backwards, finished)
            return 0 if finished else 128 + trainer.stop_signal
        except BackwardError as error:
            if trainer is None or trainer.saved_step is None:
                raise
            raise UserError(
                f"{error}; {stopped(trainer)}; fix it, and continue with: {resume_command(args)}"
            ) from None
        except OSError as error:
            if not is_reader_gone(error):
                raise
            how = "nothing was trained"
            if trainer and trainer.saved_step is not None:
                how = f"{stopped(trainer)}; continue with: {resume_command(args)}"
            say(f"npgpt: the reader of the output has gone: {how}")
            sys.stdout = None  # Python would flush it at exit, and fail
            if trainer and trainer.stop_signal:
                return 128 + trainer.stop_signal
            if backwards is None:
                end_if_failed(READER_GONE)  # the other processes still train
            return READER_GONE


def learners_backwards(args, stack):
    """Return the `Backwards` of --backward, whose errors name their files until `stack` ends."""
    check_path("--backward", args.backward)
    if args.kernels == "xla" or array_module(args.device) is not np:
        raise UserError(
            "--backward trains on a CPU only, and by NumPy: leave --device and --kernels out"
        )
    if args.block is not None:
        raise UserError("--backward trains GPT-2's block: leave --block out")
    from npgpt.study.judge.own_backward import blaming, read_backwards

    backwards = read_backwards(args.backward)
    stack.enter_context(blaming(args.backward, backwards.files.values()))
    return backwards


def begin(args, backwards, stack):
    """Return the Trainer that the flags describe, when its folder is locked until `stack` ends."""
    if args.resume:
        find_checkpoint(args.out_dir)  # raises before a folder that is not a run gets a lock
        if is_first():
            stack.enter_context(locked(args.out_dir))
            tidy(args.out_dir)
    elif is_first():
        check_out_dir(args)
    trainer = trainer_of(args, backwards, *plan(args))
    if not args.resume and is_first():
        stack.enter_context(locked(args.out_dir))  # last, when nothing else can go wrong
        check_out_dir(args)
    remark(f"model: {trainer.model}")
    sizes = {split: f"{len(crops.tokens):,} tokens" for split, crops in trainer.crops.items()}
    remark(f"data: {sizes['train']} to train on, {sizes.get('val', 'none')} to validate")
    return trainer


def print_end(trainer, args, backwards, finished):
    """Print what has become of a run. Raises OSError if nobody can read it."""
    if finished:
        picture = draw_if_possible(args.out_dir) if is_first() else ""
        best = "best validation loss" if "val" in trainer.crops else "train loss"
        print(
            f"{best} {trainer.best_loss:.4f} at step {trainer.best_step}; "
            f"checkpoints in {args.out_dir}{picture}"
        )
        if not args.quiet:
            print_sample(trainer, backwards)
    else:
        print(f"stopped at step {trainer.step}, saved; continue with: {resume_command(args)}")
    print(end="", flush=True)


def stopped(trainer):
    """Save the step that a run has reached, and say so."""
    if trainer.saved_step != trainer.step:
        trainer.save()
    return f"stopped at step {trainer.step}, saved"


class OneOfMany(Trainer):
    """The Trainer of one of several processes.

    If a signal reaches one of them, all stop at the next step that is logged.
    """

    signalled = 0

    def request_stop(self, number):
        self.signalled = number

    def train_step(self):
        record = super().train_step()
        if self.step % self.options.log_interval == 0:
            from jax.experimental.multihost_utils import process_allgather

            if number := int(process_allgather(self.signalled).max()):
                super().request_stop(number)
        return record


def trainer_of(args, backwards, model, splits, options, tokenizer, corpus_name, checkpoint=None):
    """Return the Trainer of a `plan`, with the learner's `Backwards` if there are any."""
    if backwards:
        from npgpt.study.judge.own_backward import train_with

        train_with(backwards, model)
        remark(backwards.summary(), flush=True)
    trainer_type = Trainer if launched()[0] == 1 else OneOfMany
    trainer = trainer_type(
        model,
        *splits,
        options,
        args.out_dir if is_first() else None,
        tokenizer,
        corpus_name,
        None if args.quiet else print_line,
    )
    if checkpoint:
        trainer.restore(checkpoint)
        if is_first():
            if find_checkpoint(args.out_dir, "best").name == f"step-{trainer.best_step:08d}":
                # after a kill between a save and its clean-up
                keep_only(args.out_dir, {trainer.step, trainer.best_step})
            remark(f"resuming {checkpoint.folder} at step {trainer.step}")
            print_changes(trainer, options_of(checkpoint), args)
    return trainer


def print_changes(trainer, saved, args):
    """Print if a resumed run is finished, or if its learning rate jumps because its end moved."""
    step = trainer.step
    options = trainer.options
    if step >= options.max_iters:
        remark(
            f"nothing is left to train: max_iters is {options.max_iters}; to go on, raise "
            "--max-iters"
        )
    before = saved.rate(step)
    now = options.rate(step)
    if now != before and not RATE_FIELDS & vars(args).keys():
        remark(
            f"the learning rate jumps from {before:.3g} to {now:.3g}, because its decay now ends "
            f"at step {options.last_decay_step} instead of {saved.last_decay_step}: to keep it, "
            f"add --lr-decay-iters {saved.last_decay_step}"
        )


def resume_command(args):
    files = [
        word
        for name in ("backward", "block")
        if (file := getattr(args, name))
        for word in (f"--{name}", file)
    ]
    return shlex.join(["npgpt", "train", "--resume", "--out-dir", args.out_dir, *files])


def print_line(trainer, losses):
    """Print the beginning of a sample in one line; nothing if the tokenizer's vocabulary is
    missing.
    """
    with contextlib.suppress(UserError):
        tqdm.write(f"{'':12}{sample_line(trainer.model, trainer.tokenizer, trainer.options.seed)}")
    print(end="", flush=True)  # whoever reads a pipe sees it now, and has gone if it fails


def draw_if_possible(out_dir):
    """Draw the loss curve into the folder of a run. Return a remark for the user, "" without
    matplotlib.
    """
    if find_spec("matplotlib") is None:
        return ""
    try:
        return f", the loss curve in {save_picture(out_dir)}"
    except Exception as error:  # whatever it is, the run has succeeded
        return f"\nno loss curve: {one_line(error)}"


def print_sample(trainer, backwards):
    """Print a text of the trained model. backwards: the learner's `Backwards`, or None."""
    print()
    if backwards:
        print("the text of a model that your functions have trained:\n")
    try:
        prompt = default_prompt(trainer.model, trainer.tokenizer)
        print_samples(
            trainer.model,
            trainer.tokenizer,
            prompt,
            max_new_tokens=SAMPLE_TOKENS,
            temperature=0.8,
            seed=trainer.options.seed,
        )
    except UserError as error:  # its vocabulary is missing; it is saved anyway
        print(f"no sample: {error}")


def plan(args):
    """Return the run that the flags describe, before it writes anything.

    It is a new one, or with --resume that in --out-dir: model, (train, validation) tokens, options,
    tokenizer, the name of the corpus, and of a run that is continued the checkpoint.
    """
    if args.resume:
        return resumed_run(args)
    given = given_fields(args)
    fields = {**load_preset(args.preset or ("finetune" if args.init_from else "char-cpu")), **given}
    if args.init_from and "init" in given:
        raise UserError(
            "--init draws fresh weights, and --init-from takes them from a model: leave one out"
        )
    if not args.init_from:
        fields = with_mup(fields)
    options = TrainOptions(**only(fields, TRAIN_FIELDS))
    model_fields = only(fields, MODEL_FIELDS)
    if not args.init_from:
        model_fields["block"] = read_block(args.block) or GPT2
        check_causal(GPTConfig(**model_fields))  # raises before a corpus is downloaded
    corpus = open_corpus(args.corpus, args.data_dir)
    if corpus.text is None and "val_fraction" in given:
        raise UserError(
            "--val-fraction divides a text, and token files are divided: give it to `npgpt data "
            "prepare`"
        )
    remark(f"corpus: {corpus.reason}", flush=True)
    name = corpus.name if corpus.name in CORPORA else os.path.abspath(corpus.name)
    if args.init_from:
        model, tokenizer = pretrained_model(args, options, model_fields)
        if "crop_length" not in given and options.crop_length > model.config.block_size:
            options = dataclasses.replace(options, crop_length=model.config.block_size)
    else:
        # Token files have their own tokenizer.
        kind = args.tokenizer or (None if corpus.text is None else fields.get("tokenizer"))
        tokenizer = tokenizer_of(corpus, kind)
        config = GPTConfig(
            vocab_size=tokenizer.vocab_size, eos_token_id=tokenizer.eos_token_id, **model_fields
        )
        model = GPT(
            config,
            options.seed,
            options.dtype,
            args.device,
            args.threads,
            args.kernels,
            options.init,
            args.freeze or (),
        )
    print_special(corpus, tokenizer, args.special)
    return (
        model,
        open_tokens(tokenizer, corpus, options.val_fraction, args.special),
        options,
        tokenizer,
        name,
    )


def pretrained_model(args, options, model_fields):
    """Return (model, tokenizer) of --init-from. Of the model's fields, only the dropouts may be
    changed.
    """
    # Those that are not given follow "dropout".
    dropouts = dict.fromkeys(DROPOUTS) if "dropout" in model_fields else {}
    loaded = load_model(
        args.init_from,
        dtype=options.dtype,
        device=args.device,
        threads=args.threads,
        kernels=args.kernels,
        freeze=args.freeze or (),
        block=args.block,
        **dropouts | only(model_fields, DROPOUTS),
    )
    model = loaded.model
    tokenizer = loaded.tokenizer
    for name, asked in model_fields.items():
        if name not in DROPOUTS:
            check_same(name, model.config.resolved(name), asked, args.init_from)
    if args.tokenizer and isinstance(tokenizer, NoTokenizer):
        tokenizer = given_tokenizer(args.tokenizer, model.config.vocab_size)
    check_tokenizer(args, tokenizer, args.init_from)
    return model, tokenizer


def kernels_of_run(args, state):
    """Return --kernels, else those of the resumed run, because others would give other bits."""
    saved = state.get("kernels", "reference" if state["threads"] == 1 else "numpy")
    on_gpu = saved != "xla" and array_module(args.device) is not np
    other_threads = saved == "reference" and args.threads not in (None, state["threads"])
    if args.kernels != "auto" or args.backward or on_gpu or other_threads:
        return args.kernels
    return saved


def resumed_run(args):
    """Return the `plan` of the run in --out-dir. Flags may change the training, not the model."""
    if args.init_from is not None or args.freeze is not None:
        raise UserError(
            "a resumed run keeps its model and what is frozen: leave --init-from and --freeze out"
        )
    checkpoint = read_checkpoint(find_checkpoint(args.out_dir), read_block(args.block))
    state = checkpoint.state
    saved = options_of(checkpoint)
    given = given_fields(args)
    if state["options"].get("partial_batch"):
        raise UserError(
            "the run was trained with --partial-batch of an earlier version: continue it "
            f"there, or train on with --init-from {args.out_dir} and another --out-dir"
        )
    if state.get("own"):
        raise UserError(
            f"{checkpoint.folder} was trained in Python, with functions, groups or an optimizer "
            "that the command does not have: continue it there, with Trainer.restore, or train on "
            f"with --init-from {args.out_dir} and another --out-dir"
        )
    asked = {**(load_preset(args.preset) if args.preset else {}), **given}
    for name in only(asked, MODEL_FIELDS):
        check_same(name, checkpoint.config.resolved(name), asked[name], checkpoint.folder)
    for name in only(given, ("seed", "dtype", "init", "val_fraction")):
        same_params = name == "dtype" and DTYPES.get(given[name]) == DTYPES[saved.dtype]
        if not same_params:
            check_same(name, getattr(saved, name), given[name], checkpoint.folder)
    check_tokenizer(args, checkpoint.tokenizer, checkpoint.folder)
    options = dataclasses.replace(saved, **only(given, TRAIN_FIELDS))
    kernels = kernels_of_run(args, state)
    splits = open_run_tokens(checkpoint, args.corpus, args.data_dir)
    threads = state["threads"] if args.threads is None else args.threads
    model = GPT(
        checkpoint.config,
        None,
        options.dtype,
        args.device,
        threads,
        kernels,
        freeze=state.get("frozen", ()),
    )
    return (model, splits, options, checkpoint.tokenizer, state["corpus"]["name"], checkpoint)


def check_tokenizer(args, tokenizer, folder):
    if args.tokenizer and not is_called(tokenizer, args.tokenizer):
        check_same("tokenizer", tokenizer.kind, args.tokenizer, folder)


def check_same(name, there, asked, folder):
    if asked != there:
        raise UserError(
            f"{name} is {there} in {folder}, but {asked} was asked for: leave the flag out, "
            "or train a new model in another --out-dir"
        )


def check_out_dir(args):
    out_dir = Path(args.out_dir)
    if args.overwrite:
        return
    if checkpoints(out_dir):
        raise UserError(
            f"{out_dir} contains a run: continue it with --resume, replace it with --overwrite, "
            "or choose another --out-dir"
        )
    if (out_dir / METRICS_FILE).exists():
        raise UserError(
            f"{out_dir} contains a {METRICS_FILE} but no checkpoint, so there is no run to "
            "continue: replace it with --overwrite, or choose another --out-dir"
        )
