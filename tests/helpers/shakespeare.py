"""TinyShakespeare, where a copy of it is at hand."""

import os
from pathlib import Path

import pytest

from npgpt.data.corpora import TINYSHAKESPEARE_FILE

DATA = Path(
    os.environ.get("NPGPT_DATA_DIR") or "data"
).absolute()  # before the fixture npgpt leaves the folder
SHAKESPEARE = pytest.mark.skipif(
    not (DATA / TINYSHAKESPEARE_FILE).exists(),
    reason="TinyShakespeare is missing: set NPGPT_DATA_DIR to the folder that has it",
)
