"""Checkpoints: a folder for each saved step, complete or not there at all.

    out/step-00000250/  model.safetensors      the parameters, under GPT-2's names
                        optimizer.safetensors  AdamW's moments: m.<name> and v.<name>
                        config.json            GPTConfig, in transformers' terms
                        npgpt_tokenizer.json   the tokenizer
                        state.json             step, options, corpus, best step, and the digests of the other files

A folder is written under a temporary name, synced and renamed, so that a kill at any moment leaves the earlier ones as
they were. Only the latest step and the best one are kept. One that goes is first renamed, too: what a kill in the
middle of --overwrite leaves is the old run, whole, or the new one. A folder that holds anything but these five files is
not npgpt's alone: it is never deleted, but renamed where it is in the way. There is no pickle anywhere.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import secrets
import shutil
from pathlib import Path

import filelock
import numpy as np

from npgpt.checkpoints.config_json import config_to_fields, read_config
from npgpt.checkpoints.tensorfile import NAMES, TensorFile, write_tensors
from npgpt.checks import MOST_THREADS, check_real, check_whole
from npgpt.data.tokenizers import TOKENIZER_FILE, load_tokenizer, save_tokenizer
from npgpt.errors import UserError
from npgpt.files import make_folder, open_regular, read_json, sync_file, sync_folder
from npgpt.model.config import GPTConfig
from npgpt.training.options import TrainOptions

FORMAT = 1      # of state.json; raised when an old program could misread a new file
FILES = {"model.safetensors", "optimizer.safetensors", "config.json", TOKENIZER_FILE, "state.json"}
STEP_FOLDER = re.compile(r"step-(\d{8,12})")
SAVING = re.compile(r"\.saving-[0-9a-f]{8}")                    # a checkpoint that is being written
OLD = re.compile(r"\.old-([0-9a-f]{8})-(step-\d{8,12})")       # one that is being deleted
LOCK_FILE = ".npgpt.lock"
DAMAGED = "the checkpoint is damaged or was edited; where there is another one, delete this folder to go on from that"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk whose small files have been read; the tensors are read by `load_tensors`."""

    folder: Path
    config: GPTConfig
    state: dict
    tokenizer: object

    def load_parameters(self, params):
        """Fill a `Parameters` of the same config from model.safetensors; UserError if the file does not fit."""
        load_tensors(self.folder / "model.safetensors", {"": params})

    def load_moments(self, m, v):
        """Fill AdamW's moments from optimizer.safetensors; UserError if the file does not fit."""
        load_tensors(self.folder / "optimizer.safetensors", {"m.": m, "v.": v})


