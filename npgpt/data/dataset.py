"""From a corpus to tokens: its two splits, in memory or as token files."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from npgpt.checks import check_real, shown
from npgpt.data.batches import Tokens
from npgpt.data.corpora import Corpus
from npgpt.data.token_files import Documents, load_token_files, write_token_files
from npgpt.data.tokenizer_base import Tokenizer
from npgpt.data.tokenizers import TOKENIZER_FILE, is_called, load_tokenizer, make_tokenizer, save_tokenizer
from npgpt.errors import UserError
from npgpt.files import new_folder


def tokenize_corpus(corpus: Corpus, tokenizer: Tokenizer, val_fraction: float = 0.1) -> tuple:
    """Return (train, validation) tokens of a corpus with a text, uint16, or with answers, `Documents`.

    val_fraction: the share for validation; with 0, validation is None. Raises UserError as tokenizer.encode does, and
    if a split has no answers.
    """
    if corpus.answers is None:
        return tokenize_splits(corpus.text or "", tokenizer.encode, val_fraction)
    return tokenize_splits(corpus.answers, lambda pairs: tokenize_documents(tokenizer, pairs, tokenizer.eos_token_id),
                           val_fraction)


def tokenize_splits(whole: str | list, encode: Callable, val_fraction: float) -> tuple:
    """Cut a text or a list of documents into train and validation, where nanoGPT does, and encode both.

    They are encoded separately, so that no token crosses the boundary.
    """
    boundary = int(len(whole) * (1 - val_fraction))
    return encode(whole[:boundary]), encode(whole[boundary:]) if val_fraction else None


def tokenize_documents(tokenizer: Tokenizer, pairs: Iterable[tuple[str, str]], end: int | None, separator: str = "",
                       pad_token_id: int | None = None) -> Documents:
    """Return pairs (prompt, completion) as `Documents`, each ended by the token `end`, else by the text `separator`.

    Prompt and completion are encoded separately, as in `npgpt sample`. A document with fewer than two tokens is left
    out. Raises UserError if none is left, and as tokenizer.encode does.
    """
    ending, end_ids = (separator, []) if end is None else ("", [end])
    documents, prompts = [], []
    for prompt, completion in pairs:
        prompt_ids, completion_ids = tokenizer.encode(prompt), tokenizer.encode(completion + ending)
        document = np.concatenate([prompt_ids, completion_ids, np.array(end_ids, np.uint16)])
        if len(document) > 1:
            documents.append(document)
            prompts.append(len(prompt_ids))
    if not documents:
        raise UserError("a split has no document of 2 tokens: give more, or train on all with --val-fraction 0")
    lengths = np.array([*map(len, documents)])
    return Documents(np.concatenate(documents), lengths.cumsum() - lengths, prompts, pad_token_id)


def prepare(corpus: Corpus, tokenizer: Tokenizer, folder: str | Path, separator: str | None = None,
            val_fraction: float = 0.1, end: str | None = None, pad: str | None = None) -> None:
    """Write a corpus with a text as the new folder `folder`: train.bin, val.bin and the tokenizer, all or nothing.

    separator: the text between two documents, if there are documents. Then the splits are cut between documents, and
    each gets an index of its documents. end, pad: the text or the id of the token that ends each document (by default
    the tokenizer's end of text), and of the one that pads them. Raises UserError if the corpus is not a text, has too
    few documents, or the folder contains other files, and as tokenizer.encode does; OSError.
    """
    check_real("val_fraction", val_fraction, below=1.0)
    if corpus.text is None:
        raise UserError(f"{corpus.folder} already consists of token files: give a corpus that is text")
    if corpus.answers is not None:
        raise UserError(f"{corpus.name} has prompts and completions: train on the file itself, with --corpus")
    end_id = tokenizer.eos_token_id if end is None else token_id(tokenizer, end)
    pad_id = None if pad is None else token_id(tokenizer, pad)
    with new_folder(folder) as unfinished:
        save_tokenizer(tokenizer, unfinished / TOKENIZER_FILE)
        if separator is None:
            splits = tokenize_corpus(corpus, tokenizer, val_fraction)
        else:
            texts = map(str.strip, corpus.text.split(separator)) if separator else ()
            documents = [("", text) for text in texts if text]
            if len(documents) < 2:
                raise UserError(f"{corpus.name} does not contain two documents separated by {separator!r}: give "
                                "another separator")
            splits = tokenize_splits(documents, lambda pairs: tokenize_documents(
                tokenizer, pairs, end_id, separator, pad_id), val_fraction)
        write_token_files(unfinished, *splits)


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token, given by its text or, in digits, by its id. Raises UserError if there is none."""
    ids = range(tokenizer.vocab_size)       # decoded, because `encode` spells special tokens out
    found = [i for i in ids if token == str(i)] or [i for i in ids if token and tokenizer.decode([i]) == token]
    if not found:
        raise UserError(f"the {tokenizer.kind} tokenizer has no token {shown(token)}: give the text or the id of one")
    return found[0]


def concatenate_splits(train: Tokens, val: Tokens | None) -> Tokens:
    """Return both splits as one, in memory; val may be None."""
    if val is None:
        return train
    tokens = np.concatenate([train[:], val[:]])
    if not isinstance(train, Documents) or not isinstance(val, Documents):
        return tokens
    return Documents(tokens, np.concatenate([train.starts, len(train) + val.starts]), None, train.pad_token_id)


def open_dataset(corpus: Corpus, tokenizer_kind: str | None = None, val_fraction: float = 0.1,
                 ) -> tuple[Tokens, Tokens | None, Tokenizer]:
    """Return (train, validation, tokenizer) of a corpus; the tokens are uint16, validation may be None.

    tokenizer_kind: a name for make_tokenizer, by default "char" for a text. Token files are read with the tokenizer in
    their folder, or if there is none with `tokenizer_kind`, by default GPT-2's, as in nanoGPT. val_fraction: as in
    `tokenize_corpus`. Raises UserError if the folder has another tokenizer or nanoGPT's meta.pkl.
    """
    if corpus.folder is None:
        tokenizer = make_tokenizer(tokenizer_kind or "char", corpus.text)
        return *tokenize_corpus(corpus, tokenizer, val_fraction), tokenizer
    splits = load_token_files(corpus.folder)
    if (corpus.folder / TOKENIZER_FILE).exists():
        tokenizer = load_tokenizer(corpus.folder / TOKENIZER_FILE)
        if tokenizer_kind is not None and not is_called(tokenizer, tokenizer_kind):
            raise UserError(f"{corpus.folder} was prepared with the {tokenizer.kind} tokenizer, not {tokenizer_kind}: "
                            "leave the tokenizer out, or prepare the text again")
        return *splits, tokenizer
    if (corpus.folder / "meta.pkl").exists():
        raise UserError(f"{corpus.folder} stores its characters in meta.pkl, and npgpt does not read pickles: "
                        "make the folder from the text with `npgpt data prepare`")
    return *splits, make_tokenizer(tokenizer_kind or "gpt2")
