"""From a corpus to tokens: its two splits, in memory or as token files."""

import numpy as np

from npgpt.checks import check_real
from npgpt.data.corpora import Corpus
from npgpt.data.token_files import write_token_files
from npgpt.data.tokenizer_base import Tokenizer
from npgpt.data.tokenizers import (
    TOKENIZER_FILE,
    is_called,
    load_tokenizer,
    make_tokenizer,
    save_tokenizer,
)
from npgpt.errors import UserError
from npgpt.files import AnyPath, new_folder


def tokenize_corpus(
    corpus: Corpus, tokenizer: Tokenizer, val_fraction: float = 0.1, special: bool = True
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return (train, validation) tokens of a corpus with a text, int64; documents are packed.

    val_fraction: the share for validation, cut off where nanoGPT does; with 0, validation is None.
    special: as in the tokenizer's `encode`. Both are encoded separately, so that no token crosses
    the boundary. Raises UserError as the tokenizer does.
    """
    whole = corpus.documents or corpus.text or ""
    boundary = int(len(whole) * (1 - val_fraction))
    if special and isinstance(whole, str):
        for token in tokenizer.special:
            n = len(token)
            start = whole.rfind(token, max(0, boundary - n + 1), boundary + n - 1)
            if start != -1:  # it would be cut in two
                boundary = start + n
    train = encode(whole[:boundary], corpus, tokenizer, special)
    if not val_fraction:
        return train, None
    return train, encode(whole[boundary:], corpus, tokenizer, special)


def encode(part, corpus, tokenizer, special):
    """Return the tokens of a text, or of documents, which are packed.

    Each (prompt, completion) ends with the end of text, or if the tokenizer has none with the
    separator of the corpus. The tokens of prompts are masked.
    """
    if isinstance(part, str):
        return tokenizer.encode(part, special)
    end = tokenizer.eos_token_id
    ending, end_ids = (corpus.separator, []) if end is None else ("", [end])
    pieces = []
    for prompt, completion in part:
        pieces += [tokenizer.encode(text, special) for text in (prompt, completion + ending)]
        pieces.append(end_ids)
    tokens = np.concatenate([*pieces, []], dtype=np.int64, casting="unsafe")
    sizes = np.array([*map(len, pieces)], dtype=np.int64)
    is_prompt = np.arange(len(pieces)) % 3 == 0
    masked = np.repeat(is_prompt, sizes)
    return np.ma.array(tokens, mask=masked) if masked.any() else tokens


def prepare(
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: AnyPath,
    val_fraction: float = 0.1,
    special: bool = True,
) -> None:
    """Write a corpus as a new folder: train.bin, val.bin and the tokenizer, all or nothing.

    The arguments are those of `tokenize_corpus`. Raises UserError as it does, if the corpus is a
    folder or has prompts, and if the new folder contains other files; OSError.
    """
    check_real("val_fraction", val_fraction, below=1.0)
    if corpus.text is None:
        raise UserError(
            f"{corpus.folder} already consists of token files: give a corpus that is text"
        )
    if any(prompt for prompt, _ in corpus.documents or ()):
        raise UserError(f"{corpus.name} has prompts: train on the file itself, with --corpus")
    with new_folder(folder) as unfinished:
        save_tokenizer(tokenizer, unfinished / TOKENIZER_FILE)
        write_token_files(unfinished, *tokenize_corpus(corpus, tokenizer, val_fraction, special))


def tokenizer_of(corpus: Corpus, kind: str | None = None) -> Tokenizer:
    """Return the tokenizer for a corpus.

    kind: a name for make_tokenizer, by default "char" for a text. Token files are read with the
    tokenizer in their folder, or if there is none with `kind`, by default GPT-2's, as in nanoGPT.
    Raises UserError if the folder has another tokenizer or nanoGPT's meta.pkl.
    """
    folder = corpus.folder
    if folder is None:
        return make_tokenizer(kind or "char", corpus.text)
    if (made_by := folder / TOKENIZER_FILE).exists():
        tokenizer = load_tokenizer(made_by)
        if kind is not None and not is_called(tokenizer, kind):
            raise UserError(
                f"{folder} was prepared with the {tokenizer.kind} tokenizer, not {kind}: "
                "leave the tokenizer out, or prepare the text again"
            )
        return tokenizer
    if (folder / "meta.pkl").exists():
        raise UserError(
            f"{folder} stores its characters in meta.pkl, and npgpt does not read pickles: make "
            "the folder from its text with `npgpt data prepare input.txt --tokenizer char --out "
            "FOLDER`"
        )
    return make_tokenizer(kind or "gpt2")
