"""The tests of every kernel, in tests/cuda, once more, with the kernels on the GPU."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1] / "cuda"
EMULATORS_OWN = {"test_emulate", "test_compile"}
NAMES = sorted({path.stem for path in TESTS.glob("test_*.py")} - EMULATORS_OWN)
# If a kernel hangs, pytest says where, and after the interrupt what failed before.
COMMAND = ["timeout", "--signal=INT", "--kill-after=5", "80", sys.executable, "-m", "pytest", "-q", "-rfEs",
           "--tb=short", "-p", "no:cacheprovider", "-o", "addopts=", "-o", "faulthandler_timeout=60"]


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """{name: (its process, its output)}: all at once, because most of their time they load and compile."""
    with contextlib.ExitStack() as stack:
        processes = {}
        for name in [item.callspec.params["name"] for item in request.session.items if item.module is request.module]:
            output = stack.enter_context((tmp_path_factory.getbasetemp() / f"{name}.txt").open("w+"))
            process = stack.enter_context(subprocess.Popen(
                [*COMMAND, TESTS / f"{name}.py"], env={**os.environ, "NPGPT_TEST_KERNELS": "gpu"},
                cwd=TESTS.parents[1], stdout=output, stderr=subprocess.STDOUT))
            stack.callback(process.terminate)
            processes[name] = process, output
        yield processes


@pytest.mark.parametrize("name", NAMES)
def test_on_the_gpu(runs, name):
    """None of them may be skipped. The first failure says most: after an illegal access all others fail, too."""
    process, output = runs[name]
    code = process.wait()
    output.seek(0)
    text = output.read()
    assert code == 0 and "skipped" not in text, text if len(text) < 12000 else f"{text[:6000]}\n…\n{text[-6000:]}"
