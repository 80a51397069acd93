"""The command sets the timeout of OpenBLAS's threads before NumPy is loaded; a user's own is kept,
a library's too.
"""

import os
import subprocess
import sys

import pytest

TIMEOUT = "OPENBLAS_THREAD_TIMEOUT"
CHILD = f"""
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            print(os.environ.get("{TIMEOUT}"))

sys.meta_path.insert(0, Watch())
__import__(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("module", "users", "expected"),
    [
        ("npgpt.cli.train", {}, "18\n"),
        ("npgpt.cli.train", {TIMEOUT: "5"}, "5\n"),
        ("npgpt.api", {}, "None\n"),
    ],
)
def test_the_variable_is_there_while_numpy_is_loaded(module, users, expected):
    environment = {name: text for name, text in os.environ.items() if name != TIMEOUT} | users
    child = subprocess.run(
        [sys.executable, "-c", CHILD, module], env=environment, capture_output=True, text=True
    )
    assert child.stdout == expected, child.stderr
