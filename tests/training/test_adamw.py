"""AdamW, clipping and the schedule against torch over 20 steps."""

from unittest import mock

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig
from npgpt.engine.cpu import CPUEngine
from npgpt.engine.reference import ReferenceEngine
from npgpt.engine.update import SLICE
from npgpt.errors import NotFiniteError
from npgpt.training.adamw import adamw_update
from npgpt.training.schedule import learning_rate
from tests.cases import CPU_KERNELS
from tests.torch_gpt import torch_parameters, unit_scale


def params_of(**config):
    params = GPT(GPTConfig(**{"vocab_size": 11, "block_size": 8, "n_layer": 1, "n_head": 2, "n_embd": 8, **config}),
                 dtype="float64").params
    unit_scale(params)
    return params


@pytest.mark.parametrize("max_norm", [None, 1.0, 1e6])
@pytest.mark.parametrize("values", [SLICE, 50], ids=["one slice", "many slices"])
@pytest.mark.parametrize("decay", ["matrices", "all"])
def test_twenty_steps_equal_torch(max_norm, values, decay, monkeypatch):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    monkeypatch.setattr("npgpt.engine.update.SLICE", values)
    params = params_of()
    tensors = torch_parameters(params)
    groups = tensors.values() if decay == "all" else [
        {"params": [t for t in tensors.values() if t.ndim == 2]},
        {"params": [t for t in tensors.values() if t.ndim < 2], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    optimizer = AdamW(params, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, decay=decay)
    grads = params.zeros_like()
    rng = np.random.default_rng(0)
    for step in range(20):
        lr = learning_rate(step, 1e-2, 1e-3, 5, 15)
        grads.flat[:] = rng.standard_normal(grads.flat.size) * 10.0**rng.integers(-3, 2)
        before = grads.flat.copy()
        for name, tensor in tensors.items():
            tensor.grad = torch.from_numpy(grads[name].copy())
        reference_norm = torch.nn.utils.clip_grad_norm_(tensors.values(), max_norm or float("inf")).item()
        for group in reference.param_groups:
            group["lr"] = lr
        reference.step()
        optimizer.lr = lr
        norm = optimizer.step(grads, max_norm)
        assert norm == pytest.approx(reference_norm, rel=1e-12)
        assert (grads.flat == before).all()
        for name, tensor in tensors.items():
            np.testing.assert_allclose(params[name], tensor.detach().numpy(), rtol=1e-9, atol=1e-12, err_msg=name)


def test_schedule_equals_torchs_schedulers():
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1e-3)
    scheduler = SequentialLR(optimizer, [LinearLR(optimizer, 1 / 11, 1.0, total_iters=10),
                                         CosineAnnealingLR(optimizer, 40, eta_min=1e-4)], milestones=[10])
    for step in range(51):
        assert learning_rate(step, 1e-3, 1e-4, 10, 50) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
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
    grads = params_of().zeros_like()
    grads.flat[:] = np.random.default_rng(0).standard_normal(grads.flat.size)
    updated = []
    for n in (1, threads):
        params = params_of()
        AdamW(params, lr=0.1, engine=ReferenceEngine(params, n)).step(grads, max_norm=1.0)
        updated.append(params.flat)
    assert np.array_equal(*updated)


@pytest.mark.parametrize("kernels", [None, *CPU_KERNELS])
def test_who_takes_the_steps(kernels):
    """NumPy gives the same bits with and without an engine; Numba's loops differ by rounding."""
    grads = params_of().zeros_like()
    grads.flat[:] = np.random.default_rng(0).standard_normal(grads.flat.size)
    found = []
    for make in (ReferenceEngine, lambda params, n: kernels and CPUEngine(params, n, kernels)):
        params = params_of()
        optimizer = AdamW(params, lr=0.1, engine=make(params, 2))
        norms = [optimizer.step(grads, max_norm=1.0) for _ in range(3)]
        found.append([norms, params.flat, optimizer.m.flat, optimizer.v.flat])
    for ours, expected in zip(*found, strict=True):
        if kernels != "numba":
            np.testing.assert_array_equal(ours, expected)
        np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-9)


def test_the_rule_returns_what_it_has_updated():
    """XLA reads the results, NumPy the arguments."""
    p, g, m, v = np.random.default_rng(0).random((4, 5))
    made = adamw_update(p, g, m, v, 0.1, 0.2, 1e-8, 0.9, 0.95, 0.1)
    assert [id(each) for each in made] == [id(p), id(m), id(v)]


def test_each_engine_has_a_compiled_rule_once():
    """And it is Numba's."""
    pytest.importorskip("numba")
    rules, params = [], params_of()
    optimizer = AdamW(params, engine=CPUEngine(params, 1, "numba"))
    with mock.patch(
        "npgpt.engine.reference.update_slices", lambda *given: rules.append(given[3].rule)
    ):
        for _ in range(2):
            optimizer.step(params.zeros_like())
    assert rules[0] is rules[1] is not adamw_update and rules[0].__wrapped__ is adamw_update


def test_a_gradient_that_is_not_finite_changes_nothing():
    params = params_of()
    optimizer = AdamW(params)
    grads = params.zeros_like()
    for bad in (np.nan, np.inf):
        grads["ln_f.bias"] = bad
        before = params.flat.copy()
        with np.errstate(all="ignore"), pytest.raises(NotFiniteError):
            optimizer.step(grads, max_norm=1.0)
        assert (params.flat == before).all() and (optimizer.m.flat == 0).all() and optimizer.t == 0
