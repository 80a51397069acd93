"""The examples compute what they say."""

import itertools
import runpy
from pathlib import Path

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from tests.torch_gpt import unit_scale

EXAMPLES = Path(__file__).parents[2] / "tools" / "examples"
CONFIG = GPTConfig(vocab_size=5, block_size=16, n_layer=2, n_head=2, n_embd=12)
PROMPT = np.array([1, 4, 2])


def model_of(seed=0, scale=1.0):
    model = GPT(CONFIG, dtype="float64", threads=1)
    unit_scale(model.params, seed)
    model.params["wte.weight"] *= scale  # less sure of its next token
    return model


@pytest.fixture(scope="module")
def decoding():
    return runpy.run_path(str(EXAMPLES / "decoding.py"))


def test_beam_search_finds_the_likeliest_of_all_texts(decoding):
    """With as many beams as texts it is the best of all 5^3; greedy, and its scores, with one."""
    model = model_of(7, scale=0.1)
    texts = np.array([*itertools.product(range(5), repeat=3)])
    all_texts = np.concatenate([np.tile(PROMPT, (125, 1)), texts], axis=1)
    scores = model.score(all_texts)[:, -3:].sum(axis=1)
    tokens, score = decoding["beam_search"](model, PROMPT, 3, beams=125)
    np.testing.assert_array_equal(tokens, texts[scores.argmax()])
    assert score == pytest.approx(scores.max(), rel=1e-9)
    greedy = model.generate(PROMPT[None], 3, temperature=0.0)[0, 3:]
    assert (greedy != tokens).any()  # so the search has found more than greed does
    np.testing.assert_array_equal(decoding["beam_search"](model, PROMPT, 3, beams=1)[0], greedy)


def test_guessed_tokens_are_the_models(decoding):
    """By drafts that are always or sometimes right, and to the end of the context."""
    model = model_of()
    for draft in (model, model_of(1), model_of(2, scale=0.1)):
        for n in (1, 4, 9, 13):
            greedy = model.generate(PROMPT[None], n, temperature=0.0)[0, 3:]
            found = decoding["speculative"](model, draft, PROMPT, n)
            np.testing.assert_array_equal(found, greedy)


def test_min_p_and_allowed_tokens(decoding):
    logits = np.log([[0.5, 0.06, 0.04, 0.4], [0.97, 0.01, 0.01, 0.01]])
    kept = np.isfinite(decoding["min_p"](None, logits))
    np.testing.assert_array_equal(kept, [[True, True, False, True], [True, False, False, False]])
    out = model_of(7, scale=0.1).generate(
        PROMPT[None], 8, 3.0, logits_processor=decoding["only"]([0, 3])
    )
    assert {*out[0, 3:]} == {0, 3}
