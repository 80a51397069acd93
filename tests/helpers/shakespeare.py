"""TinyShakespeare, where a copy of it is at hand."""

import pytest

from npgpt.data.corpora import data_dir, tinyshakespeare_path

DATA = data_dir()           # before the fixture npgpt leaves the folder
SHAKESPEARE = pytest.mark.skipif(not tinyshakespeare_path(DATA).exists(), reason="TinyShakespeare is missing: set "
                                 "NPGPT_DATA_DIR to the folder that has it")
