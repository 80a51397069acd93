"""A corpus in the tokens of a model that is there already."""

import numpy as np

from npgpt.errors import UserError
from npgpt.text.batches import load_token_files, tokenize_corpus
from npgpt.text.corpora import open_corpus
from npgpt.text.tokenizers import TOKENIZER_FILE, load_tokenizer


def open_tokens(tokenizer, corpus_name, data_dir=None):
    """{"train": …, "val": …, "all": …}, functions that give the tokens of a corpus, for a tokenizer.

    UserError where the corpus is not to be had, or is token files that another tokenizer made.
    """
    corpus = open_corpus(corpus_name, data_dir)
    if corpus.text is not None:
        return {"train": lambda: tokenize_corpus(corpus, tokenizer)[0],
                "val": lambda: tokenize_corpus(corpus, tokenizer)[1],
                "all": lambda: tokenizer.encode(corpus.text)}
    made_by = corpus.folder / TOKENIZER_FILE
    if made_by.exists() and load_tokenizer(made_by).to_dict() != tokenizer.to_dict():
        raise UserError(f"the token files in {corpus.folder} were made by another tokenizer than the model's")
    train, val = load_token_files(corpus.folder)
    return {"train": lambda: train, "val": lambda: val, "all": lambda: np.concatenate([train, val])}
