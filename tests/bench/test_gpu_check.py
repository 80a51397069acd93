"""What runs on a GPU machine is rehearsed on CuPy's stand-in: tools/gpu_check.sh, and the table of kernels."""

import collections
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import strict_cupy
from tests.cuda.gpu import install_emulated_gpu

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "bench"))
import kernels  # noqa: E402
from shapes import ROWS  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="a script for Linux")]

SANITIZER = """#!/bin/sh
case "$NPGPT_TEST_KERNELS $*" in
    "gpu --tool "*" --error-exitcode 9 "*"cupy.cuda.set_allocator(None)"*) ;;
    *) exit 2 ;;
esac
while [ "$1" != "$PYTHON" ]; do shift; done
"$@" || exit
echo "========= ERROR SUMMARY: 0 errors"
"""
# A part of each file: the rest would take minutes in the emulator.
PART = "gelu or (matmuls and 72) or (dropout and bfloat16) or generation or full_gpu or large_scores"


def test_the_whole_check(tmp_path):
    (tmp_path / "compute-sanitizer").write_text(SANITIZER)
    (tmp_path / "compute-sanitizer").chmod(0o755)
    found = subprocess.run(
        [ROOT / "tools" / "gpu_check.sh", tmp_path / "out", "tests", "kernels", "sanitizer", "bench"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": sys.executable, "ROWS": "tiny-gpu",
             "PYTHONPATH": str(ROOT / "tests" / "stand_in"), "BENCH": "tiny-gpu --sides npgpt --rounds 1",
             "PYTEST_ADDOPTS": f"-k '{PART}'"}, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    tests = {path.name: path.read_text() for path in (tmp_path / "out").glob("*.log")}
    assert tests.keys() == {*(f"tests-{name}.log" for name in ("matmul", "kernels", "model", "training")),
                            "sanitizer-memcheck.log", "sanitizer-racecheck.log"}
    assert all(" passed" in text for text in tests.values()) and found.stdout.count("exit status 0") == 7
    assert "attention_backward_kv" in (tmp_path / "out" / "kernels-tiny-gpu.md").read_text()
    assert "| tiny-gpu | " in (tmp_path / "out" / "bench.md").read_text()


def test_a_test_that_fails_hangs_or_is_skipped_is_not_a_success(tmp_path):
    """The rest goes on."""
    stand_in = tmp_path / "python"
    stand_in.write_text('#!/bin/sh\ncase "$*" in *test_matmul*) sleep 60;; *test_kernels*) echo "1 skipped";; '
                        '*test_model*) exit 1;; *) echo fine;; esac\n')
    stand_in.chmod(0o755)
    script = (ROOT / "tools" / "gpu_check.sh").read_text().replace("105", "1")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "gpu_check.sh").write_text(script)
    found = subprocess.run(["bash", tmp_path / "tools" / "gpu_check.sh", tmp_path / "out", "tests"],
                           env={**os.environ, "PYTHON": str(stand_in)}, capture_output=True, text=True)
    assert found.returncode == 1
    lines = [line.split(":")[:2] for line in found.stdout.splitlines()]
    assert [name for name, _ in lines] == [f"tests-{name}.log" for name in ("matmul", "kernels", "model", "training")]
    assert [status.split()[2] for _, status in lines] == ["124", "0", "1", "0"]
    other = subprocess.run(["bash", tmp_path / "tools" / "gpu_check.sh", tmp_path / "out", "test"],
                           env={**os.environ, "PYTHON": str(stand_in)}, capture_output=True, text=True)
    assert (other.returncode, other.stderr) == (2, "not a stage: test\n")


def test_the_side_of_the_lines_runs_no_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["worker.py", "prepare"])
    import worker

    install_emulated_gpu(monkeypatch)
    shape = dataclasses.replace(ROWS["tiny-gpu"], dtype="float32")
    assert "lines" in shape.sides and "lines" not in ROWS["tiny-gpu"].sides
    worker.prepare(shape, tmp_path)
    monkeypatch.setattr(worker.GPT, "loss_and_grads", None)     # it copies the gradients; the trainer does not call it
    steps = {side: worker.training(shape, tmp_path, 1, side).step for side in ("npgpt", "lines")}
    losses = {}
    for side, step in steps.items():
        strict_cupy.gpu.log.clear()
        losses[side] = [float(step(i)) for i in range(3)]
        assert any(entry[0] == "launch" for entry in strict_cupy.gpu.log) == (side == "npgpt")
    assert losses["lines"] == pytest.approx(losses["npgpt"], rel=1e-4) and losses["lines"][0] != losses["lines"][2]


