"""`npgpt sample`, `eval`, `data`, `info` and `plot`: what they print and what they refuse."""

import importlib
import io
import math
import os
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

import npgpt as package
from npgpt import GPT, GPTConfig
from npgpt.cli.main import COMMANDS
from npgpt.cli.output import set_encoding
from npgpt.cli.sample import default_prompt, print_samples, sample_line, text_before
from npgpt.data.tokenizers import CharTokenizer
from npgpt.engine.memory import training_memory
from tests.conftest import TINY, traced
from tests.helpers.runs import refused, succeeded


@pytest.fixture
def run(train):
    """A finished tiny run in out."""
    succeeded(train("--max-iters 3"))


@pytest.mark.usefixtures("run")
def test_samples_differ_and_a_seed_reproduces_them(npgpt):
    command = "sample -n 3 --max-new-tokens 30 --prompt To"
    code, out, _ = npgpt(command, "--seed", 7)
    samples = out.split("-" * 60 + "\n")
    assert code == 0 and len(samples) == len(set(samples)) == 3
    assert all(sample.startswith("To") and len(sample) == 33 for sample in samples)
    assert npgpt(command, "--seed", 7)[1] == out != npgpt(command, "--seed", 8)[1]
    assert npgpt(command, "--max-new-tokens", 0)[1].count("To\n") == 3


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prompt", "To € be"], ["character '€' (U+20AC) at position 3"]),
        (["--top-p", "2"], ["top_p"]),
        (["nowhere"], ["nowhere", "gpt2", "config.json"]),
        (["--prompt", "a\udcff"], ["--prompt must be UTF-8"]),
        (["--stop", "a\udcff"], ["--stop must be UTF-8"]),
        (["--device", "gpu"], ["CuPy"]),
    ],
)
def test_sample_refuses_in_one_line(npgpt, monkeypatch, arguments, says):
    monkeypatch.setitem(sys.modules, "cupy", None)
    refused(npgpt("sample", *arguments), *says)


@pytest.mark.parametrize(
    ("pieces", "stop", "text"),
    [
        ("ab cd ef", "bc", "a"),
        ("ab cd ef", "cd", "ab"),
        ("abcdef g", "e", "abcd"),
        ("a a a b c", "aab", "a"),
        ("ab ab ac", "abac", "ab"),
        ("ab cd", "de", "abcd"),
        ("", "x", ""),
        ("ab cd e", "abcde", ""),
    ],
)
def test_a_text_ends_before_the_stop(pieces, stop, text):
    """Wherever it is cut into tokens. No token behind it is drawn."""
    rest = iter(pieces.split())
    assert "".join(text_before(stop, rest)) == text
    drawn = pieces.replace(" ", "").removesuffix("".join(rest))
    assert text + stop in drawn or drawn == text


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(("n", "stop"), [(1, "e"), (3, "\n")])
def test_samples_stop(npgpt, n, stop):
    command = "sample --prompt To --max-new-tokens 200 --seed 7 -n".split()
    line = "\n" + "-" * 60 + "\n"
    whole = npgpt(*command, n)[1].removesuffix("\n").split(line)
    stopped = npgpt(*command, n, "--stop", stop.replace("\n", r"\n"))[1].removesuffix("\n")
    assert stopped.split(line) == [text.partition(stop)[0] for text in whole]
    refused(npgpt("sample", "--stop", ""), "--stop must be at least one character")


