"""Train on every window of each story, cut and padded by its tokenizer; padding is learned, too.

    python tools/examples/stories.py stories.txt hf:bert-base-uncased --out-dir stories

The stories stand between lines of <|endoftext|>, or between blank lines. The tokenizer, a
tokenizer.json or hf:PATH_OR_ID, needs a padding token. An epoch is all windows in order; its last
batch is smaller. In torch: transformers' tokenizer(stories, truncation=True, max_length=T + 1,
padding="max_length", return_overflowing_tokens=True), DataLoader and AdamW.
"""

import argparse
import json
import sys

import numpy as np
from tokenizers import Tokenizer

from npgpt import GPT, AdamW, GPTConfig, Trainer, TrainOptions, UserError
from npgpt.cli.main import fail
from npgpt.data.corpora import read_text
from npgpt.data.hf_tokenizer import HFTokenizer, one_line_errors

FLAGS = {
    "--n-layer": 4,
    "--n-head": 4,
    "--n-embd": 128,
    "--block-size": 128,
    "--batch-size": 32,
    "--epochs": 1,
    "--learning-rate": 1e-3,
    "--dtype": "float32",
    "--out-dir": "stories",
}


@one_line_errors()
def windows_of(stories, tokenizer, length):
    """Return (N, length) integers; what is cut off a window overflows into the next."""
    if tokenizer.pad_token_id is None:
        raise UserError("the tokenizer has no padding token: choose another, such as BERT's")
    library = Tokenizer.from_str(json.dumps(tokenizer.description))
    library.enable_truncation(length)
    library.enable_padding(length=length, pad_id=tokenizer.pad_token_id)
    found = library.encode_batch(stories)
    return np.array([window.ids for story in found for window in (story, *story.overflowing)])


def train(stories, tokenizer, out_dir, *, batch_size, epochs, learning_rate, dtype, **sizes):
    config = GPTConfig(tokenizer.vocab_size, eos_token_id=tokenizer.eos_token_id, **sizes)
    windows = windows_of(stories, tokenizer, config.block_size + 1)
    parts = [windows[i : i + batch_size] for i in range(0, len(windows), batch_size)]
    iters = epochs * len(parts)
    options = TrainOptions(max_iters=iters, grad_clip=0.0, log_interval=1, dtype=dtype)
    model, torchs = GPT(config, options.seed, dtype), {"weight_decay": 0.01, "decay": "all"}
    optimizer = AdamW(model.params, learning_rate, (0.9, 0.999), engine=model.engine, **torchs)
    Trainer(
        model,
        options=options,
        out_dir=out_dir,
        tokenizer=tokenizer,
        optimizer=optimizer,
        batches=lambda n: (parts[n % len(parts)][:, :-1], parts[n % len(parts)][:, 1:]),
    ).run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage=__doc__)
    for flag, value in {"stories": "", "tokenizer": "", **FLAGS}.items():
        parser.add_argument(flag, type=type(value), default=value)
    flags = vars(parser.parse_args())
    try:
        text, name = read_text(flags.pop("stories")), flags.pop("tokenizer").removeprefix("hf:")
        parts = text.split("<|endoftext|>" if "<|endoftext|>" in text else "\n\n")
        train([*filter(None, map(str.strip, parts))], HFTokenizer.open(name), **flags)
    except (OSError, ValueError) as error:
        sys.exit(fail(error))
