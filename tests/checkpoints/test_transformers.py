"""transformers writes, npgpt reads, and the other way round: equal logits, loss, gradients and
continuations.
"""

import json

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from npgpt import GPT, GPTConfig, load
from npgpt.checkpoints.load import open_model
from npgpt.checkpoints.tensorfile import open_tensors
from tests.helpers.runs import refused, refusing
from tests.torch_gpt import assert_equal, torch_loss, unit_scale

torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
transformers = pytest.importorskip(
    "transformers", reason="transformers, the oracle, is in the extra test"
)

SIZE = {"vocab_size": 11, "n_embd": 12, "n_layer": 2, "n_head": 3}
SMALL = {
    **SIZE,
    **{"n_positions": 8, "bos_token_id": 1, "eos_token_id": 2, "attn_implementation": "eager"},
}
VARIANTS = [
    {},
    {"tie_word_embeddings": False, "activation_function": "gelu_pytorch_tanh"},
    {"n_head": 1, "n_layer": 3, "n_inner": 7, "activation_function": "gelu"},
    {"layer_norm_epsilon": 0.1, "scale_attn_weights": False},
    {"scale_attn_by_inverse_layer_idx": True, "n_layer": 3},
    {"embd_pdrop": 0.1, "attn_pdrop": 0.2, "resid_pdrop": 0.3},
]
EACH_VARIANT = pytest.mark.parametrize("variant", VARIANTS, ids=str)
IDX = np.random.default_rng(0).integers(0, 11, (3, 6))
TARGETS = np.random.default_rng(1).integers(0, 11, (3, 6))
TARGETS[0, 1] = -1


def theirs_of(variant, dtype=torch.float32):
    """A GPT-2 of transformers with unit-scale weights that `dtype` can hold, as a double-precision
    oracle.
    """
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**SMALL, **variant})).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator).to(dtype))
    return model.to(dtype)


def logits_of(theirs, idx=IDX):
    return theirs.double()(torch.from_numpy(idx)).logits


@EACH_VARIANT
def test_logits_loss_and_every_gradient(variant, tmp_path):
    theirs = theirs_of(variant)
    theirs.save_pretrained(tmp_path)
    ours = GPT.from_pretrained(tmp_path, dtype="float64")
    logits, loss = ours.forward(IDX, TARGETS)
    reference = logits_of(theirs)
    assert_equal(logits, reference)
    expected = torch_loss(reference, TARGETS)
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    expected.backward()
    grads = ours.backward()
    compared = {
        name.removeprefix("transformer."): each.grad for name, each in theirs.named_parameters()
    }
    assert compared.keys() == grads.keys()
    for name, gradient in compared.items():
        assert_equal(grads[name], gradient, name)


@pytest.mark.parametrize(
    "variant",
    [
        {"tie_word_embeddings": False},
        {"activation": "gelu", "n_inner": 5, "layer_norm_epsilon": 0.1},
        {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
        {"embd_pdrop": 0.1, "attn_pdrop": 0.2, "resid_pdrop": 0.3},
        {"bias": False, "qkv_bias": True},
        {"bias": False, "mlp_bias": True, "mlp_pdrop": 0.3},
    ],
    ids=str,
)
def test_what_npgpt_saves_transformers_opens(variant, tmp_path):
    """Biases that a model lacks are saved as zeros."""
    config = GPTConfig(**SIZE, block_size=8, bos_token_id=1, eos_token_id=2, **variant)
    ours = GPT(config, dtype="float64")
    unit_scale(ours.params)
    ours.save_pretrained(tmp_path)
    theirs, info = transformers.GPT2LMHeadModel.from_pretrained(
        tmp_path, attn_implementation="eager", dtype=torch.float64, output_loading_info=True
    )
    assert not any(info.values()), info
    assert_equal(ours.forward(IDX)[0], logits_of(theirs.eval()))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("causal", False),
        ("embedding_layer_norm", True),
        ("final_layer_norm", False),
        ("lm_head_bias", True),
        ("positions", "none"),
    ],
)
def test_a_model_that_transformers_cannot_compute_is_refused_there(npgpt, field, value, tmp_path):
    """Also by `npgpt export`; what the model lacks is not written as zeros."""
    model = GPT(GPTConfig(**{field: value}, bias=False))
    model.save_pretrained("own")
    with pytest.raises(ValueError, match="npgpt"):
        transformers.AutoModelForCausalLM.from_pretrained("own")
    refused(npgpt("export own --out theirs"), f"{field}={value} has no counterpart")
    assert not (tmp_path / "theirs").exists()
    assert len(open_tensors("own/model.safetensors")) == len(model.params)


