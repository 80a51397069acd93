"""Checkpoints of a training run: one folder for each saved step, complete or absent.

    out/step-00000250/  model.safetensors      the parameters, with GPT-2's names
                        optimizer.safetensors  its moments, AdamW's m.<name> and v.<name>
                        config.json            GPTConfig, with the field names of transformers
                        npgpt_tokenizer.json   the tokenizer
                        state.json             step, options, corpus, best step, SHA-256 of files

A folder is written under a temporary name, synced and renamed: a kill at any moment leaves the
earlier checkpoints intact. Only the latest and the best checkpoint are kept. A checkpoint is
renamed before it is deleted: a kill during --overwrite leaves either the complete old run or the
new one. A folder that contains any other file is never deleted; it is renamed if its name is
needed. Pickle is not used.
"""

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from npgpt.checkpoints.config_json import config_to_fields, read_config
from npgpt.checkpoints.tensorfile import check_tensors, open_tensors, write_tensors
from npgpt.checks import MOST, MOST_THREADS, check_path, is_real
from npgpt.data.tokenizer_base import Tokenizer
from npgpt.data.tokenizers import (
    TOKENIZER_FILE,
    AnyTokenizer,
    given_tokenizer,
    load_tokenizer,
    save_tokenizer,
)
from npgpt.errors import UserError
from npgpt.files import (
    AnyPath,
    check_regular,
    digest,
    is_folder,
    lock,
    naming,
    publish,
    read_json,
    write_json,
)
from npgpt.model.block import Block
from npgpt.model.config import GPTConfig

FORMAT = 1  # of state.json; increased if an old version could misread a new file
FILES = {"model.safetensors", "optimizer.safetensors", "config.json", TOKENIZER_FILE, "state.json"}
STEP_FOLDER = re.compile(r"step-(\d{8,12})")
SAVING = re.compile(r"\.saving-[0-9a-f]{8}")  # a checkpoint that is being written
OLD = re.compile(r"\.old-([0-9a-f]{8})-(step-\d{8,12})")  # one that is being deleted
LOCK_FILE = ".npgpt.lock"
MOST_READS = 20  # of a run that saves checkpoints at the same time
DAMAGED = (
    "the checkpoint is damaged or was edited; delete this folder to continue from an earlier "
    "checkpoint"
)

Read = TypeVar("Read")  # what a function returns


class Checkpoint(NamedTuple):
    """A checkpoint whose small files have been read; `Trainer.restore` reads the tensors."""

    folder: Path
    config: GPTConfig
    state: dict
    tokenizer: Tokenizer


@contextlib.contextmanager
def locked(out_dir: AnyPath):
    """Make the folder of a run and hold its lock, at the longest until this process ends.

    Raises UserError if another process holds it, and OSError.
    """
    path = Path(out_dir) / LOCK_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    check_regular(path)
    with open(path, "ab") as file:
        try:
            with naming(path):  # some network file systems cannot lock
                lock(file)
        except (BlockingIOError, PermissionError):
            raise UserError(
                f"another npgpt train is running in {out_dir}: wait until it has "
                "finished, or choose another --out-dir"
            ) from None
        yield


def save_checkpoint(
    out_dir: Path,
    step: int,
    model,
    optimizer,
    tokenizer: Tokenizer,
    state: dict,
    replace: bool = False,
) -> None:
    """Write out_dir/step-<step>, then delete the other checkpoints except the one of
    state["best_step"].

    replace: the existing checkpoints belong to another run, and this run replaces them. Raises
    UserError if the disk is full or cannot be written; the earlier checkpoints are intact.
    """
    mark = secrets.token_hex(4)
    unfinished = out_dir / f".saving-{mark}"
    folder = out_dir / f"step-{step:08d}"
    try:
        tidy(out_dir)
        try:
            unfinished.mkdir()
            save_tensors(unfinished / "model.safetensors", model.params)
            save_tensors(unfinished / "optimizer.safetensors", moments_of(optimizer))
            config = config_to_fields(model.config, str(model.params.dtype))
            write_json(unfinished / "config.json", config, 2)
            save_tokenizer(tokenizer, unfinished / TOKENIZER_FILE)
            sha256 = {path.name: digest(path) for path in sorted(unfinished.iterdir())}
            state_json = {"format": FORMAT, "step": step, **state, "sha256": sha256}
            write_json(unfinished / "state.json", state_json, 2)
            # The latest last: until then it can be found.
            for other in step_folders(out_dir) if replace else ():
                rename_to_delete(other, mark)
            if os.path.lexists(folder):
                rename_to_delete(folder, mark)
            publish(unfinished, folder)
        finally:
            tidy(out_dir)
    except OSError as error:
        then = "there is no checkpoint"
        if kept := checkpoints(out_dir):
            then = f"{kept[-1]} is still there, continue from it with --resume"
        raise UserError(
            f"step {step} could not be saved in {out_dir} ({error}): check the disk; {then}"
        ) from None
    keep_only(out_dir, {step, state["best_step"]})


