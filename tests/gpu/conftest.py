"""Tests that need a GPU: without one they are skipped, with the reason."""

import numpy as np
import pytest

from npgpt.arrays import array_module
from npgpt.errors import UserError


@pytest.fixture(scope="session", autouse=True)
def cupy():
    try:
        return array_module("gpu")
    except UserError as error:
        pytest.skip(str(error))


def relative_error(actual, expected):
    """||actual - expected|| / ||expected||, infinite where anything is not finite."""
    actual = np.asarray(actual, np.float64)
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    return error if np.isfinite(error) else np.inf
