"""The corpus that a checkpoint was trained on, opened again."""

from npgpt.errors import UserError
from npgpt.text.batches import load_token_files, tokenize_corpus
from npgpt.text.corpora import open_corpus
from npgpt.text.tokenizers import canonical_kind


def open_checkpoint_data(checkpoint, corpus_name=None, data_dir=None, tokenizer_kind=None):
    """(train, val) tokens of the checkpoint's own corpus, or of another one, in the checkpoint's tokenizer.

    UserError where the corpus is not to be had or needs another tokenizer.
    """
    kind = checkpoint.tokenizer.kind
    if tokenizer_kind is not None and canonical_kind(tokenizer_kind) != kind:
        raise UserError(f"the checkpoint's tokenizer is {kind}, but {tokenizer_kind} was asked for: leave the flag out")
    corpus = open_corpus(corpus_name or checkpoint.state["corpus"].get("name"), data_dir)
    if corpus.text is None:
        return load_token_files(corpus.folder)
    return tokenize_corpus(corpus, checkpoint.tokenizer)
