"""Files and models of the Hugging Face hub: huggingface_hub's client and cache, each failure told in one sentence.

HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_TOKEN and the proxies of the environment work as they do there.
"""

import contextlib
import hashlib
import logging
import re
import warnings
from pathlib import Path

from npgpt.checks import shown
from npgpt.deadline import call_within
from npgpt.errors import UserError
from npgpt.files import read_json

CONNECT_SECONDS = 8  # until the hub has answered; name look-up, proxy and redirects included

ALIASES = {
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "distilgpt2": "distilbert/distilgpt2",
}

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MOST_INDEX_BYTES = 1 << 24
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
COMPANIONS = ("vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
              "generation_config.json")
LOG_IN = "log in with `hf auth login` or set HF_TOKEN"


class NoSuchFile(UserError):
    """The repository has no file of that name at that revision."""


def resolve(name):
    """Return the repository that `name` stands for: "gpt2" is "openai-community/gpt2", "owner/name" is itself.

    Raises UserError for anything else.
    """
    if name in ALIASES:
        return ALIASES[name]
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return name
    raise UserError(
        f"{name!r} is no model: give {', '.join(ALIASES)}, the owner/name of a model on the hub, "
        f"or a folder with {CONFIG} and {WEIGHTS}"
    )


def fetch_file(repo_id, filename, revision=None, repo_type="model"):
    """Return the path, in the local cache, of one file of a repository; it is downloaded if it is not there yet.

    `revision` is a branch, a tag or a commit, the main branch by default; `repo_type` is "model" or "dataset". Without
    a network the last known file of that revision is returned. Raises NoSuchFile, and UserError for every other
    failure; a file whose SHA-256 is not the one that the hub states is removed again.
    """
    return Repository(repo_id, revision, repo_type).fetch(filename)


def fetch_model(repo_id, revision=None):
    """Return the local folder with config.json, the safetensors weights and what the model has of tokenizer files.

    `repo_id` is "owner/name" or one of ALIASES. All files are of one commit, even if somebody pushes meanwhile. Raises
    UserError as fetch_file does, for an index that points outside the folder, and for weights that are only a pickle.
    """
    repository = Repository(resolve(repo_id), revision, "model")
    config = repository.fetch(CONFIG)
    repository.revision = config.parent.name  # the cache keeps a commit's files in snapshots/COMMIT/
    try:
        repository.fetch(WEIGHTS)
    except NoSuchFile:
        for shard in shard_names(fetch_index(repository)):
            repository.fetch(shard)
    for filename in COMPANIONS:
        if repository.problem is None:  # offline, the ones that are in the cache have to do
            with contextlib.suppress(NoSuchFile):
                repository.fetch(filename)
    return config.parent


def fetch_index(repository):
    """Fetch the list of shards of a repository that has no single file of weights; raises UserError without one."""
    try:
        return repository.fetch(INDEX)
    except NoSuchFile as missing:
        if any(repository.ask(pickle) for pickle in PICKLES):
            raise UserError(
                f"{repository.repo_id} has its weights only as {PICKLES[0]}, a pickle, which can run any code when it "
                f"is opened and is not read here: take a repository or a revision with {WEIGHTS}"
            ) from missing
        raise UserError(
            f"{repository.repo_id} has neither {WEIGHTS} nor {INDEX}: take a repository with safetensors weights"
        ) from missing


def shard_names(index_path):
    """Return the sorted names of the weight files that a model.safetensors.index.json names.

    Raises UserError if it is not such an index, or names anything but a safetensors file of its own folder.
    """
    try:
        names = set(read_json(index_path, MOST_INDEX_BYTES)["weight_map"].values())
    except (OSError, UserError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index_path} is not an index of safetensors files: use another revision") from error
    for name in names:
        # The name becomes a path and a URL, and comes from a stranger: no folders, no drives, nothing hidden.
        if not (isinstance(name, str) and re.fullmatch(r"\w[\w.-]*\.safetensors", name)):
            raise UserError(f"{index_path} names {shown(name)}, which is no weight file of its own folder: "
                            "do not trust it")
    return sorted(names)


