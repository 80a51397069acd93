"""Runs that are killed, fail to save, share a folder, or have damaged files: nothing is lost, and one line says why."""

import errno
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import ANY

import pytest

from npgpt.checkpoints.run import find_checkpoint, locked
from npgpt.files import write_atomically
from npgpt.training.metrics import read_metrics
from npgpt.training.trainer import Trainer
from tests.conftest import TINY
from tests.helpers.runs import bits, nothing_left, refused

HANG_UP = getattr(signal, "SIGHUP", None)       # Windows lacks it


def once(monkeypatch, at, do):
    """Let every Trainer call do() before the step after `at`."""
    step = Trainer.train_step
    monkeypatch.setattr(Trainer, "train_step", lambda trainer: (trainer.step == at and do(), step(trainer))[1])


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(("number", "times", "interval", "saved"), [
    (signal.SIGINT, 1, 99, 4), (signal.SIGTERM, 1, 99, 4), (signal.SIGINT, 2, 99, 0),
    (signal.SIGINT, 2, 2, 2), *((HANG_UP, n, 99, 4) for n in (1, 2) if HANG_UP)])
def test_a_run_that_stops_is_resumed(train, npgpt, tmp_path, monkeypatch, number, times, interval, saved):
    """A second signal ends it at once, after a step that is in the metrics alone.

    tools/torture.py kills it. But a terminal that closes may send SIGHUP twice.
    """
    stops = times == 1 or number == HANG_UP
    with monkeypatch.context() as patch:
        once(patch, 3, lambda: [signal.raise_signal(number) for _ in range(times)])
        code, out, err = train("--max-iters", 6, "--eval-interval", interval)
    assert (code, err) == ((128 + number, "") if stops else (130, "interrupted\n"))
    assert (
        not stops
        or "stopped at step 4, saved; continue with: npgpt train --resume --out-dir out\n" in out
    )
    assert find_checkpoint("out").name == f"step-{saved:08d}"
    for end in (5, 6):
        assert npgpt("train", "--resume", "--max-iters", end)[0] == 0
    assert train("--out-dir", "whole", "--max-iters", 6)[0] == 0
    assert bits("out") == bits("whole") and nothing_left(tmp_path / "out")
    assert [r["step"] for r in read_metrics("out") if "val_loss" in r].count(0) == 1
    assert [r["step"] for r in read_metrics("out") if "loss" in r] == [1, 2, 3, 4, 5, 6]


LONG = [sys.executable, "-m", "npgpt", "train", "--corpus", "text.txt", *TINY, "--kernels", "numpy",
        "--max-iters", "1000000"]


@pytest.mark.usefixtures("npgpt")
@pytest.mark.parametrize(
    ("ignored", "interval", "code"), [(False, "1000000", 129), (True, "1", 141)])
def test_a_terminal_that_closes_loses_nothing(npgpt, ignored, interval, code):
    """It sends SIGHUP, and what is printed afterwards fails, also if that signal is ignored."""
    pty = pytest.importorskip("pty", reason="Windows has other terminals")
    terminal, its = pty.openpty()
    name, trap = os.ttyname(its), "trap '' HUP;" * ignored
    # Of a new session, the first terminal that is opened controls it.
    line = f"{trap} exec {shlex.join([*LONG, '--eval-interval', interval])} <{name} >{name} 2>&1"
    process = subprocess.Popen(["sh", "-c", line], start_new_session=True)
    metrics = Path("out/metrics.jsonl")
    while not (metrics.exists() and '"loss"' in metrics.read_text()):
        if select.select([terminal], [], [], 0.1)[0]:
            os.read(terminal, 4096)
    os.close(its)
    os.close(terminal)
    assert process.wait() == code
    step = max(record["step"] for record in read_metrics("out"))
    assert step > 0 and find_checkpoint("out").name == f"step-{step:08d}"
    assert npgpt("train", "--resume", "--max-iters", step + 1)[0] == 0


