"""Write text with a trained model.

When a text no longer fits into the model's context, all but its last block_size // 2 tokens are
forgotten: those are read again as a new text.
"""

import contextlib
import itertools
import re
import sys

import numpy as np

from npgpt.checks import check_whole, require
from npgpt.cli.arguments import add_model_argument, add_special_argument, load_given_model, only
from npgpt.errors import UserError, without_controls

MOST_SAMPLES = 10_000
LINE = 60  # characters in a `sample_line`


def add_arguments(parser):
    add_model_argument(parser)
    parser.add_argument(
        "--prompt",
        help="the text to continue, by default a line break; "
        "<|endoftext|> begins a new text with GPT-2",
    )
    add_special_argument(parser)
    parser.add_argument(
        "--stop", metavar="TEXT", help="stop before this text, in which \\n is a line break"
    )
    parser.add_argument("-n", "--num-samples", type=int, default=1, help="how many texts")
    parser.add_argument(
        "--max-new-tokens", type=int, default=500, help="new tokens in each text, by default 500"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        help="divides the logits, by default 0.8; 0: always the likeliest token",
    )
    parser.add_argument("--top-k", type=int, help="only the K likeliest tokens")
    parser.add_argument(
        "--top-p", type=float, help="only the likeliest tokens that together have probability P"
    )
    parser.add_argument(
        "--seed", type=int, default=1337, help="the same seed writes the same texts"
    )


def run_sample(args):
    check_whole("-n", args.num_samples, 1, MOST_SAMPLES)
    loaded = load_given_model(args)
    model = loaded.model
    tokenizer = loaded.tokenizer
    prompt = args.prompt
    if prompt is None:
        prompt = default_prompt(model, tokenizer)
        args.special = True
    require("--stop", args.stop, args.stop != "", "at least one character")
    stop = args.stop and args.stop.replace("\\n", "\n")
    sampling = only(vars(args), ("max_new_tokens", "temperature", "top_k", "top_p", "seed"))
    print_samples(model, tokenizer, prompt, args.num_samples, stop, args.special, **sampling)


def default_prompt(model, tokenizer):
    """Return a line break, if the tokenizer has a token for it, else a word, else its first token.

    If the model ends a text there, it is the end of text, after which it begins another one.
    """
    end = tokenizer.eos_token_id
    for prompt in ("\n", "the"):
        with contextlib.suppress(UserError):  # a character that is not in the vocabulary
            if len(ids := tokenizer.encode(prompt)):
                ends = model.generate(ids[None], 1, temperature=0.0)[0, -1] == end
                return tokenizer.decode([end]) if ends else prompt
    return tokenizer.decode([0])


def continuations(model, tokenizer, prompt, n=1, stop=None, special=True, **sampling):
    """Return n iterators over the text that a model writes after a prompt, one token at a time.

    stop: the text before which each of them ends. special: of the prompt, as in `encode`. sampling:
    arguments of `GPT.stream`. Raises UserError if the prompt has no tokens.
    """
    ids = tokenizer.encode(prompt, special)
    if not len(ids):
        raise UserError(
            "the prompt is empty: give at least one character, or leave --prompt out for a new line"
        )
    end = tokenizer.eos_token_id
    columns = model.stream(np.tile(ids, (n, 1)), **sampling, eos_token_id=end)

    def text_of(row, column):
        tokens = itertools.takewhile(lambda token: token != end, (each[row] for each in column))
        texts = tokenizer.decode_stream(tokens, ids)
        return texts if stop is None else text_before(stop, texts)

    return [*map(text_of, range(n), itertools.tee(columns, n))]  # no more columns than one needs


def print_samples(model, tokenizer, prompt, n=1, stop=None, special=True, **sampling):
    """Print a prompt with each of its `continuations`, as they are written.

    On a terminal, control characters are escapes: the model may be a stranger's.
    """
    shown = without_controls if sys.stdout.isatty() else str
    texts = continuations(model, tokenizer, prompt, n, stop, special, **sampling)
    for i, pieces in enumerate(texts):
        if i:
            print("-" * 60)
        # Together: XLA reports compilation before the first token.
        print(shown(prompt + next(pieces, "")), end="")
        for text in pieces:
            print(shown(text), end="", flush=True)
        print()


def sample_line(model, tokenizer, seed):
    """Return the first LINE characters that a model writes after the default prompt, with " / " for
    line ends.
    """
    text = ""
    prompt = default_prompt(model, tokenizer)
    (pieces,) = continuations(
        model, tokenizer, prompt, max_new_tokens=LINE, temperature=0.8, seed=seed
    )
    for piece in pieces:
        text += piece
        if len(text) >= LINE:
            break
    return without_controls(re.sub(r"\s*\n\s*", " / ", text))[:LINE]


def text_before(stop, texts):
    """Yield pieces of text up to the first `stop`, even if it spans pieces."""
    held = ""  # its end may begin `stop`
    for text in texts:
        text, found, _ = (held + text).partition(stop)
        if found:
            yield text
            return
        end = max(0, len(text) - len(stop) + 1)
        held = text[end:]
        yield text[:end]
    yield held