@pytest.mark.parametrize(
    ("name", "field", "others"),
    [
        ("h.1.attn.c_attn.bias", "qkv_bias", {"qkv_bias": False, "mlp_bias": False}),
        ("h.0.mlp.c_proj.bias", "mlp_bias", {"qkv_bias": False, "mlp_bias": False}),
        ("h.1.attn.c_proj.bias", "bias", {"qkv_bias": False, "mlp_bias": True}),
    ],
)
def test_biases_that_were_tuned_in_transformers_are_read(name, field, others, tmp_path, capfd):
    """Though the config says that there are none, one number suffices."""
    fields = {**SIZE, "block_size": 8, "bias": False, **others}
    ours = GPT(GPTConfig(**fields), None, "float64")
    unit_scale(ours.params)
    ours.save_pretrained(tmp_path / "saved")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved", dtype=torch.float64)
    with torch.no_grad():
        theirs.get_parameter(f"transformer.{name}")[-1] = 0.5
    theirs.save_pretrained(tmp_path / "tuned")
    capfd.readouterr()
    again, _ = load(tmp_path / "tuned")
    said = capfd.readouterr().err
    assert said.startswith(f"npgpt: {tmp_path / 'tuned'}: biases") and said.count("\n") == 1
    assert said.endswith(f" its config says {field}=False\n")
    assert again.config == GPTConfig(**fields | {field: True}).derived()
    assert_equal(again.forward(IDX)[0], logits_of(theirs.eval()))
    again.save_pretrained(tmp_path / "saved")
    assert load(tmp_path / "saved")[0].config == again.config and not capfd.readouterr().err


@pytest.mark.parametrize(
    ("dtype", "size", "prefix"),
    [
        (torch.float32, "10KB", True),
        (torch.float64, "1GB", False),
        (torch.float16, "10KB", False),
        (torch.bfloat16, "1GB", True),
    ],
    ids=str,
)
def test_every_way_that_weights_are_stored(dtype, size, prefix, tmp_path):
    theirs = theirs_of({"vocab_size": 300}, dtype)
    stored = theirs if prefix else theirs.transformer
    stored.save_pretrained(tmp_path, max_shard_size=size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (size == "10KB")
    ours = GPT.from_pretrained(tmp_path, dtype="float64")
    for name, parameter in theirs.double().transformer.named_parameters():
        assert np.array_equal(ours.params[name], parameter.detach().numpy()), name
    assert_equal(ours.forward(IDX)[0], logits_of(theirs))
    assert GPT.from_pretrained(tmp_path).params.flat.dtype == np.float32


def test_mask_buffers_are_passed_over(tmp_path):
    theirs = theirs_of({})
    theirs.transformer.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    buffers = {
        "h.0.attn.bias": torch.ones(1, 1, 8, 8).tril().to(torch.uint8),
        "h.1.attn.masked_bias": torch.tensor(-1e4),
    }
    save_file(load_file(path) | buffers, path, {"format": "pt"})
    ours = GPT.from_pretrained(path, dtype="float64")
    assert_equal(ours.forward(IDX)[0], logits_of(theirs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_head_that_differs_is_read_though_the_config_says_tied(
    dtype, tmp_path, capfd, monkeypatch
):
    """Equal values in another type do not differ."""
    monkeypatch.setattr("npgpt.checkpoints.tensorfile.CHUNK", 7)
    theirs = theirs_of({}, torch.bfloat16).float()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    head = tensors["transformer.wte.weight"].clone()
    hidden = theirs.double().transformer(torch.from_numpy(IDX)).last_hidden_state
    for tied in (True, False):
        if not tied:
            head[10, 11] = -head[10, 11]  # one number, the last one
        capfd.readouterr()
        save_file(tensors | {"lm_head.weight": head.to(dtype)}, path, {"format": "pt"})
        ours = GPT.from_pretrained(tmp_path, dtype="float64")
        assert ours.config.tie_word_embeddings == tied
        assert capfd.readouterr().err.count("lm_head.weight differs") == (not tied)
        assert_equal(ours.forward(IDX)[0], hidden @ head.to(dtype).double().T)
    ours.save_pretrained(tmp_path / "exported")
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "exported", dtype=torch.float64)
    assert_equal(ours.forward(IDX)[0], logits_of(again.eval()).detach())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("activation_function", "relu"),
        ("activation_function", []),
        ("add_cross_attention", True),
        ("model_type", "llama"),
        ("rope_theta", 1e4),
        ("n_embd", 13),
        ("npgpt", {"magic": 1}),
        ("n_layer", None),
    ],
)
def test_a_config_that_npgpt_would_get_wrong_is_refused_by_name(field, value, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", field: value}))
    (tmp_path / "model.safetensors").touch()
    with refusing(field):
        open_model(tmp_path)
