"""The timeout of OpenBLAS's threads is in the environment while NumPy loads, and only then."""

import os
import subprocess
import sys

import pytest

from npgpt.engine.blas import TIMEOUT

CHILD = f"""
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            print("loading NumPy:", os.environ.get("{TIMEOUT}"))

sys.meta_path.insert(0, Watch())
%s
import npgpt
print("afterwards:", os.environ.get("{TIMEOUT}"))
print(npgpt.GPT(npgpt.GPTConfig(n_layer=1)).evaluate([[1]], [[2]]) > 0)
"""


@pytest.mark.parametrize(("value", "first", "loading", "afterwards"), [
    (None, "", "18", "None"),               # ours, and not left to the processes that this one starts
    ("5", "", "5", "5"),                    # the user's own
    (None, "import numpy", "None", "None"),  # too late: nothing changes
    ("5", "import numpy", "5", "5"),
], ids=["ours", "the user's", "NumPy first", "NumPy first, the user's"])
def test_the_variable_is_there_while_numpy_is_loaded_and_not_afterwards(value, first, loading, afterwards):
    environment = {name: text for name, text in os.environ.items() if name != TIMEOUT}
    if value is not None:
        environment[TIMEOUT] = value
    child = subprocess.run([sys.executable, "-c", CHILD % first], env=environment, capture_output=True, text=True)
    assert child.stdout.splitlines() == [f"loading NumPy: {loading}", f"afterwards: {afterwards}", "True"], child.stderr
