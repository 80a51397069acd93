"""Training on a GPU: loss curves of all precisions, the command line, and a GPU whose memory is full."""

import functools
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from npgpt import AdamW, GPTConfig
from npgpt.cli.main import main
from tests.gpu.conftest import REHEARSE, WITHIN, device_of, model_on_gpu

TEXT = "".join(f"{a} of {b} and {c}, not {a}; " for a in ("love", "war", "sleep") for b in ("kings", "men", "the sea")
               for c in ("roses", "thorns", "glass", "none")) * 20


@functools.cache
def losses(kernels, dtype):
    """The losses of a run on the text above."""
    ids = np.frombuffer(TEXT.encode(), np.uint8).astype(np.int64)
    config = GPTConfig(vocab_size=256, block_size=64, n_layer=4, n_head=4, n_embd=128)
    model = model_on_gpu(config, kernels, dtype)
    optimizer = AdamW(model.params, lr=1e-3, betas=(0.9, 0.99), engine=model.engine)
    rng, curve = np.random.default_rng(0), []
    for step in range(200):
        crops = ids[rng.integers(0, len(ids) - 65, (12, 1)) + np.arange(65)]
        curve.append(optimizer.train_step([(crops[:, :-1], crops[:, 1:])],
                                       [model.engine.dropout_rng(0, step, 0)], 12 * 64, 1.0)[0])
    return np.array([float(loss) for loss in curve])


@pytest.mark.parametrize(("kernels", "dtype"), WITHIN, ids=map(" ".join, WITHIN))
def test_200_steps_are_alike_in_all_precisions(kernels, dtype):
    found, expected = losses(kernels, dtype), losses("reference", "float32")
    assert expected[-20:].mean() < 0.5 * expected[:5].mean()
    within = {"tf32": 0.02, "bfloat16": 0.05}.get(dtype, 0.01)
    difference = np.abs(found - expected)
    assert difference[:20].max() < within / 2 and difference.mean() < within


@pytest.mark.parametrize(("kernels", "dtype"), [("reference", "float32" if REHEARSE else "tf32"), ("xla", "bfloat16")])
def test_the_command_line(tmp_path, capsys, kernels, dtype):
    """Train; continue on the CPU and back; sample; evaluate."""
    gpu = ["--device", device_of(kernels), "--kernels", kernels]
    text, out = tmp_path / "text.txt", str(tmp_path / "out")
    text.write_text(TEXT)
    shape = ["--n-layer", "2", "--n-head", "2", "--n-embd", "64", "--block-size", "32", "--warmup-iters", "5",
             "--lr-decay-iters", "60", "--eval-iters", "2", "--dropout", "0.1"]
    first, again = ["train", "--corpus", str(text), "--out-dir", out, *shape], ["train", "--out-dir", out, "--resume"]
    assert main([*first, *gpu, "--dtype", dtype, "--max-iters", "20"]) == 0
    assert main([*again, "--dtype", "float32", "--max-iters", "40"]) == 0
    assert main([*again, *gpu, "--dtype", dtype, "--max-iters", "60"]) == 0
    records = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    found = [record["val_loss"] for record in records if "val_loss" in record]
    assert found[-1] < found[0] - 1 and records[-1]["step"] == 60
    assert main(["sample", out, *gpu, "--max-new-tokens", "20"]) == 0
    assert main(["eval", out, *gpu]) == 0


@pytest.mark.skipif(REHEARSE, reason="needs a GPU to fill")
@pytest.mark.parametrize("kernels", ["reference", "xla"])
def test_a_full_gpu_is_one_line(tmp_path, kernels):
    """Full because CuPy and JAX were told to use only a part of it."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    limits = {"CUPY_GPU_MEMORY_LIMIT": str(200 << 20), "XLA_CLIENT_MEM_FRACTION": "0.02"}
    found = subprocess.run(
        [sys.executable, "-m", "npgpt.cli", "train", "--corpus", text, "--out-dir", tmp_path / "out", "--device",
         device_of(kernels), "--kernels", kernels, "--batch-size", "512", "--block-size", "256", "--n-embd", "384",
         "--n-head", "6", "--eval-iters", "1"], env={**os.environ, **limits}, capture_output=True, text=True)
    assert found.returncode == 2, found.stderr
    for words in ("memory is full" if kernels == "reference" else "tokens needs", "lower "):
        assert words in found.stderr.splitlines()[-1]
