"""Show how much each token of a text surprises a model, in colours and bits, and the perplexity."""

import math
import sys

import numpy as np

from npgpt.arrays import to_host
from npgpt.cli.arguments import (
    add_json_argument,
    add_model_argument,
    add_special_argument,
    load_given_model,
)
from npgpt.cli.output import print_json
from npgpt.cli.screen import style
from npgpt.data.batches import windows
from npgpt.data.corpora import read_text
from npgpt.errors import UserError, printable
from npgpt.layers import IGNORE_INDEX

COLOURS = 194, 230, 223, 216, 209, 203, 197, 161  # of a terminal's 256, from pale to red
BITS = 2  # of each colour


def add_arguments(parser):
    add_model_argument(parser)
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--text", help="the text")
    text.add_argument("--file", help="a file of text in UTF-8")
    add_json_argument(
        parser,
        "model, tokens (how many are scored), loss (nats per token), perplexity, and in scores the "
        "id, text and nats of each token (null for the first)",
    )
    add_special_argument(parser)


def run_score(args):
    text = read_text(args.file) if args.text is None else args.text
    loaded = load_given_model(args)
    tokens = loaded.tokenizer.encode(text, args.special)
    nats = surprise(loaded.model, tokens)
    bits = nats / math.log(2.0)
    if not np.isfinite(bits).all():
        raise UserError(
            f"the loss of {loaded.folder} on this text is not finite: choose another model"
        )
    texts = [loaded.tokenizer.decode([token]) for token in tokens]
    perplexity = float(np.exp2(bits.mean()))
    if args.json:
        rows = zip(tokens.tolist(), texts, [None, *nats.tolist()], strict=True)
        print_json(
            model=str(loaded.folder),
            tokens=len(nats),
            loss=float(nats.mean()),
            perplexity=perplexity,
            scores=[{"id": i, "text": text, "nats": loss} for i, text, loss in rows],
        )
        return
    if sys.stdout.isatty() and style(colour_code(0.0), "x") != "x":
        print(*map(painted, texts, [None, *bits]), "\n", sep="")
        steps = range(0, BITS * len(COLOURS), BITS)
        print("bits", *(style(colour_code(low), f" {low} ") for low in steps))
    else:
        for text, each in zip(texts, [None, *bits], strict=True):
            print(f"{'-' if each is None else f'{each:.2f}':>8}  {printable(text)}")
    print(
        f"{len(bits):,} tokens after the first: {bits.sum():.2f} bits, perplexity {perplexity:.4f}"
    )


def surprise(model, tokens):
    """Return -log of the probability of each token but the first, in nats.

    It has at least half a context before it.
    """
    T = model.config.block_size
    nats = []
    # y is -1 for tokens that have been scored.
    for x, y in windows(tokens, T + 1, max(1, T // 2)):
        scores = to_host(model.score(np.append(x, y[-1:])[None]))[0]
        nats.append(-scores[y != IGNORE_INDEX].astype(np.float64))
    return np.concatenate(nats)


def colour_code(bits):
    """Return the escape code for black text on the background of a number of bits."""
    return f"\x1b[38;5;16;48;5;{COLOURS[min(int(bits / BITS), len(COLOURS) - 1)]}m"


def painted(text, bits):
    """Return a token's text on its colour. A line break is shown as a symbol and kept."""
    shown = printable(text.replace("\n", "⏎"))
    return (shown if bits is None else style(colour_code(bits), shown)) + "\n" * text.count("\n")
