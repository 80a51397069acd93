"""What XLA compiles is the lesson: every gradient of every variant, to 1e-9 in float64."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, UserError
from npgpt.model.masks import BlockMasks, Masks, draw_masks
from npgpt.model.transformer import gpt_backward, gpt_forward
from tests.cases import train_step
from tests.helpers.models import SMALL, VARIANTS, batch, model_of
from tests.helpers.runs import refusing

# The first runs every day; the others are slow, because each model is compiled. Dropout has a test
# of its own.
DAILY, *SLOW = (
    "untied head,default,encoder,exact gelu,no biases,bias of an untied head,large vocabulary"
).split(",")
slow = pytest.mark.slow


@pytest.fixture
def small_blocks(monkeypatch):
    """Make several blocks of everything; the last block of queries is smaller."""
    from npgpt.engine.xla import engine, replaced

    monkeypatch.setattr(replaced, "KEPT", 4)
    monkeypatch.setattr(replaced, "QUERIES", 4)
    monkeypatch.setattr(engine, "LOGITS_BYTES", 600)


def assert_equal(ours, expected, rtol=1e-9):
    assert ours.keys() == expected.keys()
    for name in expected:
        atol = rtol * abs(expected[name]).max()
        np.testing.assert_allclose(ours[name], expected[name], rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("edited", [{}, {"causal_mask": "another"}], ids=["as it is", "edited"])
def test_queries_skip_later_keys_unless_lines_were_edited(edited, monkeypatch, small_blocks, jax):
    """Of a function that has no mask, so that skipping shows."""
    from npgpt import layers
    from npgpt.engine import sources
    from npgpt.engine.xla.lines import lines
    from npgpt.engine.xla.replaced import replaced

    monkeypatch.setattr(sources, "TESTED", sources.TESTED | edited)
    ops, *_ = lines("float64", GPTConfig().block)
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 8, 3))
    with jax.enable_x64(True):
        mix, _ = replaced(ops, GPTConfig(), "float64").attention_forward(q, k, v, 0.5)
    assert np.allclose(mix, layers.attention_forward(q, k, v, 0.5)[0]) == bool(edited)


def test_items_are_set_as_by_numpy(jax):
    """Also where an index is known to XLA alone, as in `y[y < 0] = 0`."""
    from npgpt.engine.xla.lines import set_in

    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    for index in (x > 5, x[:, 0] > 3, (slice(1, 3), 2)):
        expected = x.copy()
        expected[index] = -1.0
        by_xla = jax.jit(lambda x, i=index: set_in(x, i, -1.0))
        np.testing.assert_array_equal(by_xla(x), expected)
    traced = jax.jit(lambda x: set_in(x, x > 5, 0.0))(x)
    np.testing.assert_array_equal(traced, np.where(x > 5, 0.0, x))
    assert set_in([1, 2], 1, 3) == [1, 3]


def test_edited_lines_are_compared_with_numpys(monkeypatch, jax):
    """There `y = x; y *= 2` changes x, too."""
    from npgpt.engine import sources
    from npgpt.engine.xla import engine

    compared = mock.Mock()
    monkeypatch.setattr(engine, "check_alike", compared)
    model_of({}, kernels="xla")
    assert not compared.called
    monkeypatch.setitem(sources.TESTED, "gelu_tanh_forward", "another")
    model_of({}, kernels="xla")
    assert compared.called


@pytest.mark.parametrize("name", [DAILY, *(pytest.param(name, marks=slow) for name in SLOW)])
def test_loss_and_every_gradient(name, small_blocks, jax):
    """With a mask for each head. float64 is enabled only inside the engine."""
    lesson, xla = (model_of(VARIANTS[name], kernels=kernels) for kernels in ("reference", "xla"))
    idx, targets = batch(lesson.config)
    targets[:, :2] = -1  # a block of the loss without a target
    random = np.random.default_rng(2).random((3, lesson.config.n_head, 6, 6))
    mask = np.where(random < 0.2, -np.inf, 0.5)
    loss, grads = lesson.loss_and_grads(idx, targets, mask=mask, count=40)
    loss_xla, grads_xla = xla.loss_and_grads(idx, targets, mask=mask, count=40)
    assert loss_xla == pytest.approx(loss, rel=1e-12)
    assert_equal(grads_xla, grads)
    for each in grads_xla.values():
        assert type(each) is np.ndarray and each.flags.writeable
    assert jax.numpy.ones(2).dtype == np.float32 and not jax.config.jax_enable_x64
    assert jax.config.jax_default_matmul_precision is None


@slow
def test_dropout(small_blocks, jax):
    """The lesson with the masks drawn by XLA; each call, step and micro-batch has its own."""
    from npgpt import layers
    from npgpt.engine.xla.engine import Draws
    from npgpt.layers.loss import cross_entropy_backward, cross_entropy_forward

    fields = {"embd_pdrop": 0.1, "attn_pdrop": 0.2, "resid_pdrop": 0.3, "mlp_pdrop": 0.4}
    xla = model_of(fields, kernels="xla")
    idx, targets = batch(xla.config)
    found = set()
    for seed in ((2**40 + 1, 5, 2), (1, 5, 2), (2**40 + 1, 6, 2), (2**40 + 1, 5, 3)):
        with jax.enable_x64(True):
            draws = Draws(xla.engine._words(seed), 0)
            embd, blocks = draw_masks(xla.config, *idx.shape, np.float64, draws)
        masks = Masks(np.asarray(embd), [BlockMasks(*map(np.asarray, each)) for each in blocks])
        first, second = (each.mlp for each in masks.blocks)
        assert set(np.unique(first).round(6)) == {0.0, round(1 / 0.6, 6)}
        assert (first != second).any()
        logits, cache = gpt_forward(idx, xla.params.tree, xla.config, masks, layers)
        loss, cross_entropy = cross_entropy_forward(logits, targets)
        dlogits = cross_entropy_backward(1.0, cross_entropy)
        loss_xla, grads = xla.loss_and_grads(idx, targets, xla.engine.dropout_rng(*seed))
        assert loss_xla == pytest.approx(float(loss), rel=1e-12)
        assert_equal(grads, xla.params.flatten(gpt_backward(dlogits, cache, layers)))
        found.add(masks.embd.tobytes())
    assert len(found) == 4
    # Micro-batches of a step: the first one's number is sent, the others are counted from it.
    pair = [(7, 0, 0), (7, 0, 1)]
    losses = [xla.loss_and_grads(idx, targets, seed, count=32)[0] for seed in pair]
    loss, _ = xla.engine.loss_and_grads([(idx, targets)] * 2, pair, 32)
    assert float(loss) == pytest.approx(sum(losses), rel=1e-12) and losses[0] != losses[1]


@pytest.mark.parametrize(
    ("options", "max_norm", "n"),
    [pytest.param({}, None, 1, marks=slow), ({"decay": "all", "weight_decay": 0.3}, 0.5, 3)],
    ids=["plain", "clipped and accumulated"],
)
def test_whole_steps(options, max_norm, n):
    """Parameters and both moments after three steps; the rows of all micro-batches count alike."""
    lesson, xla = (model_of({}, kernels=kernels) for kernels in ("reference", "xla"))
    ours, theirs = (AdamW(each.params, engine=each.engine, **options) for each in (xla, lesson))
    for step in range(3):
        ours.lr = theirs.lr = 0.1 / (step + 1)
        batches = [batch(lesson.config, seed=10 * step + i) for i in range(n)]
        expected = train_step(theirs, batches, [None] * n, 16 * n, max_norm)
        found = train_step(ours, batches, [None] * n, 16 * n, max_norm)
        assert [float(each) for each in found] == pytest.approx(expected, rel=1e-10)
    for a, b in ((xla.params, lesson.params), (ours.m, theirs.m), (ours.v, theirs.v)):
        assert_equal(dict(a), dict(b))
    assert ours.t == 3


@pytest.mark.slow
def test_parameters_on_the_device_are_those_of_the_user():
    """Every kind of write counts at the next step, and reads give the latest values."""
    lesson, xla = (model_of({}, kernels=kernels) for kernels in ("reference", "xla"))
    ours, theirs = (AdamW(each.params, engine=each.engine) for each in (xla, lesson))
    held = xla.params["ln_f.weight"]
    one = batch(lesson.config)

    def nothing(params, v):
        pass

    def set_item(params, v):
        params["ln_f.weight"] = 0.5
        params["wte.weight"][3] *= 2.0

    def in_place(params, v):
        params.flat[:7] += 1.0
        params.tree["h"][1]["ln_1"]["bias"][...] = 0.25
        v["wpe.weight"] = 1.0

    for write in (nothing, set_item, in_place):
        for optimizer in (ours, theirs):
            write(optimizer.engine.params, optimizer.v)
            train_step(optimizer, [one], [None], 16)
        evaluated = float(xla.evaluate(*one))  # which reads nothing but the loss
        assert xla.params.there is not None and ours.m.there is not None
        assert evaluated == pytest.approx(lesson.evaluate(*one), rel=1e-9)
    assert_equal(dict(xla.params), dict(lesson.params))
    np.testing.assert_array_equal(held, xla.params["ln_f.weight"])
    assert_equal(dict(ours.v), dict(theirs.v))


@slow
def test_generation():
    """Prompts, single tokens, and past the context of 8, as the lesson's cache has them; three
    tokens after five are padded to four.
    """
    fields = {"lm_head_bias": True, "embedding_layer_norm": True}
    lesson, xla = (model_of(fields, kernels=kernels) for kernels in ("reference", "xla"))
    expected, found = lesson.engine.reader(2).read, xla.engine.reader(2).read
    rng = np.random.default_rng(0)
    for n in (3, 1, 1, 3, 1, 1, 1):
        idx = rng.integers(0, lesson.config.vocab_size, (2, n))
        np.testing.assert_allclose(found(idx), expected(idx), rtol=1e-9, atol=1e-9)


@slow
@pytest.mark.parametrize(
    ("dtype", "least", "most"), [("bfloat16", 1e-4, 1e-2), ("float32", 0, 1e-5)]
)
def test_the_rounding_of_a_dtype(dtype, least, most, small_blocks):
    """Of the norm of all gradients; the parameters and the gradients are float32."""
    config = GPTConfig(**{**SMALL, "n_embd": 24, "initializer_range": 0.2})
    exact = GPT(config, seed=2, dtype="float64", kernels="reference")
    model = GPT(config, seed=2, dtype=dtype, kernels="xla")
    loss, grads = exact.loss_and_grads(*batch(config))
    loss_xla, found = model.loss_and_grads(*batch(config))
    errors = [np.linalg.norm(found[name] - grads[name]) for name in grads]
    size = np.linalg.norm([np.linalg.norm(grad) for grad in grads.values()])
    assert abs(loss_xla - loss) < most and least * size < np.linalg.norm(errors) < most * size
    assert {each.dtype for each in (*found.values(), model.params.flat)} == {np.dtype("float32")}


@slow
def test_a_step_lowers_for_a_gpu(jax):
    """JAX's part of compiling. The rest needs CUDA's plugin."""
    xla = GPT(GPTConfig(**SMALL, dropout=0.1), dtype="bfloat16", kernels="xla")
    optimizer = AdamW(xla.params, engine=xla.engine)
    programs = []

    def call(what, program, arguments, *options, **named):
        programs.append(jax.jit(program).trace(*arguments))
        return right(what, program, arguments, *options, **named)

    right, xla.engine.call = xla.engine.call, call
    rngs = [xla.engine.dropout_rng(1, 0, 0)] * 2
    train_step(optimizer, [batch(xla.config)] * 2, rngs, 32, 1.0)
    gradients, step = (each.lower(lowering_platforms=("cuda",)).as_text() for each in programs)
    assert "stablehlo.dot_general" in gradients and "bf16" in gradients
    assert "stablehlo.sqrt" in step and "bf16" not in step


def test_what_is_refused(monkeypatch):
    config = GPTConfig(**SMALL)
    for options, says in (
        ({"device": "gpu"}, "JAX finds no gpu .*xla-cuda12"),
        ({"device": "mars"}, "device must be"),
        ({"dtype": "tf32"}, "tf32 needs a GPU"),
        ({"dtype": "float16"}, "dtype must be"),
    ):
        with refusing(says):
            GPT(config, kernels="xla", **options)
    model = GPT(config, kernels="xla")
    from npgpt import checks

    monkeypatch.setattr(checks, "machine_memory", lambda: 1000)
    with pytest.raises(
        UserError,
        match=r"of 1 x 3 x 6 tokens would take .*GB, but this machine has .*a smaller model",
    ):
        model.loss_and_grads(*batch(config))


def test_tf32_needs_a_gpu_that_has_it():
    from npgpt.engine.xla.devices import DeviceParameters, devices_of
    from npgpt.engine.xla.engine import XLAEngine

    params = DeviceParameters(GPTConfig(**SMALL), np.float32, devices_of("cpu"))
    params.devices.first = SimpleNamespace(
        platform="gpu", device_kind="NVIDIA T4", compute_capability="7.5"
    )
    with refusing("capability 8.0 or higher, and NVIDIA T4 has 7.5"):
        XLAEngine(params, "tf32")


def test_padded_texts_are_read_as_alone(jax, capsys):
    """On the way a line says what is compiled."""
    model = model_of({}, kernels="xla")
    idx = np.array([[0, 0, 1, 2], [3, 4, 1, 2]])
    both = model.reader(2, mask=idx > 0).read(idx)
    for row, begin in enumerate((2, 0)):
        alone = model_of({}, kernels="reference").reader(1).read(idx[row : row + 1, begin:])
        np.testing.assert_allclose(both[row, begin:], alone[0], rtol=1e-9, atol=1e-9)
    assert "XLA compiles generation" in capsys.readouterr().err