class Repository:
    """One repository at one revision; it remembers that the hub does not answer, so that only the first file waits."""

    def __init__(self, repo_id, revision, repo_type):
        self.repo_id = repo_id
        self.revision = revision
        self.repo_type = repo_type
        self.problem = None  # the exception for which the hub is not asked any more

    def fetch(self, filename):
        """Return the path of a file in the cache, downloaded if need be; raises NoSuchFile and UserError."""
        import huggingface_hub as hub

        try:
            with quiet():
                known = self.look_up(filename, self.revision)
                pinned = re.fullmatch("[0-9a-f]{40}", self.revision or "")
                # The files of a commit never change: nobody has to be asked again.
                metadata = None if pinned and known is not None else self.ask(filename)
                if known is not None and (pinned or self.problem is not None):
                    if isinstance(known, str):
                        return Path(known)
                    raise NoSuchFile(f"{self.repo_id} has no file {filename}, as the hub said when it was last asked")
                if self.problem is not None:
                    raise self.problem
                fresh = metadata and not isinstance(self.look_up(filename, metadata.commit_hash), str)
                path = hub.hf_hub_download(self.repo_id, filename, revision=self.revision, repo_type=self.repo_type)
        except UserError:
            raise
        # The client lets its HTTP library's exceptions through, and that library is another one in each major version.
        except Exception as error:
            raise self.explain(error, filename) from error
        if fresh:
            check_digest(Path(path), metadata.etag)
        return Path(path)

    def look_up(self, filename, revision):
        """What the cache knows of a file: its path, None, or huggingface_hub's mark that there is no such file."""
        import huggingface_hub as hub

        return hub.try_to_load_from_cache(self.repo_id, filename, revision=revision, repo_type=self.repo_type)

    def ask(self, filename):
        """Return the hub's metadata of a file, or None if there is none; sets `problem` if the hub does not answer.

        Where no hub answers, hf_hub_download alone would try for minutes; this is over in CONNECT_SECONDS.
        """
        import huggingface_hub as hub
        from huggingface_hub.errors import RemoteEntryNotFoundError, RevisionNotFoundError

        if self.problem is not None:
            return None
        url = hub.hf_hub_url(self.repo_id, filename, revision=self.revision, repo_type=self.repo_type)
        try:
            metadata = call_within(CONNECT_SECONDS, hub.get_hf_file_metadata, url)
        except (RemoteEntryNotFoundError, RevisionNotFoundError):
            return None  # hf_hub_download will hear the same answer, and note it in the cache
        except Exception as error:
            self.problem = error
            return None
        if metadata.commit_hash is None:  # the login page of a hotel's network, or a wrong HF_ENDPOINT
            self.problem = ConnectionError("what answers is not the hub")
        return metadata

    def explain(self, error, filename):
        """Return the UserError that says in one sentence what `error` means and what to do about it."""
        from huggingface_hub import constants, errors

        page = f"{constants.ENDPOINT}/{'datasets/' if self.repo_type == 'dataset' else ''}{self.repo_id}"
        revision = self.revision or constants.DEFAULT_REVISION
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
        status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
        match error:
            case errors.HFValidationError():
                return UserError(f"{self.repo_id!r} cannot be a repository of the hub: give it as owner/name")
            case errors.RevisionNotFoundError():
                return UserError(f"{self.repo_id} has no revision {revision!r}: give a branch, tag or commit of {page}")
            case errors.RemoteEntryNotFoundError():
                return NoSuchFile(f"{self.repo_id} has no file {filename} at revision {revision!r}: see {page}")
            case errors.GatedRepoError():
                return UserError(f"{self.repo_id} is gated: accept its terms at {page}, then {LOG_IN}")
            case errors.RepositoryNotFoundError():
                return UserError(f"{self.repo_id} does not exist on the hub or is private: check the name, or {LOG_IN}")
            case errors.HfHubHTTPError() if status in (401, 403):
                return UserError(f"the hub refuses access to {self.repo_id} (status {status}): {LOG_IN}")
            case errors.HfHubHTTPError():
                return UserError(f"the hub answered {filename} of {self.repo_id} with status {status}: try again later")
        if error is self.problem:
            if isinstance(error, errors.OfflineModeIsEnabled):
                why, remedy = "HF_HUB_OFFLINE is set", "run once without it and with a network"
            else:
                why, remedy = f"{constants.ENDPOINT} cannot be reached ({reason})", "run once with a network"
            if self.repo_type == "model":
                remedy += f", or give a folder with {CONFIG} and {WEIGHTS}"
            return UserError(f"{filename} of {self.repo_id} is not in the local cache and {why}: {remedy}")
        if isinstance(error, OSError) and error.errno:
            return UserError(
                f"{filename} of {self.repo_id} could not be written to {constants.HF_HUB_CACHE} ({error.strerror}): "
                "make room there, or set HF_HOME to another folder"
            )
        return UserError(f"{filename} of {self.repo_id} could not be downloaded ({reason}): try again")


def check_digest(path, etag):
    """Remove a fresh download, and raise UserError, if `etag` is a SHA-256 (that of an LFS file is) but not its own."""
    if not re.fullmatch("[0-9a-f]{64}", etag):
        return
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != etag:
        path.resolve().unlink()  # the cache's snapshots are links to its blobs
        path.unlink(missing_ok=True)
        raise UserError(
            f"{path.name} arrived with the SHA-256 {digest[:12]}… instead of {etag[:12]}…: "
            "try again, perhaps on another network"
        )


@contextlib.contextmanager
def quiet():
    """Keep huggingface_hub's log lines and warnings off the terminal: the error says what matters of them."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
