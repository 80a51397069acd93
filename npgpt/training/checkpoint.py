"""Checkpoints: a folder for each saved step, complete or not there at all.

    out/step-00000250/  model.safetensors      the parameters, under GPT-2's names
                        optimizer.safetensors  AdamW's moments: m.<name> and v.<name>
                        config.json            GPTConfig, in transformers' terms
                        npgpt_tokenizer.json   the tokenizer
                        state.json             step, options, corpus, best step, and the digests of the other files

A folder is written under a temporary name, synced and renamed, so that a kill at any moment leaves the earlier ones as
they were. Only the latest step and the best one are kept. There is no pickle anywhere.
"""

import dataclasses
import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np

from npgpt.errors import UserError
from npgpt.files import sync_folder
from npgpt.model.config import GPTConfig
from npgpt.pretrained.config_json import config_to_fields, read_config
from npgpt.tensorfile import NAMES, TensorFile, write_tensors
from npgpt.text.tokenizers import TOKENIZER_FILE, load_tokenizer, save_tokenizer
from npgpt.training.options import TrainOptions

FORMAT = 1      # of state.json; raised when an old program could misread a new file
STEP_FOLDER = re.compile(r"step-(\d{8,})")


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


def save_checkpoint(out_dir, step, model, optimizer, tokenizer, state):
    """Write out_dir/step-<step>, then delete every step but this one and the one that state["best_step"] names.

    Raises UserError, leaving what was saved before as it was, where the disk is full or cannot be written.
    """
    out_dir = Path(out_dir)
    unfinished = out_dir / f".saving-{os.getpid()}"
    folder = out_dir / f"step-{step:08d}"
    try:
        remove_leftovers(out_dir)
        unfinished.mkdir()
        save_tensors(unfinished / "model.safetensors", {"": model.params})
        save_tensors(unfinished / "optimizer.safetensors", {"m.": optimizer.m, "v.": optimizer.v})
        write_json(unfinished / "config.json", config_to_fields(model.config, str(model.params.flat.dtype)))
        save_tokenizer(tokenizer, unfinished / TOKENIZER_FILE)
        sha256 = {path.name: digest(path) for path in sorted(unfinished.iterdir())}
        write_json(unfinished / "state.json", {"format": FORMAT, "step": step, **state, "sha256": sha256})
        for path in unfinished.iterdir():
            sync(path)
        sync_folder(unfinished)
        os.rename(unfinished, folder)
        sync_folder(out_dir)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        kept = step_folders(out_dir)
        advice = f"{kept[-1]} is still there, continue from it with --resume" if kept else "nothing was saved before"
        raise UserError(f"step {step} could not be saved in {out_dir} ({error}); {advice}") from None
    for other in step_folders(out_dir):
        if other != folder and step_of(other) != state["best_step"]:
            os.rename(other, out_dir / f".old-{other.name}")        # first out of sight, whole, then deleted
    remove_leftovers(out_dir)


def find_checkpoint(path, which="latest"):
    """The folder of a run's "latest" or "best" checkpoint; `path` is the run's folder, or a checkpoint itself.

    UserError where there is none.
    """
    path = Path(path)
    if (path / "state.json").exists():
        return path
    folders = step_folders(path)
    if not folders:
        raise UserError(f"there is no checkpoint in {path}: train a model with `npgpt train --out-dir {path}`")
    if which == "best":
        best = path / f"step-{read_state(folders[-1])['best_step']:08d}"
        if best in folders:
            return best
    return folders[-1]


def read_checkpoint(folder):
    """Open the checkpoint in a folder; UserError where a file is missing, damaged, or not the one that was saved."""
    folder = Path(folder)
    state = read_state(folder)
    for name, expected in state["sha256"].items():
        try:
            found = digest(folder / name)
        except OSError as error:
            raise UserError(f"{folder / name} cannot be read ({error.strerror}): the checkpoint is damaged") from None
        if found != expected:
            raise UserError(f"{folder / name} is not the file that was saved (its digest differs): "
                            "the checkpoint is damaged or was edited, use another one")
    return Checkpoint(folder, read_config(folder / "config.json"), state, load_tokenizer(folder / TOKENIZER_FILE))


def read_state(folder):
    """state.json of a checkpoint, a dict whose fields have the right types; UserError where it does not."""
    path = Path(folder) / "state.json"
    try:
        state = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): the checkpoint is damaged, use another one") from None
    types = {"step": int, "best_step": int, "best_loss": float, "threads": int,
             "options": dict, "corpus": dict, "sha256": dict}
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise UserError(f"{path} was written by another version of npgpt, or is not a checkpoint's")
    for name, kind in types.items():
        if not isinstance(state.get(name), kind):
            raise UserError(f'{path} is damaged: "{name}" is missing or of the wrong type')
    try:
        state["options"] = dataclasses.asdict(TrainOptions(**state["options"]))
    except (TypeError, UserError) as error:
        raise UserError(f'{path} is damaged: "options" are none of a training run ({error})') from None
    if not all(isinstance(state["corpus"].get(name), str) for name in ("name", "fingerprint")):
        raise UserError(f'{path} is damaged: "corpus" must have a name and a fingerprint')
    needed = {"model.safetensors", "optimizer.safetensors", "config.json", TOKENIZER_FILE}
    if set(state["sha256"]) != needed:      # also: no name of a file elsewhere is taken from state.json
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


def step_folders(out_dir):
    """The checkpoints of a run, oldest first."""
    return sorted((path for path in Path(out_dir).glob("step-*") if STEP_FOLDER.fullmatch(path.name)), key=step_of)


def step_of(folder):
    """The step in a checkpoint folder's name."""
    return int(STEP_FOLDER.fullmatch(folder.name)[1])


def remove_leftovers(out_dir):
    """Delete what a killed program left half written or half deleted."""
    for pattern in (".saving-*", ".old-*"):
        for path in Path(out_dir).glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def fingerprint(*arrays):
    """A digest by which two lots of tokens are told apart: their lengths, first and last millions of tokens."""
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(f"{array.dtype} {array.shape};".encode())
        for part in (array[:1_000_000], array[-1_000_000:]):
            sha.update(np.ascontiguousarray(part))
    return sha.hexdigest()


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def sync(path):
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
