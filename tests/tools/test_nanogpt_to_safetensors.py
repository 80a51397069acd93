"""tools/nanogpt_to_safetensors.py: the converted model has the logits of nanoGPT's."""

import sys
from pathlib import Path

import numpy as np
import pytest

from npgpt import load
from tests.helpers.runs import refused

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from nanogpt_to_safetensors import main, tokenizer_for

torch = pytest.importorskip("torch")
pytest.importorskip("scipy", reason="nanoGPT's GELU is the exact one")

SIZES = {"n_layer": 2, "n_head": 2, "n_embd": 8, "block_size": 6, "dropout": 0.0}
TEXT = "hello, world\r\n"       # 10 characters, as open() reads them


def nano(vocab_size, bias):
    """A model with the structure and names of nanoGPT's, random weights, and its logits as a function of idx."""
    nn, C = torch.nn, SIZES["n_embd"]

    def norm():
        layer = nn.LayerNorm(C)
        if not bias:
            layer.bias = None
        return layer

    def block():
        attn = nn.ModuleDict({"c_attn": nn.Linear(C, 3 * C, bias), "c_proj": nn.Linear(C, C, bias)})
        mlp = nn.ModuleDict({"c_fc": nn.Linear(C, 4 * C, bias), "c_proj": nn.Linear(4 * C, C, bias)})
        return nn.ModuleDict({"ln_1": norm(), "attn": attn, "ln_2": norm(), "mlp": mlp})

    body = nn.ModuleDict({"wte": nn.Embedding(vocab_size, C), "wpe": nn.Embedding(SIZES["block_size"], C),
                          "h": nn.ModuleList(block() for _ in range(SIZES["n_layer"])), "ln_f": norm()})
    model = nn.ModuleDict({"transformer": body, "lm_head": nn.Linear(C, vocab_size, bias=False)})
    for p in model.parameters():
        nn.init.normal_(p)
    model["lm_head"].weight = body["wte"].weight

    def logits(idx):
        B, T = idx.shape
        x = body["wte"](idx) + body["wpe"](torch.arange(T))
        for each in body["h"]:
            q, k, v = (part.view(B, T, SIZES["n_head"], -1).transpose(1, 2)
                       for part in each["attn"]["c_attn"](each["ln_1"](x)).split(C, dim=2))
            mix = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + each["attn"]["c_proj"](mix.transpose(1, 2).reshape(B, T, C))
            x = x + each["mlp"]["c_proj"](nn.functional.gelu(each["mlp"]["c_fc"](each["ln_2"](x))))
        return model["lm_head"](body["ln_f"](x))

    return model, logits


def save(model, vocab_size, bias, prefix="", **more):
    """Write ckpt.pt as nanoGPT's train.py does."""
    args = SIZES | {"vocab_size": vocab_size, "bias": bias}
    state = {prefix + name: value for name, value in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters()).state_dict()
    torch.save({"model": state | more, "optimizer": optimizer, "model_args": args, "iter_num": 5,
                "best_val_loss": torch.tensor(2.5), "config": {"out_dir": "out", "compile": True} | args}, "ckpt.pt")


@pytest.mark.parametrize(("vocab_size", "bias", "prefix", "kind", "tied"), [
    (10, True, "", "char", True), (10, False, "_orig_mod.", "char", True),
    (10, True, "module.", "char", True), (10, True, "_orig_mod.module.", "char", False),
    (50304, False, "", "gpt2", True),
    (50257, True, "", "gpt2", True), (10, True, "", "char", False)])
def test_the_logits_are_nanogpts(npgpt, vocab_size, bias, prefix, kind, tied):
    torch.manual_seed(0)
    model, logits = nano(vocab_size, bias)
    if not tied:
        model["lm_head"].weight = torch.nn.Parameter(torch.randn(vocab_size, SIZES["n_embd"]))
    mask = torch.ones(6, 6).tril().view(1, 1, 6, 6)         # older versions save it
    weight = torch.nn.Parameter(model["transformer"]["h"][0]["ln_1"].weight.detach())
    save(model, vocab_size, bias, prefix, **{f"{prefix}transformer.h.0.attn.bias": mask,
                                             f"{prefix}transformer.h.0.ln_1.weight": weight})
    Path("input.txt").write_bytes(TEXT.encode())
    assert main(["ckpt.pt", "there", *(["--text", "input.txt"] if kind == "char" else [])]) == 0
    ours, tokenizer = load("there", dtype="float64")
    idx = np.random.default_rng(0).integers(0, vocab_size, (3, 6))
    with torch.no_grad():
        expected = (model.double(), logits(torch.from_numpy(idx)))[1].numpy()
    np.testing.assert_allclose(ours.forward(idx)[0], expected, rtol=1e-9, atol=1e-9)
    assert tokenizer.kind == kind
    if kind == "char":
        assert tokenizer.chars == "".join(sorted({*"hello, world\n"}))
        code, out, _ = npgpt("sample", "there", "--prompt", "hello", "--max-new-tokens", 5, "--seed", 1)
        assert code == 0 and "\nhello" in out
        Path("more.txt").write_text(20 * TEXT.replace("\r", ""))
        code, _, err = npgpt("train", "--init-from", "there", "--corpus", "more.txt", "--max-iters", 1,
                               "--crop-length", 6)
        assert code == 0, err


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
    model, _ = nano(10, True)
    save(model, 10, True, **{"transformer.h.0.rotary": torch.ones(2)})
    refused(run("ckpt.pt", "there"), "h.0.rotary is unknown")
    for prefix in ("_orig_mod.", "module.", "module.transformer."):
        save(model, 10, True, **{f"{prefix}wpe.weight": torch.ones(6, 8)})
        refused(run("ckpt.pt", "there"), "ckpt.pt has wpe.weight twice", f"now as {prefix}wpe")
    save(model, 10, True)
    refused(run("ckpt.pt", "there"), "the vocabulary of 10 is not GPT-2's", "--text input.txt")
    Path("input.txt").write_text("hello")
    refused(run("ckpt.pt", "there", "--text", "input.txt"), "4 different characters, but the model knows 10")
    text = Path("bom.txt")
    text.write_text("\ufeffabcdefgh\r\n", encoding="utf-8", newline="")      # open() keeps the mark
    assert tokenizer_for(10, text).chars == "\nabcdefgh\ufeff"
    assert not Path("there").exists()
