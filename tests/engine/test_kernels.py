"""Which kernels a machine gets."""

import os
import subprocess
import sys

import pytest

from npgpt import UserError
from npgpt.engine.cpu import cpu_kernels


def test_auto_is_the_fastest_that_is_there(monkeypatch):
    pytest.importorskip("numba", reason="compiles loops; it is in the extras fast and test")
    assert cpu_kernels() == cpu_kernels("numba") == "numba"
    monkeypatch.setitem(sys.modules, "numba", None)
    assert cpu_kernels() == cpu_kernels("numpy") == "numpy"
    with pytest.raises(
        UserError, match=r"--kernels numba needs .*npgpt\[fast\].*use --kernels numpy"
    ):
        cpu_kernels("numba")


def test_auto_works_with_a_broken_numba(tmp_path):
    """Numba cannot be imported with such a number of threads, and says so by a ValueError."""
    pytest.importorskip("numba", reason="compiles loops; it is in the extras fast and test")
    program = (
        "from npgpt import GPT, GPTConfig\n"
        "from npgpt.cli.main import main\n"
        "config = GPTConfig(vocab_size=5, n_layer=1, n_head=1, n_embd=8)\n"
        "print(GPT(config, threads=2).engine.kernels)\n"
        f"print(main(['info']), main(['train', '--corpus', {__file__!r}, '--kernels', 'numba']))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "NUMBA_NUM_THREADS": "0"},
    )
    assert found.stdout.startswith("numpy\n") and found.stdout.endswith("0 2\n")
    assert "--kernels numba              not here: " in found.stdout
    assert found.stderr.startswith("npgpt: --kernels numba needs Numba (")