def test_the_work_of_each_kernel(monkeypatch):
    """Operations and bytes as counted by hand for two layers, 16 wide, B = 3, T = 8, V = 31 padded to 64."""
    install_emulated_gpu(monkeypatch)
    monkeypatch.setattr(kernels, "milliseconds", lambda gpu, times, function: function() or 2.0)
    rates, spans, graphed, empty = kernels.measure(ROWS["tiny-gpu"])
    assert rates == {"operations": 2 * 64**3 / 2.0, "bytes": 2 * 4 * 64**2 / 2.0} and graphed == 2.0
    assert 0 < empty < sum(ms for *_, ms in spans) and all(ms >= 0 for *_, ms in spans)
    C, N, L, V, T, B = 16, 24, 2, 64, 8, 3
    operations, sizes, launches = collections.Counter(), collections.Counter(), collections.Counter()
    one_step = len(spans) // kernels.STEPS
    assert len(spans) == one_step * kernels.STEPS
    for label, ops, size, _ in spans[:one_step]:
        label = label.split()[0]
        operations[label] += ops
        sizes[label] += size
        launches[label] += 1
    assert operations["matmul"] == 3 * 2 * N * (L * 12 * C * C + V * C) and launches["matmul"] == 3 * (4 * L + 1)
    # Values of 2 bytes: in and out of each forward and twice of each backward, and 4 bytes for a gradient of weights.
    linears = [(C, 3 * C), (C, C), (C, 4 * C), (4 * C, C)] * L + [(C, V)]
    assert sizes["matmul"] == sum(3 * 2 * N * (k + n) + (2 + 2 + 4) * k * n for k, n in linears)
    causal = B * C * T * (T + 1) // 2                               # of the (T, T) scores of one head
    assert [operations[f"attention_{part}"] for part in ("forward", "backward_kv", "backward_q")] == [
        2 * 2 * causal * L, 4 * 2 * causal * L, 3 * 2 * causal * L]
    n = 31 * C + 16 * C + L * (12 * C * C + 13 * C) + 2 * C         # parameters
    assert sizes["adamw"] == 7 * 4 * n + 3 * 4                      # reads p, g, m, v and three numbers, writes p, m, v
    assert sizes["round_to_bfloat16"] == 6 * n
    assert sizes["embedding_forward"] == 2 * 4 * N * C + 4 * N + 4 * 16 * C     # rows of wte, x; idx; wpe
    tokens = round(np.mean([len(np.unique(idx)) for idx, _ in ROWS["tiny-gpu"].batches()]))
    assert sizes["embedding_backward_wte"] == 2 * 4 * tokens * C + 4 * N * C + 4 * (3 * N + 1) and tokens < N
    of_queries = 2 * N * C + 2 * 3 * N * C + 2 * 4 * N              # dout, qkv, lse and delta of the one head
    assert sizes["attention_backward_q"] == L * (of_queries + 2 * N * C)
    assert sizes["attention_backward_kv"] == L * (of_queries + 2 * 2 * N * C)
    assert sizes["column_sum_parts"] == (N + 1) * 4 * 2 * 5 * C + (N // 2 + 1) * 4 * L * (3 + 1 + 4 + 1) * C
    assert sizes["gelu_forward"] == 2 * 2 * N * 4 * C * L and sizes["gelu_backward"] == 3 * 2 * N * 4 * C * L
    # dx is read but for the first of the five; dbranch is written but for the last; of dweight and dbias N parts.
    dy_x_dx, before_and_dbranch, of_rows, parts, weight = (2 + 4 + 4) * N * C, (4 + 2) * N * C, 8 * N, 8 * N * C, 4 * C
    assert sizes["layernorm_backward"] == 5 * (dy_x_dx + of_rows + parts + weight) + 4 * before_and_dbranch
    assert launches["layernorm_backward"] == 5 and launches["upload"] == 2
    text = kernels.report({"operations": 1e9, "bytes": 1e6}, [("slow", 2e9, 1e6, 40.0), ("fast", 0, 5e6, 10.0)] * 10, 7,
                          0.004)
    assert "| slow | 1.00 | 40.000 | 0.0500 | 0.0250 | 5% | 38.000 |" in text
    assert "| fast | 1.00 | 10.000 |  | 0.500 | 50% | 5.000 |" in text and "| all | 2.00 | 50.000 |" in text
    assert text.index("slow") < text.index("fast") < text.index("all")
