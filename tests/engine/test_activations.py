"""Look inside a model: every array and gradient by its name against torch, and edits of arrays
on their way.
"""

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from npgpt.engine.activations import Arrays, ForwardTrace
from npgpt.model import variants
from npgpt.model.block import read_block
from npgpt.model.masks import draw_masks
from npgpt.model.parameters import flatten
from npgpt.study.lessons.lesson import map_arrays
from tests.cases import FROZEN, LORA, SMALL, B, T, V
from tests.helpers.close import assert_close
from tests.helpers.runs import refusing
from tests.torch_gpt import grads_of, torch_loss, unit_scale

CONFIGS = {
    "gpt2": {},
    "dropout": {"dropout": 0.3},
    "untied, exact gelu, embedding layernorm": {
        "tie_word_embeddings": False,
        "lm_head_bias": True,
        "activation": "gelu",
        "embedding_layer_norm": True,
    },
    "encoder without biases": {"causal": False, "bias": False, "final_layer_norm": False},
    "lora": {"block": read_block(LORA)},
}
IDX = np.random.default_rng(1).integers(0, V, (B, T))
TARGETS = np.where(np.random.default_rng(2).random((B, T)) < 0.3, -1, (IDX + 1) % V)


def unit_model(**fields):
    freeze = FROZEN if "block" in fields else ()
    model = GPT(GPTConfig(**SMALL | fields), dtype="float64", threads=1, freeze=freeze)
    unit_scale(model.params)
    return model


class OnTorch(ForwardTrace):
    """The same lines on torch's tensors, with torch's gradients: each array is kept.

    hooks: name -> a function of a tensor, which edits the array.
    """

    def __init__(self, config, hooks):
        super().__init__(config)
        self.hooks = hooks

    def record(self, name, value):
        import torch

        name = self.prefix + name
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        self.made.add(name)
        hook = self.hooks.pop(name, None)
        if hook:
            value = hook(value.as_subclass(torch.Tensor)).as_subclass(type(value))
        elif name in self.activations:
            return value  # a caller's name for the same array
        value = value.view_as(value)  # two names of one array each have a gradient of their own
        if value.requires_grad:
            value.retain_grad()
            self.activations[name] = value
        return value


def torchs(model, hooks, rng=None):
    """Return torch's activations of the same forward, their gradients and the parameters'."""
    torch = pytest.importorskip("torch", reason="the oracle")
    from tests.torch_arrays import as_tensor

    p = map_arrays(lambda array: as_tensor(array).requires_grad_(), model.params.tree)
    masks = map_arrays(as_tensor, draw_masks(model.config, B, T, np.float64, rng))
    trace = OnTorch(model.config, hooks)
    logits, _ = variants.model_forward(
        as_tensor(IDX), p, trace.config, masks, trace.ops, lesson=trace.gpt_forward
    )
    torch_loss(logits.as_subclass(torch.Tensor), TARGETS).backward()
    return trace.activations, grads_of(trace.activations), grads_of(flatten(p))


def rng_for(fields):
    """Return what draws the dropout masks of a config, the same in each call."""
    return np.random.default_rng(5) if "dropout" in fields else None


@pytest.mark.parametrize("fields", CONFIGS.values(), ids=CONFIGS)
def test_every_array_and_its_gradient_is_torchs(fields):
    model = unit_model(**fields)
    logits, activations = model.run_with_cache(IDX, TARGETS, rng_for(fields))
    grads = model.backward()
    values, gradients, of_parameters = torchs(model, {}, rng_for(fields))
    made = activations.keys() - {"mask"}  # -inf, and no gradient
    assert len(made) > 100
    assert_close({name: activations[name] for name in made}, {**values})
    assert_close(activations.grads, {name: gradients[name] for name in activations.grads})
    assert_close(grads, {name: of_parameters[name] for name in grads})
    fused = {"mean", "centred", "var", "rstd", "largest", "exps", "total", "phi"}
    if model.params.frozen:
        fused |= {"dropped_1", "dropped_2"}
        made = {name for name in made if ".c_fc." not in name}  # its weight is frozen
    assert {name.rpartition(".")[2] for name in made - activations.grads.keys()} <= fused
    again, _ = model.forward(IDX, TARGETS, rng_for(fields))
    assert (again == logits).all()
    for name, gradient in model.backward().items():
        assert (grads[name] == gradient).all()  # the same lines


LINEAR, LAYERNORM = "x rows y", "x mean centred var rstd xhat"
NAMES = {  # prefix -> the variables of its lines: public, so after a renaming users' programs break
    "": "mask logits",
    "embedding.": "token position x",
    "drop.": "x y",
    "ln_f.": LAYERNORM,
    "head.": "x rows logit_rows logits",
    "h.0.": "x norm_1 attended dropped_1 x_mid norm_2 mlp_out dropped_2 x_out",
    "h.0.ln_1.": LAYERNORM,
    "h.0.ln_2.": LAYERNORM,
    "h.0.drop_1.": "x y",
    "h.0.drop_2.": "x y",
    "h.0.attn.": "x qkv heads q k v scores scaled masked largest exps total att kept mix merged y",
    "h.0.attn.c_attn.": LINEAR,
    "h.0.attn.c_proj.": LINEAR,
    "h.0.mlp.": "x hidden active y",
    "h.0.mlp.c_fc.": LINEAR,
    "h.0.mlp.gelu.": "x inner tanh y",
    "h.0.mlp.c_proj.": LINEAR,
}


RETURNED = """h.0.ln_1.x h.0.x, h.0.attn.x h.0.norm_1, h.0.mlp.x h.0.norm_2, h.1.x h.0.x_out,
h.0.ln_2.x h.0.x_mid, h.0.mlp.c_proj.x h.0.mlp.active, ln_f.x h.1.x_out"""


def test_names_say_the_place_in_the_model():
    model = unit_model()
    _, found = model.run_with_cache(IDX)
    expected = {prefix + name for prefix, names in NAMES.items() for name in names.split()}
    assert {name for name in found if not name.startswith("h.1.")} == expected
    x = model.params["wte.weight"][IDX] + model.params["wpe.weight"][:T]
    np.testing.assert_array_equal(found["h.0.x"], x)
    for pair in RETURNED.split(","):
        given, returned = pair.split()
        np.testing.assert_array_equal(found[given], found[returned])
    for array in found.values():
        with pytest.raises(ValueError, match="read-only"):
            array *= 2.0


def test_arrays_are_shown_as_a_table():
    found = Arrays({"b": np.array([-1.0, 2.0, -6.0])})
    assert "(3,)" in repr(found) and repr(found).endswith("float64  3")
    assert repr(Arrays(dict.fromkeys(range(70), IDX))).splitlines()[-1] == "… and 10 more"


def test_a_forward_without_targets_and_one_on_an_engine():
    model = GPT(GPTConfig(**SMALL), threads=2)
    model.forward(IDX, TARGETS)  # whose backward is lost
    logits, activations = model.run_with_cache(IDX)
    assert (logits == model.forward(IDX)[0]).all() and logits.dtype == np.float32
    assert activations["h.0.attn.att"].shape == (B, 3, T, T)
    with refusing("forward with targets"):
        model.backward()


@pytest.mark.parametrize("name", ["h.0.ln_1.rstd", "h.1.attn.exps", "mask"])
def test_no_gradient_passes_by_an_edit_inside_a_fused_gradient(name):
    model = unit_model()
    assert model.forward(IDX, TARGETS, edit={name: lambda array: array * 0.5})[1] > 0.0
    with refusing(f"cannot undo an edit of {name}: a fused gradient skips it, or no .*; edit"):
        model.backward()
