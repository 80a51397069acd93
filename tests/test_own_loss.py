"""A loss of the user's own: by every engine, in shards, with dropout and masks, against torch."""

from unittest import mock

import numpy as np
import pytest

from tests.helpers.close import assert_close
from tests.helpers.models import batch, model_of
from tests.helpers.runs import refusing
from tests.torch_gpt import grads_of, torch_gpt, torch_parameters

ENGINES = {
    "reference": {"kernels": "reference"},
    "numpy": {"kernels": "numpy", "threads": 2},
    "numba": {"kernels": "numba", "threads": 3},
    "xla": {"kernels": "xla"},
}
EACH_ENGINE = pytest.mark.parametrize(
    "engine", ["reference", "numpy", "numba", pytest.param("xla", marks=pytest.mark.slow)]
)


def smoothed(logits, targets, smoothing=0.1):
    """Label smoothing: the true distribution is mixed with the uniform one; writes to logits."""
    V, counted = logits.shape[-1], (targets != -1)[..., None]
    logits -= logits.max(axis=-1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    true = (1 - smoothing) * np.eye(V)[targets] + smoothing / V
    loss = -(counted * true * logs).sum() / counted.sum()
    logits[...] = counted * (np.exp(logs) - true) / counted.sum()
    return loss, logits


@EACH_ENGINE
def test_a_loss_of_ones_own_equals_torch(engine):
    """loss_and_grads, in two shards by the engines that have them, and backward(dlogits)."""
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    model = model_of({"lm_head_bias": True}, **ENGINES[engine])
    idx, targets = batch(model.config)
    tensors = torch_parameters(model.params)
    expected = torch.nn.functional.cross_entropy(
        torch_gpt(tensors, model.config, idx).flatten(0, 1),
        torch.tensor(targets).flatten(),
        ignore_index=-1,
        label_smoothing=0.1,
    )
    expected.backward()
    expected_grads = grads_of(tensors)
    calls = []

    def function(logits):
        calls.append(logits.shape)
        return smoothed(logits, targets)

    with mock.patch("npgpt.engine.cpu.number_of_shards", lambda *_: 2):
        loss, grads = model.loss_and_grads(idx, dlogits=function)
    assert loss == pytest.approx(expected.item(), rel=1e-12) and calls == [(3, 6, 11)]
    assert_close(grads, expected_grads)
    model.forward(idx, targets)  # whose loss backward then leaves out
    logits, _ = model.forward(idx)
    assert_close(model.backward(dlogits=function(logits.copy())[1]), expected_grads)


@pytest.mark.parametrize("engine", ["reference", "numpy", "numba"])
def test_a_loss_of_ones_own_with_dropout_is_that_of_the_plain_loss(engine):
    """If it is the cross-entropy. Each of two shards draws its own masks."""
    model = model_of({"dropout": 0.2}, **ENGINES[engine])
    idx, targets = batch(model.config)
    with mock.patch("npgpt.engine.cpu.number_of_shards", lambda *_: 2):
        loss, grads = model.loss_and_grads(
            idx, rng=np.random.default_rng(5), dlogits=lambda logits: smoothed(logits, targets, 0.0)
        )
        expected, expected_grads = model.loss_and_grads(idx, targets, np.random.default_rng(5))
    assert loss == pytest.approx(expected, rel=1e-12)
    assert_close(grads, expected_grads)


@EACH_ENGINE
def test_weighted_targets_equal_torch(engine):
    """Weights of both signs and 0, an ignored target, a mask, a divisor of one's own."""
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    model = model_of({"tie_word_embeddings": False}, **ENGINES[engine])
    idx, targets = batch(model.config)
    rng = np.random.default_rng(3)
    weights = rng.standard_normal(targets.shape).astype("float32")
    weights[1, 2] = 0
    mask = rng.standard_normal((6, 6))
    tensors = torch_parameters(model.params)
    logits = torch_gpt(tensors, model.config, idx, mask=mask)
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.tensor(targets).flatten(), ignore_index=-1, reduction="none"
    )
    total = (losses * torch.tensor(weights.astype("float64")).flatten()).sum()
    total.backward()
    expected = grads_of(tensors)
    for count, divisor in ((None, (targets != -1).sum()), (2.5, 2.5)):
        loss, grads = model.loss_and_grads(idx, targets, None, count, mask, weights=weights)
        assert loss == pytest.approx(total.item() / divisor, rel=1e-9)
        assert_close(grads, {name: each / divisor for name, each in expected.items()})


@pytest.mark.parametrize(
    "dlogits, message",
    [
        (lambda logits: logits, "returns must be a number, the loss, and dlogits"),
        (lambda logits: (None, logits), "returns must be a number, the loss, and dlogits"),
        (lambda logits: (1.0, logits[:1]), r"shape of dlogits must be \(3, 6, 11\)"),
        (3.0, "must be a function"),
    ],
)
def test_a_function_that_does_not_fit_is_named(dlogits, message):
    model = model_of({}, kernels="reference")
    with refusing(message):
        model.loss_and_grads(batch(model.config)[0], dlogits=dlogits)


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
        with refusing(message):
            model.loss_and_grads(idx, **named)
    model.hidden(idx)
    with refusing("dhidden after hidden"):
        model.backward(dlogits=0.0)
    model.forward(idx)
    with refusing("forward with targets"):
        model.backward()
    with refusing(r"the shape of dlogits must be \(3, 6, 11\)"):
        model.backward(dlogits=np.ones((3, 6, 1)))


@pytest.mark.parametrize("rng", [0, np.zeros((6, 6)), (1, 2, 3)])
def test_what_draws_no_dropout_is_refused(rng):
    """A mask in the place of an rng would be ignored."""
    model = model_of({})
    idx, targets = batch(model.config)
    for call in (model, model.loss_and_grads):
        with refusing("rng must be a np.random.Generator"):
            call(idx, targets, rng)
