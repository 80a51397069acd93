"""LoRA in the model, and frozen parameters: torch's gradients, no moments, the same bits after a resume, merged."""

import dataclasses

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, layers, load
from npgpt.checkpoints.run import find_checkpoint, read_checkpoint
from npgpt.engine.ops import with_lora
from npgpt.model.parameters import Parameters, frozen_names, parameter_shapes
from tests.cases import train_step
from tests.conftest import TINY
from tests.helpers.models import SMALL, batch
from tests.helpers.runs import bits, refused
from tests.torch_gpt import torch_gpt, torch_loss, torch_parameters, unit_scale

CONFIG = GPTConfig(**SMALL | {"lora_rank": 2})
ALPHA = dataclasses.replace(CONFIG, lora_alpha=5.0)
KERNELS = ("reference", "numpy", "numba", "xla")
EACH = pytest.mark.parametrize(("config", "freeze"), [
    (CONFIG, ()), (ALPHA, ()), (CONFIG, ["h.0.attn"]), (GPTConfig(**SMALL), "wte, h.0,h.1.mlp.c_fc.weight")],
    ids=["lora", "alpha", "lora, some frozen", "frozen"])


def model_of(kernels="reference", freeze=(), config=CONFIG):
    model = GPT(config, None, "float64", threads=2, kernels=kernels, freeze=freeze)
    unit_scale(model.params)
    return model


def by_torch(model):
    """Return (loss, leaf tensors) of torch: with LoRA each weight is W + alpha / r A B."""
    idx, targets = batch(model.config)
    tensors = torch_parameters(model.params)
    names = parameter_shapes(dataclasses.replace(model.config, lora_rank=0))
    scale = 2.5 if model.config.lora_alpha else 1
    merged = {name: tensors[name] + scale * tensors[f"{name[:-7]}.lora_a"] @ tensors[f"{name[:-7]}.lora_b"]
              if f"{name[:-7]}.lora_a" in tensors else tensors[name] for name in names}
    loss = torch_loss(torch_gpt(merged, model.config, idx), targets)
    loss.backward()
    return loss, tensors


@pytest.mark.parametrize("kernels", KERNELS)
@EACH
def test_gradients_are_torchs_and_there_are_no_others(config, freeze, kernels):
    model = model_of(kernels, freeze, config)
    reference, tensors = by_torch(model)
    loss, grads = model.loss_and_grads(*batch(config))
    assert float(loss) == pytest.approx(reference.item(), rel=1e-9)
    assert list(grads) == [name for name in model.params if name not in frozen_names(config, freeze)]
    assert all(".lora_" in name for name in grads) == bool(config.lora_rank)
    for run in (None, model.forward, model.run_with_cache):
        ours = (run(*batch(config)), model.backward())[1] if run else grads
        assert ours.keys() == grads.keys()
        for name, gradient in ours.items():
            expected = tensors[name].grad.numpy()
            np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-10 * abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("kernels", KERNELS)
