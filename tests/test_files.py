"""Links, pipes and folders inside a run never make a command hang or write outside."""

import os
import shutil

import pytest

from npgpt.checkpoints.run import find_checkpoint
from npgpt.download.file import call_within
from npgpt.files import is_folder, temporary_beside, write_atomically
from npgpt.training.metrics import read_metrics
from tests.helpers.runs import refused

KINDS = ["link", "broken link", "link to a device", "link to a folder", "pipe", "folder"]
posix = pytest.mark.skipif(
    os.name != "posix", reason="Windows has no pipes in folders, and links are a privilege"
)


@pytest.fixture
def outside(tmp_path):
    """A folder to which nothing may be written."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "mine").write_bytes(b"mine")
    yield folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"mine": b"mine"}


def put(kind, path, outside):
    """Replace what is at `path`."""
    if is_folder(path):
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    targets = {
        "link": outside / "mine",
        "broken link": outside / "new",
        "link to a device": "/dev/zero",
        "link to a folder": outside,
    }
    if kind in targets:
        path.symlink_to(targets[kind])
    else:
        os.mkfifo(path) if kind == "pipe" else path.mkdir()


@posix
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("metrics.jsonl", "link"),
        ("metrics.jsonl", "pipe"),
        ("step-00000004", "link to a folder"),
        ("step-00000004", "folder"),
    ],
)
def test_what_is_in_the_way_is_replaced(train, npgpt, tmp_path, outside, name, kind):
    assert train("--max-iters", 2)[0] == 0
    path = tmp_path / "out" / name
    put(kind, path, outside)
    for command in ((npgpt, "train", "--resume"), (train, "--overwrite")):
        # none takes 5 seconds, if no pipe blocks it
        code, _, err = call_within(60, *command, "--max-iters", 4)
        assert (code, err) == (0, "")
        assert find_checkpoint("out").name == "step-00000004" and read_metrics("out")
        assert kind == "folder" or not path.is_symlink() and not path.is_fifo()
        if name == "step-00000004":
            assert len(list(path.parent.glob("step-00000004-kept-*"))) == 1
        else:
            put(kind, path, outside)


@posix
@pytest.mark.parametrize("kind", ["broken link", "pipe"])
def test_a_lock_that_is_no_file_is_refused(train, npgpt, tmp_path, outside, kind):
    assert train("--max-iters", 1)[0] == 0
    put(kind, tmp_path / "out" / ".npgpt.lock", outside)
    result = call_within(60, npgpt, "train", "--resume", "--max-iters", 4)
    refused(result, ".npgpt.lock is not a regular file")


@posix
def test_a_link_is_followed_if_the_user_named_it(npgpt, train, tmp_path):
    """--out, and a folder of runs that is a link to a larger disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    assert (
        train("--max-iters", 1)[0] == 0
        and find_checkpoint(tmp_path / "disk").name == "step-00000001"
    )
    (tmp_path / "broken").symlink_to(tmp_path / "disk/new")
    refused(train("--out-dir", "broken"), "broken: File exists")
    (tmp_path / "link.svg").symlink_to(tmp_path / "picture.svg")
    assert npgpt("plot", "--out", "link.svg")[0] == 0
    assert (tmp_path / "link.svg").is_symlink() and b"<svg" in (
        tmp_path / "picture.svg"
    ).read_bytes()


@posix
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_at_the_temporary_name_is_replaced(tmp_path, outside, kind):
    """A killed process has left it, or a stranger's link would redirect the write."""
    with temporary_beside(tmp_path / "file") as temporary:
        pass
    put(kind, temporary, outside)
    write_atomically(tmp_path / "file", b"x")
    assert [path.name for path in tmp_path.iterdir() if path != outside] == ["file"]
