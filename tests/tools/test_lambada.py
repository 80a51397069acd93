"""tools/lambada.py against forwards of one passage, one token at a time."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from lambada import main

from npgpt import GPT, GPTConfig
from npgpt.data.tokenizers import TOKENIZER_FILE, CharTokenizer, save_tokenizer

TOKENIZER = CharTokenizer(" ab\n")
SIZES = {"vocab_size": 4, "block_size": 8, "n_embd": 12, "n_layer": 2, "n_head": 3}


def words(rng, n):
    return " ".join("".join(rng.choices("ab", k=rng.randint(1, 2))) for _ in range(n))


def test_accuracy_and_perplexity_of_the_last_word(tmp_path, monkeypatch, capsys):
    """Also of words of several tokens, and of passages that are longer than the context."""
    monkeypatch.chdir(tmp_path)
    model = GPT(GPTConfig(**SIZES, initializer_range=0.7), seed=2, dtype="float64", threads=1)
    model.save_pretrained("model")
    save_tokenizer(TOKENIZER, f"model/{TOKENIZER_FILE}")
    rng = random.Random(1)
    texts = [words(rng, rng.randint(2, 9)) for _ in range(50)]
    lines = [json.dumps({"text": text, "more": 1}) for text in texts]
    Path("file.jsonl").write_text("\n".join(lines))
    right, logs = 0, 0.0
    for text in texts:
        ids = TOKENIZER.encode(text).tolist()
        first = max(0, len(ids) - 9)  # the context of the last token
        logits = model.forward([ids[first:-1]])[0][0, text.rindex(" ") - 1 - first :]
        last = ids[text.rindex(" ") :]
        right += (logits.argmax(axis=-1) == last).all()
        logs += (logits[range(len(last)), last] - np.log(np.exp(logits).sum(axis=-1))).sum()
    assert 0 < right < 50 and max(map(len, texts)) > 12
    assert main(["model", "file.jsonl"]) == 0
    out = capsys.readouterr().out.splitlines()
    count, accuracy, perplexity = (float(line.split()[1].replace(",", "")) for line in out)
    assert count == 50 and accuracy == 2 * right
    assert perplexity == pytest.approx(np.exp(-logs / 50), abs=2e-4)
