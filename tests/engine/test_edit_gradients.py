"""Gradients through edits and of added arrays, against torch's and finite differences."""

import dataclasses

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig
from npgpt.arrays import to_host
from npgpt.files import run_python
from npgpt.model.block import read_block
from tests import strict_cupy
from tests.cases import MODERN, SMALL, B, C, H, T, V
from tests.engine.test_activations import IDX, TARGETS, rng_for, torchs, unit_model
from tests.helpers.close import assert_close
from tests.helpers.runs import refusing
from tests.torch_gpt import grads_of, unit_scale

torch = pytest.importorskip("torch", reason="the oracle")
F = 4 * C
SHAPES = {  # of the vectors: each way to broadcast
    "h.0.x_out": (C,),
    "embedding.x": (B, T, C),
    "h.0.x": (1, T, 1),
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
    "h.0.mlp.gelu.inner": (T, F),
    "h.1.mlp.gelu.tanh": (F,),
    "logits": (V,),
}


def drawn(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape)


def gate(gain, made, found, name):
    """A soft gain, with torch's form: the array times sigmoid(gain)."""

    def edit(array):
        def backward(dnew):
            found[name] = dnew.copy()
            dnew *= soft  # its own to write to
            return dnew

        soft = 1.0 / (1.0 + np.exp(-gain))
        made.append(array * soft)
        return made[-1], backward

    return edit


def some_rows(array):
    """Other values in some rows, and in one of them in a single place; the function may write to
    what it is given.
    """
    flat = array.reshape(-1, array.shape[-1])
    flat[::3] = flat[::3] * 0.5 + 0.1
    flat[1, 0] += 0.25
    return flat.reshape(array.shape)


def some_rows_by_torch(value):
    """A row that was changed passes no gradient."""
    new = torch.tensor(some_rows(value.detach().numpy().copy()))
    return torch.where((new != value).any(-1, keepdim=True), new, value)


PLAIN = "h.0.norm_1 h.0.attn.c_attn.rows h.0.attended h.1.x_mid h.1.mlp.active head.rows".split()
EXACT = {"activation": "gelu", "tie_word_embeddings": False}
MOST = [name for name in SHAPES if ".gelu." not in name]
CASES = [
    *(({}, [name]) for name in SHAPES),
    ({}, [*SHAPES]),
    ({"dropout": 0.3}, [*SHAPES]),
    (EXACT, MOST),
]


@pytest.mark.parametrize(("fields", "names"), CASES, ids=lambda each: " ".join([*each][:2]) or "-")
def test_gradients_through_edits_and_of_added_vectors_are_torchs(fields, names):
    """Arrays with a gain and a vector, beside others that are edited without a backward. An edit
    may use its memory again after the forward.
    """
    model, made, found = unit_model(**fields), [], {}
    gains = {name: drawn(SHAPES[name], len(name)) for name in names}
    edit = {name: gate(gain, made, found, name) for name, gain in gains.items()}
    edit |= dict.fromkeys(PLAIN, some_rows)
    add = {name: 0.3 * drawn(SHAPES[name], 7) for name in names}
    given = {"edit": edit, "add": add, "rng": rng_for(fields)}
    logits, activations = model.run_with_cache(IDX, TARGETS, **given)
    for array in made:
        array[...] = np.nan
    grads = model.backward()
    soft = {name: torch.sigmoid(torch.tensor(gain)) for name, gain in gains.items()}
    leaves = {name: torch.tensor(vector, requires_grad=True) for name, vector in add.items()}
    hooks = {name: lambda value, name=name: value * soft[name] + leaves[name] for name in names}
    hooks |= dict.fromkeys(PLAIN, some_rows_by_torch)
    values, gradients, of_parameters = torchs(model, hooks, rng_for(fields))
    assert_close(logits, values["logits"])
    assert_close({**grads}, of_parameters | grads_of(leaves))
    assert found.keys() == {*names}
    found |= activations.grads  # of the new arrays
    assert_close(found, {name: gradients[name] for name in found})


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


