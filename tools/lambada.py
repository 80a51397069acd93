"""Measure how well a model predicts the last word of a passage, on LAMBADA (Paperno et al. 2016,
arXiv:1606.06031).

    python tools/lambada.py gpt2 lambada_test.jsonl

Each line of the file is {"text": …}, as in OpenAI's version of LAMBADA. The last word follows the
last space. It counts as right if, given the rest, greedy decoding gives all its tokens. The
perplexity is exp of minus the mean log-probability of the words.
"""

import argparse
import json
import sys

import numpy as np
from tqdm import tqdm

from npgpt.cli.main import fail
from npgpt.data.corpora import read_text
from npgpt.errors import UserError
from npgpt.loading import load_model


def read_passages(path, tokenizer, block_size):
    """Return for each line of a file the tokens before its last word, and those of " word". Raises
    UserError.
    """
    passages = []
    for number, line in enumerate(read_text(path).rstrip("\n").split("\n"), 1):
        try:
            rest, blank, word = json.loads(line)["text"].rpartition(" ")
            before, after = tokenizer.encode(rest), tokenizer.encode(blank + word)
            if not rest or not word or len(after) > block_size:
                raise UserError(
                    "the text must end with a space and a word that fits into the context"
                )
        except UserError as error:
            raise UserError(f"{path}, line {number}: {error}") from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise UserError(
                f'{path}, line {number}: it is not {{"text": "…"}}, give a file of JSON lines'
            ) from None
        passages.append((before, after))
    return passages


def score(model, before, after):
    """Return whether greedy decoding after `before` gives the tokens `after`, and their
    log-probability.
    """
    tokens = np.concatenate([before, after])[-model.config.block_size - 1 :]
    logits = model.forward(tokens[None, :-1])[0][0, -len(after) :].astype(np.float64)  # (n, V)
    largest = logits.max(axis=-1, keepdims=True)
    log_p = logits - largest - np.log(np.exp(logits - largest).sum(axis=-1, keepdims=True))
    return (logits.argmax(axis=-1) == after).all(), log_p[np.arange(len(after)), after].sum()


def main(arguments=None):
    """Run the command. Returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a run, a folder, or a model of the hub")
    parser.add_argument("file", help="JSON lines")
    args = parser.parse_args(arguments)
    try:
        loaded = load_model(args.model)
        model = loaded.model
        passages = read_passages(args.file, loaded.tokenizer, model.config.block_size)
        scores = [score(model, *each) for each in tqdm(passages, "lambada", disable=None)]
    except (OSError, UserError) as error:
        return fail(error)
    right, log_probability = np.mean(scores, axis=0)
    print(
        f"passages    {len(scores):,}\naccuracy    {100 * right:.2f} %\nperplexity  "
        f"{np.exp(-log_probability):.4f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
