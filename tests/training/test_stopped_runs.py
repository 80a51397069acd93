"""Runs that are killed, fail to save, share a folder, or have damaged files: nothing is lost, and one line says why."""

import json
import os
import shutil
import signal

import pytest

from npgpt.checkpoints.run import find_checkpoint, locked
from npgpt.training.metrics import read_metrics
from npgpt.training.trainer import Trainer
from tests.conftest import TINY
from tests.helpers.runs import bits, nothing_left, refused


def once(monkeypatch, at, do):
    """Let every Trainer call do() before the step after `at`."""
    step = Trainer.train_step
    monkeypatch.setattr(Trainer, "train_step", lambda trainer: (trainer.step == at and do(), step(trainer))[1])


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(("number", "times", "interval", "saved"), [
    (signal.SIGINT, 1, 99, 4), (signal.SIGTERM, 1, 99, 4), (signal.SIGINT, 2, 99, 0), (signal.SIGINT, 2, 2, 2)])
def test_a_run_that_stops_is_resumed(train, npgpt, tmp_path, monkeypatch, number, times, interval, saved):
    """A second signal ends it at once, after a step that is in the metrics alone; tools/torture.py kills it."""
    with monkeypatch.context() as patch:
        once(patch, 3, lambda: [signal.raise_signal(number) for _ in range(times)])
        code, out, err = train("--max-iters", 6, "--eval-interval", interval)
    assert (code, err) == ((0, "") if times == 1 else (130, "interrupted\n"))
    assert times == 2 or "stopped at step 4, saved; continue with: npgpt train --resume --out-dir out\n" in out
    assert find_checkpoint("out").name == f"step-{saved:08d}"
    for end in (5, 6):
        assert npgpt("train", "--resume", "--max-iters", end)[0] == 0
    assert train("--out-dir", "whole", "--max-iters", 6)[0] == 0
    assert bits("out") == bits("whole") and nothing_left(tmp_path / "out")
    assert [r["step"] for r in read_metrics("out") if "val_loss" in r].count(0) == 1
    assert [r["step"] for r in read_metrics("out") if "loss" in r] == [1, 2, 3, 4, 5, 6]


def test_the_users_own_files_in_a_run_stay(train, npgpt, tmp_path):
    assert train("--max-iters", 2, "--eval-interval", 1)[0] == 0
    mine = [tmp_path / "out" / name / "photo.png" for name in (".old-photos", ".saving-money", "step-12345678")]
    for path in mine:
        path.parent.mkdir()
        path.write_bytes(b"1")
    notes = tmp_path / "out/step-00000002/notes.txt"
    notes.write_text("the best one")
    assert npgpt("train", "--resume", "--max-iters", 4)[0] == 0
    assert train("--max-iters", 3, "--eval-interval", 1, "--overwrite")[0] == 0
    assert find_checkpoint("out").name == "step-00000003"
    assert all(path.read_bytes() == b"1" for path in mine) and not notes.exists()
    assert [path.read_text() for path in tmp_path.glob("out/step-00000002-kept-*/notes.txt")] == ["the best one"]


def test_overwrite_keeps_the_old_run_until_the_new_one_is_saved(train, npgpt, monkeypatch):
    def no_memory(trainer):
        raise MemoryError("no room for 3 numbers")

    assert train("--max-iters", 2)[0] == 0
    before = bits("out"), read_metrics("out")
    refused(train("--max-iters", 2, "--overwrite", "--batch-size", 2_000_000_000), "a training step would take")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "evaluate", no_memory)
        refused(train("--max-iters", 2, "--overwrite"), "out of memory")
    assert (bits("out"), read_metrics("out")) == before
    assert npgpt("train", "--resume", "--max-iters", 3)[0] == 0


def test_a_folder_without_a_checkpoint(train, tmp_path):
    """After a first save that failed, train works again; without its checkpoints, a run is not replaced unasked."""
    with locked("out"):
        pass
    assert train("--max-iters", 2)[0] == 0
    shutil.rmtree(tmp_path / "out/step-00000002")
    shutil.rmtree(tmp_path / "out/step-00000000", ignore_errors=True)
    refused(train("--max-iters", 2), "no checkpoint", "--overwrite")        # and that works:
    assert train("--max-iters", 2, "--overwrite")[0] == 0


def test_two_trainings_do_not_share_a_folder(train, npgpt):
    assert train("--max-iters", 2)[0] == 0
    with locked("out"):
        for flag in ("--overwrite", "--resume"):
            refused(train("--max-iters", 3, flag), "another npgpt train is running in")
    assert train("--max-iters", 3, "--resume")[0] == 0


def test_a_run_that_names_files_reads_none_but_its_corpus_and_a_state_out_of_range_is_one_line(train, npgpt, tmp_path):
    """A run may come from somebody else, and its state.json may name any file."""
    assert train("--max-iters", 2)[0] == 0
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "other.txt").write_text("To be, or not to be: that is not the question.\n" * 30)
    state = find_checkpoint("out") / "state.json"
    content = json.loads(state.read_text())
    for path, says in ((tmp_path / "other.txt", "--corpus"), (tmp_path / "pipe", ""), ("/dev/zero", ""), (tmp_path, ""),
                       ("text.txt", "--corpus"), ("//server/share/x", "--corpus"), ("/tmp/a\0b", "")):
        state.write_text(json.dumps(content | {"corpus": content["corpus"] | {"name": str(path)}}))
        for arguments in (["eval"], ["train", "--resume", "--max-iters", 3]):
            refused(npgpt(*arguments), says)
    for name, value in (("step", -1), ("step", True), ("threads", 10**25), ("best_step", None), ("best_loss", 10**400),
                        ("options", None), ("options", {"n_layers": 3}), ("options", {"batch_size": "4"}),
                        ("format", 99), ("sha256", {"../../text.txt": "0"}), ("corpus", 1), ("corpus", {})):
        state.write_text(json.dumps({**content, name: value}))
        refused(npgpt("train", "--resume", "--max-iters", 3), "state.json")


def test_tokens_that_are_cut_short_during_a_run_end_it_with_one_line(npgpt, text_file, monkeypatch, tmp_path):
    assert npgpt("data", "prepare", text_file, "--tokenizer", "byte", "--out", "tokens")[0] == 0
    once(monkeypatch, 3, lambda: os.truncate(tmp_path / "tokens/train.bin", 16))
    refused(npgpt("train", "--corpus", "tokens", *TINY, "--max-iters", 50), "train.bin was cut short")
    assert find_checkpoint("out").name == "step-00000000"
