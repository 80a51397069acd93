"""tools/compile_for_gpu.py: the programs of a tiny model, compiled for GPUs that are not there."""

import dataclasses
import runpy
import sys
from importlib.util import find_spec

import pytest
from compile_for_gpu import GPUS, ROWS, compile_programs

TOOL = sys.modules["compile_for_gpu"].__file__


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("gpu", GPUS)
def test_a_gpu_that_is_not_there(gpu, dtype, capsys):
    """Loss, generation and a training step's two programs, with dropout."""
    if find_spec("jax_cuda13_plugin") is None:
        pytest.skip("CUDA's compiler is not installed")
    row = dataclasses.replace(ROWS["tiny-gpu"], n_layer=1, dropout=0.1, dtype=dtype)
    compile_programs(GPUS[gpu], row)
    out = capsys.readouterr().out.splitlines()
    programs = ["the loss", "generation", "loss and gradients", "AdamW's step"]
    assert [line.partition(":")[0] for line in out] == programs
    assert all(line.endswith(" kernels") and ", 0 kernels" not in line for line in out)


@pytest.mark.parametrize("words", ["H1000 124M", "H100 A", "H100 124M --dtype float64"])
def test_what_is_not_known_is_refused(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compile_for_gpu.py", *words.split()])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(TOOL, run_name="__main__")
    assert stopped.value.code == 2 and "error: " in capsys.readouterr().err
