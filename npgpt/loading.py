"""`load`: a trained model with its tokenizer, from a run, a folder, a file or the hub."""

from pathlib import Path
from typing import NamedTuple

from npgpt.api import GPT, BlockFile, Name
from npgpt.checkpoints.load import find_model
from npgpt.checkpoints.run import (
    Checkpoint,
    find_checkpoint,
    has_checkpoint,
    read_checkpoint,
    read_while_it_trains,
)
from npgpt.checkpoints.tokenizer_files import read_tokenizer
from npgpt.checks import check_choice
from npgpt.data.tokenizer_base import Tokenizer
from npgpt.data.tokenizers import (
    TOKENIZER_FILE,
    AnyTokenizer,
    GPT2Tokenizer,
    NoTokenizer,
    given_tokenizer,
    load_tokenizer,
)
from npgpt.errors import UserError
from npgpt.model.block import GPT2, read_block


class Loaded(NamedTuple):
    """A model with its tokenizer, or a `NoTokenizer`, and origin. `checkpoint` is None for a model
    that npgpt did not train.
    """

    model: GPT
    tokenizer: Tokenizer
    folder: Path
    checkpoint: Checkpoint | None


def load(
    name_or_path: Name = "out",
    revision: str | None = None,
    which: str = "best",
    dtype: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    kernels: str = "auto",
    block: BlockFile | None = None,
    tokenizer: AnyTokenizer | None = None,
) -> tuple[GPT, Tokenizer | None]:
    """Load a model and its tokenizer.

    Parameters
    ----------
    name_or_path : str or path
        A run of `npgpt train`, one of its checkpoints, a folder of `GPT.save_pretrained`, "tiny"
        (a small model that comes with npgpt), or what `GPT.from_pretrained` takes.
    revision : str, optional
        A branch, tag or commit of a model on the hub.
    which : str
        The checkpoint of a run: "best" (lowest validation loss) or "latest".
    dtype : str, optional
        As in `GPT`; by default float64 if the parameters are stored so, else float32.
    device, threads, kernels
        As in `GPT`.
    block : path or object, optional
        The model's block, if it is not GPT-2's.
    tokenizer : tokenizer or str, optional
        Instead of the stored one: as in `GPT.save_pretrained`, or an object of your own class.

    Returns
    -------
    model : GPT
    tokenizer : Tokenizer or None
        None if there is none. A model with GPT-2's vocabulary size then has GPT-2's.

    Raises
    ------
    UserError
        If there is no such model, it is damaged or not supported, or the tokenizer has more tokens
        than the model.
    """
    check_choice("which", which, ("best", "latest"))
    options = {"device": device, "threads": threads, "kernels": kernels}
    loaded = load_model(name_or_path, revision, which, dtype, None, block, tokenizer, **options)
    return loaded.model, None if isinstance(loaded.tokenizer, NoTokenizer) else loaded.tokenizer


def load_model(
    name,
    revision=None,
    which="best",
    dtype=None,
    freeze=None,
    block=None,
    tokenizer=None,
    **options,
) -> Loaded:
    """Load a model like `load`, and return a `Loaded`.

    freeze: as in `GPT`; None: what a run with a block of its own has frozen, and nothing else.
    options: device, threads, kernels, and fields that replace those of its config (the dropouts).
    A run may save and delete checkpoints meanwhile.
    """
    block = read_block(block)

    def read():
        checkpoint = None
        frozen = freeze or ()
        if has_checkpoint(name):
            checkpoint = read_checkpoint(find_checkpoint(name, which), block, tokenizer)
            found = checkpoint.folder
            if freeze is None and checkpoint.config.block != GPT2:
                frozen = checkpoint.state.get("frozen", ())
        else:
            found = find_model(name, revision)
        model = GPT.from_pretrained(found, None, dtype, freeze=frozen, block=block, **options)
        if checkpoint is not None:
            return Loaded(model, checkpoint.tokenizer, found, checkpoint)
        folder = found.parent if found.suffix == ".safetensors" else found
        own = model_tokenizer(folder, model.config.vocab_size, tokenizer)
        return Loaded(model, own, folder, None)

    return read_while_it_trains(name, read)


def model_tokenizer(folder: Path, vocab_size: int, given: AnyTokenizer | None) -> Tokenizer:
    """Return a model's tokenizer: the given one, else that in npgpt's own file, else in
    transformers' files, else GPT-2's if the vocabulary has its size, else a `NoTokenizer`.
    """
    if given is not None:
        return given_tokenizer(given, vocab_size, to_save=False)
    own = folder / TOKENIZER_FILE
    tokenizer = load_tokenizer(own) if own.exists() else read_tokenizer(folder, vocab_size)
    if tokenizer is None and vocab_size == GPT2Tokenizer.vocab_size:
        return GPT2Tokenizer()
    if tokenizer is None:
        return NoTokenizer(
            vocab_size,
            f"{folder} contains neither {TOKENIZER_FILE} nor tokenizer.json: copy the model's "
            "tokenizer there",
        )
    if tokenizer.vocab_size > vocab_size:
        raise UserError(
            f"the tokenizer in {folder} has {tokenizer.vocab_size} tokens, but the model only "
            f"{vocab_size}: copy the model's tokenizer there"
        )
    return tokenizer
