"""transformers writes, npgpt reads, and the other way round: equal logits, loss, gradients and continuations."""

import json

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, UserError, load
from npgpt.checkpoints.load import open_model
from npgpt.checkpoints.tensorfile import TensorFile
from tests.helpers.runs import refused
from tests.torch_gpt import assert_equal, unit_scale

torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
transformers = pytest.importorskip("transformers", reason="transformers, the oracle, is in the extra test")

SMALL = {"vocab_size": 11, "n_positions": 8, "n_embd": 12, "n_layer": 2, "n_head": 3, "attn_implementation": "eager",
         "bos_token_id": 1, "eos_token_id": 2}
VARIANTS = {
    "default": {},
    "untied": {"tie_word_embeddings": False},
    "one head, three layers": {"n_head": 1, "n_layer": 3},
    "narrow mlp": {"n_inner": 7},
    "exact gelu": {"activation_function": "gelu"},
    "pytorch's tanh gelu": {"activation_function": "gelu_pytorch_tanh"},
    "large epsilon": {"layer_norm_epsilon": 0.1},
    "unscaled": {"scale_attn_weights": False},
    "scaled by layer": {"scale_attn_by_inverse_layer_idx": True, "n_layer": 3},
    "dropouts": {"embd_pdrop": 0.1, "attn_pdrop": 0.2, "resid_pdrop": 0.3},
}
EACH_VARIANT = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
IDX = np.random.default_rng(0).integers(0, 11, (3, 6))
TARGETS = np.random.default_rng(1).integers(0, 11, (3, 6))
TARGETS[0, 1] = -1


def theirs_of(variant, dtype=torch.float32):
    """A GPT-2 of transformers with unit-scale weights that `dtype` can hold, as a double-precision oracle."""
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
    reference_loss = torch.nn.functional.cross_entropy(reference.flatten(0, 1), torch.from_numpy(TARGETS).flatten(),
                                                       ignore_index=-1)
    assert loss == pytest.approx(reference_loss.item(), rel=1e-12)
    reference_loss.backward()
    grads = ours.backward()
    compared = {name.removeprefix("transformer.") for name, _ in theirs.named_parameters()}
    assert compared == set(grads)
    for name, parameter in theirs.named_parameters():
        assert_equal(grads[name.removeprefix("transformer.")], parameter.grad, name)


@pytest.mark.parametrize("variant", [
    {}, {"tie_word_embeddings": False}, {"activation": "gelu", "n_inner": 5, "layer_norm_epsilon": 0.1},
    {"n_head": 1, "n_layer": 3, "scale_attn_weights": False}, {"scale_attn_by_inverse_layer_idx": True, "n_layer": 3},
    {"embd_pdrop": 0.1, "attn_pdrop": 0.2, "resid_pdrop": 0.3}, {"bias": False}, {"qkv_bias": False},
    {"bias": False, "qkv_bias": True}, {"bias": False, "mlp_bias": True, "mlp_pdrop": 0.3}], ids=str)
def test_what_npgpt_saves_transformers_opens(variant, tmp_path):
    """Biases that a model lacks are saved as zeros."""
    ours = GPT(GPTConfig(**{"vocab_size": 11, "block_size": 8, "n_layer": 2, "n_head": 3, "n_embd": 12,
                            "bos_token_id": 1, "eos_token_id": 2, **variant}), dtype="float64")
    unit_scale(ours.params)
    ours.save_pretrained(tmp_path)
    theirs, info = transformers.GPT2LMHeadModel.from_pretrained(
        tmp_path, attn_implementation="eager", dtype=torch.float64, output_loading_info=True)
    assert not any(info.values()), info
    assert_equal(ours.forward(IDX)[0], logits_of(theirs.eval()))
    back = GPT.from_pretrained(tmp_path, dtype="float64")
    assert np.array_equal(back.forward(IDX)[0], ours.forward(IDX)[0])
    assert back.config == ours.config.derived() and list(back.params) == list(ours.params)


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
    refused(npgpt("export", "own", "--out", "theirs"), f"{field}={value} has no counterpart")
    assert not (tmp_path / "theirs").exists()
    assert len(TensorFile("own/model.safetensors").shapes) == len(model.params)


