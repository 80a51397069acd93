"""tools/examples/lora_block.py, and frozen parameters: torch's gradients, the same bits after a
resume, merged.
"""

import re

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, UserError, layers, load
from npgpt.checkpoints.run import find_checkpoint, read_checkpoint
from npgpt.cli.main import main
from npgpt.engine.ops import without_frozen
from npgpt.model.block import GPT2, read_block
from npgpt.model.parameters import Parameters, frozen_names, parameter_shapes
from npgpt.training.options import TrainOptions
from npgpt.training.trainer import Trainer
from tests import strict_cupy
from tests.cases import FROZEN, LORA, train_step
from tests.conftest import TINY
from tests.helpers.models import SMALL, batch
from tests.helpers.runs import bits, refused
from tests.torch_gpt import torch_gpt, torch_loss, torch_parameters, unit_scale

KERNELS = ("reference", "numpy", "numba", "xla")
CASES = [           # alpha, what is frozen, fields of the config
    (2, FROZEN, {}),
    (5.0, FROZEN, {}),
    (5.0, "*.weight,h.0.attn", {"bias": False, "activation": "gelu"}),
    (2, FROZEN, {"vocab_size": 700, "embedding_layer_norm": True}),
    (None, "wte, h.0,h.1.mlp.c_fc.weight", {}),
    (None, "wte,wpe", {"vocab_size": 700}),
    (None, "lm_head,wte,wpe", {"tie_word_embeddings": False}),
    (None, "h.*.mlp,*.bias,w?e", {}),
]
HEAD_BIAS = None, "wte,wpe", {"lm_head_bias": True}


def lora_file(folder, alpha, rank=2):
    """The path of lora_block.py with another rank and alpha."""
    folder.mkdir(exist_ok=True)
    path = folder / "lora_block.py"
    text, n = re.subn(
        "(?m)^RANK, ALPHA = 8, 8 .*$", f"RANK, ALPHA = {rank}, {alpha}", LORA.read_text()
    )
    assert n == 1
    path.write_text(text)
    return path


@pytest.fixture
def model_of(tmp_path):
    """Make a model in float64, of lora_block.py unless alpha is None."""
    def made(alpha, freeze=FROZEN, fields={}, kernels="reference", **options):    # noqa: B006
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


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("alpha", "freeze", "fields"), [*CASES, HEAD_BIAS], ids=str)
def test_gradients_are_torchs_and_there_are_no_others(model_of, alpha, freeze, fields, kernels):
    model = model_of(alpha, freeze, fields, kernels)
    config = model.config
    reference, tensors = by_torch(model, alpha)
    loss, grads = model.loss_and_grads(*batch(config))
    assert float(loss) == pytest.approx(reference.item(), rel=1e-9)
    assert list(grads) == [name for name in model.params if name not in frozen_names(config, freeze)]
    assert all(".lora_" in name for name in grads) == (alpha is not None)
    for run in (None, model.forward, model.run_with_cache):
        ours = (run(*batch(config)), model.backward())[1] if run else grads
        assert ours.keys() == grads.keys()
        for name, gradient in ours.items():
            expected = tensors[name].grad.numpy()
            np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-10 * abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("alpha", "freeze", "fields"), CASES, ids=str)
