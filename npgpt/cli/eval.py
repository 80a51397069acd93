"""Measure loss, perplexity and bits per byte of a model on a text."""

import math

import numpy as np

from npgpt.cli.arguments import (
    add_data_dir_argument,
    add_json_argument,
    add_model_argument,
    add_special_argument,
    load_given_model,
)
from npgpt.cli.output import print_json
from npgpt.cli.training_data import open_run_tokens, open_tokens
from npgpt.data.corpora import open_corpus
from npgpt.errors import UserError
from npgpt.training.evaluation import evaluate_split


def add_arguments(parser):
    add_model_argument(parser)
    parser.add_argument(
        "--corpus", help="by default the one that the model was trained on, else TinyShakespeare"
    )
    parser.add_argument(
        "--split",
        choices=("train", "val", "all"),
        help="part of the corpus; by default val for a run of npgpt, all for other models",
    )
    parser.add_argument(
        "--stride",
        type=int,
        help="overlapping windows, each N tokens after the last: slower, with more context",
    )
    add_json_argument(
        parser,
        "model, split, tokens (how many are predicted), loss (nats per "
        "token), perplexity and bits_per_byte, which may be null",
    )
    add_special_argument(parser)
    add_data_dir_argument(parser)


def run_eval(args):
    loaded = load_given_model(args)
    split = args.split or ("val" if loaded.checkpoint else "all")
    if loaded.checkpoint and args.corpus is None:
        train, val = open_run_tokens(loaded.checkpoint, None, args.data_dir)
    else:
        fraction = 0.0 if split == "all" else 0.1
        corpus = open_corpus(args.corpus, args.data_dir)
        train, val = open_tokens(loaded.tokenizer, corpus, fraction, args.special)
    if val is None and args.split is None:
        split = "all"
    tokens = val if split == "val" else train
    if tokens is None:
        raise UserError("there is no validation split: leave --split out")
    if split == "all" and val is not None:
        tokens = np.ma.concatenate([train[:], val[:]])
    loss, n = evaluate_split(loaded.model, tokens, args.stride)
    if not math.isfinite(loss):
        raise UserError(f"the loss of {loaded.folder} on this text is {loss}: choose another model")
    perplexity = float(np.exp(loss))  # infinite if the loss is above 709
    bits, reason = bits_per_byte(loss * n, loaded.tokenizer, tokens)
    if args.json:
        print_json(
            model=str(loaded.folder),
            split=split,
            tokens=n,
            loss=loss,
            perplexity=perplexity,
            bits_per_byte=bits,
        )
        return
    print(f"{loaded.folder}, {split}: {n:,} tokens predicted")
    print(f"loss           {loss:.4f} nats per token")
    print(f"perplexity     {perplexity:.4f}")
    print(f"bits per byte  {reason or f'{bits:.4f}'}")


def bits_per_byte(nats, tokenizer, tokens):
    """Return the loss in bits per byte of text, comparable between tokenizers, and "".

    If it is not defined, return None and the reason.
    """
    try:
        n_bytes = tokenizer.count_bytes(tokens)
        n_bytes -= tokenizer.count_bytes(tokens[:1])  # the first is not predicted
    except UserError as error:
        return None, str(error)
    if not n_bytes:
        return None, "not defined, without any text"
    return nats / math.log(2) / n_bytes, ""