@pytest.mark.parametrize(
    ("name", "field", "others"),
    [
        ("h.1.attn.c_attn.bias", "qkv_bias", {}),
        ("h.0.mlp.c_proj.bias", "mlp_bias", {}),
        ("ln_f.bias", "bias", {"qkv_bias": None}),
        ("h.1.attn.c_proj.bias", "bias", {"mlp_bias": True}),
    ],
)
def test_biases_that_were_tuned_in_transformers_are_read(name, field, others, tmp_path, capfd):
    """Though the config says that there are none, one number suffices, in any type."""
    fields = {"vocab_size": 11, "block_size": 8, "n_layer": 2, "n_head": 3, "n_embd": 12}
    biases = {"bias": False, "qkv_bias": False, "mlp_bias": False} | others
    config = GPTConfig(**fields, **biases)
    ours = GPT(config, None, "float64")
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
    used = {each: config.used(each) for each in ("qkv_bias", "mlp_bias")}
    assert again.config == GPTConfig(**fields, **{"bias": False} | used | {field: True}).derived()
    assert_equal(again.forward(IDX)[0], logits_of(theirs.eval()))
    assert not np.allclose(again.forward(IDX)[0], ours.forward(IDX)[0])
    again.save_pretrained(tmp_path / "saved")
    assert load(tmp_path / "saved")[0].config == again.config and not capfd.readouterr().err


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "shards"])
@pytest.mark.parametrize("prefix", [True, False], ids=["prefix", "no prefix"])
def test_every_way_that_weights_are_stored(dtype, sharded, prefix, tmp_path):
    theirs = theirs_of({"vocab_size": 300}, dtype)
    stored = theirs if prefix else theirs.transformer
    stored.save_pretrained(tmp_path, max_shard_size="10KB" if sharded else "1GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == sharded
    ours = GPT.from_pretrained(tmp_path, dtype="float64")
    for name, parameter in stored.double().named_parameters():
        assert np.array_equal(ours.params[name.removeprefix("transformer.")], parameter.detach().numpy()), name
    assert_equal(ours.forward(IDX)[0], logits_of(theirs))
    assert GPT.from_pretrained(tmp_path).params.flat.dtype == np.float32


def test_mask_buffers_and_an_explicit_tied_head_are_passed_over(tmp_path):
    from safetensors.torch import load_file, save_file

    theirs = theirs_of({})
    theirs.save_pretrained(tmp_path)
    tensors = {name.removeprefix("transformer."): tensor
               for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    for i in range(2):
        tensors[f"h.{i}.attn.bias"] = torch.ones(1, 1, 8, 8).tril().to(torch.uint8)
        tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    tensors["lm_head.weight"] = tensors["wte.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    ours = GPT.from_pretrained(tmp_path / "model.safetensors", dtype="float64")
    assert_equal(ours.forward(IDX)[0], logits_of(theirs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "shards"])
def test_a_head_that_differs_is_read_though_the_config_says_tied(
    sharded, dtype, tmp_path, capfd, monkeypatch
):
    """Equal values in another type do not differ."""
    from safetensors.torch import load_file, save_file

    monkeypatch.setattr("npgpt.checkpoints.tensorfile.CHUNK", 7)
    theirs = theirs_of({}, torch.bfloat16).float()
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    head = tensors["transformer.wte.weight"].clone()

    def save():
        first, second = tmp_path / "model.safetensors", dict(tensors)
        second["lm_head.weight"] = head.to(dtype)
        if sharded:
            first.unlink(missing_ok=True)
            names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
            shards = {names[0]: {"lm_head.weight": second.pop("lm_head.weight")}, names[1]: second}
            for name, shard in shards.items():
                save_file(shard, tmp_path / name, {"format": "pt"})
            where = {tensor: name for name, shard in shards.items() for tensor in shard}
            index = tmp_path / "model.safetensors.index.json"
            index.write_text(json.dumps({"weight_map": where}))
        else:
            save_file(second, first, {"format": "pt"})
        capfd.readouterr()
        return GPT.from_pretrained(tmp_path, dtype="float64"), capfd.readouterr().err

    ours, said = save()
    assert ours.config.tie_word_embeddings and not said
    assert_equal(ours.forward(IDX)[0], logits_of(theirs))

    head[10, 11] = -head[10, 11]            # one number, the last one
    ours, said = save()
    assert not ours.config.tie_word_embeddings
    assert said.startswith(f"npgpt: {tmp_path}: lm_head.weight differs") and said.count("\n") == 1
    hidden = theirs.double().transformer(torch.from_numpy(IDX)).last_hidden_state
    expected = hidden @ head.to(dtype).double().T
    assert_equal(ours.forward(IDX)[0], expected)
    ours.save_pretrained(tmp_path / "exported")
    fields = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert fields["tie_word_embeddings"] is False
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "exported", dtype=torch.float64)
    assert_equal(logits_of(again.eval()).detach(), expected)
    capfd.readouterr()
    GPT.from_pretrained(tmp_path / "exported")
    assert not capfd.readouterr().err


@pytest.mark.parametrize(("field", "value"), [
    ("activation_function", "relu"), ("activation_function", []), ("add_cross_attention", True),
    ("model_type", "llama"), ("rope_theta", 1e4), ("n_embd", 13), ("npgpt", {"magic": 1}),
    ("n_layer", None)])
def test_a_config_that_npgpt_would_get_wrong_is_refused_by_name(field, value, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", field: value}))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UserError, match=field):
        open_model(tmp_path)
