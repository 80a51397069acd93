"""The whole model: every variant's logits, loss and every gradient against torch; what the API promises."""

import copy
from unittest import mock

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, Trainer, TrainOptions, UserError, load
from npgpt.cli.main import main
from npgpt.data.tokenizers import CharTokenizer
from npgpt.training.metrics import read_metrics
from tests.cases import small_parts
from tests.conftest import traced
from tests.helpers.models import SMALL, VARIANTS, batch, model_of
from tests.torch_gpt import ours_and_torchs, torch_gpt, torch_loss, torch_parameters

EACH_VARIANT = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())


@EACH_VARIANT
def test_every_gradient_equals_torch(variant):
    model = model_of(variant)
    idx, targets = batch(model.config)
    (logits, loss, grads), (reference, reference_loss, tensors) = ours_and_torchs(model, idx, targets)
    np.testing.assert_allclose(logits, reference.detach().numpy(), rtol=1e-9, atol=1e-12)
    assert loss == pytest.approx(reference_loss.item(), rel=1e-12)
    assert list(grads) == list(tensors) == list(model.params)
    for name, tensor in tensors.items():
        scale = tensor.grad.abs().max().item()
        np.testing.assert_allclose(grads[name], tensor.grad.numpy(), rtol=1e-9, atol=1e-12 * scale, err_msg=name)


def padding(rows, time):
    """A mask (rows, 1, time, time) that hides the last token of a row, the last two of the next, and so on."""
    seen = np.arange(time) < time - np.arange(rows)[:, None] % 3                # (rows, time)
    return np.broadcast_to(np.where(seen, 0.0, -np.inf)[:, None, None, :], (rows, 1, time, time))


MASKS = {"of all entries": np.random.default_rng(8).standard_normal((6, 6)), "of the keys": padding(3, 6)[:, :, :1],
         "of each head": np.random.default_rng(9).standard_normal((1, 3, 6, 6))}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_a_mask_and_the_hidden_state_as_in_torch(mask, causal):
    """The loss, the last hidden state, and all gradients, of the loss and of that state."""
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    for options in ({"kernels": "reference"}, {"threads": 2}, {"threads": 2, "kernels": "numpy"}):
        model = model_of({"causal": causal, "tie_word_embeddings": False, "lm_head_bias": True}, **options)
        idx, targets = batch(model.config)
        tensors = torch_parameters(model.params)
        loss = torch_loss(torch_gpt(tensors, model.config, idx, mask=mask), targets)
        loss.backward()
        with small_parts(), mock.patch("npgpt.engine.cpu.number_of_shards", lambda *_: 2):
            ours, grads = model.loss_and_grads(idx, targets, mask=mask)
            assert model.evaluate(idx, targets, mask) == pytest.approx(loss.item(), rel=1e-12)
        assert [ours, model(idx, targets, mask=mask)[1]] == pytest.approx([loss.item()] * 2, rel=1e-12)
        expected = {name: tensor.grad.numpy() for name, tensor in tensors.items()}
        assert_close(grads, expected)
        assert_close(model.backward(), expected)

        tensors = torch_parameters(model.params)
        state = torch_gpt(tensors, model.config, idx, mask=mask, headless=True)
        dhidden = np.random.default_rng(9).standard_normal(state.shape)
        state.backward(torch.from_numpy(dhidden))
        hidden = model.hidden(idx, mask=mask)
        np.testing.assert_allclose(hidden, state.detach().numpy(), rtol=1e-9, atol=1e-12)
        assert_close(model.backward(dhidden), {name: np.zeros(tensor.shape) if tensor.grad is None else
                                               tensor.grad.numpy() for name, tensor in tensors.items()})


@pytest.mark.parametrize("options", [{"kernels": "reference"}, {"threads": 2}, {"threads": 2, "kernels": "numpy"}])
@pytest.mark.parametrize("causal", [True, False])
def test_positions_that_see_nothing_change_no_token(causal, options):
    """Padding before the tokens of a text, and in an encoder a text of nothing else. They would be NaN, and torch's
    are 0; the logits of tokens, the loss, and all gradients are torch's. B = T, so the mask could be read as (T, T)."""
    model = model_of({"causal": causal}, **options)
    idx, targets = batch(model.config, rows=6)
    padded = np.arange(6) < np.array([[2], [0], [3 if causal else 6], [1], [0], [4]])       # (B, T)
    targets[padded] = -1
    tensors = torch_parameters(model.params)
    logits = torch_gpt(tensors, model.config, idx, mask=np.where(padded, -np.inf, 0.0)[:, None, None])
    loss = torch_loss(logits, targets)
    loss.backward()
    with small_parts():
        ours, grads = model.loss_and_grads(idx, targets, mask=(~padded).astype(np.int64))
    assert [ours, model.evaluate(idx, targets, (~padded).astype("u1"))] == pytest.approx([loss.item()] * 2, rel=1e-12)
    assert_close(grads, {name: tensor.grad.numpy() for name, tensor in tensors.items()})
    found = model(idx, mask=~padded)[0]
    np.testing.assert_allclose(found[~padded], logits.detach().numpy()[~padded], rtol=1e-9, atol=1e-12)
    assert np.isfinite(found).all()


def assert_close(grads, expected):
    """Compare gradients to 1e-9 of their largest value; the names are in the same order."""
    assert list(grads) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(grads[name], array, rtol=1e-9, atol=1e-12 * max(1.0, abs(array).max()), err_msg=name)