@pytest.mark.parametrize(
    ("kind", "some"),
    [
        ("modern", "h.0.swiglu.sigmoid h.0.norm_1.xhat h.0.attention.att"),
        ("caches", "h.0.one.y h.0.two.y h.0.three.y h.0.four.y"),
    ],
)
def test_every_array_of_an_own_block_passes_gradients(kind, some, tmp_path):
    """Along a random direction of the parameters, gains and vectors: finite differences. All arrays
    are edited at once, and some of them alone.
    """
    (tmp_path / "caches.py").write_text(CACHES)
    model = modern() if kind == "modern" else modern(block=read_block(tmp_path / "caches.py"))
    model.params.flat[:] *= 0.5
    start = model.params.flat.copy()
    direction = drawn(start.shape, 4)
    _, activations = model.run_with_cache(IDX, TARGETS)
    model.backward()
    every = {name for name in activations.grads if name.startswith("h.0.")}
    every -= {"h.0.attention.masked"}  # a gain's gradient there is 0 times -inf
    vectors = {name: 0.1 * drawn(activations[name].shape[-1:], 5) for name in every}
    model.params.flat[:] = direction
    directions = {name: along.copy() for name, along in model.params.items()}

    def loss(t, names, found):
        def edit(x):
            return (0.7 + t) * x, lambda dnew: found.append((dnew * x).sum()) or 0.7 * dnew

        model.params.flat[:] = start + t * direction
        add = {name: (1 + t) * vectors[name] for name in names}
        return model.forward(IDX, TARGETS, edit=dict.fromkeys(names, edit), add=add)[1]

    for names in (every, *([name] for name in some.split())):
        found = []
        loss(0.0, names, found)
        grads = model.backward()
        along = directions | {name: vectors[name] for name in names}
        whole = sum(found) + sum((grads[name] * along[name]).sum() for name in grads)
        true = slope(lambda t, names=names: loss(t, names, []))
        assert whole == pytest.approx(true, rel=1e-7), names


def test_a_vectors_dtype_and_what_an_optimizer_says():
    model = GPT(GPTConfig(**SMALL), dtype="float32")
    model.forward(IDX, TARGETS, add={"h.0.x_out": np.ones(C, "float64")})
    grads = model.backward()
    assert (grads["h.0.x_out"].dtype, grads["wte.weight"].dtype) == ("float64", "float32")
    with refusing("pop h.0.x_out"):
        AdamW(model.params).step(grads)


def test_vectors_and_edits_steer_generation():
    model, vector = unit_model(), 9.0 * drawn(C, 1)

    def tokens(**named):
        return model.generate(IDX[:, :2], 4, temperature=0.0, **named)

    steered = tokens(add={"h.0.x_out": vector})
    assert (steered != tokens()).any()
    assert (steered == tokens(edit={"h.0.x_out": lambda x: (x + vector, np.copy)})).all()


def test_edits_and_vectors_on_a_gpu(monkeypatch):
    strict_cupy.install(monkeypatch)
    edit = {
        "h.0.attn.att": lambda att: (0.5 * att, lambda dnew: 0.5 * dnew),
        "h.1.attn.mix": lambda mix: 0.0 * mix,
    }
    add = {name: drawn(SHAPES[name], 1) for name in ("h.0.ln_1.xhat", "h.0.x_out")}
    found = []
    for device in ("cpu", "gpu"):
        model = GPT(GPTConfig(**SMALL), dtype="float64", device=device, threads=1)
        _, activations = model.run_with_cache(IDX, TARGETS, edit=edit, add=add)
        found.append({**model.backward(), **model.logit_lens(activations)})
    expected, there = found
    for name, array in expected.items():
        np.testing.assert_allclose(to_host(there[name]), array, 1e-11, 1e-13, err_msg=name)


class Stop(Exception):
    """Ends a forward or a backward early."""


def stop(_):
    raise Stop


