"""TinyStories as token files (Eldan and Li, 2023): stories of GPT-3.5 and GPT-4, about 2 GB of text from the hub."""

import itertools
import re
from pathlib import Path

from npgpt.data.token_files import SEPARATOR, SPLITS, index_file, write_documents, write_settings
from npgpt.data.tokenizers import TOKENIZER_FILE, load_tokenizer, make_tokenizer, save_tokenizer
from npgpt.display import HIDE_BARS, tqdm
from npgpt.errors import UserError
from npgpt.files import make_folder

REPOSITORY = "roneneldan/TinyStories"
SOURCES = {1: {"train": "TinyStories-train.txt", "val": "TinyStories-valid.txt"},
           2: {"train": "TinyStoriesV2-GPT4-train.txt", "val": "TinyStoriesV2-GPT4-valid.txt"}}
PIECE = 1 << 18     # characters in memory at a time


def prepared_folders(directory: str | Path) -> list[Path]:
    """Return the complete folders of TinyStories below the folder for downloads, sorted."""
    complete = (*(f"{split}.bin" for split in SPLITS), TOKENIZER_FILE)
    folders = sorted((Path(directory) / "tinystories").glob("*/"))
    return [folder for folder in folders if all((folder / name).is_file() for name in complete)]


def prepare_tinystories(directory: str | Path, tokenizer_name: str, version: int = 2, limit: int | None = None,
                        documents: bool = False, **settings: bool) -> Path:
    """Download TinyStories, write it as token files below `directory`, and return their folder.

    version: 1 has stories by GPT-3.5 and GPT-4, 2 by GPT-4 only. limit: take only the first stories of each split.
    documents: write indexes of the stories as well; settings: their all_windows and count_padding. After an
    interruption the next call resumes the download, and keeps a split that is complete. Raises UserError if the folder
    has another tokenizer, and as make_tokenizer, fetch_file and prepare_split do; OSError if it cannot be written.
    """
    from npgpt.download.hub import fetch_file

    tokenizer = make_tokenizer(tokenizer_name)
    name = re.sub(r"[^\w.-]+", "-", tokenizer_name) if tokenizer.kind == "hf" else str(tokenizer.kind)
    name += "+v1" * (version == 1) + (f"+limit-{limit}" if limit else "") + "+documents" * documents
    name += "".join(f"+{key}" for key in settings if settings[key])
    folder = Path(directory) / "tinystories" / name
    make_folder(folder)
    write_settings(folder, **settings)
    # The tokenizer first: token files without one are read as GPT-2's.
    if not (folder / TOKENIZER_FILE).exists():
        save_tokenizer(tokenizer, folder / TOKENIZER_FILE)
    elif load_tokenizer(folder / TOKENIZER_FILE).to_dict() != tokenizer.to_dict():
        raise UserError(f"{folder} was prepared with another tokenizer of that name: delete the folder to start again")
    for split in reversed(SPLITS):      # the small one first, so that most errors come before the large download
        path = folder / f"{split}.bin"
        if not path.exists():
            source = fetch_file(REPOSITORY, SOURCES[version][split], repo_type="dataset")
            prepare_split(source, tokenizer, path, limit, index_file(folder, split) if documents else None)
    return folder


def prepare_split(source, tokenizer, path, limit=None, index=None):
    """Write the tokens of the first `limit` stories in the file `source` to `path`, as write_documents does.

    Raises UserError if the source is not TinyStories: not UTF-8, without separators, or without a story.
    """
    with (
        open(source, encoding="utf-8", newline="") as text,
        tqdm(total=None if limit else Path(source).stat().st_size, unit="B", unit_scale=True, desc=path.name,
             disable=HIDE_BARS) as bar,
    ):
        write_documents(itertools.islice(stories(text, bar), limit), tokenizer, f"\n{SEPARATOR}\n", path, index)


def stories(file, bar):
    """Yield the stories of a text file, without the space around them, and advance `bar`. Raises as prepare_split."""
    rest, block, found = "", None, False
    while block != "":
        try:
            block = file.read(PIECE)
        except UnicodeDecodeError as error:
            raise UserError(f"{file.name} is not UTF-8 text ({error}): delete it and download it again") from error
        *complete, rest = (rest + block).split(SEPARATOR)
        if len(rest) > PIECE:
            raise UserError(f"{file.name} lacks {SEPARATOR} in {PIECE:,} characters: it is not TinyStories")
        for story in filter(None, map(str.strip, complete if block else [*complete, rest])):
            found = True
            yield story
        bar.update(file.buffer.tell() - bar.n)
    if not found:
        raise UserError(f"{file.name} does not contain a story: it is not TinyStories")
