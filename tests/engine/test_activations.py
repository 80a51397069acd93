"""Looking inside a model: every array and gradient by its name against torch, and edits of arrays on their way."""

import functools

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, UserError, layers
from npgpt.engine.activations import Arrays, Looking
from npgpt.engine.ops import with_lora
from npgpt.model.masks import draw_masks
from tests import strict_cupy
from tests.cases import SMALL, B, T, V
from tests.torch_gpt import torch_loss, unit_scale

CONFIGS = {
    "gpt2": {}, "dropout": {"dropout": 0.3},
    "untied, exact gelu, embedding layernorm": {"tie_word_embeddings": False, "lm_head_bias": True,
                                                "activation": "gelu", "embedding_layer_norm": True},
    "encoder without biases": {"causal": False, "bias": False, "final_layer_norm": False}, "lora": {"lora_rank": 2}}
IDX = np.random.default_rng(1).integers(0, V, (B, T))
TARGETS = np.where(np.random.default_rng(2).random((B, T)) < 0.3, -1, (IDX + 1) % V)


def unit_model(**fields):
    model = GPT(GPTConfig(**SMALL | fields), dtype="float64", threads=1)
    unit_scale(model.params)
    return model


class OnTorch(Looking):
    """The same lines on torch's tensors: each array is kept, with the gradient that torch finds."""

    def seen(self, name, value):
        import torch

        name = self.prefix + name
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or name in self.activations:
            return value                        # in a caller the same array may have the same name
        value = value.view_as(value)            # two names of one array each have a gradient of their own
        if value.requires_grad:
            value.retain_grad()
            self.activations[name] = value
        return value


def torchs(model, rng):
    """Return torch's activations of the same forward, their gradients, and those of the parameters."""
    torch = pytest.importorskip("torch", reason="the oracle")
    from npgpt.model.parameters import flatten
    from npgpt.study.lessons.lesson import map_arrays
    from tests.torch_arrays import as_tensor

    p = map_arrays(lambda array: as_tensor(array).requires_grad_(), model.params.tree)
    masks = map_arrays(as_tensor, draw_masks(model.config, B, T, np.float64, rng))
    looking = OnTorch(model.config)
    ops = with_lora(looking.ops, model.config, all_gradients=True)
    logits, _ = looking.forward(as_tensor(IDX), p, looking.config, masks, ops, None)
    torch_loss(logits.as_subclass(torch.Tensor), TARGETS).backward()
    return looking.activations, *({name: np.zeros(each.shape) if each.grad is None else each.grad.numpy()
                                   for name, each in named.items()} for named in (looking.activations, flatten(p)))


def close(ours, theirs, name=""):
    scale = np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12 * max(1.0, scale), err_msg=name)


@pytest.mark.parametrize("fields", CONFIGS.values(), ids=CONFIGS)
def test_every_array_and_its_gradient_is_torchs(fields):
    model = unit_model(**fields)
    rng = (lambda: np.random.default_rng(5)) if "dropout" in fields else lambda: None
    logits, activations = model.run_with_cache(IDX, TARGETS, rng())
    assert not activations.grads
    grads = model.backward()
    values, gradients, of_parameters = torchs(model, rng())
    made = activations.keys() - {"mask"}         # -inf, and no gradient
    assert made == values.keys() and len(made) > 100
    for name in made:
        close(activations[name], values[name].detach().numpy(), name)
    assert {name.rpartition(".")[2] for name in made - activations.grads.keys()} <= {
        "mean", "centred", "var", "rstd", "largest", "exps", "total", "phi"}
    for name, gradient in activations.grads.items():
        close(gradient, gradients[name], name)
    again, loss = model.forward(IDX, TARGETS, rng())
    assert (again == logits).all() and loss == pytest.approx(layers.cross_entropy_forward(logits, TARGETS)[0], 1e-15)
    for name, gradient in model.backward().items():
        assert (grads[name] == gradient).all()              # the same lines
        close(gradient, of_parameters[name], name)


