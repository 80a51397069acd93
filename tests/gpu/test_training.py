"""Training on a GPU by the command line, and a GPU whose memory is full."""

import os
import subprocess
import sys

import pytest

from npgpt.cli.main import main
from npgpt.training.metrics import read_metrics
from tests.gpu.conftest import device_of

TEXT = "love of kings and roses, not war; sleep of the sea and glass, not thorns of men. " * 200


@pytest.mark.parametrize(("kernels", "dtype"), [("auto", "tf32"), ("xla", "bfloat16")])
def test_the_command_line(tmp_path, capsys, kernels, dtype):
    """Train; continue on the CPU and back; sample; evaluate."""
    gpu = ["--device", device_of(kernels), "--kernels", kernels]
    text, out = tmp_path / "text.txt", str(tmp_path / "out")
    text.write_text(TEXT)
    shape = "--n-layer 2 --n-head 2 --n-embd 64 --block-size 32 --dropout 0.1"
    steps = "--warmup-iters 5 --lr-decay-iters 60 --eval-iters 2"
    first = ["train", "--corpus", str(text), "--out-dir", out, *shape.split(), *steps.split()]
    again = ["train", "--out-dir", out, "--resume"]
    assert main([*first, *gpu, "--dtype", dtype, "--max-iters", "20"]) == 0
    assert main([*again, "--dtype", "float32", "--max-iters", "40"]) == 0
    assert main([*again, *gpu, "--dtype", dtype, "--max-iters", "60"]) == 0
    records = read_metrics(out)
    found = [record["val_loss"] for record in records if "val_loss" in record]
    assert found[-1] < found[0] - 1 and records[-1]["step"] == 60
    assert main(["sample", out, *gpu, "--max-new-tokens", "20"]) == 0
    assert main(["eval", out, *gpu]) == 0


@pytest.mark.parametrize("kernels", ["auto", "xla"])
def test_a_full_gpu_is_one_line(tmp_path, kernels):
    """Full because CuPy and JAX were told to use only a part of it."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    flags = f"--device {device_of(kernels)} --kernels {kernels} --eval-iters 1"
    flags += " --batch-size 512 --block-size 256 --n-embd 384 --n-head 6"
    limits = {"CUPY_GPU_MEMORY_LIMIT": str(200 << 20), "XLA_CLIENT_MEM_FRACTION": "0.02"}
    found = subprocess.run(
        [sys.executable, "-m", "npgpt", "train", "--corpus", text, *flags.split()],
        cwd=tmp_path,
        env={**os.environ, **limits},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 2, found.stderr
    for words in ("memory is full", "lower "):
        assert words in found.stderr.splitlines()[-1]