@EACH
def test_steps_are_torchs_and_the_frozen_stay_as_they_are_without_moments(config, freeze, kernels):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    model = model_of(kernels, freeze, config)
    optimizer = AdamW(model.params, lr=0.01, engine=model.engine, decay="all")
    before = {name: array.copy() for name, array in model.params.items()}
    trained = list(model.params.trained)
    assert list(optimizer.m) == list(optimizer.v) == trained
    assert sum(each.nbytes for each in optimizer.m.values()) == model.params.n_trained * 8 < model.params.flat.nbytes
    theirs = {name: torch.tensor(before[name], requires_grad=True) for name in trained}
    other = torch.optim.AdamW(theirs.values(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    for _ in range(3):
        _, tensors = by_torch(model)
        for name, tensor in theirs.items():
            tensor.grad = tensors[name].grad
        norm = torch.nn.utils.clip_grad_norm_(theirs.values(), 0.5)
        other.step()
        count = int((batch(config)[1] != -1).sum())
        _, ours = train_step(optimizer, [batch(config)], [None], count, 0.5)
        assert float(ours) == pytest.approx(float(norm), rel=1e-9)
        for name, array in model.params.items():
            if name in theirs:
                np.testing.assert_allclose(array, theirs[name].detach(), rtol=1e-8, atol=1e-10, err_msg=name)
            else:
                assert (array == before[name]).all()


@pytest.mark.parametrize("alpha", [None, 2, 5.0])
def test_lora_changes_nothing_until_it_is_trained_and_is_merged_when_it_is_saved(tmp_path, alpha):
    base = GPT(GPTConfig(**SMALL), 3, "float64")
    base.save_pretrained(tmp_path / "base")
    model = GPT.from_pretrained(tmp_path / "base", dtype="float64", lora_rank=2, lora_alpha=alpha)
    idx = batch(base.config)[0]
    assert (model.config.lora_scaled(idx) is idx) == (alpha != 5.0)         # no rounding unless needed
    np.testing.assert_array_equal(model.forward(idx)[0], base.forward(idx)[0])
    loras = {name for name in model.params if ".lora_" in name}
    assert {name for name in loras if model.params[name].any()} == {name for name in loras if name.endswith("lora_a")}
    assert len(loras) == 2 * 3 * base.config.n_layer and set(model.params.trained) == loras
    for name in loras:
        model.params[name] = np.random.default_rng(len(name)).standard_normal(model.params[name].shape)
    model.save_pretrained(tmp_path / "merged")
    merged = GPT.from_pretrained(tmp_path / "merged", dtype="float64")
    assert all((array == merged.params[name]).all() for name, array in model.merged().params.items())
    assert merged.config.lora_rank == 0 and not merged.params.frozen
    np.testing.assert_allclose(merged.forward(idx)[0], model.forward(idx)[0], rtol=1e-10)
    assert not np.allclose(merged.forward(idx)[0], base.forward(idx)[0])
    for kernels in KERNELS:
        text = GPT(model.config, None, "float64", kernels=kernels)
        for name, array in model.params.items():
            text.params[name] = array
        np.testing.assert_array_equal(text.generate(idx[:, :2], 20, temperature=0.0),
                                      merged.generate(idx[:, :2], 20, temperature=0.0))


def test_from_the_command_line_and_ten_and_ten_are_twenty(npgpt, train, text_file):
    assert train("--out-dir", "base", "--max-iters", 10)[0] == 0
    options = ["--init-from", "base", "--corpus", text_file, *TINY[8:], "--crop-length", 8, "--preset", "finetune",
               "--learning-rate", 0.01, "--lr-decay-iters", 0, "--warmup-iters", 0, "--dropout", 0.1]
    for kind in (["--lora", 3, "--lora-alpha", 6], ["--freeze", "wte,wpe"]):
        whole, parts = f"whole{kind[1]}", f"parts{kind[1]}"
        code, out, err = npgpt("train", *options, *kind, "--out-dir", whole, "--max-iters", 20)
        assert code == 0, err
        assert npgpt("train", *options, *kind, "--out-dir", parts, "--max-iters", 10)[0] == 0
        assert npgpt("train", "--resume", "--out-dir", parts, "--max-iters", 20)[0] == 0
        assert bits(whole) == bits(parts)
        model, before = load(whole, which="latest")[0], load("base")[0]
        saved = read_checkpoint(find_checkpoint(whole)).state["frozen"]
        assert {"wte.weight", "wpe.weight"} <= set(saved) and ("ln_f.bias" in saved) == (kind[0] == "--lora")
        for name, array in before.params.items():
            assert (model.params[name] == array).all() == (name in saved), name
        refused(npgpt("train", "--resume", "--out-dir", parts, "--max-iters", 30, *kind), "--freeze and --lora out")
    refused(npgpt("train", "--init-from", "whole3", "--lora", 2, "--corpus", text_file), "has LoRA of rank 3 already")
    assert npgpt("export", "whole3", "--out", "merged")[0] == 0
    tuned, merged = load("whole3")[0], load("merged")[0].config
    assert (tuned.config.lora_alpha, merged.lora_rank, merged.lora_alpha) == (6, 0, None)
    assert npgpt("export", "whole3", "--adapter", "--out", "lora")[0] == 0
    assert npgpt("train", *options, "--max-iters", 1, "--adapter", "lora", "--learning-rate", 1e-30)[0] == 0
    assert load()[0].config == tuned.config and np.array_equal(load()[0].params.flat, tuned.params.flat)
    refused(npgpt("export", "base", "--adapter", "--out", "none"), "has no LoRA to write")
    for command in (["sample", "whole3", "--max-new-tokens", 5], ["look", "whole3", "--prompt", "To be"],
                    ["score", "whole3", "--text", "To be"], ["eval", "whole3"]):
        assert npgpt(*command)[0] == 0
    for flag, value in (("--lora", 2), ("--lora-alpha", 2), ("--adapter", "lora")):
        refused(npgpt("train", flag, value, "--corpus", text_file, "--overwrite"), "give one with --init-from")


def test_frozen_parameters_come_last_in_an_order_that_all_processes_share():
    params = Parameters(GPTConfig(**SMALL), frozen=frozen_names(GPTConfig(**SMALL), "wte,h.0"))
    frozen = [name for name in parameter_shapes(params.config) if name in params.frozen]
    for i, name in enumerate([*params.flat_names, *frozen]):
        params[name] = i
    assert (np.diff(params.flat) >= 0).all() and len(frozen) == 13
    assert params.flat[params.n_trained - 1] == len(params.flat_names) - 1 < params.flat[params.n_trained]


def test_the_gradients_of_frozen_weights_are_not_computed():
    rng = np.random.default_rng(0)
    x, dy, weight = (rng.standard_normal(shape) for shape in ((3, 4), (3, 5), (4, 5)))
    ops = with_lora(layers, CONFIG)
    for dx, *others in (ops.linear_backward(dy, ops.linear_forward(x, weight, weight[0])[1]),
                        ops.head_backward(dy, (x, weight.T, False))):
        np.testing.assert_array_equal(dx, layers.linear_backward(dy, (x, weight, True))[0])
        assert others in ([None, None], [0.0, None])
