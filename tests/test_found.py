"""What a campaign of kills, damaged files, odd commands and odd calls found, one test a finding, under its number.

Elsewhere: number 9, the learner's process, in tests/study/judge/test_process.py; number 15, infinities in the layers,
in tests/layers; in tests/test_torture.py kills of --overwrite (3), export and data prepare (16) at every change on
disk; in tests/test_calls.py most calls that make no sense (13).
"""

import dataclasses
import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, UserError
from npgpt.checkpoints.run import find_checkpoint, read_checkpoint
from npgpt.cli.main import main
from npgpt.files import new_folder, write_atomically
from npgpt.model.generate import sample
from npgpt.training.evaluation import Evaluation
from npgpt.training.metrics import read_metrics
from npgpt.training.trainer import Trainer
from tests.cli.test_train import refused
from tests.conftest import TINY
from tests.training.test_resume import bits, command, nothing_left

DEEP = 2000


# 1

@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM],
                         ids=["kill -9", "Ctrl-C", "SIGTERM"])
def test_1_a_run_that_stops_before_its_second_checkpoint_is_resumed(tmp_path, text_file, number):
    out_dir, options = tmp_path / "out", ["--eval-interval", 250, "--max-iters", 5]
    process = subprocess.Popen(command(out_dir, text_file, "--eval-interval", 250, "--max-iters", 1_000_000),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("step"):
            break
    while len(read_metrics(out_dir)) < 5:
        time.sleep(0.01)
    process.send_signal(number)
    rest, err = process.communicate(timeout=30)
    step = read_checkpoint(find_checkpoint(out_dir)).state["step"]
    if number != signal.SIGKILL:
        assert process.returncode == 0 and err == "" and step > 3
        assert f"stopped at step {step}, saved" in rest and f"--resume --out-dir {out_dir}" in rest
    for end in (step + 1, step + 2):        # twice: each try added a line to the metrics
        resumed = subprocess.run(command(out_dir, text_file, *options[:-1], end, "--resume"), capture_output=True)
        assert resumed.returncode == 0, resumed.stderr
    subprocess.run(command(tmp_path / "whole", text_file, *options[:-1], step + 2), check=True, capture_output=True)
    assert bits(out_dir) == bits(tmp_path / "whole") and nothing_left(out_dir)
    assert [r["step"] for r in read_metrics(out_dir) if "val_loss" in r].count(0) == 1
    assert [r["step"] for r in read_metrics(out_dir) if "loss" in r] == list(range(1, step + 3))


# 2

def test_2_folders_of_the_user_stay(train, npgpt, tmp_path):
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


# 3

def test_3_overwrite_keeps_the_old_run_until_the_new_one_is_saved(train, npgpt, monkeypatch):
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


# 4

def test_4_where_the_first_save_fails_train_works_again(train, monkeypatch, tmp_path):
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


# 5

@pytest.mark.slow
def test_5_two_trainings_do_not_share_a_folder(tmp_path, text_file):
    out_dir = tmp_path / "out"
    first = subprocess.Popen(command(out_dir, text_file, "--max-iters", 1_000_000), stdout=subprocess.PIPE, text=True)
    for line in first.stdout:
        if line.startswith("step"):
            break
    for flag in ("--resume", "--overwrite"):
        second = subprocess.run(command(out_dir, text_file, "--max-iters", 5, flag), capture_output=True, text=True)
        refused((second.returncode, second.stdout, second.stderr), "another npgpt train is running in")
    first.kill()
    first.communicate()
    assert subprocess.run(command(out_dir, text_file, "--max-iters", 5, "--overwrite")).returncode == 0
    assert [r["step"] for r in read_metrics(out_dir) if "loss" in r] == [1, 2, 3, 4, 5]


# 6

def test_6_damaged_lines_of_the_metrics_stop_nothing(train, npgpt, tmp_path):
    assert train("--max-iters", 2)[0] == 0
    path = tmp_path / "out/metrics.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:1], b"\xff", b"\0\0\0", b"[" * 100_000, *lines[1:]]) + b"\n")
    with open(path, "a") as file:
        file.write('{"step": 2, "val_loss": 1.0}\n')       # without a train loss
    assert npgpt("plot")[0] == 0
    assert npgpt("train", "--resume", "--max-iters", 3)[0] == 0
    assert [r["step"] for r in read_metrics("out") if "loss" in r] == [1, 2, 3]


# 7

@pytest.mark.parametrize("what", ["another text", "a pipe", "no end", "a folder", "a share", "a null byte"])
def test_7_a_run_that_names_files_reads_none_but_its_corpus(train, npgpt, tmp_path, what):
    assert train("--max-iters", 2)[0] == 0
    secret = tmp_path / "secret"
    if what == "a pipe":
        os.mkfifo(secret)
    elif what == "another text":
        secret.write_text("To be, or not to be: that is not the question.\n" * 30)
    names = {"no end": "/dev/zero", "a folder": str(tmp_path), "a share": "//server/share/x",
             "a null byte": "/tmp/a\0b"}
    state = find_checkpoint("out") / "state.json"
    content = json.loads(state.read_text())
    content["corpus"]["name"] = names.get(what, str(secret))
    state.write_text(json.dumps(content))
    for arguments in (["eval"], ["train", "--resume", "--max-iters", 3]):
        refused(npgpt(*arguments), "--corpus" if what in ("another text", "a share") else "")


def test_7_the_metrics_of_a_run_lead_nowhere_else(train, npgpt, tmp_path):
    assert train("--max-iters", 2)[0] == 0
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    (tmp_path / "out/metrics.jsonl").unlink()
    (tmp_path / "out/metrics.jsonl").symlink_to(mine)
    assert npgpt("train", "--resume", "--max-iters", 3)[0] == 0
    assert mine.read_text() == "mine" and [r["step"] for r in read_metrics("out") if "loss" in r] == [3]


# 8

def test_8_absurd_sizes_are_refused_before_anything_is_laid_out(npgpt, tmp_path):
    for flag in ("--n-layer", "--n-embd", "--block-size", "--vocab-size"):
        refused(npgpt("info", flag, 1_000_000_000), flag[2:].replace("-", "_"))
    GPT(GPTConfig(n_layer=1, n_head=1, n_embd=4)).save_pretrained(tmp_path / "model")
    path = tmp_path / "model/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "n_layer": 1_000_000_000}))
    refused(npgpt("info", "model"), "n_layer must be a whole number from 1 to")
    refused(npgpt("train", *TINY, "--n-embd", 2_000_000, "--n-head", 1, "--corpus", "text.txt"), "the model would take")


# 10

def test_10_what_the_user_named_is_replaced_only_if_it_is_a_file(tmp_path):
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_atomically(link, b"new", follow=True)
    assert link.is_symlink() and target.read_bytes() == b"new"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_atomically(pipe, b"new", follow=True)
    reader.join()
    assert read == [b"new"] and pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "target"]


# 11

@pytest.mark.parametrize(("name", "text"), [
    ("deep.toml", "n_layer = " + "[" * DEEP + "]" * DEEP),
    ("type.toml", 'n_layer = "4"'), ("type.toml", "tokenizer = 5"),
    ("digits.toml", f"learning_rate = 1{'0' * 400}"), ("digits.toml", f"batch_size = 1{'0' * 400}"),
    ("digits.toml", f"batch_size = 1{'0' * 5000}"), ("nan.toml", "dropout = nan"), ("bytes.toml", "\ud800"),
])
def test_11_a_preset_that_makes_no_sense_is_one_line(npgpt, tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    refused(npgpt("train", "--preset", tmp_path / name, "--corpus", "text.txt"))


@pytest.mark.parametrize(("name", "value"), [
    ("config.json", '{"model_type": "gpt2", "activation_function": []}'), ("config.json", "[" * DEEP + "]" * DEEP),
    ("config.json", '{"model_type": "gpt2", "npgpt": {"dropout": [[[[]]]]}}'), ("config.json", "9" * 5000),
    ("config.json", '{"model_type": "gpt2", "n_layer": NaN}'),
    ("model.safetensors.index.json", '{"weight_map": {"a": "\\ud800.safetensors"}}'),
    ("model.safetensors.index.json", '{"weight_map": {"a": ["x"]}}'),
    ("model.safetensors.index.json", '{"weight_map": ' + "[" * DEEP + "]" * DEEP + "}"),
    ("npgpt_tokenizer.json", "[" * DEEP + "]" * DEEP), ("npgpt_tokenizer.json", '{"kind": ["char"]}'),
])
def test_11_a_model_whose_files_make_no_sense_is_one_line(npgpt, tmp_path, name, value):
    GPT(GPTConfig(n_layer=1, n_head=1, n_embd=4)).save_pretrained(tmp_path / "model")
    if "index" in name:
        (tmp_path / "model/model.safetensors").unlink()
    (tmp_path / "model" / name).write_text(value)
    refused(npgpt("sample", "model"))


@pytest.mark.parametrize("change", [
    {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
    {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": "x" * 999}]}},
    {"decoder": {"type": ["WordPiece"]}}, {"decoder": None}, {"decoder": {"type": "Sequence", "decoders": None}},
], ids=str)
def test_11_a_tokenizer_that_breaks_its_library_is_one_line(tmp_path, capfd, change):
    from tests.data.tokenizer_json import word_pieces

    word_pieces(tmp_path / "tokenizer.json")
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    (tmp_path / "text.txt").write_text("to be or not to be " * 200)
    code = main(["train", "--corpus", str(tmp_path / "text.txt"), "--tokenizer", f"hf:{path}", *TINY,
                 "--max-iters", "1", "--out-dir", str(tmp_path / "out")])
    err = capfd.readouterr().err            # of the whole process: the library's panic writes past Python
    assert (code == 0 and err == "") or (code == 2 and len(err.splitlines()) == 1)


@pytest.mark.parametrize(("name", "value"), [
    ("step", -1), ("step", True), ("step", "2"), ("threads", 10**25), ("best_step", -5), ("best_step", None),
    ("best_loss", "1"), ("best_loss", 10**400), ("options", None), ("options", []), ("options", {"n_layers": 3}),
    ("options", {"batch_size": "4"}), ("format", 99), ("sha256", {"../../text.txt": "0"}), ("corpus", 1),
    ("corpus", {})])
def test_11_a_state_out_of_range_is_one_line(train, npgpt, tmp_path, name, value):
    assert train("--max-iters", 2)[0] == 0
    state = find_checkpoint("out") / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), name: value}))
    refused(npgpt("train", "--resume", "--max-iters", 3), "state.json")


