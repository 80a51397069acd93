"""The real huggingface_hub client against a hub on 127.0.0.1: downloads that succeed and fail, and
work offline.
"""

import json
import threading
import time
import warnings

import pytest

from npgpt.download import hub
from npgpt.download.file import call_within
from tests.helpers.hub_server import HubServer, point_client_at
from tests.helpers.runs import refusing

NAME = "owner/model"
WEIGHTS = bytes(range(256)) * 40
TOKENIZER = "vocab.json merges.txt tokenizer_config.json special_tokens_map.json added_tokens.json"
MODEL = {
    "config.json": b'{"n_layer": 1}',
    "model.safetensors": WEIGHTS,
    **dict.fromkeys(TOKENIZER.split(), b"{}"),
}
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"
SHARDED = {
    "config.json": b"{}",
    SHARDS[0]: b"first" * 100,
    SHARDS[1]: b"second" * 100,
    INDEX: json.dumps({"weight_map": {"a": SHARDS[1], "b": SHARDS[0]}}).encode(),
}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A hub with one model, which huggingface_hub talks to, and an empty cache."""
    with HubServer() as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        point_client_at(server, tmp_path, monkeypatch)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between its attempts
        server.add(NAME, MODEL)
        yield server


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refusal(call, *arguments):
    """The message of the UserError that a call raises; it has to be one line."""
    with refusing("^.*: .*$") as caught:
        call(*arguments)
    return str(caught.value)


def test_other_names_are_refused(server):
    for name in ("gtp2", "", "a/b/c", "/etc", "owner/", "a b/c", "https://hub/owner/name"):
        assert "gpt2-medium" in refusal(hub.fetch_model, name)
    for name in ("a--b/c", "owner/../x", "-a/b"):
        refusal(hub.fetch, name, ["config.json"])
    assert not server.requests


@pytest.mark.parametrize("files", [MODEL, SHARDED], ids=["one file", "shards"])
def test_a_model_arrives_whole_and_works_offline(server, files, monkeypatch, capfd):
    others = {"pytorch_model.bin": b"pickle", "other.safetensors": b"other"}
    server.add("openai-community/gpt2", files | others)
    folder = hub.fetch_model("gpt2")
    assert contents(folder) == files
    downloads = server.downloads()
    assert hub.fetch_model("gpt2") == folder and server.downloads() == downloads
    assert capfd.readouterr().err == ""
    with monkeypatch.context() as offline:
        offline.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        requests = len(server.requests)
        assert hub.fetch_model("gpt2") == folder and len(server.requests) == requests
        assert "HF_HUB_OFFLINE" in refusal(hub.fetch_model, NAME)
    server.faults["listing"] = "500"
    assert hub.fetch_model("gpt2") == folder
    server.stop()
    assert hub.fetch_model("gpt2") == folder
    says = "there is no folder owner/model here, and owner/model is not in the local"
    assert refusal(hub.fetch_model, NAME).startswith(says)


@pytest.mark.parametrize(
    ("file", "fault", "said"),
    [
        ("model.safetensors", "wrong bytes", "SHA-256"),
        ("listing", "503", "503"),
        ("listing", "not a hub", "check the network"),
        ("listing", "silent", "no answer within"),
    ],
)
def test_a_failed_download_leaves_nothing_and_works_the_next_time(
    server, file, fault, said, tmp_path, monkeypatch
):
    server.faults[file] = fault
    with monkeypatch.context() as patience:
        patience.setattr(hub, "CONNECT_SECONDS", 0.3 if fault == "silent" else 8)
        assert said in refusal(hub.fetch, NAME, ["model.safetensors"])
    assert not [
        path for path in tmp_path.rglob("*") if path.parent.name == "blobs" or path.is_symlink()
    ]
    server.faults.clear()
    folder = hub.fetch(NAME, ["model.safetensors"])
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_what_does_not_exist_and_a_pickle(server):
    server.add("owner/pickle", {"config.json": b"{}", "pytorch_model.bin": b"pickle"})
    assert "a pickle is not opened" in refusal(hub.fetch_model, "owner/pickle")
    assert "Repository Not Found" in refusal(hub.fetch_model, "owner/none")
    assert "Revision Not Found" in refusal(hub.fetch_model, NAME, "v9")
    assert "pytorch_model.bin" not in server.downloads()


def test_call_within():
    assert call_within(5, int, "11", base=2) == 3
    with pytest.raises(ZeroDivisionError):
        call_within(5, divmod, 7, 0)
    # Or a hanging call would keep the program from ending.
    assert call_within(5, threading.current_thread).daemon


def test_a_second_file_is_checked_although_the_first_download_fails(server):
    server.add("owner/two", SHARDED)
    server.faults = {SHARDS[0]: "401", SHARDS[1]: "wrong bytes"}
    assert f"{SHARDS[1]} of owner/two arrived with another SHA-256" in refusal(
        hub.fetch_model, "owner/two"
    )
    server.faults = {}
    assert contents(hub.fetch_model("owner/two")) == SHARDED
