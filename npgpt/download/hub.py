"""Download files and models from the Hugging Face hub, or find them in its local cache.

HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_TOKEN and proxies work as usual.
"""

import re
from pathlib import Path

from npgpt.display import HIDE_BARS, tqdm
from npgpt.download.file import CONNECT_SECONDS, call_within
from npgpt.errors import UserError, one_line
from npgpt.files import digest

ALIASES = {
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "distilgpt2": "distilbert/distilgpt2",
}
MODEL_FILES = """
    config.json model.safetensors model.safetensors.index.json model-*.safetensors vocab.json
    merges.txt tokenizer.json tokenizer_config.json special_tokens_map.json
    added_tokens.json generation_config.json npgpt_tokenizer.json
""".split()


def fetch_model(name, revision=None):
    """Return the local folder with a model's MODEL_FILES. name: owner/name, or one of ALIASES.
    Raises UserError.
    """
    if name not in ALIASES and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(
            f"there is no model {name!r}: give the folder of a run, a folder with config.json and "
            f"model.safetensors, a .safetensors file, {', '.join(ALIASES)}, or the owner/name of a "
            "model on the hub"
        )
    folder = fetch(ALIASES.get(name, name), MODEL_FILES, revision)
    if not any(folder.glob("model.safetensors*")):
        raise UserError(
            f"{name} has no model.safetensors, and a pickle is not opened, because it can run any "
            "code: choose a model or a revision with safetensors weights"
        )
    return folder


def fetch(repo_id, patterns, revision=None):
    """Return the local folder of a repository, with the files that match `patterns`, all of one
    commit.

    If the hub does not answer, only the cache is used, and files may be missing. Raises UserError.
    """
    here = "" if repo_id in ALIASES.values() else f"there is no folder {repo_id} here, and "
    try:
        from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
    except ImportError:
        raise UserError(
            f"{here}{repo_id} cannot be downloaded without huggingface-hub: "
            "pip install huggingface-hub, or give local files"
        ) from None

    problem = None
    new = {}
    # huggingface_hub has no time limit for this question, and would retry downloads for minutes
    try:
        info = call_within(
            CONNECT_SECONDS, HfApi().model_info, repo_id, revision=revision, files_metadata=True
        )
        for file in info.siblings:
            if file.lfs and not try_to_load_from_cache(repo_id, file.rfilename, revision=info.sha):
                new[file.rfilename] = file.lfs.sha256
    except Exception as error:
        problem = error
    try:
        folder = snapshot_download(
            repo_id,
            revision=revision,
            allow_patterns=patterns,
            local_files_only=bool(problem),
            tqdm_class=Bar,
        )
    except Exception as error:  # also of its HTTP library, which differs between versions
        problem = problem or error
        reason = str(problem).rpartition("\n\n")[2] or type(problem).__name__  # no request ids
        raise UserError(
            f"{here}{repo_id} is not in the local cache and cannot be downloaded "
            f"({one_line(reason, 400)}): check the network and the name, log in with "
            "`hf auth login` if the model is gated, or give local files"
        ) from error
    finally:
        delete_wrong(repo_id, revision, new)
    return Path(folder)


def delete_wrong(repo_id, revision, sha256):
    """Delete downloaded files with another SHA-256 than the hub states, and raise UserError.

    huggingface_hub checks sizes only. sha256: file name -> the right one.
    """
    from huggingface_hub import try_to_load_from_cache

    wrong = []
    for name, expected in sha256.items():
        path = try_to_load_from_cache(repo_id, name, revision=revision)
        if path and digest(path) != expected:
            Path(path).resolve().unlink()  # the file in the cache, to which the path links
            Path(path).unlink(missing_ok=True)
            wrong.append(name)
    if wrong:
        raise UserError(
            f"{wrong[0]} of {repo_id} arrived with another SHA-256 than the hub states: try again"
        )


class Bar(tqdm):
    """A progress bar on terminals and in notebooks, which disappears when it is full."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options | {"disable": HIDE_BARS, "leave": False})
