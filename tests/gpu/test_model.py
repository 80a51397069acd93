"""Models on a GPU against the CPU in float64: losses, every gradient, training steps, dropout,
generation.
"""

import functools
import math

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig
from npgpt.arrays import to_host
from npgpt.model.block import read_block
from tests.cases import MODERN, train_step
from tests.gpu.conftest import WITHIN, model_on_gpu

SIZES = {"vocab_size": 65, "block_size": 100, "n_layer": 2, "n_head": 4, "n_embd": 128}
OTHER = {"bias": False, "tie_word_embeddings": False, "activation": "gelu", "causal": False}
GPT2 = {"vocab_size": 50257, "block_size": 1024, "n_layer": 2, "n_head": 12, "n_embd": 768}
MODELS = {  # fields, and the size of a batch
    "small": (SIZES, 3, 77),
    "other choices": ({**SIZES, **OTHER, "vocab_size": 700, "n_head": 2}, 2, 33),
    "another block": ({**SIZES, "bias": False, "block": read_block(MODERN)}, 3, 77),
    "GPT-2": (GPT2, 2, 1024),  # XLA runs attention and the loss in blocks
}
SMALL = GPTConfig(**MODELS["small"][0])
BOTH = pytest.mark.parametrize("kernels", ["auto", "xla"])


def batches(n, config, B, T):
    """n pairs (idx, targets)."""
    some = np.random.default_rng(0).integers(0, config.vocab_size, (n, 2, B, T))
    some[:, 1, 0, :3] = -1
    return [tuple(batch) for batch in some]


@functools.cache
def on_cpu(name):
    """The parameters of a model, a batch, and its loss and gradients, in float64."""
    fields, B, T = MODELS[name]
    model = GPT(GPTConfig(**fields), seed=0, dtype="float64")
    rng = np.random.default_rng(0)
    for each, shape in model.params.shapes.items():  # biases and gains of unit scale, too
        if len(shape) == 1:
            model.params[each] = rng.standard_normal(shape)
    (batch,) = batches(1, model.config, B, T)
    return model.params, batch, *model.loss_and_grads(*batch)


@pytest.mark.parametrize(("kernels", "dtype"), WITHIN, ids=map(" ".join, WITHIN))
@pytest.mark.parametrize("name", MODELS)
def test_gradients(name, kernels, dtype):
    there, within = (
        model_on_gpu(GPTConfig(**MODELS[name][0]), kernels, dtype),
        WITHIN[kernels, dtype],
    )
    params, batch, loss, grads = on_cpu(name)
    there.params.flat[:] = there.params.xp.asarray(params.flat.astype(there.params.dtype))
    found_loss, found = there.loss_and_grads(*batch)
    assert float(found_loss) == pytest.approx(loss, rel=within)
    assert float(there.evaluate(*batch)) == pytest.approx(loss, rel=within)
    errors = {name: np.linalg.norm(to_host(found[name]) - grads[name]) for name in grads}
    norm = math.hypot(*map(np.linalg.norm, grads.values()))
    assert math.hypot(*errors.values()) < within * norm
    for name, gradient in grads.items():  # none may hide behind the large ones
        floor = 1e-3 * norm * math.sqrt(gradient.size / params.size)
        assert errors[name] < 10 * within * (np.linalg.norm(gradient) + floor), name


@BOTH
def test_training_steps(kernels):
    """Of two micro-batches each, clipped. A large eps, because the gradient of the keys' biases is
    0 but for rounding.
    """
    there, here = model_on_gpu(SMALL, kernels, "float32"), GPT(SMALL, seed=0, dtype="float64")
    start, pair = here.params.flat.copy(), batches(2, SMALL, 3, 77)
    optimizers = [
        AdamW(model.params, lr=1e-2, eps=1e-3, engine=model.engine) for model in (here, there)
    ]
    for step in range(4):
        rngs = []
        for each in optimizers:
            rngs.append([each.engine.dropout_rng(0, step, i) for i in range(2)])
        (loss, norm), found = (
            train_step(each, pair, own, 2 * (3 * 77 - 3), 0.1)
            for each, own in zip(optimizers, rngs, strict=True)
        )
        assert [float(value) for value in found] == pytest.approx([loss, norm], rel=1e-4)
    error = to_host(there.params.flat) - here.params.flat
    assert np.linalg.norm(error) < 1e-3 * np.linalg.norm(here.params.flat - start)


