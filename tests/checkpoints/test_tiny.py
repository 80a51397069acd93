"""The model that comes with npgpt: its size, its losses, the command that made it, and that it needs no network."""

import json
import re
from pathlib import Path

import pytest

from npgpt import load
from npgpt.checkpoints.load import TINY
from npgpt.checkpoints.tensorfile import TensorFile
from npgpt.download import hub
from tests.helpers.runs import refused
from tests.helpers.shakespeare import DATA, SHAKESPEARE

README = (TINY / "README.md").read_text()


def test_it_is_loaded_sampled_and_looked_at_from_anywhere(npgpt, monkeypatch):
    monkeypatch.delattr(hub, "fetch_model")
    model, tokenizer = load("tiny")
    assert f"{model.params.size:,} parameters: {model.config.n_layer} layers" in README
    assert model.config.block_size == 64 and tokenizer.encode("é").tolist() == [0xC3, 0xA9]
    code, out, _ = npgpt("sample", "tiny", "--prompt", "Café: ", "--max-new-tokens", 100, "--threads", 1)
    assert code == 0 and out.startswith("Café: ") and re.search(r"\b(the|and|you|to)\b", out)
    model.save_pretrained("tiny")           # a folder or a run with that name comes first
    refused(npgpt("sample", "tiny"), "tokenizer.json")


def test_it_is_small_and_installed():
    sizes, file = {path.name: path.stat().st_size for path in TINY.iterdir()}, TensorFile(TINY / "model.safetensors")
    assert sizes.keys() == {"README.md", "config.json", "model.safetensors", "npgpt_tokenizer.json"}
    assert sum(sizes.values()) <= 350_000 and {file.dtype(name) for name in file.shapes} == {"F16"}
    assert "npgpt.checkpoints = tiny/*\n" in (TINY.parents[2] / "setup.cfg").read_text()


def test_the_pages_show_it_unless_there_is_a_run(npgpt, train, tmp_path):
    for module in ("jinja2", "pygments", "latex2mathml", "scipy"):
        pytest.importorskip(module, reason="makes the study page")

    def shown(*arguments):
        assert npgpt(*arguments, "--prompt", "né", "--out", "page.html")[0] == 0
        return json.loads(re.search(r'id="data">(.*?)</script>', (tmp_path / "page.html").read_text())[1])["model"]

    for command in (["look"], ["study", "chain"]):
        found = shown(*command)
        assert found["tokens"] == ["n", "\\xc3", "\\xa9"] and found["description"].startswith("tiny, ")
    assert train("--tokenizer", "byte", "--max-iters", 1)[0] == 0
    assert shown("look")["description"] == "out" and shown("study", "chain")["description"].startswith("tiny, ")


@SHAKESPEARE
@pytest.mark.slow
def test_its_validation_loss_is_the_readmes(npgpt):
    code, out, _ = npgpt("eval", "tiny", "--corpus", "tinyshakespeare", "--split", "val", "--data-dir", DATA)
    found, stated = re.search(r"loss +([\d.]+) nats", out)[1], re.search(r"validation loss \| ([\d.]+) \|", README)[1]
    assert code == 0 and float(found) == pytest.approx(float(stated), abs=1.01e-4)      # a last digit more or less


@SHAKESPEARE
@pytest.mark.slow
def test_the_readmes_command_makes_its_like(npgpt, tmp_path):
    """After 100 of its steps, losses of kernels that sum in other orders agree to 2e-7; those of two steps to 2e-2."""
    pytest.importorskip("numba", reason="compiles the loops")
    command = re.search(r"^npgpt (train .* --max-iters 10000 .*)$", README, re.MULTILINE)[1]
    few = "--max-iters 100 --lr-decay-iters 10000 --eval-iters 1 --data-dir"       # with the same learning rates
    assert npgpt(*command.split(), *few.split(), DATA)[0] == 0
    records = map(json.loads, (tmp_path / "tiny-run/metrics.jsonl").read_text().splitlines())
    loss, = (each["loss"] for each in records if "loss" in each and each["step"] == 100)
    assert loss == pytest.approx(float(re.search(r"step 100 was (\d\.\d+)", README)[1]), abs=1e-4)
    assert npgpt("export", "tiny-run", "--dtype", "float16", "--out", "tiny")[0] == 0
    assert all((Path("tiny") / path.name).stat().st_size == path.stat().st_size for path in TINY.glob("*[!d]"))
