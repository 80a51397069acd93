"""The examples of the README, and those that it links to, run."""

import re
import runpy
from pathlib import Path

import pytest

from npgpt import GPT, GPTConfig, load
from npgpt.data.tokenizers import TOKENIZER_FILE, ByteTokenizer, save_tokenizer

README = Path(__file__).resolve().parents[1] / "README.md"
EXAMPLES = README.parent / "tools/examples"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def gpt2(tmp_path, monkeypatch):
    """A small model in the folder gpt2, which the examples load."""
    monkeypatch.chdir(tmp_path)
    GPT(GPTConfig(vocab_size=256, n_layer=1, n_embd=8, n_head=1)).save_pretrained("gpt2")
    save_tokenizer(ByteTokenizer(), tmp_path / "gpt2" / TOKENIZER_FILE)


@pytest.mark.parametrize("code", BLOCKS)
def test_every_python_block_runs_as_it_is_printed(code, gpt2):
    """Each alone, from a file: `verify` reads the lines of the functions."""
    Path("block.py").write_text(code)
    runpy.run_path("block.py")
    assert "…" not in code


@pytest.mark.parametrize("name", ["induction_heads", "encoder"])
def test_the_other_examples_run(name, gpt2):
    runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_the_worked_port_trains(npgpt, text_file, tmp_path):
    code, out, err = npgpt("train", "--preset", EXAMPLES / "nano.toml", "--corpus", text_file, "--max-iters", 1,
                           "--eval-iters", 1)
    assert code == 0 and err == "" and "4 layers, 4 heads, 128 wide" in out
    config = load("out")[0].config
    assert (config.activation, config.bias, config.initializer_range) == ("gelu", False, 0.02)


def test_the_network_by_hand_learns_its_text(capsys):
    names = runpy.run_path(str(EXAMPLES / "by_hand.py"))
    assert float(capsys.readouterr().out.split()[1]) == round(float(names["loss"]), 3)
    # With eight characters of context at most a few letters remain uncertain; guessing evenly costs log(15) = 2.7.
    assert names["loss"] < 1.3


def test_the_example_for_notebooks_names_its_mistake(tmp_path):
    code, = (block for block in BLOCKS if "npgpt.study.check(" in block)
    (tmp_path / "example.py").write_text(code.replace("\nnpgpt.study.check(", "\nfound = npgpt.study.check("))
    assert "the factor weight is missing" in repr(runpy.run_path(str(tmp_path / "example.py"))["found"])
