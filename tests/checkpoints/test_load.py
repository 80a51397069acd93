"""Files with the wrong content are refused by name, before anything large is allocated."""

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from npgpt import GPT, GPTConfig, UserError
from npgpt.checkpoints.load import open_model
from npgpt.checkpoints.tensorfile import open_tensors
from tests.conftest import traced
from tests.helpers.runs import refusing
from tests.torch_gpt import unit_scale


@pytest.fixture
def folder(tmp_path):
    """A small model, saved."""
    model = GPT(GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=8))
    unit_scale(model.params)
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def header(entries, size=0):
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


def test_missing_extra_and_misshapen_tensors_are_all_named(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["transformer.ln_f.bias"]
    tensors["lm_head.weight"] = tensors.pop("transformer.wte.weight")
    tensors["transformer.h.2.ln_1.weight"] = np.zeros(8, "float32")
    tensors["transformer.wpe.weight"] = np.zeros((9, 8), "float32")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError) as error:
        GPT.from_pretrained(folder)
    for words in (
        "ln_f.bias is missing",
        "h.2.ln_1.weight is extra",
        "wte.weight is missing",
        "wpe.weight has the shape (9, 8) instead of (8, 8)",
    ):
        assert words in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_prefixes_that_torch_adds_are_named(folder, prefix):
    tensors = load_file(folder / "model.safetensors")
    renamed = {prefix + name: tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / "model.safetensors")
    with refusing(f"every tensor begins with '{prefix}', .*: remove it"):
        open_model(folder)
    save_file({**tensors, "module.odd": np.zeros(3)}, folder / "model.safetensors")
    with refusing("does not fit .*module.* is extra"):
        open_model(folder)


def test_a_tensor_under_two_names_is_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file(
        tensors | {"wte.weight": tensors["transformer.wte.weight"]}, folder / "model.safetensors"
    )
    with refusing("has wte.weight twice, also under the prefix transformer"):
        GPT.from_pretrained(folder)


def test_the_layout_of_nn_linear_is_named(folder):
    """With attn.c_proj, which is square."""
    tensors = load_file(folder / "model.safetensors")
    linear = [name for name in tensors if name.endswith(".weight") and ".c_" in name]
    turned = {name: np.ascontiguousarray(tensors[name].T) for name in linear}
    save_file({**tensors, **turned}, folder / "model.safetensors")
    shape = r"c_attn.weight has the shape \(24, 8\) instead of \(8, 24\)"
    with refusing(f"{shape}.*transpose the weights.*also of attn.c_proj"):
        open_model(folder)
    other = {"transformer.h.0.attn.c_attn.weight": np.zeros((24, 9), "float32")}
    save_file({**tensors, **other}, folder / "model.safetensors")
    with pytest.raises(UserError) as error:
        open_model(folder)
    assert "transpose" not in str(error.value)


def test_a_tensor_of_integers_is_refused(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    head = tensors["transformer.wte.weight"]
    for name, tensor, says in (
        ("transformer.ln_f.bias", np.zeros(8, np.int32), "ln_f.bias is stored as I32"),
        ("lm_head.weight", head.astype("int32"), "lm_head.weight is stored as I32"),
        ("lm_head.weight", head.reshape(8, 11), "lm_head.weight has the shape"),
    ):
        save_file({**tensors, name: tensor}, path)
        with refusing(says):
            open_model(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 64,
        header({"wte.weight": 5}),
        struct.pack("<Q", 1 << 62) + b"{}",
        header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 4),
        header({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}, 8),
    ],
    ids=["empty", "noise", "no entry", "absurd header", "cut off", "absurd shape"],
)
def test_a_malformed_file_is_refused_in_one_line(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    says = "model.safetensors is not a safetensors file that can be read"
    with refusing(f"^.*{says}.*$"):
        open_model(folder)


@pytest.mark.parametrize("field", ["n_layer", "n_embd", "vocab_size", "n_positions", "n_inner"])
def test_an_absurd_config_allocates_nothing(folder, field):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: 10**12}))
    assert traced(lambda: pytest.raises(UserError, GPT.from_pretrained, folder))[1] < 1e6


SHARDS = [["b"], "../model.safetensors", "/etc/x.safetensors", "sub/model.safetensors", "w.bin", 5]


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"weight_map": 1}', *(json.dumps({"weight_map": {"a": each}}) for each in SHARDS)],
)
def test_an_index_that_is_none_or_points_elsewhere_is_refused(folder, content):
    (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(content)
    with refusing("index.json"):
        open_model(folder)


def test_a_shard_that_is_not_there_is_named(folder):
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"wte.weight": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with refusing("model-00001-of-00001.safetensors"):
        open_model(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_without_what_it_needs_is_refused(folder, name):
    (folder / name).unlink()
    with refusing(name):
        open_model(folder)


def test_a_file_that_shrinks_between_check_and_read_is_noticed(folder):
    path = folder / "model.safetensors"
    tensors = open_tensors(path)
    path.write_bytes(path.read_bytes()[:-4])
    with refusing("ends within"):
        for tensor in tensors.values():
            tensor.read_into(np.empty(tensor.shape, "float32"))


def test_saving_over_an_existing_model_is_all_or_nothing(folder, monkeypatch):
    before = (folder / "model.safetensors").read_bytes()

    def full(file, tensors):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("npgpt.checkpoints.save.write_tensors", full)
    with pytest.raises(OSError, match="No space"):
        GPT.from_pretrained(folder).save_pretrained(folder)
    assert (folder / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e39])
def test_numbers_that_float32_cannot_hold_are_refused(tmp_path, value):
    """Not so what was saved as infinite, or as NaN."""
    config = GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=8)
    model = GPT(config, dtype="float64")
    model.params["ln_f.bias"] = value
    model.save_pretrained(tmp_path)
    for dtype in ("float64", "float32"):
        if (value, dtype) == (1e39, "float32"):
            says = "ln_f.bias has numbers that float32 cannot hold"
            with refusing(says):
                GPT.from_pretrained(tmp_path)
        else:
            found = GPT.from_pretrained(tmp_path, dtype=dtype).params["ln_f.bias"]
            np.testing.assert_array_equal(found, value)


def test_numbers_that_float16_cannot_hold_are_refused(folder):
    model = GPT.from_pretrained(folder)
    model.params["ln_f.bias"][0] = 1e5
    with refusing("ln_f.bias has numbers that float16 cannot hold"):
        model.save_pretrained(folder, dtype="float16")