LINEAR, LAYERNORM = "x rows y", "x mean centred var rstd xhat"
NAMES = {           # prefix -> the variables of its lines: public, so after a renaming users' programs break
    "": "head_weight mask logits", "embedding.": "token position x", "drop.": "x y", "ln_f.": LAYERNORM,
    "head.": "x rows logits", "h.0.": "x norm_1 attended dropped_1 x_mid norm_2 mlp_out dropped_2 x_out",
    "h.0.ln_1.": LAYERNORM, "h.0.ln_2.": LAYERNORM, "h.0.drop_1.": "x y", "h.0.drop_2.": "x y",
    "h.0.attn.": "x qkv heads q k v scores scaled masked largest exps total att kept mix merged y",
    "h.0.attn.c_attn.": LINEAR, "h.0.attn.c_proj.": LINEAR, "h.0.mlp.": "x hidden active y",
    "h.0.mlp.c_fc.": LINEAR, "h.0.mlp.gelu.": "x inner tanh y", "h.0.mlp.c_proj.": LINEAR}


def test_names_say_the_place_in_the_model():
    model = unit_model()
    _, found = model.run_with_cache(IDX)
    assert {name for name in found if not name.startswith("h.1.")} == {
        prefix + name for prefix, names in NAMES.items() for name in names.split()}
    np.testing.assert_array_equal(found["h.0.x"], model.params["wte.weight"][IDX] + model.params["wpe.weight"][:T])
    for given, returned in (("h.0.ln_1.x", "h.0.x"), ("h.0.attn.x", "h.0.norm_1"), ("h.0.ln_2.x", "h.0.x_mid"),
                            ("h.0.mlp.x", "h.0.norm_2"), ("h.0.mlp.c_proj.x", "h.0.mlp.active"),
                            ("h.1.x", "h.0.x_out"), ("h.1.attn.x", "h.1.norm_1"), ("ln_f.x", "h.1.x_out")):
        np.testing.assert_array_equal(found[given], found[returned])


def test_arrays_are_shown_as_a_table(monkeypatch):
    found = Arrays({"<b>": strict_cupy.install(monkeypatch).asarray(np.array([-1.0, 2.0, -6.0]))})
    assert "<tr><td>&lt;b&gt;<td>(3,)<td>float64<td>3</table>" in found._repr_html_()
    found = unit_model(n_layer=12).run_with_cache(IDX)[1]
    assert repr(found).splitlines()[-1] == f"… and {len(found) - 60} more"


def test_a_forward_without_targets_and_one_on_an_engine():
    model = GPT(GPTConfig(**SMALL), threads=2)
    model.forward(IDX, TARGETS)                 # whose backward is lost
    logits, activations = model.run_with_cache(IDX)
    assert (logits == model.forward(IDX)[0]).all() and logits.dtype == activations["h.1.x_out"].dtype == np.float32
    assert activations["h.0.attn.att"].shape == (B, 3, T, T)
    with pytest.raises(UserError, match="forward with targets"):
        model.backward()


def test_no_array_can_be_written_to():
    for array in unit_model(n_layer=1).run_with_cache(IDX)[1].values():
        with pytest.raises(ValueError, match="read-only"):
            array *= 2.0


def test_an_edit_changes_the_loss_as_the_gradient_says():
    model = unit_model(n_layer=1)
    _, found = model.run_with_cache(IDX, TARGETS)
    model.backward()
    for name in found.grads:
        along = 1e-5 * np.random.default_rng(1).standard_normal(found[name].shape)
        more, less = (model.forward(IDX, TARGETS, edit={name: functools.partial(np.add, each)})[1]
                      for each in (along, -along))
        np.testing.assert_allclose((more - less) / 2, (found.grads[name] * along).sum(), 1e-5, 1e-12, err_msg=name)
    with pytest.raises(UserError, match="backward cannot undo edits"):
        model.backward()