@contextlib.contextmanager
def locked(out_dir):
    """Make the folder of a run and keep every other training out of it for the block; UserError where one is in it."""
    make_folder(out_dir)
    lock = filelock.FileLock(Path(out_dir) / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise UserError(f"another npgpt train is at work in {out_dir}: "
                        "wait until it has ended, or choose another --out-dir") from None
    try:
        yield
    finally:
        lock.release()


def save_checkpoint(out_dir, step, model, optimizer, tokenizer, state, replace=False):
    """Write out_dir/step-<step>, then delete every step but this one and the one that state["best_step"] names.

    replace: the checkpoints that are there belong to another run, which this one replaces. Raises UserError, leaving
    what was saved before as it was, where the disk is full or cannot be written.
    """
    out_dir, mark = Path(out_dir), secrets.token_hex(4)
    unfinished = out_dir / f".saving-{mark}"
    folder = out_dir / f"step-{step:08d}"
    try:
        tidy(out_dir)
        try:
            unfinished.mkdir()
            save_tensors(unfinished / "model.safetensors", {"": model.params})
            save_tensors(unfinished / "optimizer.safetensors", {"m.": optimizer.m, "v.": optimizer.v})
            write_json(unfinished / "config.json", config_to_fields(model.config, str(model.params.flat.dtype)))
            save_tokenizer(tokenizer, unfinished / TOKENIZER_FILE)
            sha256 = {path.name: digest(path) for path in sorted(unfinished.iterdir())}
            write_json(unfinished / "state.json", {"format": FORMAT, "step": step, **state, "sha256": sha256})
            for path in unfinished.iterdir():
                sync_file(path)
            sync_folder(unfinished)
            for other in step_folders(out_dir) if replace else ():      # the latest last: it is found to the end
                put_away(other, mark)
            if folder.exists():
                put_away(folder, mark)
            os.rename(unfinished, folder)
            sync_folder(out_dir)
        finally:
            tidy(out_dir)
    except OSError as error:
        kept = checkpoints(out_dir)
        advice = f"{kept[-1]} is still there, continue from it with --resume" if kept else "nothing was saved before"
        raise UserError(f"step {step} could not be saved in {out_dir} ({error}); {advice}") from None
    keep_only(out_dir, {step, state["best_step"]})


def find_checkpoint(path, which="latest"):
    """The folder of a run's "latest" or "best" checkpoint; `path` is the run's folder, or a checkpoint itself.

    UserError where there is none.
    """
    path = Path(path)
    if (path / "state.json").exists():
        return path
    folders = checkpoints(path)
    if not folders:
        raise UserError(f"there is no checkpoint in {path}: train a model with `npgpt train --out-dir {path}`")
    if which == "best":
        best_step = read_state(folders[-1])["best_step"]
        return next((folder for folder in folders if step_of(folder) == best_step), folders[-1])
    return folders[-1]


def read_checkpoint(folder):
    """Open the checkpoint in a folder; UserError where a file is missing, damaged, or not the one that was saved."""
    folder = Path(folder)
    state = read_state(folder)
    if STEP_FOLDER.fullmatch(folder.name) and step_of(folder) != state["step"]:
        raise UserError(f"{folder} says that it is of step {state['step']}: {DAMAGED}")
    for name, expected in state["sha256"].items():
        try:
            found = digest(folder / name)
        except OSError as error:
            raise UserError(f"{folder / name} cannot be read ({error.strerror}): {DAMAGED}") from None
        if found != expected:
            raise UserError(f"{folder / name} is not the file that was saved (its digest differs): {DAMAGED}")
    return Checkpoint(folder, read_config(folder / "config.json"), state, load_tokenizer(folder / TOKENIZER_FILE))


def read_state(folder):
    """state.json of a checkpoint, a dict whose fields have the right types; UserError where it does not."""
    path = Path(folder) / "state.json"
    try:
        state = read_json(path)
    except (OSError, UserError) as error:
        raise UserError(f"{path} cannot be read ({error}): {DAMAGED}") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise UserError(f"{path} was written by another version of npgpt, or is not a checkpoint's")
    try:
        check_whole('"step"', state.get("step"))
        check_whole('"best_step"', state.get("best_step"))
        check_real('"best_loss"', state.get("best_loss"))
        check_whole('"threads"', state.get("threads"), 1, MOST_THREADS)
        state["options"] = dataclasses.asdict(TrainOptions(**state.get("options")))
    except (TypeError, UserError) as error:         # TypeError: "options" is no dict, or has fields of its own
        raise UserError(f"{path} is damaged: {error}") from None
    corpus, sha256 = state.get("corpus"), state.get("sha256")
    if not isinstance(corpus, dict) or not all(isinstance(corpus.get(name), str) for name in ("name", "fingerprint")):
        raise UserError(f'{path} is damaged: "corpus" must have a name and a fingerprint')
    needed = FILES - {"state.json"}
    if not isinstance(sha256, dict) or set(sha256) != needed:   # also: no name of a file elsewhere is taken from it
        raise UserError(f"{path} is damaged: it must list the digests of {', '.join(sorted(needed))}")
    return state


def save_tensors(path, sources):
    """Write the arrays of `Parameters` to a safetensors file: sources maps a prefix of names to where they are."""
    with open(path, "wb") as file:
        write_tensors(file, {prefix + name: array for prefix, params in sources.items()
                             for name, array in params.items()})


def load_tensors(path, targets):
    """Copy the tensors of a safetensors file into `Parameters`: targets maps a prefix of names to where they go.

    Names, shapes and dtypes are compared before anything is read; UserError names what is missing, extra or different.
    """
    wanted = {prefix + name: array for prefix, params in targets.items() for name, array in params.items()}
    with TensorFile(path) as file:
        if wrong := set(wanted) ^ set(file.shapes):
            raise UserError(f"{path} does not fit the model: missing or extra {', '.join(sorted(wrong)[:5])}")
        for name, array in wanted.items():
            found = file.shapes[name], file.dtype(name)
            expected = array.shape, NAMES[str(array.dtype)]
            if found != expected:
                raise UserError(f"{path}: {name} is {found[1]} {list(found[0])} instead of {expected[1]} "
                                f"{list(expected[0])}")
        for name, array in wanted.items():
            file.read_into(name, array)


def step_folders(out_dir, called=STEP_FOLDER):
    """The checkpoints of a run, oldest first. A folder that is only called like one is none."""
    folders = [path for path in Path(out_dir).glob("*") if called.fullmatch(path.name)]
    return sorted((folder for folder in folders if (folder / "state.json").exists()), key=step_of)


def checkpoints(out_dir):
    """`step_folders`, or, where a kill in the middle of --overwrite left none, those that were put away."""
    return step_folders(out_dir) or step_folders(out_dir, OLD)


def step_of(folder):
    """The step in the name of a checkpoint's folder, or of one that was put away."""
    return int(folder.name.partition("step-")[2])


def put_away(folder, mark):
    """Rename a folder that stands where a checkpoint was or will be: out of sight to be deleted, if all of it is
    npgpt's, else aside, as step-00000250-kept-…
    """
    ours = {path.name for path in folder.iterdir()} == FILES
    os.rename(folder, folder.with_name(f".old-{mark}-{folder.name}" if ours else f"{folder.name}-kept-{mark}"))


def keep_only(out_dir, steps):
    """Delete the checkpoints of all other steps, and what a kill left."""
    for folder in step_folders(out_dir):
        if step_of(folder) not in steps:
            put_away(folder, secrets.token_hex(4))
    tidy(out_dir)


def tidy(out_dir):
    """Under the lock: delete what was left half written or half deleted.

    What --overwrite has put away is brought back where the new run's checkpoint, of the same mark, did not get there.
    """
    out_dir = Path(out_dir)
    names = [path.name for path in out_dir.iterdir()]
    for old in filter(None, map(OLD.fullmatch, names)):
        if f".saving-{old[1]}" in names:
            os.rename(out_dir / old[0], out_dir / old[2])
    for name in names:
        if SAVING.fullmatch(name) or OLD.fullmatch(name):
            shutil.rmtree(out_dir / name, ignore_errors=True)


def fingerprint(*arrays):
    """A digest by which two lots of tokens are told apart: their lengths, first and last millions of tokens."""
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(f"{array.dtype} ({len(array)},);".encode())
        for part in (array[:1_000_000], array[-1_000_000:]):
            sha.update(np.ascontiguousarray(part))
    return sha.hexdigest()


def digest(path):
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
