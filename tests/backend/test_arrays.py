"""Devices, and what is said where there is no GPU."""

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, UserError
from npgpt.backend.arrays import array_module, causal_mask


def without_cupy(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)


def test_a_gpu_without_cupy_says_what_to_install(monkeypatch):
    without_cupy(monkeypatch)
    for device in ("gpu", "gpu:1"):
        with pytest.raises(UserError, match=r"cupy-cuda12x\[ctk\].*--device cpu"):
            GPT(GPTConfig(), device=device)
    assert array_module("auto") is np
    assert array_module("cpu") is np


@pytest.mark.parametrize("device", ["cuda", "gpu:", "gpu:x", ""])
def test_an_unknown_device_is_refused(device):
    with pytest.raises(UserError, match="is not one of"):
        array_module(device)


def test_causal_mask():
    mask = causal_mask(3, like=np.zeros(1, np.float32))
    assert mask.dtype == np.float32
    np.testing.assert_array_equal(mask, [[0, -np.inf, -np.inf], [0, 0, -np.inf], [0, 0, 0]])