def has_checkpoint(path: AnyPath) -> bool:
    """Return whether a path is a run or one of its checkpoints."""
    check_path("the model's name or path", path)
    path = Path(path)
    if (path / "state.json").exists() or checkpoints(path):
        return True
    return str(path) == "out" and not (path / "config.json").exists()


def is_deleted(path: Path) -> bool:
    """Return whether a path names a checkpoint that its run has deleted, or never had."""
    inside_a_run = STEP_FOLDER.fullmatch(path.name) and checkpoints(path.parent)
    return bool(inside_a_run) and not path.exists()


def find_checkpoint(path: AnyPath, which: str = "latest") -> Path:
    """Return the folder of the "latest" or "best" checkpoint of a run, or of one checkpoint. Raises
    UserError.
    """
    path = Path(path)
    if (path / "state.json").exists():
        return path
    folders = checkpoints(path)
    if not folders:
        raise UserError(
            f"there is no checkpoint in {path}: train a model with `npgpt train --out-dir {path}`"
        )
    if which == "best":
        best_step = read_state(folders[-1])["best_step"]
        folders += [folder for folder in folders if step_of(folder) == best_step]
    return folders[-1]


def read_while_it_trains(path: AnyPath, read: Callable[[], Read]) -> Read:
    """Return read(), which reads from the run or checkpoint in `path`.

    If it fails, and another process has saved or deleted checkpoints meanwhile, read again.
    """
    for _ in range(MOST_READS):
        before = versions(path)
        try:
            return read()
        except (OSError, UserError):
            if versions(path) == before:
                raise
    return read()


def versions(path):
    """Return what identifies the checkpoints of a run: name -> (inode, time) of state.json."""
    found = {}
    for folder in (Path(path), *checkpoints(path)):
        # It was deleted just now, or its name has a null byte.
        with contextlib.suppress(OSError, ValueError):
            stat = (folder / "state.json").stat()
            found[folder.name] = stat.st_ino, stat.st_mtime_ns
    return found


def read_checkpoint(
    folder: Path, block: Block | None = None, tokenizer: AnyTokenizer | None = None
) -> Checkpoint:
    """Open the checkpoint in a folder. tokenizer: instead of the saved one, which is not read then.

    Raises UserError if a file is not the one that was saved, or `block` differs.
    """
    state = read_state(folder)
    if STEP_FOLDER.fullmatch(folder.name) and step_of(folder) != state["step"]:
        raise UserError(f"{folder / 'state.json'} is of step {state['step']}: {DAMAGED}")
    for name, expected in state["sha256"].items():
        path = folder / name
        if not path.exists() or digest(path) != expected:
            raise UserError(f"{path} is missing or not the file that was saved: {DAMAGED}")
    config = read_config(folder / "config.json", block)
    if tokenizer is None:
        tokenizer = load_tokenizer(folder / TOKENIZER_FILE)
    else:
        tokenizer = given_tokenizer(tokenizer, config.vocab_size, to_save=False)
    return Checkpoint(folder, config, state, tokenizer)


def read_state(folder: Path) -> dict:
    """Return the dict in state.json of a checkpoint. Raises UserError if a field but one of
    "options" is wrong.
    """
    path = folder / "state.json"
    try:
        state = read_json(path)
    except (OSError, UserError) as error:
        raise UserError(f"{path} cannot be read ({error}): {DAMAGED}") from None
    match state:
        case {
            "format": version,
            "step": int(step),
            "best_step": int(best_step),
            "best_loss": best_loss,
            "threads": int(threads),
            "options": dict(),
            "corpus": {"name": str(), "fingerprint": str()},
            "sha256": dict(sha256),
        } if version == FORMAT and sha256.keys() == FILES - {"state.json"}:  # only these are read
            in_range = 0 <= step <= MOST and 0 <= best_step <= MOST and 1 <= threads <= MOST_THREADS
            if in_range and is_real(best_loss):
                return state
    raise UserError(f"{path} is from another version of npgpt, or {DAMAGED}")


