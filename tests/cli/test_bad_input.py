"""Invalid presets, models and command lines: one line and exit code 2, whatever is in them."""


import pytest

from tests.conftest import TINY
from tests.helpers.runs import refused


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('n_layer = "4"', ""),
        ("n_layer: 3", "TOML"),
        ("n_layers = 3", "n_layers"),
        ("tokenizer = 5", ""),
        (f"learning_rate = 1{'0' * 400}", ""),
        ("dropout = nan", ""),
    ],
)
def test_a_preset(npgpt, tmp_path, text, says):
    (tmp_path / "preset.toml").write_text(text)
    refused(npgpt("train", "--preset", tmp_path / "preset.toml", "--corpus", "text.txt", "--max-iters", 1), says)


def test_a_command_line(train, npgpt):
    assert train("--max-iters", 2)[0] == 0
    for name, *arguments in (
        ("train", "--n-embd", 2_000_000, "--n-head", 1),
        ("train", "--batch-size", "9" * 5000),
        ("train", "--threads", 10**30),
        ("sample", "-n", 10**12),
        ("sample", "x" * 4000),
        ("info", "--vocab-size", 10**9),
        ("train", "--corpus", "x" * 4000),
        ("sample", "--seed", -1),
    ):
        more = ["--overwrite", *TINY] if name == "train" else []
        if name == "train" and "--corpus" not in arguments:
            more += ["--corpus", "text.txt"]
        result = npgpt(name, *more, *arguments)
        refused(result)
        assert len(result[2]) < 1100
    assert npgpt("eval")[0] == 0                            # what was there is still there
