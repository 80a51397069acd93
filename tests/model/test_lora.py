"""tools/examples/lora_block.py, and frozen parameters: torch's gradients, the same bits after a
resume, merged.
"""

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, load
from npgpt.model.block import GPT2, read_block
from npgpt.model.parameters import frozen_names
from tests.cases import FROZEN, LORA
from tests.helpers.models import SMALL, batch
from tests.helpers.runs import bits, refused, refusing, succeeded
from tests.torch_gpt import assert_equal, torch_gpt, torch_loss, torch_parameters, unit_scale

KERNELS = ("reference", "numpy", "numba", "xla")
CASES = [  # alpha, what is frozen, fields of the config
    (2, FROZEN, {"vocab_size": 700, "embedding_layer_norm": True}),
    (5.0, "*.weight,h.0.attn", {"bias": False, "activation": "gelu"}),
    (None, "wte, h.0,h.1.mlp.c_fc.weight", {}),
    (None, "lm_head,wte,wpe", {"tie_word_embeddings": False}),
    (None, "wte,wpe", {"lm_head_bias": True, "vocab_size": 700}),
    (None, "h.*.mlp,*.bias,w?e", {}),
]
EACH = [
    *((kernels, *case) for kernels in KERNELS[:3] for case in CASES),
    *(("xla", *case) for case in CASES[1:3]),
]


def lora_file(folder, alpha, rank=2):
    """The path of lora_block.py with another rank and alpha."""
    folder.mkdir(exist_ok=True)
    path = folder / "lora_block.py"
    path.write_text(
        LORA.read_text().replace("RANK, ALPHA = 8, 8", f"RANK, ALPHA = {rank}, {alpha}")
    )
    return path


@pytest.fixture
def model_of(tmp_path):
    """Make a model in float64, of lora_block.py unless alpha is None."""

    def made(alpha, freeze=FROZEN, fields={}, kernels="reference", **options):  # noqa: B006
        block = None if alpha is None else lora_file(tmp_path / "block", alpha)
        config = GPTConfig(**SMALL | fields)
        model = GPT(
            config,
            None,
            "float64",
            threads=2,
            kernels=kernels,
            freeze=freeze,
            block=block,
            **options,
        )
        if model.params.xp is np:
            unit_scale(model.params)
        return model

    return made


def by_torch(model, alpha):
    """Return (loss, leaf tensors) of torch: with LoRA each weight is W + alpha / r A B."""
    idx, targets = batch(model.config)
    tensors, merged = torch_parameters(model.params), {}
    for name, tensor in tensors.items():
        layer = name.removesuffix(".weight")
        if f"{layer}.lora_a" in tensors:
            tensor = tensor + alpha / 2 * tensors[f"{layer}.lora_a"] @ tensors[f"{layer}.lora_b"]
        if ".lora_" not in name:
            merged[name] = tensor
    loss = torch_loss(torch_gpt(merged, model.config, idx), targets)
    loss.backward()
    return loss, tensors


