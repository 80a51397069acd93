"""Links, pipes and folders inside a run never make a command hang or write outside."""

import os
import shutil

import pytest

from npgpt import UserError
from npgpt.checkpoints.run import find_checkpoint
from npgpt.download.file import call_within
from npgpt.files import append, is_folder, temporary_beside, write_atomically
from npgpt.training.metrics import read_metrics
from npgpt.training.trainer import Trainer
from tests.helpers.runs import refused

KINDS = ["link", "broken link", "link to a device", "link to a folder", "pipe", "folder"]
posix = pytest.mark.skipif(os.name != "posix", reason="Windows has no pipes in folders, and links are a privilege")


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
    targets = {"link": outside / "mine", "broken link": outside / "new", "link to a device": "/dev/zero",
               "link to a folder": outside}
    if kind in targets:
        path.symlink_to(targets[kind])
    else:
        os.mkfifo(path) if kind == "pipe" else path.mkdir()


@posix
@pytest.mark.parametrize(("name", "kind"), [
    *(("metrics.jsonl", kind) for kind in KINDS),
    *((".npgpt.lock", kind) for kind in ("broken link", "pipe")),
    *(("step-00000004", kind) for kind in ("broken link", "link to a folder", "pipe", "folder"))])
def test_what_is_in_the_way_is_replaced_or_refused(train, npgpt, tmp_path, outside, name, kind):
    assert train("--max-iters", 2)[0] == 0
    path = tmp_path / "out" / name
    put(kind, path, outside)
    for command in ((npgpt, "train", "--resume"), (train, "--overwrite")):
        result = call_within(60, *command, "--max-iters", 4)        # none takes 5 seconds, if no pipe blocks it
        if name == ".npgpt.lock":
            refused(result, ".npgpt.lock is not a regular file")
        elif name == "metrics.jsonl" and kind == "folder":
            refused(result, "out/metrics.jsonl", "folder", "move it away")
            assert find_checkpoint("out").name == "step-00000002"       # what was there is still there
        else:
            assert result[0] == 0 and result[2] == ""
            assert find_checkpoint("out").name == "step-00000004" and read_metrics("out")
            if name == "step-00000004":
                assert len(list(path.parent.glob("step-00000004-kept-*"))) == 1
            assert kind == "folder" or not path.is_symlink() and not path.is_fifo()
            if name != "step-00000004":
                put(kind, path, outside)


@posix
def test_the_curve_is_not_drawn_into_a_link(train, npgpt, tmp_path, outside):
    pytest.importorskip("matplotlib", reason="draws the curve")
    assert train("--max-iters", 2)[0] == 0
    put("link", tmp_path / "out/loss.png", outside)
    assert npgpt("plot")[0] == 0 and not (tmp_path / "out/loss.png").is_symlink()


@posix
def test_nothing_but_a_file_is_appended_to(tmp_path, outside):
    for kind in KINDS:
        put(kind, tmp_path / "metrics.jsonl", outside)
        with pytest.raises(UserError, match="metrics.jsonl is not a regular file"):
            append(tmp_path / "metrics.jsonl", b"x")


@posix
def test_a_link_is_followed_if_the_user_named_it(npgpt, train, tmp_path):
    """--out, and a folder of runs that is a link to a larger disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    assert train("--max-iters", 1)[0] == 0 and find_checkpoint(tmp_path / "disk").name == "step-00000001"
    (tmp_path / "broken").symlink_to(tmp_path / "disk/new")
    refused(train("--out-dir", "broken"), "broken: File exists")
    (tmp_path / "link.svg").symlink_to(tmp_path / "picture.svg")
    assert npgpt("plot", "--out", "link.svg")[0] == 0
    assert (tmp_path / "link.svg").is_symlink() and b"<svg" in (tmp_path / "picture.svg").read_bytes()


@posix
def test_what_a_link_named_like_a_temporary_file_points_to_stays(tmp_path, outside):
    with temporary_beside(tmp_path / "file") as temporary:
        prefix = temporary.name.split("-")[:2]
    (tmp_path / "-".join([*prefix, "9999999", "0" * 8])).symlink_to(outside)        # no process has that number
    write_atomically(tmp_path / "file", b"x")
    assert [path.name for path in tmp_path.iterdir() if path != outside] == ["file"]


def test_a_folder_that_disappears_during_the_run_ends_it(train, tmp_path, monkeypatch):
    """The folder is not created again without its lock, metrics and best checkpoint."""
    step, out = Trainer.train_step, tmp_path / "out"

    def removing(trainer):
        if trainer.step == 3:
            shutil.rmtree(out)
        return step(trainer)

    monkeypatch.setattr(Trainer, "train_step", removing)
    refused(train("--max-iters", 5, "--eval-interval", 2), "out/metrics.jsonl: No such file")
    assert not out.exists()
