"""AdamW, clipping and the schedule against torch over 20 steps."""

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig
from npgpt.engine.reference import ReferenceEngine
from npgpt.engine.update import SLICE
from npgpt.errors import NotFiniteError
from npgpt.training.adamw import adamw_update
from npgpt.training.schedule import learning_rate
from tests.cases import CPU_KERNELS
from tests.torch_gpt import torch_parameters, unit_scale


def model_of(kernels="numpy"):
    config = GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=8)
    model = GPT(config, dtype="float64", threads=2, kernels=kernels)
    unit_scale(model.params)
    return model


GROUPS = {"h.*": 0.5, "wte": 0.1, "h.0": 2.0, "*.bias": 0.0, "h.0.ln_1.bias": 3, "ln_f": 0.25}
FACTORS = {"wte.weight": 0.1, "wpe.weight": 1.0, "h.0.ln_1.bias": 3.0}


def factor_of(name, groups):
    """Of several patterns in GROUPS the last counts."""
    if not groups or name in FACTORS:
        return FACTORS[name] if groups else 1.0
    if name.startswith("ln_f"):
        return 0.25
    return 0.0 if name.endswith("bias") else 2.0


@pytest.mark.parametrize(
    "kernels", [None, "reference", *CPU_KERNELS, pytest.param("xla", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("decay", "max_norm", "groups"),
    [("matrices", None, None), ("all", 1.0, None), ("matrices", 1.0, GROUPS), ("all", 1e6, GROUPS)],
)
@pytest.mark.parametrize("values", [SLICE, 50], ids=["one slice", "many slices"])
def test_twenty_steps_equal_torch(kernels, decay, max_norm, groups, values, monkeypatch):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    monkeypatch.setattr("npgpt.engine.update.SLICE", values)
    model = model_of(kernels or "numpy")
    params, engine = model.params, kernels and model.engine
    tensors = torch_parameters(params)
    reference = torch.optim.AdamW(
        [
            {"params": [tensor], "weight_decay": 0.1 * (decay == "all" or tensor.ndim == 2)}
            for tensor in tensors.values()
        ],
        betas=(0.9, 0.95),
    )
    optimizer = AdamW(params, weight_decay=0.1, engine=engine, decay=decay, groups=groups)
    rng = np.random.default_rng(0)
    for step in range(20):
        lr = learning_rate(step, 1e-2, 1e-3, 5, 15)
        scale = 10.0 ** rng.integers(-3, 2)
        grads = {name: scale * rng.standard_normal(array.shape) for name, array in params.items()}
        for (name, tensor), group in zip(tensors.items(), reference.param_groups, strict=True):
            tensor.grad = torch.tensor(grads[name])
            group["lr"] = lr * factor_of(name, groups)
        norm = torch.nn.utils.clip_grad_norm_(tensors.values(), max_norm or float("inf"))
        reference.step()
        found = optimizer.step(grads, max_norm, lr)
        assert float(found) == pytest.approx(norm.item(), rel=1e-12)
        for name, tensor in tensors.items():
            theirs = tensor.detach().numpy()
            np.testing.assert_allclose(params[name], theirs, rtol=1e-9, atol=1e-12, err_msg=name)


def test_schedule_equals_torchs_schedulers():
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    schedulers = torch.optim.lr_scheduler
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1e-3)
    warmup = schedulers.LinearLR(optimizer, 1 / 11, 1.0, total_iters=10)
    cosine = schedulers.CosineAnnealingLR(optimizer, 40, eta_min=1e-4)
    scheduler = schedulers.SequentialLR(optimizer, [warmup, cosine], milestones=[10])
    for step in range(51):
        [expected] = scheduler.get_last_lr()
        assert learning_rate(step, 1e-3, 1e-4, 10, 50) == pytest.approx(expected, rel=1e-9)
        optimizer.step()
        scheduler.step()


def test_schedule_ends():
    assert learning_rate(0, 1.0, 0.1, 0, 10) == 1.0
    assert learning_rate(10, 1.0, 0.1, 4, 10) == learning_rate(999, 1.0, 0.1, 4, 10) == 0.1
    assert learning_rate(999, 1.0, 0.1, 4, 0) == 1.0


@pytest.mark.parametrize("threads", [2, 7])
def test_the_bits_do_not_depend_on_the_threads(threads, monkeypatch):
    monkeypatch.setattr("npgpt.engine.update.SLICE", 50)
    monkeypatch.setattr("npgpt.engine.update.LEAST", 1)
    grads = model_of().params.zeros_like()
    grads.flat[:] = np.random.default_rng(0).standard_normal(grads.flat.size)
    updated = []
    for n in (1, threads):
        params = model_of().params
        AdamW(params, lr=0.1, engine=ReferenceEngine(params, n)).step(grads, max_norm=1.0)
        updated.append(params.flat)
    assert np.array_equal(*updated)


def test_a_gradient_that_is_not_finite_changes_nothing():
    params = model_of().params
    optimizer = AdamW(params)
    grads = params.zeros_like()
    for bad in (np.nan, np.inf):
        grads["ln_f.bias"] = bad
        before = params.flat.copy()
        with np.errstate(all="ignore"), pytest.raises(NotFiniteError):
            optimizer.step(grads, max_norm=1.0)
        assert (params.flat == before).all() and (optimizer.m.flat == 0).all() and optimizer.t == 0


def test_the_rule_returns_what_it_has_changed():
    """XLA, whose arrays cannot be written to, reads the results."""
    p, g, m, v = np.random.default_rng(0).random((4, 5))
    found = adamw_update(p, g, m, v, 0.1, 0.1, 1e-8, 0.9, 0.95, 0.1)
    assert len(found) == 3 and all(map(np.shares_memory, found, (p, m, v)))
