"""Shapes that take no time."""

import dataclasses

import pytest

from npgpt.bench import measure, shapes

TINY = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 31, "block_size": 16}
TRAINING = shapes.Training(**TINY, T=8, B=3)
GENERATION = shapes.Generation(**TINY, B=2, T=4, new_tokens=10)
TOO_LARGE = dataclasses.replace(TRAINING, n_embd=2**22)     # 10^15 bytes


@pytest.fixture
def tiny(monkeypatch):
    """A, B and gen1 are tiny, C is too large for any machine; a turn takes no longer than it must."""
    monkeypatch.setattr(measure, "CHUNK_SECONDS", 0.005)
    monkeypatch.setattr(measure, "PAUSE_SECONDS", 0)
    for name, shape in (("A", TRAINING), ("B", TRAINING), ("C", TOO_LARGE), ("gen1", GENERATION)):
        monkeypatch.setitem(shapes.SHAPES, name, shape)


@pytest.fixture
def fake_torch(tmp_path, monkeypatch):
    """fake_torch(code): what is run in the processes of the peers where they import torch."""
    def install(code):
        (tmp_path / "fake").mkdir()
        (tmp_path / "fake" / "torch.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))

    return install