def moments_of(optimizer):
    """Return the moments of an optimizer by their names in a checkpoint; none if it has none."""
    moments = getattr(optimizer, "moments", {})
    return {f"{kind}.{name}": array for kind in moments for name, array in moments[kind].items()}


def save_tensors(path, arrays):
    """Write a mapping name -> array to a safetensors file."""
    with open(path, "wb") as file:
        write_tensors(file, arrays)


def read_tensors(path, arrays):
    """Copy the tensors of a safetensors file into the arrays of a mapping name -> array."""
    stored = open_tensors(path)
    check_tensors({name: array.shape for name, array in arrays.items()}, stored, path)
    for name, array in arrays.items():
        stored[name].read_into(array)


def step_folders(out_dir: AnyPath, pattern: re.Pattern = STEP_FOLDER) -> list[Path]:
    """Return the checkpoints of a run, oldest first. A folder without state.json is not a
    checkpoint.
    """
    paths = Path(out_dir).glob("*") if os.path.isdir(out_dir) else ()  # a null byte: False
    return sorted(
        (path for path in paths if pattern.fullmatch(path.name) and (path / "state.json").exists()),
        key=step_of,
    )


def checkpoints(out_dir: AnyPath) -> list[Path]:
    """Return `step_folders`; if a kill during --overwrite left none, the old checkpoints that were
    renamed. If these are deleted between the first two looks, the third one finds the new ones.
    """
    return step_folders(out_dir) or step_folders(out_dir, OLD) or step_folders(out_dir)


def step_of(folder):
    """Return the step in the name of a checkpoint, renamed or not."""
    return int(folder.name.partition("step-")[2])


def rename_to_delete(folder, mark):
    """Rename the folder of a checkpoint, to be deleted.

    If other files than a checkpoint's are in it, or it is a link, name it step-00000250-kept-…,
    which is never deleted.
    """
    name = f"{folder.name}-kept-{mark}"
    if is_folder(folder) and {path.name for path in folder.iterdir()} == FILES:
        name = f".old-{mark}-{folder.name}"
    os.rename(folder, folder.with_name(name))


def keep_only(out_dir, steps):
    """Delete the checkpoints of all other steps, and incomplete folders."""
    for folder in step_folders(out_dir):
        if step_of(folder) not in steps:
            rename_to_delete(folder, secrets.token_hex(4))
    tidy(out_dir)


def tidy(out_dir):
    """Delete folders that a kill left half written or half deleted. The caller holds the lock.

    If a kill during --overwrite came before the new checkpoint was renamed, rename the old run
    back. Both carry the same mark in their names.
    """
    names = os.listdir(out_dir)
    for old in filter(None, map(OLD.fullmatch, names)):
        if f".saving-{old[1]}" in names:
            os.rename(Path(out_dir, old[0]), Path(out_dir, old[2]))
    for name in names:
        if SAVING.fullmatch(name) or OLD.fullmatch(name):
            shutil.rmtree(Path(out_dir, name), ignore_errors=True)


def fingerprint(*splits):
    """Return a SHA-256 of the lengths, dtypes, and first and last million tokens of splits, any of
    which may be None.

    What is masked is included. The digest is stored in state.json, so it must not change: ids that
    fit count as uint16, which they were in earlier versions.
    """
    sha = hashlib.sha256()
    for split in splits:
        if split is not None:
            if split.dtype == np.int64 and 0 <= split.min() and split.max() < 2**16:
                split = split.astype(np.uint16)
            sha.update(f"{split.dtype} ({len(split)},);".encode())
            for part in (split[:1_000_000], split[-1_000_000:]):
                sha.update(np.ma.getdata(part).tobytes())
                if isinstance(part, np.ma.MaskedArray):
                    sha.update(np.ma.getmaskarray(part).tobytes())
    return sha.hexdigest()
