"""tools/examples/stories.py against the same by transformers and torch."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from npgpt import GPT, load
from npgpt.training.metrics import read_metrics
from tests.helpers.runs import refused
from tests.helpers.tokenizers import SENTENCES, byte_pairs, word_pieces
from tests.torch_gpt import torch_gpt, torch_loss, torch_parameters

STORIES = Path(__file__).resolve().parents[2] / "tools/examples/stories.py"
FLAGS = "--n-layer 2 --n-head 2 --n-embd 16 --block-size 7 --batch-size 4 --dtype float64".split()
WORDS = " ".join(SENTENCES[:2]).split()


@pytest.fixture
def stories(monkeypatch, capsys):
    """Run the example with some flags: -> exit code, standard output, standard error."""

    def run(*flags):
        monkeypatch.setattr(sys, "argv", [str(STORIES), *map(str, flags)])
        code = 0
        try:
            runpy.run_path(str(STORIES), run_name="__main__")
        except SystemExit as exit:
            code = exit.code
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("separator", "special", "n"), [("\n<|endoftext|>\n", True, 16), ("\n\n", False, 18)]
)
def test_every_window_trains_as_in_torch(stories, tmp_path, separator, special, n):
    """Two epochs of eleven batches. With [CLS] and [SEP] in each window, and without."""
    texts = [" ".join(WORDS[i % 5 : i + 3]) for i in range(n)]
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    transformers = pytest.importorskip(
        "transformers", reason="transformers, the oracle, is in the extra test"
    )
    path = word_pieces(tmp_path / "tokenizer.json")
    if not special:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": None}))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), pad_token="[PAD]")
    cut = {"truncation": True, "max_length": 8, "return_overflowing_tokens": True}
    windows = torch.tensor(theirs(texts, padding="max_length", **cut)["input_ids"])
    assert 40 < len(windows) < 44  # the last batch is smaller
    assert (windows == theirs.pad_token_id).any()

    (tmp_path / "stories.txt").write_text(separator.join(["", *texts, " "]))
    out = tmp_path / "out"
    flags = [*FLAGS, "--out-dir", out, "--epochs", 2]
    code, shown, _ = stories(tmp_path / "stories.txt", f"hf:{path}", *flags)
    assert code == 0 and "step    22: train loss" in shown
    model, tokenizer = load(out, which="latest")
    tensors = torch_parameters(GPT(model.config, 1337, "float64").params)
    optimizer = torch.optim.AdamW(tensors.values(), 1e-3)
    losses = []
    for batch in windows.split(4) * 2:
        loss = torch_loss(torch_gpt(tensors, model.config, batch[:, :-1]), batch[:, 1:].numpy())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found = [record["loss"] for record in read_metrics(out) if "loss" in record]
    assert len(found) == 22 and found == pytest.approx(losses, rel=1e-12)
    assert tokenizer.vocab_size == model.config.vocab_size == len(theirs)


def test_what_is_wrong_is_one_line(stories, tmp_path):
    text, pieces = tmp_path / "stories.txt", word_pieces(tmp_path / "pieces.json")
    text.write_text("A story.\n\nAnother one.")
    out = ["--out-dir", tmp_path / "out"]
    refused(stories(text, byte_pairs(tmp_path / "pairs.json"), *out), "no padding token")
    small = [*out, "--n-layer", 1, "--block-size", 1]
    refused(stories(text, pieces, *small), "tokenizers library fails")
    refused(stories(tmp_path / "none.txt", pieces, *out), "none.txt")
    assert not (tmp_path / "out").exists()
    assert stories("--help")[0] == 0
