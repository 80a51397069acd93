"""Invalid presets, models and command lines: one line and exit code 2, whatever is in them."""

import pytest

from tests.helpers.runs import refused, succeeded


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
    command = "train --preset preset.toml --corpus text.txt --max-iters 1"
    refused(npgpt(command), says)


def test_a_command_line(train, npgpt):
    succeeded(train("--max-iters 2"))
    for command in (
        "train --corpus text.txt --overwrite --n-embd 2000000 --n-head 1",
        f"train --corpus text.txt --overwrite --batch-size {'9' * 5000}",
        f"train --corpus text.txt --overwrite --threads {10**30}",
        f"train --overwrite --corpus {'x' * 4000}",
        f"sample -n {10**12}",
        f"sample {'x' * 4000}",
        "sample --seed -1",
        "info --vocab-size 1000000000",
    ):
        result = npgpt(command)
        refused(result)
        assert len(result[2]) < 1100
    succeeded(npgpt("eval"))  # what was there is still there
