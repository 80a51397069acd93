"""Devices, and the messages if there is no GPU."""

import subprocess
import sys

from npgpt import GPT, GPTConfig
from npgpt.devices import array_module
from tests import strict_cupy
from tests.helpers.runs import refusing

INSTALL = r'pip install "npgpt\[cuda12\]" or "npgpt\[cuda13\]", or use --device cpu$'


def raising(error):
    def raises():
        raise error

    return raises


def test_a_gpu_that_cannot_be_used_says_why_and_what_to_install(monkeypatch):
    cuda = strict_cupy.install(monkeypatch).cuda
    no_driver = cuda.runtime.CUDARuntimeError("CUDA driver version is insufficient")
    no_nvrtc = RuntimeError("no libnvrtc.so.13\nin …")
    for place, name, value, says in (
        (
            cuda.runtime,
            "getDeviceCount",
            raising(no_driver),
            "is insufficient.*nvidia-smi.*" + INSTALL,
        ),
        (cuda.runtime, "getDeviceCount", lambda: 0, "no NVIDIA GPU.*--device cpu"),
        (cuda.nvrtc, "getVersion", raising(no_nvrtc), "no libnvrtc.so.13"),
    ):
        monkeypatch.setattr(place, name, value)
        with refusing(says):
            GPT(GPTConfig(), device="cuda:1")
    monkeypatch.setitem(sys.modules, "cupy", None)
    with refusing("cupy.*" + INSTALL):
        GPT(GPTConfig(), device="cuda:1")


def test_the_gpu_of_a_number(monkeypatch):
    cupy = strict_cupy.install(monkeypatch)
    monkeypatch.setattr(strict_cupy.gpu, "devices", 2)
    assert array_module("gpu") is array_module("cuda") is array_module("gpu:1") is cupy
    assert strict_cupy.gpu.current == 0
    for device, says in (
        ("gpu:2", "no GPU 2: the 2 here are numbered from 0"),
        ("tpu", "device must be"),
    ):
        with refusing(says):
            array_module(device)


def test_on_a_cpu_neither_cupy_nor_jax_is_imported():
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, npgpt; npgpt.GPT(npgpt.GPTConfig(65, 8, 1, 1, 8)); "
            "assert not {'cupy', 'jax'} & set(sys.modules)",
        ],
        check=True,
    )
