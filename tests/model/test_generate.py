"""Sampling: what each argument keeps, and that a seed reproduces."""

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from npgpt.model.generate import sample
from tests.cases import small_parts
from tests.helpers.runs import refusing
from tests.torch_gpt import unit_scale

PROBS = np.array([[0.5, 0.1, 0.3, 0.06, 0.04]])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, PROBS[0]),
        ({"temperature": 0.5}, PROBS[0] ** 2 / (PROBS**2).sum()),
        ({"temperature": 0.0}, [1, 0, 0, 0, 0]),
        ({"temperature": 1e-320}, [1, 0, 0, 0, 0]),
        ({"top_k": 2}, [0.625, 0, 0.375, 0, 0]),
        ({"top_k": 99}, PROBS[0]),
        ({"top_p": 0.79}, [0.625, 0, 0.375, 0, 0]),
        ({"top_p": 0.81}, [5 / 9, 1 / 9, 3 / 9, 0, 0]),
        ({"top_p": 1e-9}, [1, 0, 0, 0, 0]),
        ({"top_p": 1.0}, PROBS[0]),
        ({"top_k": 3, "top_p": 0.6}, [0.625, 0, 0.375, 0, 0]),
    ],
)
def test_frequencies(options, expected):
    logits = np.log(np.repeat(PROBS, 40000, axis=0))
    logits += np.resize([[1e4], [-1e4]], (40000, 1))  # rows are drawn from alike at any scale
    found = np.bincount(sample(logits, np.random.default_rng(0), **options), minlength=5) / 40000
    np.testing.assert_allclose(found, expected, atol=0.01)
    assert ((found == 0) == (np.asarray(expected) == 0)).all()


VARIANTS = [
    {},
    {"bias": False, "tie_word_embeddings": False, "activation": "gelu"},
    {"scale_attn_by_inverse_layer_idx": True, "embedding_layer_norm": True},
]


def small_model(kernels="auto", **fields):
    size = {"vocab_size": 11, "block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 8}
    model = GPT(GPTConfig(**size, **fields), dtype="float64", threads=2, kernels=kernels)
    unit_scale(model.params)  # fresh ones see little
    return model


def context_at(t, prompt, block_size):
    """Return where the context begins that the token at t is drawn from: the same policy, without a
    cache.
    """
    start = 0
    for end in range(prompt, t + 1):
        if end - start > block_size:
            start = end - block_size // 2
    return start


@pytest.mark.parametrize("kernels", ["auto", "reference"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("prompt", [1, 7, 8, 17])
def test_the_cache_equals_the_full_forward_at_every_position_and_past_the_window(
    prompt, variant, kernels
):
    """The logits that each token is drawn from, against a forward over the whole context."""
    model = small_model(kernels, **variant)
    tokens = np.random.default_rng(1).integers(0, 11, (3, 30))
    read = model.engine.reader(3).read
    with small_parts():
        for t in range(prompt, 30):
            logits = read(tokens[:, :prompt] if t == prompt else tokens[:, t - 1 : t])
            full, _ = model.forward(tokens[:, context_at(t, prompt, 8) : t])
            np.testing.assert_allclose(logits, full[:, -1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "kernels", ["reference", "numpy", "numba", pytest.param("xla", marks=pytest.mark.slow)]
)
def test_padded_prompts_are_continued_as_each_alone(kernels):
    """Past the context, which each row leaves at another token; each token has the largest logit
    of a forward without a cache, also after an edit.
    """
    model, T = small_model(kernels), 12
    lengths = np.array([3, 7, 1, 5, 12])
    prompts = np.random.default_rng(1).integers(0, 11, (5, T))
    mask = np.arange(T) >= T - lengths[:, None]
    push = np.linspace(-2.0, 2.0, 8)
    for edit in (None, {"h.0.x_out": lambda x: x + push}):
        out = model.generate(prompts, 20, temperature=0.0, mask=mask, edit=edit)
        assert (out[:, :T] == prompts).all() and out.shape == (5, T + 20)
        for ids, length in zip(out, lengths, strict=True):
            alone = ids[T - length :]
            for n in range(length, length + 20):
                context = alone[None, context_at(n, length, 8) : n]
                full, _ = model.forward(context, edit=edit)
                assert alone[n] == full[0, -1].argmax()


def test_a_row_stops_and_is_padded():
    model, prompts = small_model(), np.array([[1, 2], [3, 4], [1, 2]])
    drawn = {"temperature": 3.0, "seed": 1}
    free = model.generate(prompts, 30, **drawn)
    assert (free[0] != free[2]).any()
    stop = free[0, 10:13]
    out = model.generate(prompts, 30, **drawn, stop=[[7] * 9, stop])
    for row, row_free in zip(out, free, strict=True):
        ends = [n for n in range(5, 33) if (row_free[n - 3 : n] == stop).all()]
        n = ends[0] if ends else len(row)
        assert (row[:n] == row_free[:n]).all() and (row[n:] == row[n - 1]).all()
    ended = model.generate(prompts, 30, **drawn, stop=[free[0, 2:4]], eos_token_id=10)
    assert (ended[0, 4:] == 10).all() and (ended[0, :4] == free[0, :4]).all()


def test_a_seed_reproduces_and_another_differs():
    model, prompt = small_model(), np.array([[1]])
    a, b, c = (model.generate(prompt, 30, temperature=5.0, seed=seed) for seed in (5, 5, 6))
    assert (a == b).all() and (a != c).any()
    own = model.generate(prompt, 30, temperature=5.0, rng=np.random.default_rng(5))
    assert (own == a).all()


def test_an_encoder_cannot_write():
    with refusing("causal"):
        GPT(GPTConfig(causal=False)).generate(np.array([[1]]), 1)
