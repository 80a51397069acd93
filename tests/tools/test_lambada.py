"""tools/lambada.py against transformers, one passage and one token at a time."""

import json
import math
import random
import sys
from pathlib import Path

import pytest

from npgpt.data.tokenizers import TOKENIZER_FILE, CharTokenizer, save_tokenizer
from tests.cli.test_train import refused

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from lambada import main

TOKENIZER = CharTokenizer(" ab\n")


@pytest.fixture
def theirs(tmp_path):
    """A GPT-2 of transformers over four characters with a context of 8, saved in the folder "theirs"."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(4)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=4, n_positions=8, n_embd=12, n_layer=2, n_head=3, bos_token_id=1, eos_token_id=2,
        tie_word_embeddings=False)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(tmp_path / "theirs")
    save_tokenizer(TOKENIZER, tmp_path / "theirs" / TOKENIZER_FILE)
    return model.double()


def words(rng, n):
    return " ".join("".join(rng.choices("ab", k=rng.randint(1, 2))) for _ in range(n))


def measured(out):
    """The numbers that the command prints."""
    return [float(line.split()[1].replace(",", "")) for line in out.splitlines()]


def test_accuracy_and_perplexity_of_the_last_word(npgpt, theirs, capsys):
    """Also of words of several tokens, and of passages that are longer than the context."""
    import torch

    rng = random.Random(1)
    texts = [words(rng, rng.randint(2, 9)) for _ in range(100)]
    Path("file.jsonl").write_text("".join(json.dumps({"text": text, "more": 1}) + "\n" for text in texts))
    right, logs = [], []
    for text in texts:
        begin = text.rindex(" ")
        found, ids = [], TOKENIZER.encode(text).tolist()
        first = max(0, len(ids) - 9)                    # the context of the last token
        for i in range(begin, len(ids)):
            with torch.no_grad():
                log_p = torch.log_softmax(theirs(torch.tensor([ids[first:i]])).logits[0, -1], -1)
            found.append((int(log_p.argmax()) == ids[i], float(log_p[ids[i]])))
        right.append(all(each for each, _ in found))
        logs.append(sum(log for _, log in found))
    assert 0 < sum(right) < 100 and max(map(len, texts)) > 12
    assert main(["theirs", "file.jsonl"]) == 0
    count, accuracy, perplexity = measured(capsys.readouterr().out)
    assert count == 100 and accuracy == round(100 * sum(right) / 100, 2)
    assert perplexity == pytest.approx(math.exp(-sum(logs) / 100), abs=2e-4)


@pytest.mark.parametrize(("line", "says"), [
    ("ab", "it is not"), ("[1]", "it is not"), ('{"text": 1}', "it is not"),
    ('{"text": "ab"}', "it has no last word"), ('{"text": "ab "}', "it has no last word"),
    ('{"text": "a babababab"}', "more than the context of 8"), ('{"text": "a d"}', "character 'd'")])
def test_a_bad_line_is_named(npgpt, theirs, capsys, line, says):
    Path("file.jsonl").write_text(f'{{"text": "a b"}}\n{line}\n{{"text": "a b"}}\n')
    capsys.readouterr()
    refused((main(["theirs", "file.jsonl"]), *capsys.readouterr()), "file.jsonl, line 2: ", says)
    refused((main(["theirs", "gone.jsonl"]), *capsys.readouterr()), "gone.jsonl cannot be read")