# 12

@pytest.mark.parametrize("arguments", [
    ["train", "--n-embd", 4_000_000_000], ["train", "--block-size", 10**18], ["train", "--batch-size", 10**19],
    ["train", "--batch-size", "9" * 5000], ["train", "--seed", 10**30], ["train", "--threads", 10**30],
    ["sample", "--threads", 10**30], ["sample", "-n=--"],
    ["sample", "--prompt=--"], ["sample", "-n", 10**12], ["sample", "--seed", 10**30],
    ["plot", "--out", "x.xyz"], ["plot", "--out", "x" * 4000], ["sample", "x" * 4000], ["info", "y/" * 2000],
    ["eval", "--stride", 10**30], ["info", "--batch-size", 10**400], ["train", "--corpus", "x" * 4000],
    ["train", "--out-dir", "x" * 4000], ["train", "--out-dir", "y/" * 1500], ["export", "--out", "y/" * 1500],
], ids=lambda arguments: " ".join(map(str, arguments))[:40])
def test_12_command_lines_that_make_no_sense_are_one_line(train, npgpt, arguments):
    assert train("--max-iters", 2)[0] == 0
    code, out, err = npgpt(*arguments, *(["--overwrite"] if arguments[0] == "train" else []))
    refused((code, out, err))
    assert len(err) < 1100
    assert npgpt("eval")[0] == 0                            # what was there is still there


