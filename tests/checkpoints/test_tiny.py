"""The model that comes with npgpt: its size, its losses, the command that made it, and that it
needs no network.
"""

import re

import pytest

from npgpt import load
from npgpt.checkpoints.load import TINY
from npgpt.download import hub
from tests.helpers.runs import refused, succeeded
from tests.helpers.shakespeare import DATA, SHAKESPEARE

README = (TINY / "README.md").read_text()


def test_it_is_loaded_sampled_and_looked_at_from_anywhere(npgpt, monkeypatch):
    monkeypatch.delattr(hub, "fetch_model")
    model, tokenizer = load("tiny")
    assert f"{model.params.size:,} parameters: {model.config.n_layer} layers" in README
    assert model.config.block_size == 64 and tokenizer.encode("é").tolist() == [0xC3, 0xA9]
    out = succeeded(
        npgpt("sample tiny", "--prompt", "Café: ", "--max-new-tokens", 100, "--threads", 1)
    )
    assert out.startswith("Café: ") and re.search(r"\b(the|and|you|to)\b", out)
    model.save_pretrained("tiny")  # a folder or a run with that name comes first
    refused(npgpt("sample tiny"), "tokenizer.json")


def test_it_is_small_and_installed():
    sizes = {path.name: path.stat().st_size for path in TINY.iterdir()}
    assert sizes.keys() == {"README.md", "config.json", "model.safetensors", "npgpt_tokenizer.json"}
    assert sum(sizes.values()) <= 350_000
    assert "npgpt.checkpoints = tiny/*\n" in (TINY.parents[2] / "setup.cfg").read_text()


@SHAKESPEARE
@pytest.mark.slow
def test_its_validation_loss_is_the_readmes(npgpt):
    command = "eval tiny --corpus tinyshakespeare --split val --data-dir".split()
    found = re.search(r"loss +([\d.]+) nats", npgpt(*command, DATA)[1])[1]
    stated = re.search(r"validation loss \| ([\d.]+) \|", README)[1]
    # A last digit more or less.
    assert float(found) == pytest.approx(float(stated), abs=1.01e-4)
