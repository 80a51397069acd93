"""`--tokenizer hf:…`, from the flag to a trained model."""

import shutil

import pytest

from tests.helpers.runs import refused
from tests.helpers.tokenizers import byte_pairs, word_pieces


@pytest.mark.parametrize(("write", "prompt", "continued", "bits"), [
    (byte_pairs, "To be", "To be", "bits per byte  "),
    (word_pieces, "to be", "to be ", "bits per byte  not defined, because"),
])
def test_train_sample_eval_and_resume_with_a_tokenizer_json(train, npgpt, tmp_path, write, prompt, continued, bits):
    pytest.importorskip("tokenizers", reason="the extra hf is not installed")
    shutil.copy(write(tmp_path / "tokenizer.json"), tmp_path / "same.json")
    code, out, _ = train("--tokenizer", "hf:tokenizer.json", "--max-iters", 2)
    assert code == 0 and "best validation loss" in out
    (tmp_path / "tokenizer.json").unlink()      # the checkpoint has it
    code, out, _ = npgpt("sample", "--prompt", prompt, "--max-new-tokens", 20, "--temperature", 0)
    assert code == 0 and out.startswith(continued)
    code, out, _ = npgpt("eval")
    assert code == 0 and "perplexity" in out and bits in out
    code, out, _ = npgpt("train", "--resume", "--tokenizer", "hf:same.json", "--max-iters", 4)
    assert code == 0 and "at step 2" in out
    refused(npgpt("train", "--resume", "--tokenizer", "gpt2"), "tokenizer is hf")
    assert npgpt("data", "prepare", "text.txt", "--tokenizer", "hf:same.json", "--out", "tokens")[0] == 0
    assert npgpt("eval", "--corpus", "tokens")[1].split("\n")[1:] == npgpt("eval")[1].split("\n")[1:]
