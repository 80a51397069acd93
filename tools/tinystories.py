"""Download TinyStories (Eldan and Li, 2023: short stories by GPT-4, 2.2 GB) and write it as token
files of GPT-2.

    python tools/tinystories.py stories         # then: npgpt train --corpus stories

An interrupted download continues when the command is repeated.
"""

import argparse
import itertools
import sys
from pathlib import Path

import numpy as np
from huggingface_hub import hf_hub_download
from tqdm import tqdm

from npgpt.cli.main import fail
from npgpt.data.token_files import SEPARATOR
from npgpt.data.tokenizers import TOKENIZER_FILE, GPT2Tokenizer, save_tokenizer
from npgpt.errors import UserError
from npgpt.files import digest, new_folder

REPOSITORY = "roneneldan/TinyStories"
# The small file first, so that most errors come before the large download.
FILES = {"val": "TinyStoriesV2-GPT4-valid.txt", "train": "TinyStoriesV2-GPT4-train.txt"}


def downloaded(name):
    """Return the path of a file of the hub's. Raises UserError if its SHA-256 differs from what the
    hub states.
    """
    path = hf_hub_download(REPOSITORY, name, repo_type="dataset")
    name = (
        Path(path).resolve().name
    )  # in the cache it is the hub's SHA-256, unless the disk has no links
    if len(name) == 64 and digest(path) != name:
        raise UserError(
            f"{path} arrived with another SHA-256 than the hub states: delete it, and try again"
        )
    return path


def stories(path):
    """Yield the stories of a file, without the space around them. They are separated by lines of
    SEPARATOR.
    """
    with open(path, encoding="utf-8") as lines:
        for separates, part in itertools.groupby(lines, lambda line: line.strip() == SEPARATOR):
            story = "".join(part).strip()
            if story and not separates:
                yield story


def main(arguments=None):
    """Run the command. Returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="the new folder to write")
    parser.add_argument("--limit", type=int, help="only the first stories of each file")
    args = parser.parse_args(arguments)
    tokenizer = GPT2Tokenizer()
    try:
        with new_folder(args.folder) as unfinished:
            save_tokenizer(tokenizer, unfinished / TOKENIZER_FILE)
            for split, name in FILES.items():
                path = downloaded(name)
                with open(unfinished / f"{split}.bin", "wb") as tokens:
                    for story in tqdm(
                        itertools.islice(stories(path), args.limit),
                        split,
                        unit="story",
                        disable=None,
                    ):
                        tokens.write(
                            np.append(tokenizer.encode(story), tokenizer.eos_token_id).astype("<u2")
                        )
    except (OSError, UserError) as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