@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_models_text_cannot_steer_a_terminal(capsys, monkeypatch, on_terminal):
    """Redirected, it is what the model wrote."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: on_terminal)
    harmless = "a\tb\n\u3000中👩\u200d🔬\xa0é"
    pieces = ["\x1b]52;c;eA==", "\x07\r\b\v", harmless, "\x7f\x9b2J\x9f"]
    monkeypatch.setattr("npgpt.cli.sample.continuations", lambda *_: [iter(pieces), iter("ab")])
    print_samples(None, None, "\x85")
    shown = r"\x85\x1b]52;c;eA==\x07\r\x08\x0b" + harmless + r"\x7f\x9b2J\x9f"
    text = shown if on_terminal else "".join(["\x85", *pieces])
    start = r"\x85" if on_terminal else "\x85"
    assert capsys.readouterr().out == f"{text}\n{'-' * 60}\n{start}ab\n"


def test_redirected_output_is_utf8_in_every_locale(train, npgpt, tmp_path):
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    def run(*arguments):
        command = [sys.executable, "-m", "npgpt", *arguments]
        return subprocess.run(command, capture_output=True, env={**os.environ, **locale})

    (tmp_path / "text.txt").write_text("道可道,非常道。" * 50, encoding="utf-8")
    succeeded(train("--max-iters 1"))
    command = "sample", "--max-new-tokens", "20", "--prompt", "道可"
    text = npgpt(*command)[1]
    sample = run(*command)
    assert (sample.returncode, sample.stdout.decode(), sample.stderr) == (0, text, b"")
    (tmp_path / "preset.toml").write_text('"道" = 3', encoding="utf-8")
    refused((2, "", run("info", "--preset", "preset.toml").stderr.decode()), "道")
    odd = run("data", "prepare", "text.txt", "--tokenizer", "byte", "--out", b"\xff")
    assert odd.returncode == 0 and odd.stdout.startswith(rb"\udcff: train.bin")


def test_a_terminal_that_lacks_a_character_shows_a_question_mark(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(stream, "isatty", lambda: True)
    for name, errors in (("stderr", "strict"), ("stdout", "replace")):
        monkeypatch.setattr(sys, name, stream)
        set_encoding(name)
        assert (stream.encoding, stream.errors) == ("ascii", errors)
    monkeypatch.setattr(sys, "stdout", io.StringIO())  # a notebook's
    set_encoding("stdout")


@pytest.mark.slow
def test_what_is_closed_is_not_written_to(npgpt):
    """As of a service: no traceback, and the work is done."""
    train = ["train", "--corpus", "text.txt", *TINY, "--max-iters", "2"]
    for command, close in ((train, ">&- 2>&-"), (["sample"], ">&-"), (["sample"], "2>&-")):
        line = shlex.join([sys.executable, "-m", "npgpt", *command])
        shell = subprocess.run(f"{line} {close}", shell=True, capture_output=True)
        assert (shell.returncode, shell.stderr) == (0, b"")
    succeeded(npgpt("eval"))


@pytest.mark.usefixtures("run")
def test_eval_prints_figures_for_each_split(npgpt):
    train, val, whole = (npgpt("eval", "--split", split)[1] for split in ("train", "val", "all"))
    assert len({train, val, whole}) == 3
    found = re.findall(r"(?:loss|perplexity|per byte) +([\d.]+)", val)
    loss, perplexity, bits = map(float, found)
    assert perplexity == pytest.approx(math.exp(loss), rel=1e-3)
    assert bits == pytest.approx(loss / math.log(2), rel=1e-3)  # one byte a character
    assert npgpt("eval --corpus text.txt")[1] == val
    assert npgpt("eval --corpus text.txt --split all")[1] == whole
    assert npgpt("eval --stride 3")[1] != val
    for stride in (0, 9):
        refused(npgpt("eval", "--stride", stride), "from 1 to the context of 8 tokens")


def test_info_of_a_preset(npgpt, monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    gpt2 = "--n-layer 12 --n-embd 768 --n-head 12 --vocab-size 50257 --block-size 1024".split()
    out = succeeded(npgpt("info --preset char-cpu", *gpt2))
    assert "124,439,808" in out and "38,597,376" in out and "50257 x 768" in out
    assert re.search(r"--kernels numba +not here: .*npgpt\[fast\]", out)
    out = npgpt("info --preset bpe-small --n-embd 768")[1]
    assert "50257 x 768" in out  # of its tokenizer
    refused(npgpt("info out"), "no checkpoint in out")
    refused(npgpt("info out --n-head 2"), "either")


@pytest.mark.parametrize("options", [{"vocab_size": 5000}, {"dropout": 0.1, "n_head": 8}], ids=str)
def test_the_memory_that_info_tells_is_what_a_step_takes(options):
    size = {"vocab_size": 65, "block_size": 64, "n_layer": 4, "n_head": 4, "n_embd": 128}
    config = GPTConfig(**size | options)
    model = GPT(config, threads=1)
    idx = np.zeros((8, config.block_size), int)
    model.loss_and_grads(idx, idx, np.random.default_rng(0))
    _, peak = traced(lambda: model.loss_and_grads(idx, idx, np.random.default_rng(0)))
    told = training_memory(config, batch_size=8, threads=1)
    assert told["activations"] == pytest.approx(peak, rel=0.2)
    assert told["parameters"] == told["gradients"] == model.params.flat.nbytes


def test_version_help_and_nothing_at_all(npgpt):
    assert npgpt("--version")[:2] == (0, f"npgpt {package.__version__}\n")
    out = succeeded(npgpt("--help"))
    assert all(name in out for name in COMMANDS)
    for name, summary in COMMANDS.items():  # said once more, because --help imports no command
        assert importlib.import_module(f"npgpt.cli.{name}").__doc__.splitlines()[0] == summary
    succeeded(npgpt("sample --help"), "its last block_size // 2 tokens")
    assert npgpt() == (0, out, "")
    refused(npgpt("fly"), "fly")


@pytest.mark.parametrize(
    ("chars", "end", "prompt"),
    [("\nab", None, "\n"), ("ehtx", None, "the"), ("zeht", 0, "the"), ("\x1bab", None, "\x1b")],
)
def test_the_default_prompt_is_something_that_the_tokenizer_knows(chars, end, prompt):
    tokenizer = CharTokenizer(chars)
    model = GPT(GPTConfig(vocab_size=len(chars), block_size=4, n_layer=1, n_head=1, n_embd=8))
    tokenizer.eos_token_id = end
    assert default_prompt(model, tokenizer) == prompt
    assert sample_line(model, tokenizer, 1).isprintable()


def test_the_default_prompt_is_none_after_which_a_model_ends_the_text():
    """It does after its last bias."""
    model = GPT(GPTConfig(vocab_size=6, block_size=4, n_layer=1, n_head=1, n_embd=8))
    tokenizer, params = CharTokenizer("z\nehtx"), model.params
    tokenizer.eos_token_id = 0
    assert default_prompt(model, tokenizer) == "\n"
    params["ln_f.weight"], params["ln_f.bias"] = 0.0, params["wte.weight"][0]
    params["wte.weight"][0] *= 9.0
    assert default_prompt(model, tokenizer) == "z"


@pytest.mark.usefixtures("run")
def test_an_empty_path_is_not_the_current_folder(npgpt, tmp_path, monkeypatch):
    """A variable of the shell that is not set: the current folder has what the command could take
    or fill.
    """
    (tmp_path / "empty").mkdir()
    there = sorted(tmp_path.rglob("*"))
    for folder, *arguments in (
        ("out", "sample", ""),
        ("out", "train", "--resume", "--out-dir", ""),
        ("empty", "data", "prepare", "../text.txt", "--tokenizer", "byte", "--out", ""),
        ("empty", "export", "../out", "--out", ""),
    ):
        monkeypatch.chdir(tmp_path / folder)
        refused(npgpt(*arguments), "must be the path of a file or folder")
        assert sorted(tmp_path.rglob("*")) == there
