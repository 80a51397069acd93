"""tools/examples/stories.py against the same by transformers and torch."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from npgpt import GPT, load
from npgpt.training.metrics import read_metrics
from tests.helpers.runs import refused
from tests.helpers.tokenizers import SENTENCES, byte_pairs, word_pieces
from tests.torch_gpt import torch_gpt, torch_loss, torch_parameters

STORIES = Path(__file__).resolve().parents[2] / "tools/examples/stories.py"
FLAGS = [
    "--n-layer",
    2,
    "--n-head",
    2,
    "--n-embd",
    16,
    "--block-size",
    7,
    "--batch-size",
    4,
    "--dtype",
    "float64",
]
WORDS = " ".join(SENTENCES[:2]).split()


def by_command(*words):
    result = subprocess.run(
        [sys.executable, STORIES, *map(str, words)], capture_output=True, text=True
    )
    return result.returncode, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("separator", "special", "n"), [("\n<|endoftext|>\n", True, 16), ("\n\n", False, 18)]
)
def test_55_steps_on_every_window_are_torchs(tmp_path, separator, special, n):
    """Five epochs of eleven batches. With [CLS] and [SEP] in each window, and without."""
    texts = [" ".join(WORDS[i % 5 : i + 3]) for i in range(n)]
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    transformers = pytest.importorskip(
        "transformers", reason="transformers, the oracle, is in the extra test"
    )
    path = word_pieces(tmp_path / "tokenizer.json")
    if not special:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": None}))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), pad_token="[PAD]")
    windows = np.array(
        theirs(
            texts,
            truncation=True,
            max_length=8,
            padding="max_length",
            return_overflowing_tokens=True,
        )["input_ids"]
    )
    assert (
        40 < len(windows) < 44 and (windows == theirs.pad_token_id).any()
    )  # the last batch is smaller

    (tmp_path / "stories.txt").write_text(separator.join(["", *texts, " "]))
    out = tmp_path / "out"
    code, shown, _ = by_command(
        tmp_path / "stories.txt", f"hf:{path}", *FLAGS, "--out-dir", out, "--epochs", 5
    )
    assert code == 0 and "step    55: train loss" in shown
    model, tokenizer = load(out, which="latest")
    fresh = GPT(model.config, 1337, "float64").params
    tensors = torch_parameters(fresh)
    optimizer = torch.optim.AdamW(tensors.values(), 1e-3)
    loader = torch.utils.data.DataLoader(torch.from_numpy(windows), 4)
    losses = []
    for batch in [*loader] * 5:
        loss = torch_loss(torch_gpt(tensors, model.config, batch[:, :-1]), batch[:, 1:].numpy())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found = [record["loss"] for record in read_metrics(out) if "loss" in record]
    assert len(found) == 55 and found == pytest.approx(losses, rel=1e-12)
    assert tokenizer.vocab_size == model.config.vocab_size == len(theirs)


def test_what_is_wrong_is_one_line(tmp_path):
    text, pieces = tmp_path / "stories.txt", word_pieces(tmp_path / "pieces.json")
    text.write_text("A story.\n\nAnother one.")
    pairs = byte_pairs(tmp_path / "pairs.json")
    out = ["--out-dir", tmp_path / "out"]
    refused(by_command(text, pairs, *out), "no padding token")
    refused(by_command(text, pieces, *out, "--block-size", 0), "block_size must be a whole number")
    refused(
        by_command(text, pieces, *out, "--n-layer", 1, "--block-size", 1),
        "tokenizers library fails",
    )
    refused(by_command(tmp_path / "none.txt", pieces, *out), "none.txt")
    refused(by_command(text, tmp_path / "none.json", *out), "none.json")
    assert not (tmp_path / "out").exists()
    assert by_command("--help")[0] == 0 and runpy.run_path(str(STORIES))["FLAGS"]["--epochs"] == 1
