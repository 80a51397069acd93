"""A corpus as tokens of an existing model."""

import functools
import os

from npgpt.checkpoints.run import fingerprint
from npgpt.data.corpora import CORPORA, open_corpus
from npgpt.data.dataset import concatenate_splits, tokenize_corpus
from npgpt.data.token_files import load_token_files
from npgpt.data.tokenizers import TOKENIZER_FILE, load_tokenizer
from npgpt.errors import UserError
from npgpt.training.options import options_of


def open_tokens(tokenizer, corpus, val_fraction=0.1):
    """Return {"train": …, "val": …, "all": …}: functions that return tokens of a corpus; None without validation.

    Raises UserError if the corpus consists of another tokenizer's token files.
    """
    if corpus.text is not None:
        splits = functools.cache(functools.partial(tokenize_corpus, corpus, tokenizer))
        return {"train": lambda: splits(val_fraction)[0], "val": lambda: splits(val_fraction)[1],
                "all": lambda: splits(0)[0]}
    made_by = corpus.folder / TOKENIZER_FILE
    if made_by.exists() and load_tokenizer(made_by).to_dict() != tokenizer.to_dict():
        raise UserError(f"the token files in {corpus.folder} were made by another tokenizer than the model's")
    train, val = load_token_files(corpus.folder)
    return {"train": lambda: train, "val": lambda: val, "all": lambda: concatenate_splits(train, val)}


def open_run_tokens(checkpoint, corpus_name, data_dir):
    """Return the tokens that a run was trained on, as `open_tokens` does. corpus_name: --corpus, or None.

    A run is untrusted, and it names a file on this machine. Raises UserError unless that is a regular file whose tokens
    have the run's fingerprint.
    """
    corpus = checkpoint.state["corpus"]
    name = corpus_name or corpus["name"]
    if corpus_name is None and name not in CORPORA and (not os.path.isabs(name) or name.startswith(("//", "\\\\"))):
        raise UserError(f"{checkpoint.folder} names the corpus {name!r}, which is not an absolute path here: "
                        "give it as --corpus")
    val_fraction = options_of(checkpoint).val_fraction
    tokens = open_tokens(checkpoint.tokenizer, open_corpus(name, data_dir), val_fraction)
    try:
        same = fingerprint(tokens["train"](), tokens["val"]()) == corpus["fingerprint"]
    except UserError:           # it has characters that are not in the vocabulary
        same = False
    if not same:
        raise UserError(f"the corpus {name} is not the one that this run was trained on: give that one as --corpus")
    return tokens