def test_what_an_edit_raises_is_raised():
    """And leaves the model as it was."""
    model = unit_model()
    for edit in (stop, lambda x: (x, stop)):
        with pytest.raises(Stop):
            model.forward(IDX, TARGETS, edit={"h.0.x_mid": edit})
            model.backward()
    model.forward(IDX, TARGETS)
    again = unit_model()
    again.forward(IDX, TARGETS)
    assert_close(model.backward(), {**again.backward()}, rtol=0, atol=0)


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


@pytest.fixture
def looped(tmp_path):
    file = tmp_path / "looped.py"
    file.write_text(LOOPED)
    return GPT(GPTConfig(**SMALL), dtype="float64", threads=1, block=file)


def test_names_that_are_not_one_arrays(looped):
    model = looped
    with refusing("add: h.0.scale.weight is also a parameter"):
        model.forward(IDX, TARGETS, add={"h.0.scale.weight": np.ones(C)})
    model.forward(IDX, TARGETS, add={"h.0.turned": np.ones(C)})
    with refusing("cannot undo an edit of h.0.turned: several arrays have its name"):
        model.backward()


WRONG = [
    ("edit", lambda x: (x, None), r"must be an array, or a pair \(array, backward\)"),
    ("edit", lambda x: (x[0], np.copy), r"the edited h.0.x_out must be \(3, 5, 12\)"),
    ("edit", lambda x: x.fill(0.0), "the edited h.0.x_out must be an array: end with `return x`"),
    ("edit", lambda x: (x, lambda dnew: dnew[0]), r"must be \(3, 5, 12\), not \(5, 12\)"),
    ("edit", lambda x: (x, lambda dnew: None), "the gradient that the edit of h.0.x_out returns"),
    ("add", np.ones(5), r"broadcasts to \(3, 5, 12\), not '\(5,\) float64'"),
    ("add", np.ones((2, 3, 5, 12)), "broadcasts to"),
    ("add", np.ones(12, int), "floats"),
    ("add", "three", "floats"),
]


@pytest.mark.parametrize(("argument", "value", "words"), WRONG)
def test_one_line_for_what_does_not_fit(argument, value, words):
    model = unit_model()
    with refusing(words) as raised:
        model.forward(IDX, TARGETS, **{argument: {"h.0.x_out": value}})
        model.backward()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("add", "words"),
    [
        ({"h.0.x_put": np.ones(12)}, "no array 'h.0.x_put', but"),
        ([np.ones(12)], "add must be names and arrays"),
        ({"h.0.ln_1.rstd": np.ones(1)}, "cannot undo an edit of h.0.ln_1.rstd: a fused gradient"),
    ],
)
def test_one_line_for_a_name_that_does_not_fit(add, words):
    model = unit_model()
    with refusing(words):
        model.forward(IDX, TARGETS, add=add)
        model.backward()


LENSES = [
    {"tie_word_embeddings": False, "lm_head_bias": True, "dropout": 0.2},
    {"final_layer_norm": False, "causal": False},
]


@pytest.mark.parametrize("fields", LENSES)
def test_the_logit_lens_is_the_model_without_its_later_blocks(fields):
    model = unit_model(n_layer=3, **fields)
    logits, activations = model.run_with_cache(IDX, TARGETS, rng=np.random.default_rng(1))
    grads, lens = model.backward(), model.logit_lens(activations)
    assert [*lens] == ["drop.y", "h.0.x_out", "h.1.x_out", "h.2.x_out"]
    assert (lens["h.2.x_out"] == logits).all()
    short = GPT(dataclasses.replace(model.config, n_layer=2), None, "float64", threads=1)
    for name in short.params:
        short.params[name] = model.params[name]
    if "dropout" not in fields:
        assert (lens["h.1.x_out"] == short.forward(IDX)[0]).all()
    again = model.backward()  # still its own
    np.testing.assert_array_equal(again["wte.weight"], grads["wte.weight"])
    np.testing.assert_array_equal(
        model.logit_lens(activations, ["h.2.x"])["h.2.x"], lens["h.1.x_out"]
    )
    middle = model.logit_lens({"mine": activations["h.1.x_mid"][:1]}, ["mine"])["mine"]
    assert middle.shape == (1, T, V)


