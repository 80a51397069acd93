"""The public KV cache: logits of all positions, in parts, for beams, and back again."""

from unittest.mock import Mock

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from tests.helpers.models import SMALL
from tests.helpers.runs import refusing
from tests.torch_gpt import unit_scale

KERNELS = ["reference", "numpy", "numba", pytest.param("xla", marks=pytest.mark.slow)]
TOKENS = np.random.default_rng(1).integers(0, 11, (3, 8))


def model_of(kernels="numpy", **fields):
    model = GPT(GPTConfig(**SMALL | fields), dtype="float64", threads=2, kernels=kernels)
    unit_scale(model.params)
    return model


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("pads", [[0, 0, 0], [2, 0, 3]], ids=str)
def test_a_reader_equals_the_forward(kernels, pads):
    """In parts of several lengths, as a speculative decoder reads, with fewer, more, repeated and
    swapped rows, each with its own past.
    """
    model = model_of(kernels, lm_head_bias=True, tie_word_embeddings=False)
    tokens, pads = TOKENS[:, :4], np.array(pads)
    reader = model.reader(3, mask=np.arange(4) >= pads[:, None])
    reader.read(tokens)
    for rows, n in (([2, 0, 1], 2), ([1], 1), ([0, 0, 0, 0], 1)):
        new = (np.arange(n * len(rows)) % 11).reshape(-1, n)  # each row has other tokens
        tokens, pads = np.concatenate([tokens[rows], new], axis=1), pads[rows]
        reader.reorder(rows)
        reader.read((new + 1) % 11)  # wrong ones
        reader.back(n)
        end = tokens.shape[1]
        for row, ids, pad in zip(reader.read(new), tokens, pads, strict=True):
            full, _ = model.forward(ids[None, pad:])
            np.testing.assert_allclose(row, full[0, end - n - pad :], rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(reader.tokens, tokens)


def test_what_a_reader_refuses():
    reader = model_of().reader(2)
    for tokens, message in (
        ([[1, 2]], "must be 2"),
        ([[11], [0]], "token ids"),
        (np.ones((2, 9), int), "do not fit into block_size 8"),
    ):
        with refusing(message):
            reader.read(tokens)
    for rows in ([2], [], [0.0]):
        with refusing("rows"):
            reader.reorder(rows)
    with refusing("n must be a whole number from 0 to 0"):
        reader.back(1)
    for mask in (1, [[0, 1]], [[1, 0], [1, 1]]):
        with refusing("mask must be"):
            model_of().reader(2, mask=mask)
    with refusing("encoder"):
        model_of(causal=False).reader(1)


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_processor_sees_all_tokens_and_decides(kernels):
    """The even tokens alone; what it gets is the text so far and the logits."""
    model, seen = model_of(kernels), []

    def even(tokens, logits):
        seen.append((tokens.copy(), logits.copy()))
        logits[:, 1::2] = -np.inf
        return logits

    out = model.generate(TOKENS[:, :3], 5, temperature=5.0, logits_processor=even)
    assert (out[:, 3:] % 2 == 0).all() and len(seen) == 5
    for tokens, logits in seen:
        np.testing.assert_array_equal(tokens, out[:, : tokens.shape[1]])
        np.testing.assert_allclose(logits, model.forward(tokens)[0][:, -1], rtol=1e-9)
    for processor, says in (
        (lambda tokens, logits: None, "what logits_processor returns"),
        (lambda tokens, logits: logits - np.inf, "leave a token allowed"),
    ):
        with refusing(says):
            model.generate(TOKENS[:, :3], 1, logits_processor=processor)


def test_a_read_that_ends_early_has_read_nothing(monkeypatch):
    model = model_of()
    reader = model.reader(3)
    reader.read(TOKENS[:, :2])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("npgpt.engine.kv_cache.model_forward", Mock(side_effect=KeyboardInterrupt))
        reader.read(TOKENS[:, 2:4])
    full, _ = model.forward(TOKENS[:, :4])
    np.testing.assert_allclose(reader.read(TOKENS[:, 2:4]), full[:, 2:], rtol=1e-9, atol=1e-9)
    reader.tokens[:] = 0
    np.testing.assert_array_equal(reader.tokens, TOKENS[:, :4])
