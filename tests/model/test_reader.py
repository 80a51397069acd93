"""The public KV cache: logits of all positions, in parts, for beams, and back again."""

from types import SimpleNamespace

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, UserError
from npgpt.model import transformer
from tests.helpers.models import SMALL
from tests.torch_gpt import unit_scale

KERNELS = ["reference", "numpy", "numba", pytest.param("xla", marks=pytest.mark.slow)]
TOKENS = np.random.default_rng(1).integers(0, 11, (3, 8))


def model_of(kernels="numpy", **fields):
    model = GPT(GPTConfig(**SMALL | fields), dtype="float64", threads=2, kernels=kernels)
    unit_scale(model.params)
    return model


def assert_reads(model, logits, tokens, begin, end):
    """The logits of tokens begin to end are those of a forward over all before them."""
    full, _ = model.forward(tokens[:, :end])
    np.testing.assert_allclose(logits, full[:, begin:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(
    "fields", [{}, {"lm_head_bias": True, "tie_word_embeddings": False}], ids=str
)
def test_a_reader_equals_the_forward(kernels, fields):
    """In parts of several lengths, which a speculative decoder goes back from; to the last token.
    """
    model = model_of(kernels, **fields)
    reader = model.reader(3)
    wrong, begin = (TOKENS + 1) % 11, 0
    for n, guessed in ((2, 3), (1, 0), (2, 2), (3, 1)):     # XLA pads the last three
        if guessed:
            reader.read(wrong[:, begin:begin + guessed])
            reader.back(guessed)
        logits = reader.read(TOKENS[:, begin:begin + n])
        assert_reads(model, logits, TOKENS, begin, begin + n)
        begin += n
    np.testing.assert_array_equal(reader.tokens, TOKENS)


@pytest.mark.parametrize("kernels", KERNELS)
def test_beams_are_reordered(kernels):
    """Fewer, more, repeated and swapped rows, each with its own past."""
    model = model_of(kernels)
    reader, tokens = model.reader(3), TOKENS[:, :4]
    reader.read(tokens)
    another = model.reader(2)           # of another size, whose programs are others
    another.read(tokens[:2])
    another.reorder([1, 1, 0, 0])
    assert_reads(model, another.read(TOKENS[[1, 1, 0, 0], 4:5]), TOKENS[[1, 1, 0, 0]], 4, 5)
    for rows in ([2, 0, 0], [1], [0, 0, 0, 0], [3, 1]):
        reader.reorder(rows)
        new = np.arange(len(rows))[:, None]         # each row goes on with another token
        tokens = np.concatenate([tokens[rows], new], axis=1)
        n = tokens.shape[1]
        assert_reads(model, reader.read(new), tokens, n - 1, n)


@pytest.mark.parametrize("kernels", KERNELS)
def test_padded_texts_are_read_as_alone(kernels):
    model, pads = model_of(kernels), np.array([2, 0, 3])
    reader = model.reader(3, mask=np.arange(4) >= pads[:, None])
    reader.read(TOKENS[:, :4])
    reader.reorder([2, 0, 1])
    logits = reader.read(TOKENS[[2, 0, 1], 4:6])
    for row, tokens, pad in zip(logits, TOKENS[[2, 0, 1]], pads[[2, 0, 1]], strict=True):
        assert_reads(model, row[None], tokens[None, pad:], 4 - pad, 6 - pad)
    with pytest.raises(UserError, match="n must be a whole number from 0 to 3"):
        reader.back(4)


def test_what_a_reader_refuses():
    reader = model_of().reader(2)
    for tokens, message in (([[1, 2]], "must be 2"), ([[11], [0]], "token ids"), (TOKENS, "texts"),
                            (np.ones((2, 9), int), "do not fit into block_size 8")):
        with pytest.raises(UserError, match=message):
            reader.read(tokens)
    for rows in ([2], [-1], [], [[0]], [0.0]):
        with pytest.raises(UserError, match="rows"):
            reader.reorder(rows)
    assert reader.tokens.shape == (2, 0)
    for mask in (1, [1, 0], [[0, 1]], [[1, 0], [1, 1]]):
        with pytest.raises(UserError, match="mask must be"):
            model_of().reader(2, mask=mask)
    with pytest.raises(UserError, match="encoder"):
        model_of(causal=False).reader(1)


def test_a_block_that_reads_tokens_one_by_one_alone_is_no_readers():
    """Its mask hides what is two tokens before the last one that is read, not before the query."""
    def forward(x, p, config, layer, mask, dropout_masks, ops):
        near = np.where(np.arange(mask.shape[1]) < mask.shape[1] - 2, -np.inf, 0.0)
        whole = len(mask) == mask.shape[1]
        if whole:
            near = np.where(np.tri(len(mask), k=-2, dtype=bool), -np.inf, 0.0)
        mask = mask + near.astype(x.dtype)
        return transformer.block_forward(x, p, config, layer, mask, dropout_masks, ops)

    block = SimpleNamespace(
        parameters=transformer.block_parameters,
        forward=forward,
        backward=transformer.block_backward,
    )
    model = GPT(GPTConfig(**SMALL), block=block)
    assert model.generate(TOKENS[:, :3], 2).shape == (3, 5)
    with pytest.raises(UserError, match="cannot continue texts"):
        model.reader(3)


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_processor_sees_all_tokens_and_decides(kernels):
    """The even tokens alone, greedy and drawn; what it gets is the text so far and the logits."""
    model, seen = model_of(kernels), []

    def even(tokens, logits):
        seen.append((tokens.copy(), logits.copy()))
        logits[:, 1::2] = -np.inf
        return logits

    for temperature in (0.0, 5.0):
        seen.clear()
        out = model.generate(TOKENS[:, :3], 5, temperature, logits_processor=even)
        assert (out[:, 3:] % 2 == 0).all() and len(seen) == 5
        for tokens, logits in seen:
            np.testing.assert_array_equal(tokens, out[:, :tokens.shape[1]])
            np.testing.assert_allclose(logits, model.forward(tokens)[0][:, -1], rtol=1e-9)
    assert len({*out[:, 3:].ravel()}) > 2
    for processor in (lambda tokens, logits: logits[:, 1:], lambda tokens, logits: None):
        with pytest.raises(UserError, match="what logits_processor returns"):
            model.generate(TOKENS[:, :3], 1, logits_processor=processor)
    with pytest.raises(UserError, match="leave a token allowed"):
        model.generate(TOKENS[:, :3], 1, logits_processor=lambda tokens, logits: logits - np.inf)


def test_a_generator_of_ones_own_draws_the_tokens():
    model, rng = model_of(), np.random.default_rng(5)
    drawn = [model.generate(TOKENS[:, :3], 4, 3.0, rng=rng) for _ in range(2)]
    np.testing.assert_array_equal(drawn[0], model.generate(TOKENS[:, :3], 4, 3.0, seed=5))
    assert (drawn[0] != drawn[1]).any()


def test_a_read_that_ends_early_has_read_nothing(monkeypatch):
    model = model_of()
    reader = model.reader(3)
    reader.read(TOKENS[:, :2])

    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("npgpt.engine.kv_cache.model_forward", interrupted)
        reader.read(TOKENS[:, 2:4])
    assert_reads(model, reader.read(TOKENS[:, 2:4]), TOKENS, 2, 4)
    reader.tokens[:] = 0
    np.testing.assert_array_equal(reader.tokens, TOKENS[:, :4])


def test_a_row_that_has_ended_may_forbid_all_tokens():
    def allowed(tokens, logits):
        ended = (tokens[:, 3:] == 7).any(axis=1)
        logits[:, :7] = logits[:, 8:] = -np.inf
        logits[0, 3] = 100.0 if tokens.shape[1] < 5 else -np.inf
        return np.where(ended[:, None], -np.inf, logits)

    out = model_of().generate(TOKENS[:, :3], 4, eos_token_id=7, logits_processor=allowed)
    np.testing.assert_array_equal(out[:, 3:], [[3, 3, 7]] + [[7, 7, 7]] * 2)
