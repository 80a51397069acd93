"""The examples of the README, and those that it links to, run."""

import ast
import inspect
import io
import re
import runpy
import shlex
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from npgpt import GPT, GPTConfig, load
from npgpt.cli.main import parse
from npgpt.data.tokenizers import TOKENIZER_FILE, ByteTokenizer, save_tokenizer
from npgpt.layers import layernorm_backward
from tests.helpers.shakespeare import DATA, SHAKESPEARE

README = Path(__file__).resolve().parents[1] / "README.md"
EXAMPLES = README.parent / "tools/examples"
TEXT = README.read_text(encoding="utf-8")
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)  # language, lines
BLOCKS = [block for language, block in FENCED if language == "python"]
COMMANDS = [
    command.strip()
    for language, block in FENCED
    if language == ""
    for command in re.findall(r"(?:^|# .*: )(npgpt [^#\n]*)", block, re.MULTILINE)
]
COMMANDS += [" ".join(found.split()) for found in re.findall(r"`(npgpt [a-z][^`]*)`", TEXT)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_these_flags(command):
    assert parse(shlex.split(command)[1:]).command == command.split()[1]


def test_every_link_leads_somewhere():
    links = re.findall(r"\]\((?!http)([^)]*)\)", TEXT)
    assert len(links) > 20
    assert [link for link in links if not (README.parent / link).exists()] == []


def lines_of_code(path):
    """Return how many lines of a file have code, without docstrings and comments."""
    source = path.read_text(encoding="utf-8")
    code = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.DEDENT):
            code |= {*range(token.start[0], token.end[0] + 1)} if token.string.strip() else set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            code -= {*range(node.lineno, node.end_lineno + 1)}
    return len(code)


def test_the_lesson_has_as_many_lines_as_it_says():
    said = re.findall(r"\]\((npgpt/[\w/]*\.py)\) \((\d+)(?: lines of code)?\)", TEXT)
    assert len(said) == 4
    for name, number in said:
        path = README.parent / name
        files = path.parent.glob("*.py") if path.name == "__init__.py" else [path]
        assert sum(map(lines_of_code, files)) == int(number), name


def test_the_lines_of_layernorm_are_those_of_its_file():
    shown = ast.parse(next(block for language, block in FENCED if language == "py")).body[0]
    own = ast.parse(inspect.getsource(layernorm_backward)).body[0]
    body = own.body[1:]  # without the docstring
    assert [*map(ast.unparse, shown.body)] == [*map(ast.unparse, body)]


def test_a_session_prints_what_it_shows(tmp_path):
    """In a process of its own, which has imported nothing else."""
    (block,) = (block for language, block in FENCED if language == "pycon")
    (tmp_path / "block.txt").write_text(block)
    run = "import doctest, sys; sys.ps1 = '>>> '; print(doctest.testfile(sys.argv[1], False))"
    command = [sys.executable, "-c", run, tmp_path / "block.txt"]
    found = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True)
    assert found.stdout.startswith("TestResults(failed=0, attempted=4"), found.stdout + found.stderr


@pytest.mark.slow
@SHAKESPEARE
def test_training_prints_what_the_readme_shows(npgpt):
    """The first step of the first screen, and the losses before the edit. On other CPUs the last
    digits may differ.
    """
    flags = "--max-iters 100 --eval-interval 50 --kernels numpy --threads 2 --data-dir"
    code, out, _ = npgpt("train", *flags.split(), DATA)
    begin = re.compile(r"^(?:model: .*|step     0.*\n.*)$", re.MULTILINE)
    assert code == 0 and {*begin.findall(TEXT)} <= {*begin.findall(out)}
    losses = re.search(r"step   100: train loss (\S+), validation loss (\S+)", out).groups()
    said = re.search(r"before the edit (\S+) and (\S+)", TEXT).groups()
    assert [*map(float, losses)] == pytest.approx([*map(float, said)], abs=5e-3)


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


@pytest.mark.parametrize(
    "name", [pytest.param("induction_heads", marks=pytest.mark.slow), "encoder"]
)
def test_the_other_examples_run(name, gpt2):
    runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_the_worked_port_trains(npgpt, text_file, tmp_path):
    preset = "--preset", EXAMPLES / "nano.toml"
    flags = "--max-iters 1 --eval-iters 1 --corpus"
    code, out, err = npgpt("train", *preset, *flags.split(), text_file)
    assert code == 0 and err == "" and "4 layers, 4 heads, 128 wide" in out
    config = load("out")[0].config
    assert (config.activation, config.bias, config.initializer_range) == ("gelu", False, 0.02)


def test_the_network_by_hand_learns_its_text(capsys):
    names = runpy.run_path(str(EXAMPLES / "by_hand.py"))
    assert float(capsys.readouterr().out.split()[1]) == round(float(names["loss"]), 3)
    # With eight characters of context at most a few letters remain uncertain; guessing evenly costs
    # log(15) = 2.7.
    assert names["loss"] < 1.3
