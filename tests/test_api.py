"""The whole model: every variant's logits, loss and every gradient against torch; what the API
promises.
"""

import copy
from unittest import mock

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, Trainer, TrainOptions, load
from npgpt.cli.main import main
from npgpt.data.tokenizers import CharTokenizer
from tests.cases import small_parts
from tests.conftest import traced
from tests.helpers.close import assert_close
from tests.helpers.models import SMALL, VARIANTS, batch, model_of
from tests.helpers.runs import refusing
from tests.torch_gpt import drawn, grads_of, torch_gpt, torch_parameters, torchs_loss_and_grads

EACH_VARIANT = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())


@EACH_VARIANT
def test_every_gradient_equals_torch(variant):
    """With the same dropout."""
    model = model_of(variant)
    idx, targets = batch(model.config)
    logits, loss = model.forward(idx, targets, rng=np.random.default_rng(5))
    grads = model.backward()
    masks = drawn(model.config, *idx.shape, np.float64, np.random.default_rng(5))
    expected, expected_loss, expected_grads = torchs_loss_and_grads(
        model.params, model.config, idx, targets, dropout_masks=masks
    )
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    assert_close(logits, expected)
    assert_close(grads, expected_grads)
    assert [*grads] == [*model.params]


SEEN = np.arange(6) < np.array([[6], [5], [4]])  # (B, T): keys that are not padding
MASKS = {
    "of the keys": (np.where(SEEN, 0.0, -np.inf)[:, None, None], True),
    "of each head": (np.random.default_rng(9).standard_normal((1, 3, 6, 6)), False),
}
ENGINES = [{"kernels": "reference"}, {"threads": 2}, {"threads": 2, "kernels": "numpy"}]


@pytest.mark.parametrize("options", ENGINES, ids=str)
@pytest.mark.parametrize(("mask", "causal"), MASKS.values(), ids=MASKS)
def test_a_mask_and_the_hidden_state_as_in_torch(mask, causal, options):
    """The loss, the last hidden state, and all gradients, of the loss and of that state."""
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    fields = {"causal": causal, "tie_word_embeddings": False, "lm_head_bias": True}
    model = model_of(fields, **options)
    params, config = model.params, model.config
    idx, targets = batch(config)
    _, loss, expected = torchs_loss_and_grads(params, config, idx, targets, mask=mask)
    with small_parts(), mock.patch("npgpt.engine.cpu.number_of_shards", lambda *_: 2):
        ours, grads = model.loss_and_grads(idx, targets, mask=mask)
        evaluated = model.evaluate(idx, targets, mask)
    losses = [ours, evaluated, model(idx, targets, mask=mask)[1]]
    assert losses == pytest.approx([loss] * 3, rel=1e-12)
    assert_close(grads, expected)
    assert_close(model.backward(), expected)

    tensors = torch_parameters(params)
    state = torch_gpt(tensors, config, idx, mask=mask, headless=True)
    dhidden = np.random.default_rng(9).standard_normal(state.shape)
    state.backward(torch.from_numpy(dhidden))
    assert_close(model.hidden(idx, mask=mask), state)
    assert_close(model.backward(dhidden), grads_of(tensors))


