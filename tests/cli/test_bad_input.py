"""Invalid presets, models and command lines: one line and exit code 2, whatever is in them."""

import os
import subprocess
import sys

import pytest

from tests.conftest import TINY
from tests.helpers.runs import refused


@pytest.mark.parametrize(("text", "says"), [
    (f"n_layer = {'[' * 2000 + ']' * 2000}", ""), ('n_layer = "4"', ""), ("n_layer: 3", "TOML"),
    ("n_layers = 3", "n_layers"), ("tokenizer = 5", ""), (f"learning_rate = 1{'0' * 400}", ""),
    (f"batch_size = 1{'0' * 5000}", ""), ("dropout = nan", ""), ("\ud800", "")], ids=lambda text: ascii(text[:20]))
def test_a_preset(npgpt, tmp_path, text, says):
    (tmp_path / "preset.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    refused(npgpt("train", "--preset", tmp_path / "preset.toml", "--corpus", "text.txt", "--max-iters", 1), says)


def test_a_command_line(train, npgpt):
    assert train("--max-iters", 2)[0] == 0
    for name, *arguments in (
            ("train", "--n-embd", 2_000_000, "--n-head", 1), ("train", "--batch-size", 10**19),
            ("train", "--batch-size", "9" * 5000), ("train", "--threads", 10**30),
            ("sample", "-n", 10**12), ("sample", "--seed", 10**30),
            ("plot", "--out", "x.xyz"), ("plot", "--out", "x" * 4000), ("sample", "x" * 4000),
            ("info", "--vocab-size", 10**9), ("info", "--batch-size", 10**400),
            ("train", "--corpus", "x" * 4000), ("sample", "--seed", -1), ("train", "--seed", -1),
            ("exercise", "bug", "--seed", -1), ("gradcheck", "linear", "--time-limit", "nan"),
            ("gradcheck", "linear", "--time-limit", 1e30)):
        more = ["--overwrite", "--corpus", "text.txt", *TINY] if name == "train" else []
        result = npgpt(name, *more, *arguments)
        refused(result)
        assert len(result[2]) < 1100
    assert npgpt("eval")[0] == 0                            # what was there is still there


@pytest.mark.slow
def test_a_terminal_that_lacks_characters_gets_question_marks(text_file, tmp_path):
    text_file.write_text("né à Tôkyô €\n" * 90, encoding="utf-8")
    for code, *command in ((0, "train", "--corpus", text_file, *TINY, "--max-iters", "1"),
                           (2, "sample", "--prompt", b"\xe9")):
        result = subprocess.run([sys.executable, "-m", "npgpt", *command], capture_output=True, cwd=tmp_path,
                                env={**os.environ, "PYTHONIOENCODING": "ascii:strict"})
        assert result.returncode == code and len(result.stderr.splitlines()) == bool(code)
