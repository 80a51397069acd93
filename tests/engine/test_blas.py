"""The timeout of OpenBLAS's threads is in the environment when NumPy is loaded, but a user's own is kept."""

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
from npgpt import layers
"""


@pytest.mark.parametrize(("users", "expected"), [({}, "18\n"), ({TIMEOUT: "5"}, "5\n")])
def test_the_variable_is_there_while_numpy_is_loaded(users, expected):
    environment = {name: text for name, text in os.environ.items() if name != TIMEOUT} | users
    child = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True)
    assert child.stdout == expected, child.stderr
