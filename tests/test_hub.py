"""The real huggingface_hub client against a hub on loopback, in every way that a download can go, and offline."""

import json
import logging
import shutil
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from npgpt import UserError, hub
from tests.hub_server import HubServer, point_client_at

NAME = "owner/model"
WEIGHTS = bytes(range(256)) * 40
MODEL = {"config.json": b'{"n_layer": 1}', "model.safetensors": WEIGHTS, "vocab.json": b"{}", "merges.txt": b"#"}
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
SHARDED = {
    "config.json": b"{}",
    "model.safetensors.index.json": json.dumps({"weight_map": {"a": SHARDS[1], "b": SHARDS[0]}}).encode(),
    SHARDS[0]: b"first" * 100,
    SHARDS[1]: b"second" * 100,
}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A loopback hub that the client of this process talks to, and an empty cache; waiting between attempts is off."""
    with HubServer() as server:
        point_client_at(server, tmp_path, monkeypatch)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        yield server


@pytest.fixture
def model(server):
    """The same hub, with one model in it."""
    server.add(NAME, MODEL)
    return server


def names(folder):
    """The names of the files in a folder."""
    return {path.name for path in folder.iterdir()}


def refusal(call, *arguments):
    """The message of the UserError that a call raises; it has to be one sentence on one line."""
    with pytest.raises(UserError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message and ": " in message and not message.endswith(".") and "Traceback" not in message
    return message


def blobs(tmp_path):
    """Everything that the cache holds of files, finished or not, and all links to them."""
    return [path for path in (tmp_path / "hub").rglob("*") if path.parent.name == "blobs" or path.is_symlink()]


# Names


def test_short_names():
    assert hub.resolve("gpt2") == "openai-community/gpt2"
    assert hub.resolve("gpt2-xl") == "openai-community/gpt2-xl"
    assert hub.resolve("distilgpt2") == "distilbert/distilgpt2"
    assert hub.resolve("a-b.c/d_e") == "a-b.c/d_e"


@pytest.mark.parametrize("name", ["gtp2", "", "a/b/c", "/etc", "owner/", "a b/c", "https://hub/owner/name", "../..//x"])
def test_other_names_are_refused(name):
    assert "gpt2-medium" in refusal(hub.resolve, name)


@pytest.mark.parametrize("name", ["a--b/c", "owner/../x", "-a/b"])
def test_names_that_the_hub_does_not_allow_are_refused(server, name):
    assert "owner/name" in refusal(hub.fetch_file, name, "config.json")
    assert server.requests == []


# Downloads that go well


def test_a_file_arrives_and_comes_from_the_cache_without_a_network(model):
    path = hub.fetch_file(NAME, "model.safetensors")
    assert path.read_bytes() == WEIGHTS
    assert hub.fetch_file(NAME, "model.safetensors") == path
    assert model.downloads() == ["model.safetensors"]       # the second time, only the headers were asked for
    model.stop()
    assert hub.fetch_file(NAME, "model.safetensors") == path


def test_a_model_arrives_whole_and_comes_from_the_cache_without_a_network(model):
    folder = hub.fetch_model(NAME)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == MODEL
    model.requests.clear()
    assert hub.fetch_model(NAME) == folder
    assert {path.rsplit("/")[-1] for _, path, _ in model.requests} == {"config.json"}   # one question: is it still new?
    model.stop()
    assert hub.fetch_model(NAME) == folder


def test_a_short_name_is_fetched_from_its_owner(server):
    server.add("openai-community/gpt2", MODEL)
    assert names(hub.fetch_model("gpt2")) == set(MODEL)


def test_all_shards_arrive_and_come_from_the_cache_without_a_network(server):
    server.add(NAME, SHARDED)
    folder = hub.fetch_model(NAME)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == SHARDED
    server.stop()
    assert hub.fetch_model(NAME) == folder


def test_a_dataset_is_not_a_model(server):
    server.add("owner/texts", {"train.txt": b"Once"}, repo_type="dataset")
    path = hub.fetch_file("owner/texts", "train.txt", repo_type="dataset")
    assert path.read_bytes() == b"Once"
    refusal(hub.fetch_file, "owner/texts", "train.txt")
    assert f"{server.endpoint}/datasets/owner/texts" in refusal(hub.fetch_file, "owner/texts", "x", None, "dataset")
    server.stop()
    assert hub.fetch_file("owner/texts", "train.txt", repo_type="dataset") == path


def test_a_file_in_a_folder_of_the_repository(server):
    server.add(NAME, {"data/part/train.txt": b"Once"})
    assert hub.fetch_file(NAME, "data/part/train.txt").read_bytes() == b"Once"


def test_a_branch_a_commit_and_news_on_the_main_branch(model):
    old = model.revisions[NAME, "main"]
    branch = model.add(NAME, {**MODEL, "config.json": b'{"n_layer": 2}'}, revision="two")
    assert hub.fetch_file(NAME, "config.json", "two").read_bytes() == b'{"n_layer": 2}'
    assert hub.fetch_model(NAME, "two").name == branch
    assert hub.fetch_model(NAME).name == old
    new = model.add(NAME, {**MODEL, "config.json": b'{"n_layer": 3}'})
    assert hub.fetch_model(NAME).name == new
    assert hub.fetch_model(NAME, old).name == old
    assert model.downloads().count("model.safetensors") == 1    # the three commits share the weights


def test_all_files_of_a_model_are_of_one_commit(model, monkeypatch):
    """Somebody pushes after the first file has been fetched."""
    first, fetch = model.revisions[NAME, "main"], hub.Repository.fetch

    def fetch_then_push(repository, filename):
        path = fetch(repository, filename)
        model.add(NAME, {**MODEL, "model.safetensors": b"other"})
        return path

    monkeypatch.setattr(hub.Repository, "fetch", fetch_then_push)
    folder = hub.fetch_model(NAME)
    assert folder.name == first and (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_a_token_opens_a_gated_model_and_stays_on_the_hub(model, monkeypatch):
    model.gated.add(NAME)
    monkeypatch.setenv("HF_TOKEN", model.token)
    hub.fetch_file(NAME, "model.safetensors")
    sent = {token for path, token in model.tokens if path.startswith("/cdn/")}
    assert sent == {None} and ("Bearer " + model.token) in {token for _, token in model.tokens}


def test_a_cut_off_file_is_resumed(model, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1024)     # of an unfinished chunk (10 MB) nothing is kept
    model.faults["model.safetensors"] = "cut once"
    assert hub.fetch_file(NAME, "model.safetensors").read_bytes() == WEIGHTS
    ranges = [wanted for method, _, wanted in model.requests if method == "GET"]
    assert ranges == [None, f"bytes={len(WEIGHTS) // 2}-"]


def test_an_error_of_the_hub_does_not_matter_for_what_is_cached(model):
    path = hub.fetch_file(NAME, "config.json")
    model.faults["config.json"] = "status 500"
    assert hub.fetch_file(NAME, "config.json") == path


def test_the_clients_logger_is_as_it_was(model):
    level = logging.getLogger("huggingface_hub").level
    hub.fetch_file(NAME, "config.json")
    refusal(hub.fetch_file, NAME, "README")
    assert logging.getLogger("huggingface_hub").level == level != logging.CRITICAL


# Downloads that fail: one sentence, and nothing broken is left in the cache


@pytest.mark.parametrize("fault, said", [
    ("cut", "could not be downloaded"),
    ("stall", "could not be downloaded"),
    ("short", "Consistency check failed"),
    ("wrong bytes", "SHA-256"),
    ("status 401", "refuses access"),
    ("status 403", "HF_TOKEN"),
    ("status 429", "status 429"),
    ("status 500", "status 500"),
    ("status 500 late", "status 500"),
    ("silent", "no answer within 0.3 seconds"),
    ("not a hub", "what answers is not the hub"),
])
def test_a_broken_download_leaves_nothing_and_works_the_next_time(model, fault, said, tmp_path, monkeypatch):
    from huggingface_hub import constants

    model.faults["model.safetensors"] = fault
    with monkeypatch.context() as patience:
        if fault == "silent":
            patience.setattr(hub, "CONNECT_SECONDS", 0.3)
        if fault == "stall":
            patience.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
        assert said in refusal(hub.fetch_file, NAME, "model.safetensors")
    assert blobs(tmp_path) == []
    model.faults.clear()
    assert hub.fetch_file(NAME, "model.safetensors").read_bytes() == WEIGHTS


def test_a_full_disk(model, tmp_path, monkeypatch, recwarn):
    """A limit on the size of files makes the same call fail, in the same way, as a full disk does."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))     # of which the client warns
    resource = pytest.importorskip("resource", reason="Windows has no such limit")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        message = refusal(hub.fetch_file, NAME, "model.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "make room" in message and str(tmp_path) in message
    assert blobs(tmp_path) == [] and len(recwarn) == 0


def test_a_cache_that_is_no_folder(model, tmp_path):
    (tmp_path / "hub").write_text("a file")
    assert "could not be written" in refusal(hub.fetch_file, NAME, "config.json")


def test_missing_repository_revision_and_file(model, monkeypatch):
    assert "owner/none does not exist" in refusal(hub.fetch_model, "owner/none")
    assert "no revision 'v9'" in refusal(hub.fetch_model, NAME, "v9")
    assert f"no revision '{'0' * 40}'" in refusal(hub.fetch_model, NAME, "0" * 40)
    assert "no file README" in refusal(hub.fetch_file, NAME, "README")
    with pytest.raises(hub.NoSuchFile):
        hub.fetch_file(NAME, "README")
    hub.fetch_file(NAME, "config.json")
    del model.revisions[NAME, "main"]       # what was deleted on the hub is not taken from the cache in silence
    assert "no revision 'main'" in refusal(hub.fetch_file, NAME, "config.json")
    monkeypatch.setenv("HF_TOKEN", model.token)
    assert "owner/none does not exist" in refusal(hub.fetch_model, "owner/none")


def test_a_gated_model_without_and_with_a_token_of_somebody_else(model, monkeypatch):
    model.gated.add(NAME)
    message = refusal(hub.fetch_model, NAME)
    assert "gated" in message and "hf auth login" in message and "HF_TOKEN" in message
    assert f"{model.endpoint}/{NAME}" in message
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert "gated" in refusal(hub.fetch_model, NAME)


def test_weights_that_are_only_a_pickle_are_refused_and_not_fetched(server):
    server.add(NAME, {"config.json": b"{}", "pytorch_model.bin": b"pickle"})
    assert "pickle" in refusal(hub.fetch_model, NAME)
    assert "pytorch_model.bin" not in server.downloads()
    server.add(NAME, {"config.json": b"{}"})
    assert "neither model.safetensors" in refusal(hub.fetch_model, NAME)


@pytest.mark.parametrize("shard", ["../model.safetensors", "/tmp/model.safetensors", "sub/model.safetensors", "..",
                                   "C:model.safetensors", "..\\model.safetensors", ".safetensors", "model.bin", "", 7])
def test_an_index_that_points_elsewhere_is_refused(server, shard):
    index = json.dumps({"weight_map": {"a": SHARDS[0], "b": shard}}).encode()
    server.add(NAME, {**SHARDED, "model.safetensors.index.json": index})
    assert repr(shard) in refusal(hub.fetch_model, NAME)
    assert server.downloads() == ["config.json", "model.safetensors.index.json"]    # and no shard


@pytest.mark.parametrize("index", [b"", b"[]", b"{}", b'{"weight_map": 1}', b"\xff", b'{"weight_map": {"a": []}}',
                                   b"[" * 100_000])
def test_an_index_that_is_none_is_refused(server, index):
    server.add(NAME, {**SHARDED, "model.safetensors.index.json": index})
    assert "is not an index" in refusal(hub.fetch_model, NAME)


# No network


def test_offline_by_the_environment(model, monkeypatch):
    from huggingface_hub import constants

    folder = hub.fetch_model(NAME)
    model.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.fetch_model(NAME) == folder
    message = refusal(hub.fetch_model, "gpt2")
    assert "config.json of openai-community/gpt2 is not in the local cache and HF_HUB_OFFLINE is set" in message
    assert "give a folder with config.json and model.safetensors" in message
    assert model.requests == []


def test_offline_the_tokenizer_may_be_missing_but_the_weights_may_not(model):
    config = hub.fetch_file(NAME, "config.json")
    commit = config.parent.name
    hub.fetch_file(NAME, "model.safetensors", commit)
    model.add("owner/half", MODEL)
    hub.fetch_file("owner/half", "config.json")
    model.stop()
    assert names(hub.fetch_model(NAME)) == {"config.json", "model.safetensors"}
    assert "model.safetensors of owner/half is not in the local cache" in refusal(hub.fetch_model, "owner/half")


def test_no_network_is_told_in_one_line(model):
    model.stop()
    message = refusal(hub.fetch_model, "gpt2")
    assert "is not in the local cache" in message and "cannot be reached" in message
    assert "run once with a network, or give a folder with config.json and model.safetensors" in message
    assert "folder" not in refusal(hub.fetch_file, "owner/texts", "train.txt", None, "dataset")


def test_a_name_look_up_that_hangs_is_given_up_once(model, monkeypatch):
    """As on a machine whose name server is out of reach; a model in the cache waits once, and not for every file."""
    folder = hub.fetch_model(NAME)
    model.add("owner/half", MODEL)
    hub.fetch_file("owner/half", "config.json")
    attempts, over = [], threading.Event()

    def hang(*arguments, **options):
        attempts.append(arguments)
        over.wait()
        raise socket.gaierror("no name server")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(hub, "CONNECT_SECONDS", 0.3)
    try:
        start = time.monotonic()
        assert "no answer within 0.3 seconds" in refusal(hub.fetch_model, "gpt2")
        assert hub.fetch_model(NAME) == folder
        assert "model.safetensors of owner/half" in refusal(hub.fetch_model, "owner/half")
        assert time.monotonic() - start < 3 and len(attempts) == 3
    finally:
        over.set()


# Another process, with nothing but its environment


SCRIPT = """
import sys
import npgpt, npgpt.hub
assert "huggingface_hub" not in sys.modules
try:
    print(npgpt.hub.fetch_model("owner/model"))
except npgpt.UserError as error:
    sys.exit(str(error))
"""


def test_the_environment_is_obeyed_and_standard_error_is_clean(tmp_path):
    with HubServer() as server:
        server.add(NAME, MODEL)
        server.faults["model.safetensors"] = "cut once"     # huggingface_hub logs a warning, which is not to be seen

        def run(**variables):
            environment = {**server.environment(tmp_path), **variables}
            return subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)

        missing = run(HF_HUB_OFFLINE="1")
        assert missing.returncode == 1 and missing.stderr.count("\n") == 1 and "HF_HUB_OFFLINE" in missing.stderr
        fetched = run()
        assert (fetched.returncode, fetched.stdout.startswith(str(tmp_path / "hub"))) == (0, True)
        # Nothing but progress bars, which end their line with \r before they draw it again.
        assert [line for line in fetched.stderr.splitlines() if "%|" not in line and line.strip()] == []
        server.stop()
        assert run(HF_HUB_OFFLINE="1").stdout == fetched.stdout
        gone = run(HF_HUB_CACHE=str(tmp_path / "other"))
        assert gone.stderr.count("\n") == 1 and "cannot be reached" in gone.stderr
