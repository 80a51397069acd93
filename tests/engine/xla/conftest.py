"""Tests of XLA compile anew: an earlier run's cache would hide a mistake."""

import pytest

from npgpt import UserError


@pytest.fixture(autouse=True)
def jax(monkeypatch):
    try:
        import npgpt.engine.xla  # noqa: F401 (says what to install)
    except UserError as error:
        pytest.skip(str(error))
    import jax

    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")  # of processes that a test starts
    jax.config.update("jax_enable_compilation_cache", False)
    return jax