def test_steps_are_torchs_and_the_frozen_stay_as_they_are_without_moments(
    model_of, alpha, freeze, fields, kernels
):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    model = model_of(alpha, freeze, fields, kernels)
    config = model.config
    optimizer = AdamW(model.params, lr=0.01, engine=model.engine, decay="all")
    before = {name: array.copy() for name, array in model.params.items()}
    trained = list(model.params.trained)
    assert list(optimizer.m) == list(optimizer.v) == trained
    assert sum(each.nbytes for each in optimizer.m.values()) == model.params.n_trained * 8 < model.params.flat.nbytes
    theirs = {name: torch.tensor(before[name], requires_grad=True) for name in trained}
    other = torch.optim.AdamW(theirs.values(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    for _ in range(3):
        _, tensors = by_torch(model, alpha)
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


@pytest.mark.parametrize(
    "fields",
    [
        {"dropout": 0.3},
        {"resid_pdrop": 0.2},
        {"mlp_pdrop": 0.4, "attn_pdrop": 0.1},
        {"scale_attn_by_inverse_layer_idx": True},
        {"causal": False},
        {"n_inner": 7},
        {"layer_norm_epsilon": 0.1, "bias": False, "qkv_bias": True},
    ],
    ids=str,
)
def test_dropout_and_options_are_those_of_gpt2s_block(model_of, fields):
    """With B = 0 and A the loss is GPT-2's, and so is dB = A^T x^T dy = alpha / r A^T dW."""
    ours, plain = model_of(5.0, FROZEN, fields), model_of(None, (), fields)
    for name in ours.params:
        if name.endswith("lora_b"):
            ours.params[name] = 0.0
        elif ".lora_" not in name:
            ours.params[name] = plain.params[name]
    (loss, grads), (expected, full) = (
        each.loss_and_grads(*batch(each.config), rng=np.random.default_rng(7))
        for each in (ours, plain)
    )
    assert loss == pytest.approx(expected, rel=1e-12)
    for name in grads:
        if name.endswith("lora_b"):
            dweight = full[name.replace("lora_b", "weight")]
            np.testing.assert_allclose(
                grads[name], 2.5 * ours.params[f"{name[:-1]}a"].T @ dweight, 1e-9, 1e-12
            )
        else:
            assert not grads[name].any()


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_it_stays_on_the_gpu(model_of, monkeypatch, kernels):
    strict_cupy.install(monkeypatch)
    here, there = model_of(5.0), model_of(5.0, kernels=kernels, device="gpu")
    for name, array in here.params.items():
        there.params[name] = array
    loss, grads = there.loss_and_grads(*batch(here.config))
    expected, gradients = here.loss_and_grads(*batch(here.config))
    assert (
        float(loss.get()) == pytest.approx(expected, rel=1e-12) and grads.keys() == gradients.keys()
    )
    for name, gradient in grads.items():
        np.testing.assert_allclose(gradient.get(), gradients[name], 1e-9, 1e-12)
    merge = here.config.block.forward.__globals__["merged"]
    for name, array in merge(there).params.items():
        np.testing.assert_allclose(array, merge(here).params[name], 1e-12)


@pytest.mark.parametrize("alpha", [2, 5.0])
def test_it_changes_nothing_until_it_is_trained_and_is_merged(tmp_path, capsys, alpha):
    base = GPT(GPTConfig(**SMALL), 3, "float64")
    base.save_pretrained(tmp_path / "base")
    block = lora_file(tmp_path, alpha)
    model = GPT.from_pretrained(tmp_path / "base", dtype="float64", block=block, freeze=FROZEN)
    adapted = ("attn.c_attn", "attn.c_proj", "mlp.c_proj")
    named = [f"h.*.{layer}.lora_{kind}" for layer in adapted for kind in "ab"]
    drawn = f"npgpt: not in the checkpoint, so drawn by lora_block.py: {', '.join(named)}\n"
    assert capsys.readouterr().err == drawn
    idx = batch(base.config)[0]
    np.testing.assert_array_equal(model.forward(idx)[0], base.forward(idx)[0])
    loras = {name for name in model.params if ".lora_" in name}
    assert {name for name in loras if model.params[name].any()} == {name for name in loras if name.endswith("lora_a")}
    assert len(loras) == 2 * 3 * base.config.n_layer and set(model.params.trained) == loras
    for name in loras:
        model.params[name] = np.random.default_rng(len(name)).standard_normal(model.params[name].shape)
    merged = model.config.block.forward.__globals__["merged"](model)
    assert merged.config.block == GPT2 and not merged.params.frozen
    np.testing.assert_allclose(merged.forward(idx)[0], model.forward(idx)[0], rtol=1e-10)
    assert not np.allclose(merged.forward(idx)[0], base.forward(idx)[0])
    merged.save_pretrained(tmp_path / "merged")
    again = GPT.from_pretrained(tmp_path / "merged", dtype="float64").params
    assert all((again[name] == array).all() for name, array in merged.params.items())
    model.save_pretrained(tmp_path / "own")
    options = ["--block", str(block), "--out", str(tmp_path / "never")]
    assert main(["export", str(tmp_path / "own"), *options]) == 2
    assert "block=lora_block.py has no counterpart in transformers" in capsys.readouterr().err
    for kernels in KERNELS:
        text = GPT(model.config, None, "float64", kernels=kernels)
        for name, array in model.params.items():
            text.params[name] = array
        np.testing.assert_array_equal(text.generate(idx[:, :2], 20, temperature=0.0),
                                      merged.generate(idx[:, :2], 20, temperature=0.0))


def test_gradcheck_says_what_has_no_gradient(npgpt, tmp_path):
    code, out, _ = npgpt("gradcheck", LORA)
    lines = [line for line in out.splitlines() if "no gradient: must be frozen" in line]
    assert code == 0 and [line.split()[0] for line in lines] == list(
        GPT2.parameters_of(GPTConfig())
    )
    wrong = LORA.read_text().replace('"lora_b": SCALE * db_proj', '"lora_b": db_proj * 2')
    (tmp_path / "wrong.py").write_text(wrong)
    code, out, _ = npgpt("gradcheck", tmp_path / "wrong.py")
    assert code == 1 and [line.split()[0] for line in out.splitlines() if "WRONG" in line] == [
        "attn.c_proj.lora_b"
    ]


def test_a_missing_gradient_is_never_silent(model_of, train, text_file):
    model, says = (
        model_of(2, freeze="*.weight,h.0"),
        "lora_block.py returns no gradient of h.1.ln_1.bias: return it",
    )
    for call in (model.loss_and_grads, lambda *both: (model.forward(*both), model.backward())):
        with pytest.raises(UserError, match=says):
            call(*batch(model.config))
    with pytest.raises(UserError, match=says):
        Trainer(model, np.arange(60) % 11, None, TrainOptions(batch_size=2))
    assert np.isfinite(model.forward(*batch(model.config))[1])
    refused(
        train("--block", LORA, "--freeze", "*.weight"),
        "no gradient of h.0.ln_1.bias: return it, or freeze it",
    )


def test_from_the_command_line_and_ten_and_ten_are_twenty(npgpt, train, text_file, tmp_path):
    block = ["--block", lora_file(tmp_path / "block", 6, 3)]
    assert train("--out-dir", "base", "--max-iters", 10)[0] == 0
    options = ["--init-from", "base", "--corpus", text_file, *TINY[8:], "--crop-length", 8, "--preset", "finetune",
               "--learning-rate", 0.01, "--lr-decay-iters", 0, "--warmup-iters", 0, "--dropout", 0.1]
    for what, kind, own in (("lora", FROZEN, block), ("frozen", "wte,wpe", [])):
        whole, parts, freeze = f"whole-{what}", f"parts-{what}", ["--freeze", kind]
        code, out, err = npgpt(
            "train", *options, *freeze, *own, "--out-dir", whole, "--max-iters", 20
        )
        assert code == 0, err
        assert (
            npgpt("train", *options, *freeze, *own, "--out-dir", parts, "--max-iters", 10)[0] == 0
        )
        assert npgpt("train", "--resume", *own, "--out-dir", parts, "--max-iters", 20)[0] == 0
        assert bits(whole) == bits(parts)
        model, before = (
            load(whole, which="latest", block=own[1] if own else None)[0],
            load("base")[0],
        )
        saved = read_checkpoint(find_checkpoint(whole), model.config.block).state["frozen"]
        assert {"wte.weight", "wpe.weight"} <= set(saved) and ("ln_f.bias" in saved) == (
            what == "lora"
        )
        assert model.params.frozen == (set(saved) if own else set())
        for name, array in before.params.items():
            assert (model.params[name] == array).all() == (name in saved), name
        again = npgpt("train", "--resume", "--out-dir", parts, "--max-iters", 30, *freeze)
        refused(again, "leave --init-from and --freeze out")
    for command in (
        ["sample", "whole-lora", "--max-new-tokens", 5],
        ["look", "whole-lora", "--prompt", "To be"],
        ["score", "whole-lora", "--text", "To be"],
        ["eval", "whole-lora"],
    ):
        code, _, err = npgpt(*command, *block)
        assert code == 0 and "drawn" not in err
        refused(npgpt(*command), "'lora_block.py', which is not GPT-2's block")
    refused(
        npgpt("train", "--resume", "--out-dir", "base", *block),
        "lora_block.py returns no gradient of",
    )
    refused(
        npgpt("train", "--freeze", "h.*.x", "--overwrite"),
        "there is no parameter 'h.*.x' to freeze",
    )


def test_only_what_a_block_adds_to_gpt2_may_be_missing(tmp_path, capsys):
    base = GPT(GPTConfig(**SMALL), 3)
    base.save_pretrained(tmp_path)
    lora = lora_file(tmp_path, 2)
    other = lora.read_text().replace(
        "    return found", '    del found["ln_1.bias"]\n    return found'
    )
    (tmp_path / "other.py").write_text(other)
    with pytest.raises(UserError, match="the model has GPT-2's block, which is not other.py"):
        GPT.from_pretrained(tmp_path, block=tmp_path / "other.py")
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"n_layer": 2', '"n_layer": 1'))
    with pytest.raises(UserError, match=r"ln_1.weight is extra"):
        GPT.from_pretrained(tmp_path, block=lora)
    path.write_text(path.read_text().replace('"bias": true', '"lora_rank": 8, "bias": true'))
    with pytest.raises(
        UserError, match=r"config.json cannot be used: .*LoRA of an earlier version.*peft_adapter"
    ):
        GPT.from_pretrained(tmp_path)
    assert capsys.readouterr().err == ""


def test_frozen_parameters_come_last_in_an_order_that_all_processes_share():
    params = Parameters(GPTConfig(**SMALL), frozen=frozen_names(GPTConfig(**SMALL), "wte,h.0"))
    frozen = [name for name in parameter_shapes(params.config) if name in params.frozen]
    for i, name in enumerate([*params.flat_names, *frozen]):
        params[name] = i
    assert (np.diff(params.flat) >= 0).all() and len(frozen) == 13
    assert params.flat[params.n_trained - 1] == len(params.flat_names) - 1 < params.flat[params.n_trained]


def test_the_gradients_of_frozen_matrices_are_not_computed():
    config, rng = GPTConfig(**SMALL, block=read_block(LORA)), np.random.default_rng(0)
    params = Parameters(config, "float64", frozen=frozen_names(config, FROZEN))
    ops, wte, other = (
        without_frozen(layers, params),
        params.tree["wte"]["weight"],
        rng.standard_normal((11, 12)),
    )
    wte[:] = other
    x, dlogits = rng.standard_normal((3, 12)), rng.standard_normal((3, 11))
    dx, dweight = layers.head_backward(dlogits, (x, other))
    np.testing.assert_array_equal(ops.head_backward(dlogits, (x, wte))[0], dx)
    assert ops.head_backward(dlogits, (x, wte))[1:] == (0.0,)
    np.testing.assert_array_equal(
        ops.head_backward(dlogits, (x, other))[1], dweight
    )  # a block's own
    assert ops.embedding_backward(x[None], (np.zeros((1, 3), int), 11, 8)) == (0.0, 0.0)


@pytest.mark.parametrize("kernels", KERNELS[:3])
def test_no_engine_computes_the_gradients_of_frozen_matrices(kernels):
    config = GPTConfig(**SMALL, block=read_block(LORA))
    model, results = GPT(config, 0, kernels=kernels, freeze=FROZEN, threads=2), []

    def noted(function):
        def run(*arguments):
            results.append(function(*arguments))
            return results[-1]

        return run

    ops = model.engine.ops
    ops.head_backward, ops.embedding_backward = (
        noted(ops.head_backward),
        noted(ops.embedding_backward),
    )
    model.loss_and_grads(*batch(config))
    assert len(results) >= 2 and all(each[1] == 0.0 for each in results)
