"""Training on the GPU: loss curves of all precisions, the command line, and a GPU whose memory is full."""

import contextlib
import json

import numpy as np

from npgpt import GPT, AdamW, GPTConfig
from npgpt.cli.main import main

TEXT = "".join(f"{a} of {b} and {c}, not {a}; " for a in ("love", "war", "sleep") for b in ("kings", "men", "the sea")
               for c in ("roses", "thorns", "glass", "none")) * 20


def losses(dtype, kernels="fused", steps=200):
    """The losses of a run on the text above."""
    ids = np.frombuffer(TEXT.encode(), np.uint8).astype(np.int64)
    config = GPTConfig(vocab_size=256, block_size=64, n_layer=4, n_head=4, n_embd=128)
    model = GPT(config, seed=0, dtype=dtype, device="gpu", kernels=kernels)
    optimizer = AdamW(model.params, lr=1e-3, betas=(0.9, 0.99), engine=model.engine)
    rng, curve = np.random.default_rng(0), []
    for _ in range(steps):
        starts = rng.integers(0, len(ids) - 65, 12)
        crops = ids[starts[:, None] + np.arange(65)]
        loss, grads = model.loss_and_grads(crops[:, :-1], crops[:, 1:])
        optimizer.step(grads, max_norm=1.0)
        curve.append(loss)
    return np.array([float(loss) for loss in curve])


def test_200_steps_are_alike_in_all_precisions():
    """The lines in float32 against the kernels; and all of them learn."""
    expected = losses("float32", "reference")
    assert expected[-20:].mean() < 0.5 * expected[:5].mean()
    for dtype, within in (("float32", 0.01), ("tf32", 0.02), ("bfloat16", 0.05)):
        difference = np.abs(losses(dtype) - expected)
        assert difference[:20].max() < within / 2 and difference.mean() < within, (dtype, difference.max())


def test_the_command_line(tmp_path, capsys):
    """Train; continue on the CPU and back; sample; evaluate."""
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text(TEXT)
    shape = ["--n-layer", "2", "--n-head", "2", "--n-embd", "64", "--block-size", "32", "--warmup-iters", "5",
             "--lr-decay-iters", "60", "--eval-iters", "2", "--dropout", "0.1"]
    first = ["train", "--corpus", str(text), "--out-dir", str(out), *shape]
    assert main([*first, "--device", "gpu", "--dtype", "bfloat16", "--max-iters", "20"]) == 0
    again = ["train", "--out-dir", str(out), "--resume"]
    assert main([*again, "--dtype", "float32", "--max-iters", "40"]) == 0
    assert main([*again, "--device", "gpu", "--dtype", "tf32", "--max-iters", "60"]) == 0
    assert "fused kernels" in capsys.readouterr().out
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    found = [record["val_loss"] for record in records if "val_loss" in record]
    assert found[-1] < found[0] - 1 and records[-1]["step"] == 60
    assert main(["sample", str(out), "--device", "gpu", "--max-new-tokens", "20"]) == 0
    assert main(["eval", str(out), "--device", "gpu"]) == 0


@contextlib.contextmanager
def limited(cupy, size):
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    pool.set_limit(size=size)
    try:
        yield
    finally:
        pool.set_limit(size=0)


def test_a_full_gpu_is_one_line(tmp_path, capsys, cupy):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    with limited(cupy, 190 << 20):
        assert main(["train", "--corpus", str(text), "--out-dir", str(tmp_path / "out"), "--device", "gpu",
                     "--batch-size", "512", "--block-size", "256", "--n-embd", "384", "--n-head", "6"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    for words in ("memory is full", "needs", "are free", "--batch-size"):
        assert words in error
