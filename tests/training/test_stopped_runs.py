"""Runs that are killed, fail to save, share a folder, or have damaged files: nothing is lost, and
one line says why.
"""

import errno
import json
import os
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from npgpt.checkpoints.run import find_checkpoint, locked
from npgpt.files import write_atomically
from npgpt.training.metrics import read_metrics
from npgpt.training.trainer import Trainer
from tests.conftest import TINY
from tests.helpers.runs import bits, nothing_left, refused, succeeded

HANG_UP = getattr(signal, "SIGHUP", None)  # Windows lacks it


def once(monkeypatch, at, do):
    """Let every Trainer call do() before the step after `at`."""
    step = Trainer.train_step
    monkeypatch.setattr(
        Trainer, "train_step", lambda trainer: (trainer.step == at and do(), step(trainer))[1]
    )


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("number", "times", "interval", "saved"),
    [
        (signal.SIGTERM, 1, 99, 4),
        (signal.SIGINT, 2, 99, 0),
        *([(HANG_UP, 2, 99, 4)] if HANG_UP else []),
    ],
)
def test_a_run_that_stops_is_resumed(
    train, npgpt, tmp_path, monkeypatch, number, times, interval, saved
):
    """A second signal ends it at once, after a step that is in the metrics alone.

    tools/torture.py kills it. But a terminal that closes may send SIGHUP twice.
    """
    with monkeypatch.context() as patch:
        once(patch, 3, lambda: [signal.raise_signal(number) for _ in range(times)])
        code, out, err = train("--max-iters 6", "--eval-interval", interval)
    if times == 1 or number == HANG_UP:
        assert (code, err) == (128 + number, "")
        assert "stopped at step 4, saved; continue with: npgpt train --resume --out-dir out" in out
    else:
        assert (code, err) == (130, "interrupted\n")
    assert find_checkpoint("out").name == f"step-{saved:08d}"
    for end in (5, 6):
        succeeded(npgpt("train --resume", "--max-iters", end))
    succeeded(train("--out-dir whole --max-iters 6"))
    assert bits("out") == bits("whole") and nothing_left(tmp_path / "out")
    assert [r["step"] for r in read_metrics("out") if "val_loss" in r].count(0) == 1
    assert [r["step"] for r in read_metrics("out") if "loss" in r] == [1, 2, 3, 4, 5, 6]


NPGPT = [sys.executable, "-m", "npgpt"]
LONG = [*NPGPT, *"train --corpus text.txt --kernels numpy --max-iters 1000000".split(), *TINY]


def run_into(out, command):
    """The result of a command that prints into a file."""
    process = subprocess.run(
        [*NPGPT, *command.split()], stdout=out, stderr=subprocess.PIPE, text=True
    )
    return process.returncode, "", process.stderr


@pytest.mark.usefixtures("npgpt")
@pytest.mark.parametrize(
    ("trap", "interval", "code"), [("", 1000000, 129), ("trap '' HUP;", 1, 141)]
)
def test_a_terminal_that_closes_loses_nothing(npgpt, trap, interval, code):
    """It sends SIGHUP, and what is printed afterwards fails, also if that signal is ignored."""
    pty = pytest.importorskip("pty", reason="Windows has other terminals")
    terminal, its = pty.openpty()
    name = os.ttyname(its)
    # Of a new session, the first terminal that is opened controls it.
    command = shlex.join([*LONG, "--eval-interval", str(interval)])
    line = f"{trap} exec {command} <{name} >{name} 2>&1"
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
    process = subprocess.Popen(["sh", "-c", line], start_new_session=True)
    signal.signal(signal.SIGHUP, before)
    metrics = Path("out/metrics.jsonl")
    while not (metrics.exists() and '"loss"' in metrics.read_text()):
        if select.select([terminal], [], [], 0.1)[0]:
            os.read(terminal, 4096)
    os.close(its)
    os.close(terminal)
    assert process.wait() == code
    step = read_metrics("out")[-1]["step"]
    assert step > 0 and find_checkpoint("out").name == f"step-{step:08d}"


