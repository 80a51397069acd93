"""Looking inside a model: every array and gradient by its name against torch, and edits of arrays on their way."""

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, UserError, layers
from npgpt.engine.activations import Arrays, Change, Looking
from npgpt.model import variants
from npgpt.model.block import read_block
from npgpt.model.masks import draw_masks
from tests.cases import FROZEN, LORA, SMALL, B, T, V
from tests.torch_gpt import torch_loss, unit_scale

CONFIGS = {
    "gpt2": {}, "dropout": {"dropout": 0.3},
    "untied, exact gelu, embedding layernorm": {"tie_word_embeddings": False, "lm_head_bias": True,
                                                "activation": "gelu", "embedding_layer_norm": True},
    "encoder without biases": {"causal": False, "bias": False, "final_layer_norm": False},
    "lora": {"block": read_block(LORA)}}
IDX = np.random.default_rng(1).integers(0, V, (B, T))
TARGETS = np.where(np.random.default_rng(2).random((B, T)) < 0.3, -1, (IDX + 1) % V)


def unit_model(**fields):
    freeze = FROZEN if "block" in fields else ()
    model = GPT(GPTConfig(**SMALL | fields), dtype="float64", threads=1, freeze=freeze)
    unit_scale(model.params)
    return model


class OnTorch(Looking):
    """The same lines on torch's tensors, with torch's gradients: each array is kept, or its edited value."""

    def seen(self, name, value):
        import torch

        name = self.prefix + name
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        self.made.add(name)
        if name in self.edit and name not in self.edited:
            kind, before = type(value), value.detach().as_subclass(torch.Tensor).numpy()
            new = self.edit[name](before.copy())
            changed = torch.tensor((new != before).any(-1, keepdims=True))
            self.edited[name] = Change(before, new, None)
            value = torch.where(changed, torch.tensor(new).requires_grad_(), value.as_subclass(torch.Tensor))
            value = value.as_subclass(kind)
        elif name in self.activations:
            return value                        # a caller's name for the same array
        value = value.view_as(value)            # two names of one array each have a gradient of their own
        if value.requires_grad:
            value.retain_grad()
            self.activations[name] = value
        return value


def torchs(model, edit, rng=None):
    """Return torch's activations of the same forward, their gradients, and those of the parameters."""
    torch = pytest.importorskip("torch", reason="the oracle")
    from npgpt.model.parameters import flatten
    from npgpt.study.lessons.lesson import map_arrays
    from tests.torch_arrays import as_tensor

    p = map_arrays(lambda array: as_tensor(array).requires_grad_(), model.params.tree)
    masks = map_arrays(as_tensor, draw_masks(model.config, B, T, np.float64, rng))
    looking = OnTorch(model.config, edit)
    logits, _ = variants.model_forward(
        as_tensor(IDX), p, looking.config, masks, looking.ops, lesson=looking.gpt_forward)
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
    values, gradients, of_parameters = torchs(model, {}, rng())
    made = activations.keys() - {"mask"}         # -inf, and no gradient
    assert made == values.keys() and len(made) > 100
    for name in made:
        close(activations[name], values[name].detach().numpy(), name)
    fused = {"mean", "centred", "var", "rstd", "largest", "exps", "total", "phi"}
    if model.params.frozen:
        fused |= {"dropped_1", "dropped_2"}
        made = {name for name in made if ".c_fc." not in name}      # its weight is frozen
    assert {name.rpartition(".")[2] for name in made - activations.grads.keys()} <= fused
    for name, gradient in activations.grads.items():
        close(gradient, gradients[name], name)
    again, loss = model.forward(IDX, TARGETS, rng())
    assert (again == logits).all() and loss == pytest.approx(layers.cross_entropy_forward(logits, TARGETS)[0], 1e-15)
    for name, gradient in model.backward().items():
        assert (grads[name] == gradient).all()              # the same lines
        close(gradient, of_parameters[name], name)


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


def test_arrays_are_shown_as_a_table():
    found = Arrays({"<b>": np.array([-1.0, 2.0, -6.0])})
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


def head_zeroed(array):
    array[:, 1] = 0.0
    return array


def some_rows(array):
    """Other values in some rows, and in one of them in a single place; the function may write to what it is given."""
    flat = array.reshape(-1, array.shape[-1])
    flat[::3] = flat[::3] * 0.5 + 0.1
    flat[1, 0] += 0.25
    return flat.reshape(array.shape)


EDITS = [*({f"h.0.{name}": some_rows} for name in (
    "x", "ln_1.xhat", "norm_1", "attn.c_attn.rows", "attn.qkv", "attn.q", "attn.scores", "attn.att",
    "attn.kept", "attn.mix", "attended", "x_mid", "mlp.hidden", "mlp.active", "x_out")),
    *({name: some_rows} for name in ("embedding.token", "ln_f.xhat", "head.rows", "logits")),
    {"h.1.attn.mix": head_zeroed}, {"h.1.x": np.zeros_like}, {"h.0.mlp_out": lambda array: array},
    {"h.0.attn.kept": head_zeroed, "h.0.attn.att": some_rows, "h.1.mlp.hidden": some_rows, "h.1.x_mid": some_rows}]
TANH, EXACT = ({"h.0.mlp.gelu.inner": some_rows}, {"h.1.mlp.gelu.tanh": some_rows}), ({"h.1.mlp.gelu.y": some_rows},)


@pytest.mark.parametrize(("fields", "edit"), [
    *(({}, edit) for edit in (*EDITS, *TANH)), *(({"dropout": 0.3}, edit) for edit in EDITS[6:11]),
    *(({"activation": "gelu", "tie_word_embeddings": False}, edit) for edit in (*EDITS[-1:], *EXACT))],
    ids=lambda each: " ".join(each) or "gpt2")
def test_gradients_after_an_edit_are_torchs(fields, edit):
    model = unit_model(**fields)
    rng = (lambda: np.random.default_rng(5)) if "dropout" in fields else lambda: None
    plain, _ = model.forward(IDX, TARGETS, rng())
    logits, loss = model.forward(IDX, TARGETS, rng(), edit=edit)
    assert (logits == plain).all() == (edit.keys() == {"h.0.mlp_out"})
    grads = model.backward()
    values, gradients, of_parameters = torchs(model, edit, rng())
    assert loss == pytest.approx(layers.cross_entropy_forward(logits, TARGETS)[0])
    for name, gradient in grads.items():
        close(gradient, of_parameters[name], name)
    again, activations = model.run_with_cache(IDX, TARGETS, rng(), edit=edit)
    close(again, values["logits"].detach().numpy())
    model.backward()
    for name, gradient in activations.grads.items():
        close(gradient, gradients[name], name)


@pytest.mark.parametrize("name", ["h.0.ln_1.rstd", "h.1.attn.exps", "mask"])
def test_no_gradient_passes_by_an_edit_inside_a_fused_gradient(name):
    model = unit_model()
    assert model.forward(IDX, TARGETS, edit={name: lambda array: array * 0.5})[1] > 0.0
    with pytest.raises(UserError, match=f"cannot undo an edit of {name}: a fused gradient skips it, or no .*; edit"):
        model.backward()