def test_12_the_perplexity_of_a_hopeless_model_is_infinite():
    assert Evaluation(709.0, 1).perplexity == math.inf and Evaluation(700.0, 1).perplexity == math.exp(700.0)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_12_a_terminal_that_lacks_characters_gets_question_marks(text_file, tmp_path, encoding):
    text_file.write_text("né à Tôkyô €\n" * 90, encoding="utf-8")
    result = subprocess.run(command(tmp_path / "out", text_file, "--max-iters", 1), capture_output=True,
                            env={**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"})
    assert result.returncode == 0 and result.stderr == b""
    result = subprocess.run([sys.executable, "-m", "npgpt.cli", "sample", str(tmp_path / "out"), "--prompt", b"\xe9"],
                            capture_output=True, env={**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"})
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1


# 13

@pytest.fixture
def model():
    return GPT(GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=8), threads=1)


IDX = np.arange(8).reshape(2, 4)
NAN = float("nan")


def test_13_a_step_without_sense_changes_nothing(model):
    _, grads = model.loss_and_grads(IDX, IDX)
    optimizer = AdamW(model.params)
    before = model.params.flat.copy()
    deeper = GPT(dataclasses.replace(model.config, n_layer=2), threads=1)
    wrong = [(deeper.params, 1.0), (GPT(model.config, dtype="float64").params, 1.0), (None, 1.0),
             *((grads, max_norm) for max_norm in (-1.0, 0.0, NAN, "1"))]
    for case in wrong:
        with pytest.raises(UserError):
            optimizer.step(*case)
    with pytest.raises(UserError):
        optimizer.lr = NAN
        optimizer.step(grads)
    assert np.array_equal(model.params.flat, before) and optimizer.t == 0 and not optimizer.m.flat.any()


@pytest.mark.parametrize("temperature", [1e-300, 1e-320])
def test_13_a_tiny_temperature_takes_the_likeliest_token(temperature):
    logits = np.array([[-3.0, 1.0, 2.0, 0.0], [5.0, -1e30, 4.999, 0.0]], dtype=np.float32)
    assert sample(logits, np.random.default_rng(0), temperature).tolist() == [2, 0]


# 14

def test_14_tokens_that_are_cut_short_end_a_run_with_one_line(npgpt, text_file, monkeypatch, tmp_path):
    assert npgpt("data", "prepare", text_file, "--tokenizer", "byte", "--out", "tokens")[0] == 0
    step = Trainer.train_step

    def cutting(trainer):
        if trainer.step == 3:
            os.truncate(tmp_path / "tokens/train.bin", 16)
        return step(trainer)

    monkeypatch.setattr(Trainer, "train_step", cutting)
    refused(npgpt("train", "--corpus", "tokens", *TINY, "--max-iters", 50), "train.bin was cut short")
    assert find_checkpoint("out").name == "step-00000000"


# 16

def test_16_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError) as error:
        write_atomically(tmp_path / "file", b"x")
    assert error.value.filename == str(tmp_path / "file")
    with pytest.raises(OSError) as error, new_folder(tmp_path / "folder", "x") as folder:
        write_atomically(folder / "x", b"x")
    assert error.value.filename == str(tmp_path / "folder/x") and not list(tmp_path.iterdir())
