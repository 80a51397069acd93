"""Gradients through edits and of added arrays, against torch's and finite differences."""

import dataclasses

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, UserError
from npgpt.arrays import to_host
from npgpt.engine.activations import Change, model_backward
from npgpt.files import run_python
from npgpt.model.block import read_block
from tests import strict_cupy
from tests.cases import MODERN, SMALL, B, C, H, T, V
from tests.engine.test_activations import IDX, TARGETS, OnTorch, close, torchs, unit_model
from tests.torch_gpt import unit_scale

F = 4 * C
SHAPES = {  # of the vectors: each way to broadcast
    "h.0.x_out": (C,),
    "h.1.x_out": (T, C),
    "embedding.x": (B, T, C),
    "h.0.x": (1, T, 1),
    "h.0.norm_1": (C,),
    "h.0.ln_1.xhat": (T, C),
    "h.1.ln_2.x": (B, 1, C),
    "ln_f.xhat": (),
    "h.0.attn.q": (H, 1, C // H),
    "h.0.attn.att": (T, T),
    "h.1.attn.kept": (B, H, T, T),
    "h.0.attn.scores": (1, T, T),
    "h.0.attn.mix": (H, T, C // H),
    "h.1.attn.qkv": (3 * C,),
    "h.1.mlp.hidden": (F,),
    "h.0.mlp.gelu.x": (1, 1, 1),
    "h.0.mlp.gelu.inner": (T, F),
    "h.1.mlp.gelu.tanh": (F,),
    "h.0.mlp_out": (B, 1, 1),
    "head.x": (C,),
    "logits": (V,),
}


class Hooked(OnTorch):
    """Torch's own functions change the arrays: name -> function of a tensor."""

    hooks = {}

    def seen(self, name, value):
        import torch

        full = self.prefix + name
        if full in self.hooks and full not in self.edited:
            plain = value.as_subclass(torch.Tensor)
            value = self.hooks[full](plain).as_subclass(type(value))
            self.edited[full] = Change(plain, value, None)
        return super().seen(name, value)


def hooked(model, hooks, monkeypatch):
    monkeypatch.setattr("tests.engine.test_activations.OnTorch", Hooked)
    monkeypatch.setattr(Hooked, "hooks", hooks)
    return torchs(model, {})


def drawn(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize(
    "names", [*((name,) for name in SHAPES), tuple(SHAPES)], ids=lambda names: names[0]
)
def test_the_gradient_of_an_added_vector_is_torchs(names, monkeypatch):
    torch = pytest.importorskip("torch", reason="the oracle")
    model, add = unit_model(), {name: 0.3 * drawn(SHAPES[name], len(name)) for name in names}
    logits, _ = model.forward(IDX, TARGETS, add=add)
    grads = model.backward()
    leaves = {name: torch.tensor(each, requires_grad=True) for name, each in add.items()}
    hooks = {name: lambda value, leaf=leaf: value + leaf for name, leaf in leaves.items()}
    values, _, of_parameters = hooked(model, hooks, monkeypatch)
    close(logits, values["logits"].detach().numpy())
    assert grads.keys() == of_parameters.keys() | {*names}
    for name, gradient in grads.items():
        true = leaves[name].grad.numpy() if name in add else of_parameters[name]
        assert gradient.shape == true.shape
        close(gradient, true, name)


def gate(gain, found, name):
    """A soft gain, with torch's form: the array times sigmoid(gain)."""

    def edit(array):
        def backward(dnew):
            assert name not in found, "called twice"
            found[name] = dnew.copy()
            dnew *= soft  # its own to write to
            return dnew

        soft = 1.0 / (1.0 + np.exp(-gain))
        return array * soft, backward

    return edit


@pytest.mark.parametrize(
    "names",
    [
        *((name,) for name in SHAPES),
        tuple(SHAPES),
        tuple(name for name in SHAPES if ".attn." in name),
    ],
    ids=lambda names: f"{names[0]} {len(names)}",
)
def test_gradients_through_soft_edits_are_torchs(names, monkeypatch):
    torch = pytest.importorskip("torch", reason="the oracle")
    model, found = unit_model(), {}
    gains = {name: drawn(SHAPES[name], len(name)) for name in names}
    edit = {name: gate(gain, found, name) for name, gain in gains.items()}
    vector = {names[-1]: 0.5 * drawn(SHAPES[names[-1]], 7)}  # is added after the edit
    logits, activations = model.run_with_cache(IDX, TARGETS, edit=edit, add=vector)
    grads = model.backward()
    leaves = {name: torch.tensor(gain) for name, gain in gains.items()}
    added = torch.tensor(vector[names[-1]], requires_grad=True)
    hooks = {
        name: lambda value, leaf=leaf: value * torch.sigmoid(leaf) for name, leaf in leaves.items()
    }
    before = hooks[names[-1]]
    hooks[names[-1]] = lambda value: before(value) + added
    values, gradients, of_parameters = hooked(model, hooks, monkeypatch)
    close(logits, values["logits"].detach().numpy())
    close(grads.pop(names[-1]), added.grad.numpy())
    for name, gradient in grads.items():
        close(gradient, of_parameters[name], name)
    for name in names:
        close(found[name], gradients[name], name)
    for name, gradient in activations.grads.items():  # of the new arrays
        close(gradient, gradients[name], name)
    again = model.backward() if len(names) == 1 and not found.clear() else grads
    assert all((again[name] == grads[name]).all() for name in grads)


def test_a_spliced_autoencoder_trains_beside_an_ablation(monkeypatch):
    torch = pytest.importorskip("torch", reason="the oracle")
    model, own = unit_model(), {}
    weights = {"encoder": drawn((C, 30), 1), "decoder": drawn((30, C), 2), "bias": drawn((C,), 3)}

    def autoencoder(x):
        def backward(dnew):
            own["decoder"] = np.tensordot(codes, dnew, ((0, 1), (0, 1)))
            own["bias"] = dnew.sum(axis=(0, 1))
            dcodes = (dnew @ weights["decoder"].T) * (codes > 0.0)
            own["encoder"] = np.tensordot(x, dcodes, ((0, 1), (0, 1)))
            return dcodes @ weights["encoder"].T

        codes = np.maximum(x @ weights["encoder"], 0.0)
        return codes @ weights["decoder"] + weights["bias"], backward

    def ablated(mix):
        mix[:, 1] = 0.0
        return mix

    def torchs_own(x):
        return torch.relu(x @ leaves["encoder"]) @ leaves["decoder"] + leaves["bias"]

    leaves = {name: torch.tensor(each, requires_grad=True) for name, each in weights.items()}
    heads = torch.tensor(np.arange(H) != 1)[None, :, None, None]
    hooks = {
        "h.0.x_mid": torchs_own,
        "h.1.attn.mix": lambda mix: torch.where(heads, mix, mix.new_zeros(())),
    }
    loss = model.forward(IDX, TARGETS, edit={"h.0.x_mid": autoencoder, "h.1.attn.mix": ablated})[1]
    grads = model.backward()
    _, _, of_parameters = hooked(model, hooks, monkeypatch)
    for name, gradient in grads.items():
        close(gradient, of_parameters[name], name)
    for name, gradient in own.items():
        close(gradient, leaves[name].grad.numpy(), name)
    for name in weights:
        weights[name] -= 1e-4 * own[name]
    assert (
        model.forward(IDX, TARGETS, edit={"h.0.x_mid": autoencoder, "h.1.attn.mix": ablated})[1]
        < loss
    )


def modern(**fields):
    config = GPTConfig(
        **SMALL | {"n_embd": 4 * H, "positions": "none", "block": read_block(MODERN)} | fields
    )
    model = GPT(config, dtype="float64", threads=1)
    unit_scale(model.params)
    return model


def slope(f, step=5e-5):
    """The derivative at 0, by two central differences."""
    return (8 * (f(step) - f(-step)) - (f(2 * step) - f(-2 * step))) / (12 * step)


@pytest.mark.parametrize("kind", ["modern", "caches"])
def test_every_array_of_an_own_block_passes_gradients(kind, tmp_path):
    (tmp_path / "caches.py").write_text(CACHES)
    model = modern() if kind == "modern" else modern(block=read_block(tmp_path / "caches.py"))
    model.params.flat[:] *= 0.5
    _, activations = model.run_with_cache(IDX, TARGETS)
    model.backward()
    names = {name for name in activations.grads if name.startswith("h.0.")}
    names -= {"h.0.attention.masked"}  # a gain's gradient there is 0 times -inf
    assert (
        names
        >= {
            "modern": {"h.0.swiglu.sigmoid", "h.0.norm_1.xhat", "h.0.attention.att", "h.0.x_out"},
            "caches": {"h.0.one.y", "h.0.two.y", "h.0.three.y", "h.0.four.y", "h.0.first"},
        }[kind]
    )
    direction = {name: drawn(each.shape, 4) for name, each in model.params.items()}
    start = model.params.flat.copy()

    def loss(t, name, gain, vector):
        model.params.flat[:] = start
        for each, along in direction.items():
            model.params[each] += t * along
        edit = {name: lambda x: (x * (gain + t), lambda dnew: dnew * gain)}
        return model.forward(IDX, TARGETS, edit=edit, add={name: vector * (1.0 + t)})[1]

    for name in names:
        vector = 0.1 * drawn(activations[name].shape[-1:], 5)
        found = []
        edit = {
            name: lambda x, found=found: (
                0.7 * x,
                lambda dnew: found.append((dnew * x).sum()) or 0.7 * dnew,
            )
        }
        model.params.flat[:] = start
        model.forward(IDX, TARGETS, edit=edit, add={name: vector})
        grads = model.backward()
        whole = sum((grads[each] * along).sum() for each, along in direction.items())
        whole += (grads[name] * vector).sum() + found[0]
        true = slope(lambda t, name=name, vector=vector: loss(t, name, 0.7, vector))
        assert whole == pytest.approx(true, rel=1e-7), name


def test_a_vectors_dtype_and_what_an_optimizer_says():
    model = GPT(GPTConfig(**SMALL), dtype="float32")
    for dtype in ("float16", "float32", "float64"):
        model.forward(IDX, TARGETS, add={"h.0.x_out": np.ones(C, dtype)})
        grads = model.backward()
        assert grads["h.0.x_out"].dtype == dtype and grads["wte.weight"].dtype == np.float32
    optimizer = AdamW(model.params)
    with pytest.raises(UserError, match="pop h.0.x_out"):
        optimizer.step(grads)
    del grads["h.0.x_out"]
    optimizer.step(grads)


def test_only_arrays_that_their_own_backward_reads_take_another_pass(monkeypatch):
    def noted(*arguments):
        passes.append(arguments)
        return model_backward(*arguments)

    passes = []
    monkeypatch.setattr("npgpt.engine.activations.model_backward", noted)
    model = unit_model()
    for names, count in (
        ("x_out", 1),
        ("x_out norm_1 attn.mix mlp.hidden mlp.active x_mid", 1),
        ("ln_1.xhat", 3),
    ):
        model.forward(
            IDX,
            TARGETS,
            add={f"h.{i}.{name}": np.ones(()) for i in range(2) for name in names.split()},
        )
        model.backward()
        assert len(passes) == count
        passes.clear()


def test_an_edit_may_use_its_memory_again():
    model, buffer = unit_model(), np.empty((B, T, C))
    found = []
    for out in (None, buffer):

        def halved(x, out=out):
            return np.multiply(x, 0.5, out=out), lambda dnew: np.multiply(dnew, 0.5, out=out)

        edit = {"h.0.ln_1.xhat": halved, "h.1.norm_1": halved, "h.1.ln_2.xhat": halved}
        logits, _ = model.forward(IDX, TARGETS, edit=edit)
        buffer[:] = np.nan
        found.append({"logits": logits, **model.backward()})
    for name, array in found[0].items():
        np.testing.assert_array_equal(found[1][name], array, err_msg=name)


def test_vectors_steer_generation():
    model = unit_model()
    vector = 9.0 * drawn(C, 1)
    steered = model.generate(IDX[:, :2], 4, temperature=0.0, add={"h.0.x_out": vector})
    assert (steered != model.generate(IDX[:, :2], 4, temperature=0.0)).any()
    edited = model.generate(
        IDX[:, :2], 4, temperature=0.0, edit={"h.0.x_out": lambda x: x + vector}
    )
    paired = model.generate(
        IDX[:, :2], 4, temperature=0.0, edit={"h.0.x_out": lambda x: (x + vector, np.copy)}
    )
    assert (steered == edited).all() and (steered == paired).all()


def test_edits_and_vectors_on_a_gpu(monkeypatch):
    strict_cupy.install(monkeypatch)
    edit = {
        "h.0.attn.att": lambda att: (0.5 * att, lambda dnew: 0.5 * dnew),
        "h.1.attn.mix": lambda mix: 0.0 * mix,
    }
    add, found = (
        {name: drawn(SHAPES[name], 1) for name in ("h.0.ln_1.xhat", "h.0.attn.mix", "h.1.x_out")},
        [],
    )
    for device in ("cpu", "gpu"):
        model = GPT(GPTConfig(**SMALL), dtype="float64", device=device, threads=1)
        _, activations = model.run_with_cache(IDX, TARGETS, edit=edit, add=add)
        found.append({**model.backward(), **model.logit_lens(activations)})
    for name, array in found[0].items():
        np.testing.assert_allclose(
            to_host(found[1][name]), array, rtol=1e-11, atol=1e-13, err_msg=name
        )


class Stop(Exception):
    """Ends a forward or a backward early."""


def stop(_):
    raise Stop


@pytest.mark.parametrize("model", [unit_model(), modern()], ids=["gpt2", "modern"])
def test_what_an_edit_raises_is_raised(model):
    grads = model.forward(IDX, TARGETS) and model.backward()
    with pytest.raises(Stop):
        model.forward(IDX, TARGETS, edit={"h.0.x_mid": stop})
    model.forward(IDX, TARGETS, edit={"h.0.x_mid": lambda x: (x, stop)})
    with pytest.raises(Stop):
        model.backward()
    model.forward(IDX, TARGETS)
    assert all((grads[name] == each).all() for name, each in model.backward().items())


LOOPED = """# one line assigns several arrays, and one array is called like a parameter
def parameters(config):
    return {"scale.weight": ((config.n_embd,), 1.0)}

def forward(x, p, config, layer, mask, dropout_masks, ops):
    y, scale = scale_forward(p["scale"]["weight"], x)
    for _ in range(2):
        turned = 2.0 * y
        y = turned + x
    return y, scale

def backward(dx_out, cache, ops):
    dx = dx_out
    for _ in range(2):
        dturned = dx
        dx = 2.0 * dturned
    dweight, dx = scale_backward(dx, cache)
    return dx + 3.0 * dx_out, {"scale": {"weight": dweight}}


def scale_forward(weight, x):
    y = x * weight
    return y, (weight, x)


def scale_backward(dy, cache):
    weight, x = cache
    dweight = (dy * x).sum(axis=(0, 1))
    dx = dy * weight
    return dweight, dx
"""


CACHES = """# caches: an array, a tuple that is not unpacked, another name, what is computed again
import numpy as np

def parameters(config):
    C = config.n_embd
    return {"a.weight": ((C, C), "linear"), "b.weight": ((C, C), "linear")}

def one_forward(x):
    y = np.tanh(x)
    return y, y

def one_backward(dy, y):
    dx = dy * (1.0 - y * y)
    return dx

def two_forward(x):
    y = np.exp(0.1 * x)
    return y, (3.0, y)

def two_backward(dy, cache):
    dx = 0.1 * dy * cache[1]
    return dx

def three_forward(x):
    y = np.sqrt(1.0 + x * x)
    return y, (x, y)

def three_backward(dy, cache):
    x, root = cache
    dx = dy * x / root
    return dx

def four_forward(x):
    y = 1.0 / (1.0 + np.exp(-x))
    return y, x

def four_backward(dy, x):
    y = 1.0 / (1.0 + np.exp(-x))
    dx = dy * y * (1.0 - y)
    return dx

def forward(x, p, config, layer, mask, dropout_masks, ops):
    hidden, a = ops.linear_forward(x, **p["a"])
    first, one = one_forward(hidden)
    second, two = two_forward(first)
    third, three = three_forward(second)
    fourth, four = four_forward(third)
    y, b = ops.linear_forward(fourth, **p["b"])
    x_out = x + y
    return x_out, (a, one, two, three, four, b)

def backward(dx_out, cache, ops):
    a, one, two, three, four, b = cache
    dfourth, db, _ = ops.linear_backward(dx_out, b)
    dthird = four_backward(dfourth, four)
    dsecond = three_backward(dthird, three)
    dfirst = two_backward(dsecond, two)
    dhidden = one_backward(dfirst, one)
    dx_a, da, _ = ops.linear_backward(dhidden, a)
    return dx_a + dx_out, {"a": {"weight": da}, "b": {"weight": db}}
"""


METHODS = """# a block of methods
class Mine:
    def parameters(self, config):
        return {"scale.weight": ((config.n_embd,), 1.0)}

    def forward(self, x, p, config, layer, mask, dropout_masks, ops):
        x_out = x * p["scale"]["weight"]
        return x_out, (x, p)

    def backward(self, dx_out, cache, ops):
        x, p = cache
        dweight = (dx_out * x).sum(axis=(0, 1))
        dx = dx_out * p["scale"]["weight"]
        return dx, {"scale": {"weight": dweight}}
"""


def test_a_block_of_methods_passes_gradients(tmp_path):
    (tmp_path / "methods.py").write_text(METHODS)
    block = run_python(tmp_path / "methods.py")[1]["Mine"]()
    model = GPT(GPTConfig(**SMALL), dtype="float64", threads=1, block=block)
    vector = drawn(C, 1)
    for name in ("h.0.x", "h.1.x_out"):
        model.forward(IDX, TARGETS, add={name: vector})
        gradient = (model.backward()[name] * vector).sum()
        true = slope(
            lambda t, name=name: model.forward(IDX, TARGETS, add={name: (1 + t) * vector})[1]
        )
        assert gradient == pytest.approx(true, rel=1e-8)


@pytest.fixture
def looped(tmp_path):
    file = tmp_path / "looped.py"
    file.write_text(LOOPED)
    return GPT(GPTConfig(**SMALL), dtype="float64", threads=1, block=file)


def test_names_that_are_not_one_arrays(looped):
    model = looped
    with pytest.raises(UserError, match="add: h.0.scale.weight is also a parameter"):
        model.forward(IDX, TARGETS, add={"h.0.scale.weight": np.ones(C)})
    model.forward(IDX, TARGETS, add={"h.0.turned": np.ones(C)})
    with pytest.raises(
        UserError, match="cannot undo an edit of h.0.turned: several arrays have its name"
    ):
        model.backward()


WRONG = [
    (
        {"edit": {"h.0.x_out": lambda x: (x, None)}},
        r"h.0.x_out must be an array, or a pair \(array, backward\)",
    ),
    ({"edit": {"h.0.x_out": lambda x: (x, np.copy, np.copy)}}, r"must be an array, or a pair"),
    (
        {"edit": {"h.0.x_out": lambda x: (x[0], np.copy)}},
        r"the shape of the edited h.0.x_out must be \(3, 5, 12\)",
    ),
    (
        {"edit": {"h.0.x_out": lambda x: (x, lambda dnew: dnew[0])}},
        r"the shape of the gradient that the edit of h.0.x_out returns must be \(3, 5, 12\), not \(5, 12\)",
    ),
    (
        {"edit": {"h.0.x_out": lambda x: (x, lambda dnew: None)}},
        r"the gradient that the edit of h.0.x_out returns",
    ),
    (
        {"add": {"h.0.x_out": np.ones(5)}},
        r"add\['h.0.x_out'\] must be floats of a shape that broadcasts to \(3, 5, 12\), not '\(5,\) float64'",
    ),
    ({"add": {"h.0.x_out": np.ones((2, 3, 5, 12))}}, "broadcasts to"),
    ({"add": {"h.0.x_out": np.ones(12, int)}}, "floats"),
    ({"add": {"h.0.x_out": "three"}}, "floats"),
    ({"add": {"h.0.x_put": np.ones(12)}}, "no array 'h.0.x_put', but"),
    ({"add": [np.ones(12)]}, "add must be names and arrays"),
    (
        {"add": {"h.0.ln_1.rstd": np.ones(1)}},
        "cannot undo an edit of h.0.ln_1.rstd: a fused gradient skips it, or no .*; edit",
    ),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG)
def test_one_line_for_what_does_not_fit(arguments, words):
    model = unit_model()
    with pytest.raises(UserError, match=words) as raised:
        model.forward(IDX, TARGETS, **arguments)
        model.backward()
    assert "\n" not in str(raised.value)


LENSES = [
    {},
    {"tie_word_embeddings": False, "lm_head_bias": True},
    {"final_layer_norm": False, "causal": False},
    {"embedding_layer_norm": True, "lm_head_bias": True, "dropout": 0.2},
]


@pytest.mark.parametrize("fields", LENSES)
def test_the_logit_lens_is_the_model_without_its_later_blocks(fields):
    model = unit_model(n_layer=3, **fields)
    logits, activations = model.run_with_cache(IDX, TARGETS, rng=np.random.default_rng(1))
    grads, lens = model.backward(), model.logit_lens(activations)
    assert [*lens] == ["drop.y", "h.0.x_out", "h.1.x_out", "h.2.x_out"]
    assert (lens["h.2.x_out"] == logits).all()
    for n in (1, 2):
        short = GPT(dataclasses.replace(model.config, n_layer=n), None, "float64", threads=1)
        for name in short.params:
            short.params[name] = model.params[name]
        cut = short.forward(IDX, rng=np.random.default_rng(1))[0]
        assert fields.get("dropout") or (lens[f"h.{n - 1}.x_out"] == cut).all()
    np.testing.assert_array_equal(
        *(each["wte.weight"] for each in (grads, model.backward()))
    )  # still its own
    for i in range(3):
        given = model.logit_lens(activations, [f"h.{i}.x"])[f"h.{i}.x"]
        np.testing.assert_array_equal(given, [*lens.values()][i])
    middle = model.logit_lens({"mine": activations["h.1.x_mid"][:1]}, ["mine"])["mine"]
    assert middle.shape == (1, T, V) and (model.params.flat != 0).any()


def test_the_logit_lens_of_own_blocks_and_other_arrays(looped):
    model = looped
    logits, activations = model.run_with_cache(IDX)
    with pytest.raises(UserError, match="logit_lens: there is no array 'h.0.x_out'; give names"):
        model.logit_lens(activations)
    with pytest.raises(UserError, match="activations must be those that run_with_cache returns"):
        model.logit_lens((logits, activations))
    assert (model.logit_lens(activations, ["h.1.x", "ln_f.x"])["ln_f.x"] == logits).all()
    with pytest.raises(
        UserError, match=r"the shape of h.0.turned must be \(B, T, 12\), not \(3, 5, 11\)"
    ):
        model.logit_lens({"h.0.turned": np.ones((3, 5, 11))}, ["h.0.turned"])
    model = modern()
    logits, activations = model.run_with_cache(IDX)
    assert (model.logit_lens(activations)["h.1.x_out"] == logits).all()


IN_PLACE = """# right, but an array is finished in place, or its derivative is cached
import numpy as np

def parameters(config):
    return {"w.weight": ((config.n_embd, config.n_embd), "linear")}

def forward(x, p, config, layer, mask, dropout_masks, ops):
    w = p["w"]["weight"]
    h = x @ w
    y = np.tanh(h)
    slope = 1.0 - y * y
    z = np.empty_like(y)
    np.multiply(y, 2.0, out=z)
    return x + z, (x, w, h, slope)

def backward(dx_out, cache, ops):
    x, w, h, slope = cache
    dz = dx_out
    dy = 2.0 * dz
    dh = dy.copy()
    dh *= slope
    dw = np.einsum("btc,btf->cf", x, dh)
    dx = dx_out + dh @ w.T
    return dx, {"w": {"weight": dw}}
"""


def test_what_is_written_in_place_or_cached_as_a_derivative_is_refused(tmp_path):
    file = tmp_path / "in_place.py"
    file.write_text(IN_PLACE)
    ways = ("dh[:] = dh * slope", "np.copyto(dh, dh * slope)", "dh.fill(0.0); dh += dy * slope",
            "np.multiply(dh, slope, out=dh)")
    for text in (IN_PLACE, *(IN_PLACE.replace("dh *= slope", way) for way in ways)):
        file.write_text(text)
        model = GPT(GPTConfig(**SMALL), dtype="float64", threads=1, block=file)
        unit_scale(model.params)
        _, activations = model.run_with_cache(IDX, TARGETS)
        model.backward()
        assert "h.0.y" in activations.grads and "h.0.h" not in activations.grads
        for name, says in (("h", "skips it"), ("y", "no gradient passes an edit of h.0.y")):
            model.forward(IDX, TARGETS, add={f"h.1.{name}": np.ones(C)})
            with pytest.raises(UserError, match=says):
                model.backward()
        with pytest.raises(UserError, match="no array 'h.0.z'"):
            model.forward(IDX, TARGETS, add={"h.0.z": np.ones(C)})
        model.forward(IDX, TARGETS, add={"h.1.x": np.ones(C)})
        model.backward()


def test_each_block_of_a_file_is_tried_by_itself(tmp_path):
    """Two classes in one file are equal blocks, and the second one's cache hides the derivative."""
    text = METHODS.replace("x_out = x * p", "y = np.tanh(x)\n        x_out = y * p")
    text = "import numpy as np\n" + text.replace("return x_out, (x, p)", "return x_out, (y, p)")
    text = text.replace("x, p = cache", "y, p = cache").replace("dx_out * x)", "dx_out * y)")
    right = text.replace("dx = dx_out * p[", "dy = dx_out * p[")
    right = right.replace("        return dx,", "        dx = dy * (1.0 - y * y)\n        return dx,")
    wrong = right.replace("class Mine", "class Hidden").replace("(y, p)", "(y, 1.0 - y * y, p)")
    wrong = wrong.replace("y, p = cache", "y, slope, p = cache").replace("(1.0 - y * y)\n", "slope\n")
    (tmp_path / "two.py").write_text(right + wrong)
    names = run_python(tmp_path / "two.py")[1]
    for name, is_right in (("Mine", True), ("Hidden", False)):
        block = names[name]()
        model = GPT(GPTConfig(**SMALL), dtype="float64", threads=1, block=block)
        model.forward(IDX, TARGETS, add={"h.1.y": np.ones(C)})
        if is_right:
            model.backward()
        else:
            with pytest.raises(UserError, match="no gradient passes an edit of h.0.y"):
                model.backward()
