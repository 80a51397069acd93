"""Runs that are killed, fail to save, share a folder, or have damaged files: nothing is lost, and one line says why."""

import json
import os
import shutil
import signal
import subprocess
import time

import pytest

from npgpt import UserError
from npgpt.checkpoints.run import find_checkpoint, read_checkpoint
from npgpt.training.metrics import read_metrics
from npgpt.training.trainer import Trainer
from tests.cli.test_train import refused
from tests.conftest import TINY
from tests.training.test_resume import bits, command, nothing_left


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_stops_before_its_second_checkpoint_is_resumed(tmp_path, text_file, number):
    out_dir, options = tmp_path / "out", ["--eval-interval", 250, "--max-iters"]
    process = subprocess.Popen(command(out_dir, text_file, *options, 1_000_000), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("step"):
            break
    while len(read_metrics(out_dir)) < 5:
        time.sleep(0.01)
    process.send_signal(number)
    rest, err = process.communicate(timeout=30)
    step = read_checkpoint(find_checkpoint(out_dir)).state["step"]
    if number == signal.SIGTERM:
        assert process.returncode == 0 and err == "" and step > 3
        assert f"stopped at step {step}, saved" in rest and f"--resume --out-dir {out_dir}" in rest
    for end in (step + 1, step + 2):        # twice: each try added a line to the metrics
        subprocess.run(command(out_dir, text_file, *options, end, "--resume"), check=True, capture_output=True)
    subprocess.run(command(tmp_path / "whole", text_file, *options, step + 2), check=True, capture_output=True)
    assert bits(out_dir) == bits(tmp_path / "whole") and nothing_left(out_dir)
    assert [r["step"] for r in read_metrics(out_dir) if "val_loss" in r].count(0) == 1
    assert [r["step"] for r in read_metrics(out_dir) if "loss" in r] == list(range(1, step + 3))


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


def test_after_a_first_save_that_failed_train_works_again(train, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        def full(*args, **kwargs):
            raise UserError("the disk is full")

        patch.setattr("npgpt.training.trainer.save_checkpoint", full)
        refused(train("--max-iters", 2), "the disk is full")
    assert train("--max-iters", 2)[0] == 0
    shutil.rmtree(tmp_path / "out/step-00000002")
    shutil.rmtree(tmp_path / "out/step-00000000", ignore_errors=True)
    refused(train("--max-iters", 2), "no checkpoint", "--overwrite")        # and that works:
    assert train("--max-iters", 2, "--overwrite")[0] == 0


@pytest.mark.slow
def test_two_trainings_do_not_share_a_folder(tmp_path, text_file):
    out_dir = tmp_path / "out"
    first = subprocess.Popen(command(out_dir, text_file, "--max-iters", 1_000_000), stdout=subprocess.PIPE, text=True)
    for line in first.stdout:
        if line.startswith("step"):
            break
    second = subprocess.run(command(out_dir, text_file, "--max-iters", 5, "--overwrite"), capture_output=True,
                            text=True)
    refused((second.returncode, second.stdout, second.stderr), "another npgpt train is running in")
    first.kill()
    first.communicate()
    assert subprocess.run(command(out_dir, text_file, "--max-iters", 5, "--overwrite")).returncode == 0
    assert [r["step"] for r in read_metrics(out_dir) if "loss" in r] == [1, 2, 3, 4, 5]


def test_a_run_that_names_files_reads_none_but_its_corpus(train, npgpt, tmp_path):
    """A run may come from somebody else, and its state.json may name any file."""
    assert train("--max-iters", 2)[0] == 0
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "other.txt").write_text("To be, or not to be: that is not the question.\n" * 30)
    state = find_checkpoint("out") / "state.json"
    content = json.loads(state.read_text())
    for path, says in ((tmp_path / "other.txt", "--corpus"), (tmp_path / "pipe", ""), ("/dev/zero", ""), (tmp_path, ""),
                       ("text.txt", "--corpus"), ("//server/share/x", "--corpus"), ("/tmp/a\0b", "")):
        content["corpus"]["name"] = str(path)
        state.write_text(json.dumps(content))
        for arguments in (["eval"], ["train", "--resume", "--max-iters", 3]):
            refused(npgpt(*arguments), says)


def test_a_state_out_of_range_is_one_line(train, npgpt):
    assert train("--max-iters", 2)[0] == 0
    state = find_checkpoint("out") / "state.json"
    content = json.loads(state.read_text())
    for name, value in (("step", -1), ("step", True), ("threads", 10**25), ("best_step", None), ("best_loss", 10**400),
                        ("options", None), ("options", {"n_layers": 3}), ("options", {"batch_size": "4"}),
                        ("format", 99), ("sha256", {"../../text.txt": "0"}), ("corpus", 1), ("corpus", {})):
        state.write_text(json.dumps({**content, name: value}))
        refused(npgpt("train", "--resume", "--max-iters", 3), "state.json")


def test_tokens_that_are_cut_short_during_a_run_end_it_with_one_line(npgpt, text_file, monkeypatch, tmp_path):
    assert npgpt("data", "prepare", text_file, "--tokenizer", "byte", "--out", "tokens")[0] == 0
    step = Trainer.train_step

    def cutting(trainer):
        if trainer.step == 3:
            os.truncate(tmp_path / "tokens/train.bin", 16)
        return step(trainer)

    monkeypatch.setattr(Trainer, "train_step", cutting)
    refused(npgpt("train", "--corpus", "tokens", *TINY, "--max-iters", 50), "train.bin was cut short")
    assert find_checkpoint("out").name == "step-00000000"