@BOTH
def test_dropout(kernels):
    """The masks depend on the seed, the step and the micro-batch, and on nothing else. Equal
    arguments, equal bits.
    """
    config = GPTConfig(**MODELS["small"][0], dropout=0.2)
    model, batch, losses = model_on_gpu(config, kernels, "float32"), batches(1, config, 3, 77), []
    optimizer = AdamW(model.params, lr=0.0, engine=model.engine)
    for numbers in ((1, 0, 0), (1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)):
        rngs = [model.engine.dropout_rng(*numbers)]
        loss, norm = train_step(optimizer, batch, rngs, 3 * 77 - 3, 1.0)
        losses.append((float(loss), float(norm)))
    assert losses[0] == losses[1]
    assert len({round(loss, 4) for loss, _ in losses}) == 4


@BOTH
def test_generation(kernels):
    """More than the context holds."""
    config = GPTConfig(vocab_size=65, block_size=32, n_layer=2, n_head=2, n_embd=64)
    there, here = model_on_gpu(config, kernels, "float64"), GPT(config, seed=0, dtype="float64")
    idx = np.random.default_rng(0).integers(0, 65, (3, 5))
    np.testing.assert_array_equal(there.generate(idx, 60, seed=1), here.generate(idx, 60, seed=1))


def smoothed(logits):
    """A loss with the uniform distribution as the true one; np's functions take CuPy's arrays."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return -logs.mean(), (np.exp(logs) - 1.0 / logs.shape[-1]) / (logits.size / logits.shape[-1])


def doors(model, batch):
    """What an experimenter uses: losses, gradients, logits and tokens, by name, on the host."""
    idx, targets = batch
    weights = np.random.default_rng(1).standard_normal(idx.shape)
    found = {}
    for name, (loss, grads) in {
        "own": model.loss_and_grads(idx, dlogits=smoothed),
        "weights": model.loss_and_grads(idx, targets, weights=weights),
    }.items():
        found |= {f"{name} loss": loss} | {f"{name} {each}": grads[each] for each in grads}
    logits, _ = model.forward(idx, add={"h.0.x_out": np.ones(model.config.n_embd)})
    grads = model.backward(dlogits=smoothed(logits)[1])
    found |= {f"added {each}": gradient for each, gradient in grads.items()}
    reader = model.reader(3)
    reader.read(idx[:, :20])
    reader.back(5)
    reader.reorder([2, 0])
    found["read"] = reader.read(idx[[2, 0], 15:40])
    even = {"logits_processor": lambda _, logits: np.where(np.arange(65) % 2, -np.inf, logits)}
    found["tokens"] = model.generate(idx[:, :9], 20, temperature=0.0, **even)
    return {name: to_host(each) for name, each in found.items()}


@pytest.mark.parametrize(
    ("kernels", "dtype", "within"),
    [("auto", "float64", 1e-9), ("auto", "float32", 1e-4), ("xla", "float32", 1e-4)],
)
def test_the_experimenters_doors(kernels, dtype, within):
    params, batch, *_ = on_cpu("small")
    found = []
    for model in (GPT(SMALL, 0, "float64"), model_on_gpu(SMALL, kernels, dtype)):
        model.params.flat[:] = model.params.xp.asarray(params.flat.astype(model.params.dtype))
        found.append(doors(model, batch))
    expected, there = found
    assert expected.keys() == there.keys()
    for name, value in expected.items():
        error = np.linalg.norm(there[name] - value) / np.linalg.norm(value)
        assert error < within, name
