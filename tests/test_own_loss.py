"""A loss of the user's own: by every engine, in shards, with dropout and masks, against torch."""

from unittest import mock

import numpy as np
import pytest

from npgpt import UserError
from tests.helpers.models import batch, model_of
from tests.test_api import assert_close
from tests.torch_gpt import drawn, torch_gpt, torch_parameters

ENGINES = {
    "reference": {"kernels": "reference"},
    "numpy": {"kernels": "numpy", "threads": 2},
    "numba": {"kernels": "numba", "threads": 3},
    "xla": {"kernels": "xla"},
}
VARIANT = {"dropout": 0.2, "lm_head_bias": True}
EACH_ENGINE = pytest.mark.parametrize(
    "engine",
    [pytest.param(name, marks=pytest.mark.slow) if name == "xla" else name for name in ENGINES],
)


def smoothed(logits, targets, smoothing=0.1):
    """Label smoothing: the true distribution is mixed with the uniform one."""
    V, counted = logits.shape[-1], (targets != -1)[..., None]
    shifted = logits - logits.max(axis=-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    true = (1 - smoothing) * np.eye(V)[targets] + smoothing / V
    loss = -(counted * true * logs).sum() / counted.sum()
    return loss, counted * (np.exp(logs) - true) / counted.sum()


def z_loss(logits, targets, scale=0.3):
    """The mean of scale log(Z)^2, where Z is the softmax's divisor; it writes to what it is given.
    """
    logits -= (largest := logits.max(axis=-1, keepdims=True))
    exps = np.exp(logits)
    log_z = np.log(exps.sum(axis=-1, keepdims=True)) + largest
    probs = exps / exps.sum(axis=-1, keepdims=True)
    logits[...] = 2 * scale * log_z * probs / targets.size
    return scale * (log_z**2).mean(), logits


def torch_smoothed(torch, logits, targets):
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.tensor(targets).flatten(), ignore_index=-1, label_smoothing=0.1)


def torch_z_loss(torch, logits, targets):
    return 0.3 * (logits.logsumexp(dim=-1) ** 2).mean()


@EACH_ENGINE
@pytest.mark.parametrize("ours, theirs", [(smoothed, torch_smoothed), (z_loss, torch_z_loss)],
                         ids=["label smoothing", "z-loss"])
def test_a_loss_of_ones_own_equals_torch(ours, theirs, engine):
    """With dropout, but with XLA, whose masks are others; loss_and_grads, and backward(dlogits)."""
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    model = model_of(VARIANT, **ENGINES[engine])
    idx, targets = batch(model.config)
    calls = []

    def function(logits):
        calls.append(logits.shape)
        return ours(logits, targets)

    def rng():
        return None if engine == "xla" else np.random.default_rng(5)

    tensors, shards = torch_parameters(model.params), 1 if engine in ("reference", "xla") else 2
    parts = [slice(0, 1), slice(1, 3)] if shards == 2 else [slice(0, 3)]
    rngs = [None] if engine == "xla" else [rng()] if shards == 1 else rng().spawn(2)
    logits = torch.cat([
        torch_gpt(tensors, model.config, idx[part],
                  drawn(model.config, *idx[part].shape, np.float64, each) if each else None)
        for part, each in zip(parts, rngs, strict=True)])
    expected = theirs(torch, logits, targets)
    expected.backward()
    expected_grads = {name: tensor.grad.numpy() for name, tensor in tensors.items()}
    with mock.patch("npgpt.engine.cpu.number_of_shards", lambda *_: shards):
        loss, grads = model.loss_and_grads(idx, rng=rng(), dlogits=function)
    assert loss == pytest.approx(expected.item(), rel=1e-12) and calls == [(3, 6, 11)]
    assert_close(grads, expected_grads)
    if shards == 1:         # forward runs the batch as a whole
        model.forward(idx, targets, rng=rng())      # whose loss backward then leaves out
        logits, _ = model.forward(idx, rng=rng())
        assert_close(model.backward(dlogits=function(logits.copy())[1]), expected_grads)


