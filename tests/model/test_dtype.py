"""No float64 anywhere in a float32 training step: every local variable of every function of npgpt
is looked at.
"""

import sys

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig
from tests.cases import small_parts

VARIANTS = [
    {"dropout": 0.1},
    {"activation": "gelu", "embedding_layer_norm": True, "tie_word_embeddings": False},
    {"bias": False, "causal": False, "vocab_size": 700},
]


def float64_variables(function):
    """Names of variables that held a float64 array or scalar when a function of npgpt returned."""
    found = set()

    def watch(frame, event, argument):
        if event == "return" and "npgpt" in frame.f_globals.get("__name__", "").split("."):
            for name, value in [*frame.f_locals.items(), ("the returned value", argument)]:
                for item in value if isinstance(value, tuple) else (value,):
                    if isinstance(item, (np.ndarray, np.generic)) and item.dtype == np.float64:
                        found.add(f"{frame.f_globals['__name__']}.{frame.f_code.co_name}: {name}")

    sys.setprofile(watch)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float32_stays_float32(variant, dtype):
    config = GPTConfig(
        **{"vocab_size": 11, "block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 8, **variant}
    )
    # The profiler sees only this thread, which has the first part.
    model = GPT(config, dtype=dtype, threads=2)
    optimizer = AdamW(model.params)
    idx, targets = np.random.default_rng(0).integers(0, config.vocab_size, (2, 3, 8))

    def step():
        _, grads = model.loss_and_grads(idx, targets, np.random.default_rng(0))
        optimizer.step(grads, max_norm=0.01)
        model.evaluate(idx, targets)
        model.forward(idx, targets)
        model.backward()
        model.engine.reader(3).read(idx)

    with small_parts():
        step()  # compiles: the constants that Numba is given are float64
        found = float64_variables(step)
    if dtype == "float32":
        assert not found
    else:  # the watch itself works: in a float64 step it sees float64 everywhere
        assert len(found) > 50
