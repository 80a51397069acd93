"""A corpus as tokens of an existing model."""

import os

import numpy as np

from npgpt.checkpoints.run import fingerprint
from npgpt.data.corpora import CORPORA, open_corpus
from npgpt.data.dataset import tokenize_corpus
from npgpt.data.token_files import SEPARATOR, load_token_files
from npgpt.data.tokenizers import TOKENIZER_FILE, NoTokenizer, load_tokenizer
from npgpt.errors import UserError, printable, remark
from npgpt.training.options import options_of


def print_special(corpus, tokenizer, special):
    """Print which special tokens are in the text of a corpus, and how they are read."""
    text = corpus.text or ""
    if corpus.documents:  # without what separates them
        text = "".join(map("".join, corpus.documents))
    counts = [
        f"{text.count(token):,} {token}"
        for token in tokenizer.special or (SEPARATOR,)
        if token in text
    ]
    how = "plain text"
    if special and tokenizer.special:
        how = "special tokens; --no-special reads them as plain text"
    if counts:
        remark(f"{printable(', '.join(counts))} in the text, read as {how}")


def open_tokens(tokenizer, corpus, val_fraction=0.1, special=True):
    """Return (train, validation) tokens of a corpus, as `tokenize_corpus` does.

    They are uint16, a quarter of the memory.
    Raises UserError if the corpus consists of another tokenizer's token files, or of text for a
    model without a tokenizer.
    """
    if corpus.text is not None:
        splits = tokenize_corpus(corpus, tokenizer, val_fraction, special)
        return [split if split is None else split.astype(np.uint16) for split in splits]
    made_by = corpus.folder / TOKENIZER_FILE
    known = made_by.exists() and not isinstance(tokenizer, NoTokenizer)
    if known and load_tokenizer(made_by).to_dict() != tokenizer.to_dict():
        raise UserError(
            f"the token files in {corpus.folder} were made by another tokenizer than the model's"
        )
    return load_token_files(corpus.folder)


def open_run_tokens(checkpoint, corpus_name, data_dir):
    """Return the tokens that a run was trained on, as `open_tokens` does.

    corpus_name: --corpus, or None.
    A run is untrusted, and it names a file on this machine. Raises UserError unless that is a
    regular file whose tokens have the run's fingerprint: as earlier versions read them, as they are
    read now, or without special tokens.
    """
    corpus = checkpoint.state["corpus"]
    name = corpus_name or corpus["name"]
    if (
        corpus_name is None
        and name not in CORPORA
        and (not os.path.isabs(name) or name.startswith(("//", "\\\\")))
    ):
        raise UserError(
            f"{checkpoint.folder} names the corpus {name!r}, which is not an absolute path here: "
            "give it as --corpus"
        )
    reason = ""
    val_fraction = options_of(checkpoint).val_fraction
    for raw, special in ((True, False), (False, True), (False, False)):
        opened = open_corpus(name, data_dir, raw)
        try:
            splits = open_tokens(checkpoint.tokenizer, opened, val_fraction, special)
            if fingerprint(*splits) == corpus["fingerprint"]:
                return splits
        except UserError as error:  # it may have characters that are not in the vocabulary
            reason = f" ({error})"
    raise UserError(
        f"the corpus {name} is not the one that this run was trained on{reason}, or an earlier "
        "version read its documents otherwise: give that one as --corpus, or train on this one "
        f"with --init-from {checkpoint.folder.parent} and another --out-dir"
    )