@EACH_ENGINE
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_weighted_targets_equal_torch(dtype, engine):
    """Weights of both signs and 0, an ignored target, a mask, a divisor of one's own."""
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    model = model_of({"tie_word_embeddings": False}, **ENGINES[engine])
    idx, targets = batch(model.config)
    weights = np.random.default_rng(3).standard_normal(targets.shape).astype(dtype)
    weights[1, 2] = 0
    mask = np.random.default_rng(4).standard_normal((6, 6))
    tensors = torch_parameters(model.params)
    logits = torch_gpt(tensors, model.config, idx, mask=mask)
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.tensor(targets).flatten(), ignore_index=-1, reduction="none")
    total = (losses * torch.tensor(weights.astype("float64")).flatten()).sum()
    total.backward()
    for count, divisor in ((None, (targets != -1).sum()), (2.5, 2.5)):
        loss, grads = model.loss_and_grads(idx, targets, None, count, mask, weights=weights)
        assert loss == pytest.approx(total.item() / divisor, rel=1e-9)
        assert_close(grads, {name: each.grad.numpy() / divisor for name, each in tensors.items()})


@pytest.mark.parametrize("dlogits, message", [
    (lambda logits: logits, "returns must be a number, the loss, and dlogits"),
    (lambda logits: (logits, logits), "returns must be a number, the loss, and dlogits"),
    (lambda logits: (None, logits), "returns must be a number, the loss, and dlogits"),
    (lambda logits: (1.0, logits[:1]), r"shape of dlogits must be \(3, 6, 11\)"),
    (3.0, "must be a function"),
])
def test_a_function_that_does_not_fit_is_named(dlogits, message):
    model = model_of({}, kernels="reference")
    idx, _ = batch(model.config)
    with pytest.raises(UserError, match=message):
        model.loss_and_grads(idx, dlogits=dlogits)


def test_the_arguments_that_exclude_each_other():
    model = model_of({})
    idx, targets = batch(model.config)
    for named, message in (
        ({}, "needs targets"),
        ({"targets": targets, "dlogits": smoothed}, "out"),
        ({"count": 2, "dlogits": smoothed}, "out"),
        ({"targets": targets, "weights": [1.0]}, "shape of weights"),
        ({"targets": targets, "weights": targets * np.nan}, "finite"),
    ):
        with pytest.raises(UserError, match=message):
            model.loss_and_grads(idx, **named)
    model.hidden(idx)
    for named in ({}, {"dlogits": 0.0}, {"dhidden": 0.0, "dlogits": 0.0}):
        with pytest.raises(UserError, match="dhidden after hidden"):
            model.backward(**named)
    model.forward(idx)
    with pytest.raises(UserError, match="forward with targets"):
        model.backward()
    with pytest.raises(UserError, match=r"the shape of dlogits must be \(3, 6, 11\)"):
        model.backward(dlogits=np.ones((3, 6, 1)))


CLOSED = """from npgpt.model.transformer import block_backward, block_forward
from npgpt.model.transformer import block_parameters as parameters

def forward(x, p, config, layer, mask, dropout_masks, ops):
    x_out, cache = block_forward(x, p, config, layer, mask, dropout_masks, ops)
    return x_out, lambda: cache

def backward(dx_out, cache, ops):
    return block_backward(dx_out, cache(), ops)
"""


@pytest.mark.slow
def test_a_cache_that_no_program_returns_is_refused(tmp_path):
    """By XLA, which trains such a block on the plain loss."""
    (tmp_path / "closed.py").write_text(CLOSED)
    model = model_of({}, kernels="xla", block=tmp_path / "closed.py")
    idx, targets = batch(model.config)
    assert np.isfinite(model.loss_and_grads(idx, targets)[0])
    with pytest.raises(UserError, match="a cache of arrays in tuples, lists and dicts with XLA"):
        model.loss_and_grads(idx, targets, weights=np.ones(idx.shape))
    with pytest.raises(UserError, match="rng with XLA must be None, or what engine.dropout_rng"):
        model.loss_and_grads(idx, targets, np.random.default_rng(0))


@pytest.mark.parametrize("rng", [0, True, np.zeros((6, 6)), (1, 2, 3), np.random.RandomState(0)])
def test_what_draws_no_dropout_is_refused(rng):
    """A mask in the place of an rng would be ignored."""
    model = model_of({})
    idx, targets = batch(model.config)
    for call in (model, model.loss_and_grads):
        with pytest.raises(UserError, match="rng must be a np.random.Generator"):
            call(idx, targets, rng)
    with pytest.raises(UserError, match="rng must be a np.random.Generator"):
        model.generate(idx, 1, rng=rng)