def test_the_logit_lens_of_own_blocks_and_other_arrays(looped):
    logits, activations = looped.run_with_cache(IDX)
    given = looped.logit_lens(activations, ["h.1.x", "ln_f.x"])
    assert (given["ln_f.x"] == logits).all()
    for arguments, words in (
        ([activations], "logit_lens: there is no array 'h.0.x_out'; give names"),
        ([(logits, activations)], "activations must be those that run_with_cache returns"),
        ([{"mine": np.ones((3, 5, 11))}, ["mine"]], r"the shape of mine must be \(B, T, 12\)"),
    ):
        with refusing(words):
            looped.logit_lens(*arguments)
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


@pytest.mark.parametrize("way", ["dh *= slope", "dh[:] = dh * slope", "np.copyto(dh, dh * slope)"])
def test_what_is_written_in_place_or_cached_as_a_derivative_is_refused(way, tmp_path):
    file = tmp_path / "in_place.py"
    file.write_text(IN_PLACE.replace("dh *= slope", way))
    model = GPT(GPTConfig(**SMALL), dtype="float64", threads=1, block=file)
    unit_scale(model.params)
    _, activations = model.run_with_cache(IDX, TARGETS)
    model.backward()
    assert "h.0.y" in activations.grads and "h.0.h" not in activations.grads
    for name, says in (("h", "skips it"), ("y", "no gradient passes an edit of h.0.y")):
        model.forward(IDX, TARGETS, add={f"h.1.{name}": np.ones(C)})
        with refusing(says):
            model.backward()
    with refusing("no array 'h.0.z'"):
        model.forward(IDX, TARGETS, add={"h.0.z": np.ones(C)})


METHODS = """# two blocks of methods: the second one's cache hides the derivative of tanh
import numpy as np

class Mine:
    def parameters(self, config):
        return {"scale.weight": ((config.n_embd,), 1.0)}

    def forward(self, x, p, config, layer, mask, dropout_masks, ops):
        y = np.tanh(x)
        x_out = y * p["scale"]["weight"]
        return x_out, (y, p)

    def backward(self, dx_out, cache, ops):
        y, p = cache
        dweight = (dx_out * y).sum(axis=(0, 1))
        dy = dx_out * p["scale"]["weight"]
        dx = dy * (1.0 - y * y)
        return dx, {"scale": {"weight": dweight}}


class Hidden(Mine):
    def forward(self, x, p, config, layer, mask, dropout_masks, ops):
        y = np.tanh(x)
        x_out = y * p["scale"]["weight"]
        return x_out, (y, 1.0 - y * y, p)

    def backward(self, dx_out, cache, ops):
        y, slope, p = cache
        dweight = (dx_out * y).sum(axis=(0, 1))
        dy = dx_out * p["scale"]["weight"]
        dx = dy * slope
        return dx, {"scale": {"weight": dweight}}
"""


def test_each_block_of_a_file_is_tried_by_itself(tmp_path):
    (tmp_path / "methods.py").write_text(METHODS)
    names = run_python(tmp_path / "methods.py")[1]
    mine, hidden = (
        GPT(GPTConfig(**SMALL), dtype="float64", threads=1, block=names[name]())
        for name in ("Mine", "Hidden")
    )
    vector = drawn(C, 1)

    def loss(t, name):
        return mine.forward(IDX, TARGETS, add={name: (1 + t) * vector})[1]

    for name in ("h.0.x", "h.1.y", "h.1.x_out"):
        loss(0.0, name)
        gradient = (mine.backward()[name] * vector).sum()
        true = slope(lambda t, name=name: loss(t, name))
        assert gradient == pytest.approx(true, rel=1e-8)
    hidden.forward(IDX, TARGETS, add={"h.1.y": vector})
    with refusing("no gradient passes an edit of h.0.y"):
        hidden.backward()