@pytest.mark.parametrize(("kernels", "alpha", "freeze", "fields"), EACH, ids=str)
def test_gradients_and_steps_are_torchs_and_the_frozen_stay_as_they_are(
    model_of, kernels, alpha, freeze, fields
):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    model = model_of(alpha, freeze, fields, kernels)
    idx, targets = batch(model.config)
    optimizer = AdamW(model.params, lr=0.01, engine=model.engine, decay="all")
    before = {name: array.copy() for name, array in model.params.items()}
    frozen = frozen_names(model.config, freeze)
    trained = [name for name in model.params if name not in frozen]
    assert all(".lora_" in name for name in trained) == (alpha is not None)
    assert list(optimizer.m) == list(optimizer.v) == trained  # no moments of what is frozen
    theirs = {name: torch.tensor(before[name], requires_grad=True) for name in trained}
    other = torch.optim.AdamW(theirs.values(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    for forward in (model.forward, model.run_with_cache, None):
        expected, tensors = by_torch(model, alpha)
        for name, tensor in theirs.items():
            tensor.grad = tensors[name].grad
        if forward:
            forward(idx, targets)
            grads = model.backward()
        else:
            loss, grads = model.loss_and_grads(idx, targets)
            assert float(loss) == pytest.approx(expected.item(), rel=1e-9)
        assert list(grads) == trained
        for name, gradient in grads.items():
            assert_equal(gradient, theirs[name].grad, name)
        norm = torch.nn.utils.clip_grad_norm_(theirs.values(), 0.5)
        other.step()
        assert float(optimizer.step(grads, 0.5)) == pytest.approx(float(norm), rel=1e-9)
        for name, array in model.params.items():
            if name in frozen:
                np.testing.assert_array_equal(array, before[name])
            else:
                now = theirs[name].detach()
                np.testing.assert_allclose(array, now, rtol=1e-8, atol=1e-10, err_msg=name)


def test_it_changes_nothing_until_it_is_trained_and_is_merged(tmp_path, capsys):
    base = GPT(GPTConfig(**SMALL), 3, "float64")
    base.save_pretrained(tmp_path / "base")
    block = lora_file(tmp_path, 5.0)
    model = GPT.from_pretrained(tmp_path / "base", dtype="float64", block=block, freeze=FROZEN)
    drawn = "not in the checkpoint, so drawn by lora_block.py: h.*.attn.c_attn.lora_a, h.*"
    assert drawn in capsys.readouterr().err
    idx = batch(base.config)[0]
    np.testing.assert_array_equal(model.forward(idx)[0], base.forward(idx)[0])
    loras = [name for name in model.params if ".lora_" in name]
    assert len(loras) == 2 * 3 * base.config.n_layer and list(model.params.trained) == loras
    for name in loras:
        assert model.params[name].any() == name.endswith("lora_a")
        rng = np.random.default_rng(len(name))
        model.params[name] = rng.standard_normal(model.params[name].shape)
    merged = model.config.block.forward.__globals__["merged"](model)
    assert merged.config.block == GPT2 and not merged.params.frozen
    np.testing.assert_allclose(merged.forward(idx)[0], model.forward(idx)[0], rtol=1e-10)
    assert not np.allclose(merged.forward(idx)[0], base.forward(idx)[0])
    written = [each.generate(idx[:, :2], 20, temperature=0.0) for each in (model, merged)]
    np.testing.assert_array_equal(*written)


def test_a_missing_gradient_is_never_silent(model_of, train):
    model = model_of(2, freeze="*.weight,h.0")
    both = batch(model.config)
    says = "lora_block.py returns no gradient of h.1.ln_1.bias: return it"
    with refusing(says):
        model.loss_and_grads(*both)
    assert np.isfinite(model.forward(*both)[1])
    with refusing(says):
        model.backward()
    refused(
        train("--block", LORA, "--freeze", "*.weight"),
        "no gradient of h.0.ln_1.bias: return it, or freeze it",
    )


@pytest.mark.parametrize(("freeze", "lora"), [(FROZEN, True), ("wte,wpe", False)])
def test_from_the_command_line_and_ten_and_ten_are_twenty(npgpt, train, tmp_path, freeze, lora):
    block = ["--block", lora_file(tmp_path / "block", 6, 3)] if lora else []
    succeeded(train("--out-dir base --max-iters 2"))
    flags = "--corpus text.txt --preset finetune --crop-length 8 --learning-rate 0.01"
    flags += " --dropout 0.1 --lr-decay-iters 0 --eval-iters 2 --threads 1 --init-from base"
    tune = ["train", *flags.split(), "--freeze", freeze, *block, "--out-dir"]
    succeeded(npgpt(*tune, "whole", "--max-iters", 20))
    succeeded(npgpt(*tune, "parts", "--max-iters", 10))
    resume = ["train", "--resume", "--out-dir", "parts", *block, "--max-iters"]
    succeeded(npgpt(*resume, 20))
    assert bits("whole") == bits("parts")
    refused(npgpt(*resume, 30, "--freeze", freeze), "leave --init-from and --freeze out")
    model, _ = load("whole", which="latest", block=block[1] if lora else None)
    for name, array in load("base")[0].params.items():
        same = (model.params[name] == array).all()
        assert same == (lora or name in ("wte.weight", "wpe.weight")), name


def test_what_cannot_be_frozen_or_resumed_is_one_line(npgpt, train, tmp_path):
    succeeded(train("--max-iters 1"))
    resumed = npgpt("train --resume", "--block", lora_file(tmp_path / "block", 6, 3))
    refused(resumed, "lora_block.py returns no gradient of")
    wrong = npgpt("train --freeze h.*.x --overwrite")
    refused(wrong, "there is no parameter 'h.*.x' to freeze")


def test_only_what_a_block_adds_to_gpt2_may_be_missing(tmp_path):
    GPT(GPTConfig(**SMALL), 3).save_pretrained(tmp_path)
    lora, other = lora_file(tmp_path, 2), tmp_path / "other.py"
    less = '    del found["ln_1.bias"]\n    return found'
    other.write_text(lora.read_text().replace("    return found", less))
    with refusing("the model has GPT-2's block, which is not other.py"):
        GPT.from_pretrained(tmp_path, block=other)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"n_layer": 2', '"n_layer": 1'))
    with refusing(r"ln_1.weight is extra"):
        GPT.from_pretrained(tmp_path, block=lora)
    path.write_text(path.read_text().replace('"bias": true', '"lora_rank": 8, "bias": true'))
    with refusing("LoRA of an earlier version.*peft_adapter"):
        GPT.from_pretrained(tmp_path)


@pytest.mark.parametrize("kernels", KERNELS[:3])
def test_no_engine_computes_the_gradients_of_frozen_matrices(kernels, monkeypatch):
    config = GPTConfig(**SMALL, block=read_block(LORA))
    model, results = GPT(config, 0, kernels=kernels, freeze=FROZEN, threads=2), []

    def noting(function):
        def run(*arguments):
            results.append(function(*arguments))
            return results[-1]

        return run

    ops = model.engine.ops
    for name in ("head_backward", "embedding_backward"):
        monkeypatch.setattr(ops, name, noting(getattr(ops, name)))
    model.loss_and_grads(*batch(config))
    assert len(results) >= 2 and all(each[1] == 0.0 for each in results)