@EACH_VARIANT
def test_the_cpu_engine_equals_the_reference_engine(variant):
    """On any number of threads and shards; with dropout only for one shard, because each draws its own masks."""
    without = {**variant, "dropout": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "mlp_pdrop": 0.0}
    for n_threads, shards, kernels in ((2, 1, "auto"), (3, 1, "numpy"), (2, 2, "auto"), (8, 5, "numpy")):
        fields = variant if shards == 1 else without
        reference = model_of(fields, kernels="reference", threads=2)
        model = model_of(fields, kernels=kernels, threads=n_threads)
        idx, targets = batch(model.config, rows=5)
        targets[4] = -1                 # a shard whose targets are all ignored
        expected, expected_grads = reference.loss_and_grads(idx, targets, np.random.default_rng(1))
        with small_parts(), mock.patch("npgpt.engine.cpu.number_of_shards", lambda *_, n=shards: n):
            loss, grads = model.loss_and_grads(idx, targets, np.random.default_rng(1))
            assert model.evaluate(idx, targets) == pytest.approx(reference.evaluate(idx, targets), rel=1e-12)
        assert isinstance(loss, float) and loss == pytest.approx(expected, rel=1e-12)
        assert_close(grads, expected_grads)


@pytest.mark.parametrize("options", [{"kernels": "reference"}, {"threads": 2}], ids=str)
def test_evaluation_and_prompts_keep_no_caches(options):
    """They need the memory of about one layer of six; a forward with caches needs all."""
    model = GPT(GPTConfig(vocab_size=65, block_size=128, n_layer=6, n_head=4, n_embd=64), **options)
    idx, targets = batch(model.config, rows=4, time=128)
    keeping = traced(lambda: model.engine.run(idx, targets, None, 4 * 128, None))[1]
    assert traced(lambda: model.evaluate(idx, targets))[1] < keeping / 3
    read = model.engine.reader(4).read      # whose keys and values are allocated here
    assert traced(lambda: read(idx))[1] < keeping / 3


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_is_an_alias_that_iteration_leaves_out(tied):
    model = model_of({"tie_word_embeddings": tied})
    model.forward(*batch(model.config))
    for mapping in (model.params, model.backward()):
        assert ("lm_head.weight" in list(mapping)) == (not tied)
    assert "lm_head.weight" in model.params and "lm_head.bias" not in model.params
    model.params["lm_head.weight"] = 2.0
    assert (model.params["lm_head.weight"] == 2.0).all() and (model.params["wte.weight"] == 2.0).all() == tied
    assert len(model.params) == len(dict(model.params)) == len(list(model.params))


@pytest.mark.parametrize("variant", ["default", "untied head", "no final layernorm"])
def test_scores_are_torchs_log_softmax_and_their_mean_the_loss(variant):
    torch = pytest.importorskip("torch", reason="the oracle")
    model = model_of(VARIANTS[variant])
    idx = np.random.default_rng(0).integers(0, 11, (3, 9))          # block_size + 1 tokens
    scores = model.score(idx)
    logits = torch_gpt(torch_parameters(model.params), model.config, idx[:, :-1])
    expected = torch.log_softmax(logits, -1).gather(-1, torch.from_numpy(idx[:, 1:, None]))[..., 0]
    np.testing.assert_allclose(scores, expected.detach().numpy(), rtol=1e-9, atol=1e-12)
    assert -scores.mean() == pytest.approx(model.evaluate(idx[:, :-1], idx[:, 1:]), rel=1e-12)
    with pytest.raises(UserError, match="causal"):
        GPT(GPTConfig(**SMALL, causal=False)).score(idx)


def trained(**options):
    trainer = Trainer(GPT(GPTConfig(**SMALL), dtype="float64"), np.arange(150) % 11, np.arange(70) % 11,
                      TrainOptions(batch_size=2, max_iters=4, eval_interval=2, eval_iters=1, dtype="float64",
                                   log_interval=1, lr_decay_iters=0, warmup_iters=0), **options)
    before = trainer.model.params.flat.copy()
    assert trainer.run() is True and not (trainer.model.params.flat == before).all()
    return trainer


@pytest.mark.parametrize("tokenizer", [CharTokenizer("abcdefghijk"), None])
def test_load_gives_back_the_run_of_a_trainer(tmp_path, tokenizer):
    trainer = trained(out_dir=tmp_path / "run", tokenizer=tokenizer)
    assert [record["step"] for record in read_metrics(tmp_path / "run") if "loss" in record] == [1, 2, 3, 4]
    model, loaded = load(tmp_path / "run", which="latest")
    assert model.config == trainer.model.config and model.dtype == "float64"
    assert (model.params.flat == trainer.model.params.flat).all()
    if tokenizer:
        assert loaded.decode(loaded.encode("badge")) == "badge"
    else:
        assert loaded is None
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "exported")]) == 0
    assert (tmp_path / "exported/tokenizer.json").exists() == bool(tokenizer)


@pytest.mark.parametrize("fields", [
    {"kernels": "reference"}, {"kernels": "numpy", "freeze": "wte"},
    pytest.param({"kernels": "xla"}, marks=pytest.mark.slow)])
def test_a_copy_of_a_model_is_its_own(fields):
    """Such as a moving average of the weights."""
    model = GPT(GPTConfig(**SMALL), **fields)
    AdamW(model.params, engine=model.engine).step(model.loss_and_grads(*batch(model.config))[1])
    copied, before = copy.deepcopy(model), model.params.flat.copy()
    assert (copied.params.flat == before).all() and copied.params.frozen == model.params.frozen
    assert copied.engine.kernels == model.engine.kernels
    AdamW(copied.params, engine=copied.engine).step(copied.loss_and_grads(*batch(model.config))[1])
    assert (model.params.flat == before).all() and (copied.params.flat != before).any()
