"""tools/lambada.py against forwards of one passage, one token at a time."""

import json
import math
import random
import sys
from pathlib import Path

import pytest

from npgpt import GPT, GPTConfig
from npgpt.data.tokenizers import TOKENIZER_FILE, CharTokenizer, save_tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from lambada import main

TOKENIZER = CharTokenizer(" ab\n")


@pytest.fixture
def model(tmp_path):
    """Return a GPT-2 over four characters with a context of 8, saved in the folder "model"."""
    model = GPT(GPTConfig(vocab_size=4, block_size=8, n_embd=12, n_layer=2, n_head=3, initializer_range=0.7,
                          tie_word_embeddings=False), seed=2, dtype="float64", threads=1)
    model.save_pretrained(tmp_path / "model")
    save_tokenizer(TOKENIZER, tmp_path / "model" / TOKENIZER_FILE)
    return model


def words(rng, n):
    return " ".join("".join(rng.choices("ab", k=rng.randint(1, 2))) for _ in range(n))


def measured(out):
    """Return the numbers that the command prints."""
    return [float(line.split()[1].replace(",", "")) for line in out.splitlines()]


def test_accuracy_and_perplexity_of_the_last_word(npgpt, model, capsys):
    """Also of words of several tokens, and of passages that are longer than the context."""
    rng = random.Random(1)
    texts = [words(rng, rng.randint(2, 9)) for _ in range(100)]
    Path("file.jsonl").write_text("".join(json.dumps({"text": text, "more": 1}) + "\n" for text in texts))
    right, logs = [], []
    for text in texts:
        begin = text.rindex(" ")
        found, ids = [], TOKENIZER.encode(text).tolist()
        first = max(0, len(ids) - 9)                    # the context of the last token
        for i in range(begin, len(ids)):
            logits = model.forward([ids[first:i]])[0][0, -1]
            found.append((logits.argmax() == ids[i], logits[ids[i]] - math.log(sum(map(math.exp, logits)))))
        right.append(all(each for each, _ in found))
        logs.append(sum(log for _, log in found))
    assert 0 < sum(right) < 100 and max(map(len, texts)) > 12
    assert main(["model", "file.jsonl"]) == 0
    count, accuracy, perplexity = measured(capsys.readouterr().out)
    assert count == 100 and accuracy == round(100 * sum(right) / 100, 2)
    assert perplexity == pytest.approx(math.exp(-sum(logs) / 100), abs=2e-4)
