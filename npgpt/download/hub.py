"""Files and models of the Hugging Face hub, through huggingface_hub and its cache; every failure is one sentence.

HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_TOKEN and the proxies of the environment work as usual.
"""

import contextlib
import hashlib
import logging
import re
import warnings
from pathlib import Path

from npgpt.checks import shown
from npgpt.download.deadline import call_within
from npgpt.errors import UserError, one_line
from npgpt.files import read_json

CONNECT_SECONDS = 8     # for the hub's first answer, including DNS, proxy and redirects
ALIASES = {"gpt2": "openai-community/gpt2", "gpt2-medium": "openai-community/gpt2-medium",
           "gpt2-large": "openai-community/gpt2-large", "gpt2-xl": "openai-community/gpt2-xl",
           "distilgpt2": "distilbert/distilgpt2"}
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
COMPANIONS = {"vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
              "generation_config.json", "npgpt_tokenizer.json"}
MOST_INDEX_BYTES = 1 << 24


def fetch_file(repo_id, filename, revision=None, repo_type="model"):
    """Return the path, in the local cache, of one file of a repository; it is downloaded if necessary.

    `revision`: a branch, tag or commit; `repo_type`: "model" or "dataset". If no hub answers, the cached file is used.
    """
    return Repository(repo_id, revision, repo_type).fetch(filename)


def fetch_model(name, revision=None):
    """Return the local folder of a model, owner/name or one of ALIASES: config, safetensors and tokenizer files.

    All files are of one commit. Raises UserError as Repository.fetch does, and for weights that are only a pickle.
    """
    if name not in ALIASES and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(f"{name!r} is no model: give {', '.join(ALIASES)}, the owner/name of a model on the hub, "
                        f"or a folder with {CONFIG} and {WEIGHTS}")
    repository = Repository(ALIASES.get(name, name), revision)
    folder = repository.fetch(CONFIG).parent
    repository.revision = folder.name           # the commit: the cache keeps its files in snapshots/COMMIT
    names = repository.digests.keys() or {path.name for path in folder.iterdir()}
    weights = [WEIGHTS]
    if WEIGHTS not in names and INDEX in names:
        weights = shard_names(repository.fetch(INDEX))
    elif WEIGHTS not in names and repository.problem is None:
        raise UserError(f"{name} has no {WEIGHTS}, and a pickle is not opened, because it can run any code: "
                        "choose a model or a revision with safetensors weights")
    for filename in [*weights, *sorted(names & COMPANIONS)]:
        repository.fetch(filename)
    return folder


def shard_names(index_path):
    """Return the sorted names of the weight files in a model.safetensors.index.json. Raises UserError."""
    try:
        names = set(read_json(index_path, MOST_INDEX_BYTES)["weight_map"].values())
    except (OSError, UserError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index_path} is not an index of safetensors files: use another revision") from error
    for name in names:      # a stranger chose it, and it becomes a path and a URL: no folders, no drives
        if not (isinstance(name, str) and re.fullmatch(r"\w[\w.-]*\.safetensors", name)):
            raise UserError(f"{index_path} names {shown(name)}, which is no weight file of its folder: do not trust it")
    return sorted(names)


@contextlib.contextmanager
def quiet():
    """Keep huggingface_hub's log lines and warnings off the terminal: our error says what matters."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)


class Repository:
    """A repository at one revision. If the hub does not answer, `problem` is why, and only the cache is used."""

    @quiet()
    def __init__(self, repo_id, revision=None, repo_type="model"):
        from huggingface_hub import HfApi

        self.repo_id, self.revision, self.repo_type = repo_id, revision, repo_type
        self.problem, self.digests = None, {}   # digests: file name -> SHA-256, or None for a small file
        try:        # huggingface_hub has no time limit for this question, and downloads would be tried for minutes
            info = call_within(CONNECT_SECONDS, HfApi().repo_info, repo_id, revision=revision, repo_type=repo_type,
                               files_metadata=True)
            self.digests = {file.rfilename: file.lfs and file.lfs.sha256 for file in info.siblings}
        except Exception as error:
            self.problem = error

    @quiet()
    def fetch(self, filename):
        """Return the path of a file in the cache, downloaded if necessary. Raises UserError."""
        import huggingface_hub as hub

        where = {"revision": self.revision, "repo_type": self.repo_type}
        try:
            cached = hub.try_to_load_from_cache(self.repo_id, filename, **where)
            path = hub.hf_hub_download(self.repo_id, filename, **where, local_files_only=self.problem is not None)
        except Exception as error:      # those of its HTTP library too, which differs between its versions
            problem = self.problem or error
            reason = str(problem).rpartition("\n\n")[2].splitlines() or [type(problem).__name__]   # without request ids
            remedy = "check the network and try again"
            if isinstance(problem, hub.errors.HfHubHTTPError) and problem.response.status_code < 500:
                remedy = "check the name, accept the terms of a gated model, log in with `hf auth login`"
            elif getattr(problem, "errno", None):
                remedy = f"make room in {hub.constants.HF_HUB_CACHE} or set HF_HOME"
            raise UserError(f"{filename} of {self.repo_id} is not in the local cache and cannot be downloaded "
                            f"({one_line(reason[0], 400)}): {remedy}, or give local files") from error
        if path != cached and self.digests.get(filename):
            check_digest(Path(path), self.digests[filename])
        return Path(path)


def check_digest(path, expected):
    """Remove a download, and raise UserError, if its SHA-256 is not the expected one: huggingface_hub checks sizes."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != expected:
        path.resolve().unlink()         # the file in the cache, to which the path links
        path.unlink(missing_ok=True)
        raise UserError(f"{path.name} arrived with the SHA-256 {digest[:12]}… instead of {expected[:12]}…: try again")
