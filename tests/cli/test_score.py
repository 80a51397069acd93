"""npgpt score: the surprise of each token as a table, and as colours in a terminal."""

import math
import re
import sys

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from npgpt.cli.score import surprise
from npgpt.data.tokenizers import ByteTokenizer, CharTokenizer
from tests.helpers.runs import refused
from tests.torch_gpt import unit_scale

TEXT = "To be, or not\nto be, that is the question"


@pytest.fixture
def model(tmp_path):
    """A model of bytes with a context of 8 tokens, in the folder model."""
    model = GPT(GPTConfig(vocab_size=256, block_size=8, n_layer=1, n_head=2, n_embd=8))
    unit_scale(model.params)
    model.save_pretrained(tmp_path / "model", ByteTokenizer())
    return model


def test_a_text_of_any_length_as_a_table(npgpt, model, tmp_path):
    code, out, _ = npgpt("score model", "--text", TEXT)
    first, *rows, last = out.splitlines()
    ids = np.frombuffer(TEXT.encode(), np.uint8).astype(int)
    texts = [row[10:] for row in (first, *rows)]
    assert code == 0 and texts == [c.replace("\n", "\\n") for c in TEXT]
    assert first.split()[0] == "-"
    bits = []
    for i in range(1, len(ids)):  # windows of 9 tokens begin at 0, 4, 8, …
        begin = 0 if i < 9 else 4 * ((i - 9) // 4 + 1)
        bits.append(-model.score(ids[None, begin : i + 1])[0, -1] / math.log(2))
    np.testing.assert_allclose([float(row[:8]) for row in rows], bits, atol=0.0051)
    found = [float(number) for number in re.findall(r"\d[\d.]*", last)]
    assert found == pytest.approx([len(bits), sum(bits), 2 ** np.mean(bits)], rel=1e-3)
    (tmp_path / "mine.txt").write_text(TEXT)
    assert npgpt("score model --file mine.txt")[1] == out


def test_a_text_cannot_control_the_terminal(npgpt, monkeypatch):
    model = GPT(GPTConfig(vocab_size=3, block_size=8, n_layer=1, n_head=1, n_embd=4))
    model.save_pretrained("model", CharTokenizer("\x1b\u202ea"))
    command = "score", "model", "--text", "a\x1b\u202e"
    assert "\x1b" not in npgpt(*command)[1]
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: True)
    monkeypatch.setenv("TERM", "xterm")
    out = npgpt(*command)[1]
    assert "\\x1b" in out and "\\u202e" in out
    assert "\u202e" not in out and "\x1b" not in re.sub(r"\x1b\[[\d;]+m", "", out)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--text", "a"], "1 tokens"),
        (["--text", ""], "0 tokens"),
        (["--file", "nowhere"], "nowhere"),
        (["--file", "bad.txt"], "bad.txt is not UTF-8 text"),
    ],
)
def test_it_refuses_in_one_line(npgpt, model, tmp_path, arguments, says):
    (tmp_path / "bad.txt").write_bytes(b"ab\xff")
    refused(npgpt("score model", *arguments), says)


def test_each_token_has_at_least_half_a_context_before_it():
    model = GPT(GPTConfig(vocab_size=11, block_size=3, n_layer=1, n_head=2, n_embd=8))
    unit_scale(model.params)
    ids = np.random.default_rng(0).integers(0, 11, 12)
    for place in range(4, 12):
        alone = model.score(ids[None, place - 3 : place + 1])[0, -1]
        assert surprise(model, ids)[place - 1] == pytest.approx(-alone, rel=1e-5)