@pytest.mark.usefixtures("npgpt")
def test_a_reader_that_goes_away_stops_training(npgpt, monkeypatch):
    """As in `npgpt train | head`; `npgpt sample | head` is no error."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*LONG, "--eval-interval", "5"], **pipes)
    while not process.stdout.readline().startswith("step     5"):
        pass
    process.stdout.close()
    assert process.wait() == 141
    step = int(find_checkpoint("out").name.removeprefix("step-"))
    assert step >= 5 and process.stderr.read() == (
        f"npgpt: the reader of the output has gone: stopped at step {step}, saved; "
        "continue with: npgpt train --resume --out-dir out\n"
    )
    succeeded(npgpt("train --resume", "--max-iters", step + 1))
    closed, into = os.pipe()
    os.close(closed)
    assert run_into(into, "sample") == (0, "", "")
    os.close(into)


@pytest.mark.parametrize(
    ("place", "flush", "says"),
    [
        ("print_special", True, "nothing was trained"),
        ("sample_line", False, "stopped at step 0, saved;"),
        ("draw_if_possible", False, "stopped at step 2, saved;"),
    ],
)
def test_a_reader_that_goes_away_before_the_first_step_or_after_the_last(
    train, monkeypatch, place, flush, says
):
    reader, into = os.pipe()
    with monkeypatch.context() as patch, open(into, "w", closefd=False) as stream:
        patch.setattr(f"npgpt.cli.train.{place}", lambda *_: os.close(reader) or print(flush=flush))
        patch.setattr(sys, "stdout", stream)
        code, _, err = train("--max-iters 2")
        os.dup2(os.open(os.devnull, os.O_WRONLY), into)  # of what is left
    assert code == 141 and f"the reader of the output has gone: {says}" in err


def test_a_disk_that_is_full_is_one_line_with_the_files_name(train, npgpt, monkeypatch):
    resource = pytest.importorskip("resource", reason="limits on file sizes are Unix's")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
    try:
        result = train("--max-iters 100000 --eval-interval 100000")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    refused(result, "npgpt: out/metrics.jsonl: File too large")
    succeeded(npgpt("train --resume --max-iters 3"))
    broken = Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    monkeypatch.setattr("npgpt.training.trainer.append_metrics", broken)
    refused(npgpt("train --resume --max-iters 4"), "npgpt: Too many open files")
    with pytest.raises(OSError, match="/dev/full"):
        write_atomically("/dev/full", b"1", follow=True)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with open("/dev/full", "w") as full:  # `sample` writes all at its end
        refused(run_into(full, "sample"), "npgpt: standard output: No space left on device")


def test_a_message_that_nobody_can_read_changes_no_exit_code(tmp_path):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "npgpt", "sample", "nowhere.safetensors"]
        assert subprocess.run(command, cwd=tmp_path, stderr=full).returncode == 2


def test_the_users_own_files_in_a_run_stay(train, npgpt):
    succeeded(train("--max-iters 2 --eval-interval 1"))
    mine = [Path("out", name) for name in (".old-photos", ".saving-money", "step-12345678")]
    for folder in mine:
        folder.mkdir()
        (folder / "photo.png").write_bytes(b"1")
    notes = Path("out/step-00000002/notes.txt")
    notes.write_text("the best one")
    succeeded(npgpt("train --resume --max-iters 4"))
    succeeded(train("--max-iters 3 --eval-interval 1 --overwrite"))
    assert find_checkpoint("out").name == "step-00000003"
    assert all((folder / "photo.png").exists() for folder in mine) and not notes.exists()
    [kept] = Path("out").glob("step-00000002-kept-*/notes.txt")
    assert kept.read_text() == "the best one"


def test_overwrite_keeps_the_old_run_until_the_new_one_is_saved(train, npgpt, monkeypatch):
    def no_memory(trainer):
        raise MemoryError("no room for 3 numbers")

    succeeded(train("--max-iters 2"))
    before = bits("out"), read_metrics("out")
    refused(
        train("--max-iters 2 --overwrite --batch-size 2000000000"), "a training step would take"
    )
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "evaluate", no_memory)
        refused(train("--max-iters 2 --overwrite"), "out of memory")
    assert (bits("out"), read_metrics("out")) == before
    succeeded(npgpt("train --resume --max-iters 3"))


def test_two_trainings_do_not_share_a_folder(train, monkeypatch):
    succeeded(train("--max-iters 2"))
    with locked("out"):
        for flag in ("--overwrite", "--resume"):
            refused(train("--max-iters 3", flag), "another npgpt train is running in out: wait")
    with monkeypatch.context() as patch:
        no_locks = Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
        patch.setattr("fcntl.flock", no_locks)
        refused(train("--max-iters 3 --resume"), ".npgpt.lock: No locks available")
    succeeded(train("--max-iters 3 --resume"))  # a lock ends


def test_a_run_that_names_files_reads_none_but_its_corpus_and_a_state_out_of_range_is_one_line(
    train, npgpt, tmp_path
):
    """A run may come from somebody else, and its state.json may name any file."""
    succeeded(train("--max-iters 2"))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "other.txt").write_text("To be, or not to be: that is not the question.\n" * 30)
    state = find_checkpoint("out") / "state.json"
    content = json.loads(state.read_text())
    for path in (tmp_path / "other.txt", tmp_path / "pipe", tmp_path, "text.txt", "/tmp/a\0b"):
        state.write_text(json.dumps(content | {"corpus": content["corpus"] | {"name": str(path)}}))
        for command in ("eval", "train --resume --max-iters 3"):
            refused(npgpt(command))
    for name, value in (
        ("step", -1),
        ("threads", 10**25),
        ("best_step", None),
        ("best_loss", 10**400),
        ("options", {"n_layers": 3}),
        ("options", {"batch_size": "4"}),
        ("format", 99),
        ("sha256", {"../../text.txt": "0"}),
        ("corpus", {}),
    ):
        state.write_text(json.dumps({**content, name: value}))
        refused(npgpt("train --resume --max-iters 3"), "state.json")


def test_tokens_that_are_cut_short_during_a_run_end_it_with_one_line(
    train, npgpt, monkeypatch, tmp_path
):
    succeeded(npgpt("data prepare text.txt --tokenizer byte --out tokens"))
    once(monkeypatch, 3, lambda: os.truncate(tmp_path / "tokens/train.bin", 16))
    refused(train("--corpus tokens --max-iters 50"), "train.bin was cut short")
    assert find_checkpoint("out").name == "step-00000000"