@pytest.mark.usefixtures("npgpt")
def test_a_reader_that_goes_away_stops_training(npgpt, monkeypatch):
    """As in `npgpt train | head`; `npgpt sample | head` is no error."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    process = subprocess.Popen([*LONG, "--eval-interval", "5"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    while not process.stdout.readline().startswith("step     5"):
        pass
    process.stdout.close()
    assert process.wait() == 141
    step = int(find_checkpoint("out").name.removeprefix("step-"))
    assert step >= 5 and process.stderr.read() == (
        f"npgpt: the reader of the output has gone: stopped at step {step}, saved; "
        "continue with: npgpt train --resume --out-dir out\n")
    assert npgpt("train", "--resume", "--max-iters", step + 1)[0] == 0
    for command, code in (("train --overwrite --corpus text.txt", 141), ("sample", 0)):
        closed, into = os.pipe()
        os.close(closed)
        ended = subprocess.run([sys.executable, "-m", "npgpt", *command.split()], stdout=into,
                               stderr=subprocess.PIPE, text=True)
        os.close(into)
        assert ended.returncode == code
        gone = "npgpt: the reader of the output has gone: nothing was trained\n"
        assert ended.stderr == (gone if code else "")


@pytest.mark.parametrize(("place", "flush", "says"), [
    ("print_special", True, "nothing was trained"),
    ("sample_line", False, "stopped at step 0, saved;"),
    ("draw_if_possible", False, "stopped at step 2, saved;")])
def test_a_reader_that_goes_away_before_the_first_step_or_after_the_last(
    train, monkeypatch, place, flush, says
):
    reader, into = os.pipe()
    with monkeypatch.context() as patch, open(into, "w", closefd=False) as stream:
        patch.setattr(f"npgpt.cli.train.{place}", lambda *_: os.close(reader) or print(flush=flush))
        patch.setattr(sys, "stdout", stream)
        code, _, err = train("--max-iters", 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), into)     # of what is left
    assert code == 141 and f"the reader of the output has gone: {says}" in err


def test_a_disk_that_is_full_is_one_line_with_the_files_name(train, npgpt, monkeypatch):
    resource = pytest.importorskip("resource", reason="limits on file sizes are Unix's")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
    try:
        result = train("--max-iters", 100_000, "--eval-interval", 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    refused(result, "npgpt: out/metrics.jsonl: File too large")
    assert npgpt("train", "--resume", "--max-iters", 3)[0] == 0
    for number, name in ((errno.EIO, "a"), (errno.ENOSPC, "a"), (errno.EMFILE, None)):
        def broken(*_, number=number, name=name):
            raise OSError(number, os.strerror(number), name)

        monkeypatch.setattr("npgpt.training.trainer.append_metrics", broken)
        says = f"npgpt: {name}: {os.strerror(number)}\n".replace("None: ", "")
        assert npgpt("train", "--resume", "--max-iters", 4) == (2, ANY, says)
    with pytest.raises(OSError, match="/dev/full"):
        write_atomically("/dev/full", b"1", follow=True)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with open("/dev/full", "w") as full:
        for command in ("sample", "info out"):      # which writes all at its end
            ended = subprocess.run([sys.executable, "-m", "npgpt", *command.split()], stdout=full,
                                   stderr=subprocess.PIPE, text=True)
            result = ended.returncode, "", ended.stderr
            refused(result, "npgpt: standard output: No space left on device")


def test_a_message_that_nobody_can_read_changes_no_exit_code(tmp_path):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "npgpt", "sample", "nowhere.safetensors"]
        assert subprocess.run(command, cwd=tmp_path, stderr=full).returncode == 2


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


def test_two_trainings_do_not_share_a_folder(train, npgpt, monkeypatch):
    assert train("--max-iters", 2)[0] == 0
    with locked("out"):
        for flag in ("--overwrite", "--resume"):
            refused(train("--max-iters", 3, flag), "another npgpt train is running in")
    program = ("import time; from npgpt.checkpoints.run import locked; held = locked('out'); "
               "held.__enter__(); print('held', flush=True); time.sleep(100)")
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        refused(train("--max-iters", 3, "--resume"), "another npgpt train is running in out: wait")
        other.kill()

    def no_locks(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", no_locks)
        refused(train("--max-iters", 3, "--resume"), ".npgpt.lock: No locks available")
    assert train("--max-iters", 3, "--resume")[0] == 0      # a lock ends with its process


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
