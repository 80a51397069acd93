"""The examples of the README run."""

import re
import runpy
from pathlib import Path

import pytest

from npgpt import GPT, GPTConfig, load
from npgpt.data.tokenizers import TOKENIZER_FILE, ByteTokenizer, save_tokenizer

README = Path(__file__).resolve().parents[1] / "README.md"
BLOCKS = re.findall(r"```(python|toml)\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("code", [code for kind, code in BLOCKS if kind == "python"])
def test_every_python_block_runs_as_it_is_printed(code, tmp_path, monkeypatch):
    """Each alone, in a process's namespace of its own; gpt2 is a small model here."""
    monkeypatch.chdir(tmp_path)
    GPT(GPTConfig(vocab_size=256, n_layer=1, n_embd=8, n_head=1)).save_pretrained("gpt2")
    save_tokenizer(ByteTokenizer(), tmp_path / "gpt2" / TOKENIZER_FILE)
    exec(compile(code, str(README), "exec"), {})
    assert "…" not in code


def test_the_worked_port_trains(npgpt, text_file, tmp_path):
    code, = (code for kind, code in BLOCKS if kind == "toml")
    (tmp_path / "nano.toml").write_text(code)
    code, out, err = npgpt("train", "--preset", "nano.toml", "--corpus", text_file, "--max-iters", 1, "--eval-iters", 1)
    assert code == 0 and err == "" and "4 layers, 4 heads, 128 wide" in out
    config = load("out")[0].config
    assert (config.activation, config.bias, config.initializer_range) == ("gelu", False, 0.02)


def test_the_network_by_hand_learns_its_text(capsys):
    section = README.read_text(encoding="utf-8").partition("### By hand")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    names = {}
    exec(compile(code, str(README), "exec"), names)
    assert float(capsys.readouterr().out.split()[1]) == round(float(names["loss"]), 3)
    # With eight characters of context at most a few letters remain uncertain; guessing evenly costs log(15) = 2.7.
    assert names["loss"] < 1.3


def test_the_example_for_notebooks_names_its_mistake(tmp_path):
    section = README.read_text(encoding="utf-8").partition("In a notebook")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    (tmp_path / "example.py").write_text(code.replace("\nnpgpt.study.check(", "\nfound = npgpt.study.check("))
    assert "the factor weight is missing" in repr(runpy.run_path(str(tmp_path / "example.py"))["found"])
