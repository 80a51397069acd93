"""Which kernels a machine gets."""

import os
import subprocess
import sys

import pytest

from npgpt import UserError
from npgpt.engine.cpu import cpu_kernels
from tests.helpers.runs import refused


def test_auto_is_the_fastest_that_is_there(monkeypatch):
    pytest.importorskip("numba", reason="compiles loops; it is in the extras fast and test")
    assert cpu_kernels() == cpu_kernels("numba") == "numba"
    monkeypatch.setitem(sys.modules, "numba", None)
    assert cpu_kernels() == cpu_kernels("numpy") == "numpy"
    with pytest.raises(
        UserError, match=r"--kernels numba needs .*npgpt\[fast\].*use --kernels numpy"
    ):
        cpu_kernels("numba")


def test_auto_works_with_a_broken_numba(text_file):
    """Numba cannot be imported with such a number of threads, and says so by a ValueError."""
    pytest.importorskip("numba", reason="compiles loops; it is in the extras fast and test")

    def run(*command):
        return subprocess.run([sys.executable, *command], capture_output=True, text=True,
                              env={**os.environ, "NUMBA_NUM_THREADS": "0"})

    found = run("-m", "npgpt", "info")
    assert (
        found.returncode == 0
        and found.stderr == ""
        and "--kernels numba              not here: " in found.stdout
    )
    found = run(
        "-c",
        "from npgpt import GPT, GPTConfig\n"
        "config = GPTConfig(vocab_size=5, n_layer=1, n_head=1, n_embd=8); "
        "print(GPT(config, threads=2).engine.kernels)",
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "numpy\n", "")
    found = run("-m", "npgpt", "train", "--corpus", text_file, "--kernels", "numba")
    refused((found.returncode, found.stdout, found.stderr), "npgpt: --kernels numba needs Numba (")
