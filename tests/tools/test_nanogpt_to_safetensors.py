"""tools/nanogpt_to_safetensors.py: the converted model has the logits of nanoGPT's."""

from pathlib import Path

import numpy as np
import pytest
from nanogpt_to_safetensors import main, tokenizer_for

from npgpt import GPT, GPTConfig, load
from tests.helpers.runs import refused
from tests.torch_gpt import assert_equal, torch_gpt, torch_parameters, unit_scale

torch = pytest.importorskip("torch")
pytest.importorskip("scipy", reason="nanoGPT's GELU is the exact one")

TEXT = "hello, world\r\n"  # 10 characters, as open() reads them


def save(path, prefix="", more=(), **fields):
    """Write ckpt.pt as nanoGPT's train.py does, with random weights. Return them as our `GPT`."""
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 8, "block_size": 6, "vocab_size": 10} | fields
    model = GPT(GPTConfig(activation="gelu", **sizes), None)
    unit_scale(model.params)
    state = {}
    for name, array in model.params.items():
        is_linear = "attn" in name or "mlp" in name  # torch has (out, in)
        kept = name if name == "lm_head.weight" else f"transformer.{name}"
        state[prefix + kept] = torch.tensor(array.T if is_linear else array)
    state.setdefault(f"{prefix}lm_head.weight", state[f"{prefix}transformer.wte.weight"])
    args = {"bias": True, "dropout": 0.0} | sizes
    torch.save({"model": state | dict(more), "model_args": args, "iter_num": 5}, path)
    return model


@pytest.mark.parametrize(
    ("prefix", "fields"),
    [
        ("", {}),
        ("_orig_mod.", {"bias": False}),
        ("_orig_mod.module.", {"tie_word_embeddings": False}),
        ("", {"vocab_size": 50304, "bias": False}),
        ("", {"vocab_size": 50257}),
    ],
)
def test_the_logits_are_nanogpts(npgpt, prefix, fields):
    mask = torch.ones(6, 6).tril().view(1, 1, 6, 6)  # older versions save it
    theirs = save("ckpt.pt", prefix, {f"{prefix}transformer.h.0.attn.bias": mask}, **fields)
    is_char = "vocab_size" not in fields
    Path("input.txt").write_bytes(TEXT.encode())
    assert main(["ckpt.pt", "there", *["--text", "input.txt"] * is_char]) == 0
    ours, tokenizer = load("there", dtype="float64")
    idx = np.random.default_rng(0).integers(0, ours.config.vocab_size, (3, 6))
    tensors = {name: each.double() for name, each in torch_parameters(theirs.params).items()}
    assert_equal(ours.forward(idx)[0], torch_gpt(tensors, theirs.config, idx))
    assert tokenizer.kind == ("char" if is_char else "gpt2")
    if is_char:
        assert tokenizer.chars == "".join(sorted({*"hello, world\n"}))
        code, out, _ = npgpt("sample", "there", "--prompt", "hello", "--max-new-tokens", 5)
        assert code == 0 and "\nhello" in out


class Attack:
    def __reduce__(self):
        return Path.touch, (Path("ran"),)


def test_refusals(npgpt, capsys):
    """One line each, and no folder."""

    def run(*arguments):
        code = main([*map(str, arguments)])
        return code, *capsys.readouterr()

    Path("ckpt.pt").write_bytes(b"not a checkpoint")
    refused(run("ckpt.pt", "there"), "ckpt.pt is damaged")
    torch.save({"model": {}, "model_args": Attack()}, "ckpt.pt")
    refused(run("ckpt.pt", "there"), "without running its code")
    assert not Path("ran").exists()
    torch.save({"model": {}, "model_args": {"n_layer": 2}}, "ckpt.pt")
    refused(run("ckpt.pt", "there"), "ckpt.pt is not a checkpoint of nanoGPT", "n_embd")
    save("ckpt.pt", more={"transformer.h.0.rotary": torch.ones(2)})
    refused(run("ckpt.pt", "there"), "h.0.rotary is unknown")
    save("ckpt.pt", more={"module.wpe.weight": torch.ones(6, 8)})
    refused(run("ckpt.pt", "there"), "ckpt.pt has wpe.weight twice", "now as module.wpe")
    save("ckpt.pt")
    refused(run("ckpt.pt", "there"), "the vocabulary of 10 is not GPT-2's", "--text input.txt")
    Path("input.txt").write_text("hello")
    refused(
        run("ckpt.pt", "there", "--text", "input.txt"),
        "4 different characters, but the model knows 10",
    )
    text = Path("bom.txt")
    text.write_text("\ufeffabcdefgh\r\n", encoding="utf-8", newline="")  # open() keeps the mark
    assert tokenizer_for(10, text).chars == "\nabcdefgh\ufeff"
    assert not Path("there").exists()
