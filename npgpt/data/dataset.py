"""From a corpus to tokens: its two splits, in memory or as token files."""

import functools
from pathlib import Path

import numpy as np

from npgpt.checks import check_path, check_real, shown
from npgpt.data.batches import Tokens
from npgpt.data.corpora import Corpus
from npgpt.data.token_files import SPLITS, Documents, index_file, load_token_files, write_documents, write_settings
from npgpt.data.tokenizer_base import Tokenizer
from npgpt.data.tokenizers import TOKENIZER_FILE, is_called, load_tokenizer, make_tokenizer, save_tokenizer
from npgpt.display import HIDE_BARS, tqdm
from npgpt.errors import UserError
from npgpt.files import new_folder


def split_text(text: str | list, fraction: float = 0.9) -> tuple:
    """Return (train, validation) of a text or a list of documents, cut as in nanoGPT: at int(len(text) * fraction)."""
    boundary = int(len(text) * fraction)
    return text[:boundary], text[boundary:]


def tokenize_corpus(corpus: Corpus, tokenizer: Tokenizer, val_fraction: float = 0.1) -> tuple[Tokens, Tokens | None]:
    """Return (train, validation) tokens of a corpus with a text, uint16, or with answers, `Documents`.

    val_fraction: the share for validation; with 0, validation is None. The splits are encoded separately, so that no
    token crosses the boundary. Raises UserError as tokenizer.encode does, and if a split has no answers.
    """
    answers = corpus.answers
    encode = tokenizer.encode if answers is None else functools.partial(tokenize_answers, tokenizer)
    train, val = split_text((corpus.text or "") if answers is None else answers, 1 - val_fraction)
    return encode(train), encode(val) if val_fraction else None


def tokenize_answers(tokenizer, answers):
    """Return pairs (prompt, completion) as `Documents`, each ended by the tokenizer's end of text, if it has one.

    Prompt and completion are encoded separately, as in `npgpt sample`. Raises UserError for an empty list, and as
    tokenizer.encode does.
    """
    if not answers:
        raise UserError("there are too few prompts for two splits: give more, or train on all with --val-fraction 0")
    eos = np.array([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id], np.uint16)
    pairs = [(tokenizer.encode(prompt), tokenizer.encode(completion)) for prompt, completion in answers]
    documents = [np.concatenate([*pair, eos]) for pair in pairs]
    lengths = np.array([*map(len, documents)])
    return Documents(np.concatenate(documents), lengths.cumsum() - lengths, [len(prompt) for prompt, _ in pairs])


def prepare(corpus: Corpus, tokenizer: Tokenizer, folder: str | Path, separator: str | None = None,
            val_fraction: float = 0.1, end: str | None = None, pad: str | None = None, **settings: bool) -> None:
    """Write a corpus with a text as the new folder `folder`: train.bin, val.bin and the tokenizer, all or nothing.

    separator: the text between two documents, if there are documents. Then the splits are cut between documents, and
    each gets an index of its documents. val_fraction: the share for validation; with 0 val.bin is empty. end, pad:
    the token that ends each document, and the one that pads windows, for `token_id`. settings: all_windows and
    count_padding of the documents. Raises UserError if the corpus is token files already, or prompts and completions,
    has too few documents, or the folder contains other files, and as tokenizer.encode does; OSError.
    """
    check_path("the new folder", folder)
    check_real("val_fraction", val_fraction, below=1.0)
    if corpus.text is None:
        raise UserError(f"{corpus.folder} already consists of token files: give a corpus that is text")
    if corpus.answers is not None:
        raise UserError(f"{corpus.name} has prompts and completions: train on the file itself, with --corpus")
    end_id, pad_id = (None if token is None else token_id(tokenizer, token) for token in (end, pad))
    parts = split_text(corpus.text if separator is None else documents_of(corpus, separator), 1 - val_fraction)
    with new_folder(folder, TOKENIZER_FILE) as unfinished:
        write_settings(unfinished, validation=val_fraction > 0, pad_token_id=pad_id, **settings)
        save_tokenizer(tokenizer, unfinished / TOKENIZER_FILE)
        for split, part in tqdm(zip(SPLITS, parts, strict=True), total=len(SPLITS), desc="prepare", disable=HIDE_BARS):
            path = unfinished / f"{split}.bin"
            if split == "val" and not val_fraction:
                path.touch()
            elif separator is None:
                path.write_bytes(tokenizer.encode(part).astype("<u2").tobytes())
            else:
                write_documents(part, tokenizer, separator, path, index_file(unfinished, split), end_id)


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token, given by its text or, in digits, by its id. Raises UserError if there is none."""
    ids = range(tokenizer.vocab_size)       # decoded, because `encode` spells special tokens out
    found = [i for i in ids if token == str(i)] or [i for i in ids if token and tokenizer.decode([i]) == token]
    if not found:
        raise UserError(f"the {tokenizer.kind} tokenizer has no token {shown(token)}: give the text or the id of one")
    return found[0]


def documents_of(corpus, separator):
    """Return the documents of a text corpus, without the space around them. Raises UserError for fewer than two."""
    documents = list(filter(None, map(str.strip, corpus.text.split(separator)))) if separator else []
    if len(documents) < 2:
        raise UserError(f"{corpus.name} does not contain two documents separated by {separator!r}: give another "
                        "separator")
    return documents


def join(train: Tokens, val: Tokens | None) -> Tokens:
    """Return both splits as one, in memory; val may be None."""
    if val is None:
        return train
    tokens = np.concatenate([train[:], val[:]])
    if not isinstance(train, Documents) or not isinstance(val, Documents):
        return tokens
    return Documents(tokens, np.concatenate([train.starts, len(train) + val.starts]), None, train.all_windows,
                     train.count_padding, train.pad_token_id)


def open_dataset(corpus: Corpus, tokenizer_kind: str | None = None, val_fraction: float = 0.1,
                 ) -> tuple[Tokens, Tokens | None, Tokenizer]:
    """Return (train, validation, tokenizer) of a corpus; the tokens are uint16. val_fraction: for validation.

    `tokenizer_kind`: a name for make_tokenizer, by default "char" for a text. Token files come with their tokenizer;
    without one it is `tokenizer_kind`, by default GPT-2's, as in nanoGPT. Raises UserError if the folder has another
    tokenizer or nanoGPT's meta.pkl, and as tokenize_corpus, make_tokenizer and load_token_files do.
    """
    if corpus.folder is not None:
        return *load_token_files(corpus.folder), folder_tokenizer(corpus.folder, tokenizer_kind)
    tokenizer = make_tokenizer(tokenizer_kind or "char", corpus.text)
    return *tokenize_corpus(corpus, tokenizer, val_fraction), tokenizer


def folder_tokenizer(folder: Path, tokenizer_kind: str | None) -> Tokenizer:
    """Return the tokenizer of the token files in `folder`. Raises UserError as open_dataset does."""
    if (folder / TOKENIZER_FILE).exists():
        tokenizer = load_tokenizer(folder / TOKENIZER_FILE)
        if tokenizer_kind is not None and not is_called(tokenizer, tokenizer_kind):
            raise UserError(f"{folder} was prepared with the {tokenizer.kind} tokenizer, not {tokenizer_kind}: "
                            "leave the tokenizer out, or prepare the text again")
        return tokenizer
    if (folder / "meta.pkl").exists():
        raise UserError(f"{folder} stores its characters in meta.pkl, and npgpt does not read pickles: "
                        "make the folder from the text with `npgpt data prepare`")
    return make_tokenizer(tokenizer_kind or "gpt2")