@pytest.mark.parametrize("options", ENGINES, ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_positions_that_see_nothing_change_no_token(causal, options):
    """Padding before the tokens of a text, and in an encoder a text of nothing else. They would be
    NaN, and torch's are 0. B = T, so the mask could be read as (T, T).
    """
    model = model_of({"causal": causal}, **options)
    idx, targets = batch(model.config, rows=6)
    padded = np.arange(6) < np.array([[2], [0], [3 if causal else 6], [1], [0], [4]])  # (B, T)
    targets[padded] = -1
    mask = np.where(padded, -np.inf, 0.0)[:, None, None]
    logits, loss, expected = torchs_loss_and_grads(
        model.params, model.config, idx, targets, mask=mask
    )
    with small_parts():
        ours, grads = model.loss_and_grads(idx, targets, mask=(~padded).astype(np.int64))
    evaluated = model.evaluate(idx, targets, ~padded)
    assert [ours, evaluated] == pytest.approx([loss] * 2, rel=1e-12)
    assert_close(grads, expected)
    found, _ = model(idx, mask=~padded)
    assert_close(found[~padded], logits[~padded])
    assert np.isfinite(found).all()


SHARED = [(2, 1, "auto"), (2, 2, "auto"), (8, 5, "numpy")]


@EACH_VARIANT
def test_the_cpu_engine_equals_the_reference_engine(variant):
    """On any number of threads and shards; with dropout only for one shard, because each draws its
    own masks.
    """
    for threads, shards, kernels in SHARED:
        rng = [np.random.default_rng(1) if shards == 1 else None for _ in range(2)]
        reference = model_of(variant, kernels="reference", threads=2)
        model = model_of(variant, kernels=kernels, threads=threads)
        idx, targets = batch(model.config, rows=5)
        targets[4] = -1  # a shard whose targets are all ignored
        expected, expected_grads = reference.loss_and_grads(idx, targets, rng[0])
        with small_parts(), mock.patch("npgpt.engine.cpu.number_of_shards", lambda *_, n=shards: n):
            loss, grads = model.loss_and_grads(idx, targets, rng[1])
            evaluated = model.evaluate(idx, targets)
        assert evaluated == pytest.approx(reference.evaluate(idx, targets), rel=1e-12)
        assert isinstance(loss, float) and loss == pytest.approx(expected, rel=1e-12)
        assert_close(grads, expected_grads)


def test_evaluation_and_prompts_keep_no_caches():
    """They need the memory of about one layer of six; a forward with caches needs all."""
    model = GPT(GPTConfig(vocab_size=65, block_size=128, n_layer=6, n_head=4, n_embd=64), threads=2)
    idx, targets = batch(model.config, rows=4, time=128)

    def peak(call):
        call()  # the first call compiles the loops, which needs megabytes of its own
        return traced(call)[1]

    keeping = peak(lambda: model.engine.loss_and_grads([(idx, targets)], [None], 4 * 128))
    assert peak(lambda: model.evaluate(idx, targets)) < keeping / 3
    readers = [model.engine.reader(4) for _ in range(2)]  # keys and values are allocated here
    assert peak(lambda: readers.pop().read(idx)) < keeping / 3


def test_micro_batches_need_the_memory_of_one():
    """The caches of one are freed before the forward of the next."""
    config = GPTConfig(vocab_size=65, block_size=64, n_layer=2, n_head=4, n_embd=32)
    model = GPT(config, kernels="reference")
    pair = batch(config, rows=8, time=64)

    def peak(n):
        return traced(lambda: model.engine.loss_and_grads([pair] * n, [None] * n, 512))[1]

    peak(1)  # the first call imports modules
    assert peak(3) < 1.2 * peak(1)


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_is_an_alias_that_iteration_leaves_out(tied):
    model = model_of({"tie_word_embeddings": tied})
    model.forward(*batch(model.config))
    for mapping in (model.params, model.backward()):
        assert ("lm_head.weight" in list(mapping)) == (not tied)
    assert "lm_head.weight" in model.params and "lm_head.bias" not in model.params
    model.params["lm_head.weight"] = 2.0
    assert (model.params["wte.weight"] == 2.0).all() == tied
    assert len(model.params) == len(list(model.params))


def test_scores_are_torchs_log_softmax_and_their_mean_the_loss():
    torch = pytest.importorskip("torch", reason="the oracle")
    model = model_of({"tie_word_embeddings": False})
    idx = np.random.default_rng(0).integers(0, 11, (3, 9))  # block_size + 1 tokens
    scores = model.score(idx)
    logits = torch_gpt(torch_parameters(model.params), model.config, idx[:, :-1])
    expected = torch.log_softmax(logits, -1).gather(-1, torch.from_numpy(idx[:, 1:, None]))[..., 0]
    assert_close(scores, expected)
    assert -scores.mean() == pytest.approx(model.evaluate(idx[:, :-1], idx[:, 1:]), rel=1e-12)
    with refusing("causal"):
        GPT(GPTConfig(**SMALL, causal=False)).score(idx)


OPTIONS = TrainOptions(
    batch_size=2, max_iters=4, eval_interval=2, eval_iters=1, dtype="float64", log_interval=1
)


@pytest.mark.parametrize("tokenizer", [CharTokenizer("abcdefghijk"), None])
def test_load_gives_back_the_run_of_a_trainer(tmp_path, tokenizer):
    model, run = GPT(GPTConfig(**SMALL), dtype="float64"), tmp_path / "run"
    tokens, before = np.arange(150) % 11, model.params.flat.copy()
    assert Trainer(model, tokens, tokens[:70], OPTIONS, out_dir=run, tokenizer=tokenizer).run()
    loaded, encoder = load(run, which="latest")
    assert loaded.config == model.config and loaded.dtype == "float64"
    assert (loaded.params.flat == model.params.flat).all() and (loaded.params.flat != before).any()
    assert encoder.decode(encoder.encode("badge")) == "badge" if tokenizer else encoder is None
    assert main(["export", str(run), "--out", str(tmp_path / "exported")]) == 0
    assert (tmp_path / "exported/tokenizer.json").exists() == bool(tokenizer)


@pytest.mark.parametrize(
    "fields",
    [
        {"kernels": "reference"},
        {"kernels": "numpy", "freeze": "wte"},
        pytest.param({"kernels": "xla"}, marks=pytest.mark.slow),
    ],
)
def test_a_copy_of_a_model_is_its_own(fields):
    """Such as a moving average of the weights."""

    def train(model):
        grads = model.loss_and_grads(*batch(model.config))[1]
        AdamW(model.params, engine=model.engine).step(grads)

    model = GPT(GPTConfig(**SMALL), **fields)
    train(model)
    copied, before = copy.deepcopy(model), model.params.flat.copy()
    assert (copied.params.flat == before).all() and copied.params.frozen == model.params.frozen
    assert copied.engine.kernels == model.engine.kernels
    train(copied)
    assert (model.params.flat == before).all() and (copied.params.flat != before).any()
