"""What XLA compiles is the lesson: every gradient of every variant, to 1e-9 in float64."""

import ast
from types import SimpleNamespace

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, UserError
from npgpt.model.masks import BlockMasks, Masks, draw_masks
from npgpt.model.transformer import gpt_backward, gpt_forward
from tests.cases import train_step
from tests.helpers.models import SMALL, VARIANTS, batch, model_of

# One runs every day; the others are slow, because each model is compiled. Dropout has a test of its own.
SLOW = [
    "default",
    "encoder",
    "exact gelu",
    "no biases",
    "bias of an untied head",
    "large vocabulary",
]
VARIANTS = [pytest.param(VARIANTS["untied head"], id="untied head"),
            *(pytest.param(VARIANTS[name], id=name, marks=pytest.mark.slow) for name in SLOW)]


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


def test_the_embeddings_gradient_in_parts_of_a_batch(jax):
    """Repeated tokens in each part, tokens that are not there, and positions that are not read."""
    from npgpt.engine.xla.lines import lines
    from npgpt.engine.xla.replaced import with_sorted_embedding
    from npgpt.layers import embedding_backward
    rng = np.random.default_rng(0)
    dx, cache = rng.standard_normal((6, 7, 5)), (rng.integers(0, 9, (6, 7)), 12, 8)
    with jax.enable_x64(True):
        ops, *_ = lines("float64", GPTConfig().block)
        ours = with_sorted_embedding(ops, 3).embedding_backward(dx, cache)
    for found, expected in zip(ours, embedding_backward(dx, cache), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("n", "axis"), [(1, -1), (2, -1), (1, 0)])
def test_put_along_axis(n, axis, jax):
    """A line of one's own block that writes to an array makes a new one."""
    from npgpt.engine.xla.lines import Spelled
    rng = np.random.default_rng(0)
    array, shape = rng.standard_normal((3, 4, 5)).astype(np.float32), [3, 4, 5]
    shape[axis] = n
    index = np.argsort(rng.random(array.shape), axis).take(range(n), axis) - 1      # from -1, all different in a row
    x = rng.standard_normal(shape).astype(np.float32)
    line = ast.parse("np.put_along_axis(array, index, x, axis=axis)")
    names = {"array": jax.numpy.array(array), "index": index, "x": x, "axis": axis, "np": jax.numpy}
    exec(compile(ast.fix_missing_locations(Spelled().visit(line)), "<line>", "exec"), names)
    np.put_along_axis(array, index, x, axis)
    np.testing.assert_array_equal(names["array"], array)


@pytest.mark.parametrize("edited", [None, "causal_mask"])
def test_queries_skip_later_keys_unless_lines_were_edited(edited, monkeypatch, small_blocks, jax):
    from npgpt import layers
    from npgpt.engine import sources
    from npgpt.engine.xla.lines import lines
    from npgpt.engine.xla.replaced import replaced
    if edited:
        monkeypatch.setitem(sources.TESTED, edited, "another")
    ops, *_ = lines("float64", GPTConfig().block)
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 8, 3))
    with jax.enable_x64(True):
        mix, _ = replaced(ops, GPTConfig(), "float64").attention_forward(q, k, v, 0.5)
    expected, _ = layers.attention_forward(q, k, v, 0.5)
    assert np.allclose(mix, expected) == bool(edited)


def assert_the_lessons(xla, lesson, *given, **options):
    loss, grads = lesson.loss_and_grads(*given, **options)
    loss_xla, grads_xla = xla.loss_and_grads(*given, **options)
    assert loss_xla == pytest.approx(loss, rel=1e-12)
    assert_equal(grads_xla, grads)


@pytest.mark.parametrize("fields", VARIANTS)
def test_loss_and_every_gradient(fields, small_blocks):
    lesson, xla = model_of(fields, kernels="reference"), model_of(fields, kernels="xla")
    idx, targets = batch(lesson.config)
    targets[:, :2] = -1             # a block of the loss without a target
    for heads in {1, lesson.config.n_head} if fields in ({}, {"causal": False}) else {lesson.config.n_head}:
        mask = np.where(np.random.default_rng(2).random((3, heads, 6, 6)) < 0.2, -np.inf, 0.5)
        assert_the_lessons(xla, lesson, idx, targets, mask=mask, count=40)


def test_whole_arrays_and_evaluation():
    """Without blocks, because nothing is large."""
    lesson, xla = model_of({}, kernels="reference"), model_of({}, kernels="xla")
    idx, targets = batch(lesson.config)
    assert_the_lessons(xla, lesson, idx, targets)
    for mask in (None, np.triu(np.ones((6, 6)))):
        assert float(xla.evaluate(idx, targets, mask)) == pytest.approx(lesson.evaluate(idx, targets, mask), rel=1e-12)


@pytest.mark.slow
def test_dropout(small_blocks, jax):
    """The lesson with the masks drawn by XLA; each call, step and micro-batch has its own."""
    from npgpt import layers
    from npgpt.engine.xla.engine import Draws
    from npgpt.layers.loss import cross_entropy_backward, cross_entropy_forward
    fields = {"embd_pdrop": 0.1, "attn_pdrop": 0.2, "resid_pdrop": 0.3, "mlp_pdrop": 0.4}
    xla = model_of(fields, kernels="xla")
    idx, targets = batch(xla.config)
    seeds, found = [(2**40 + 1, 5, 2), (1, 5, 2), (2**40 + 1, 6, 2), (2**40 + 1, 5, 3)], []
    for seed in seeds:
        with jax.enable_x64(True):
            embd, blocks = draw_masks(xla.config, *idx.shape, np.float64, Draws(xla.engine._words(seed), 0))
        masks = Masks(np.asarray(embd), [BlockMasks(*map(np.asarray, each)) for each in blocks])
        assert set(np.unique(masks.blocks[1].mlp).round(6)) == {0.0, round(1 / 0.6, 6)}
        assert (masks.blocks[0].mlp != masks.blocks[1].mlp).any()
        logits, cache = gpt_forward(idx, xla.params.tree, xla.config, masks, layers)
        loss, cross_entropy = cross_entropy_forward(logits, targets)
        grads = xla.params.flatten(gpt_backward(cross_entropy_backward(1.0, cross_entropy), cache, layers))
        loss_xla, grads_xla = xla.loss_and_grads(idx, targets, xla.engine.dropout_rng(*seed))
        assert loss_xla == pytest.approx(float(loss), rel=1e-12)
        assert_equal(grads_xla, grads)
        found.append(masks.embd.tobytes())
    assert len(set(found)) == 4
    # Micro-batches of a step: the first one's number is sent, the others are counted from it.
    pair = [(7, 0, 0), (7, 0, 1)]
    losses = [xla.loss_and_grads(idx, targets, seed, count=32)[0] for seed in pair]
    loss, _ = xla.engine.loss_and_grads([(idx, targets)] * 2, pair, 32)
    assert float(loss) == pytest.approx(sum(losses), rel=1e-12) and losses[0] != losses[1]


@pytest.mark.parametrize(("options", "max_norm", "n"), [({}, 0.5, 1), ({"decay": "all", "weight_decay": 0.3}, None, 3)],
                         ids=["clipped", "accumulated"])
def test_whole_steps(options, max_norm, n):
    """Parameters and both moments after four steps, with a changing rate; the rows of all micro-batches count alike."""
    lesson, xla = model_of({}, kernels="reference"), model_of({}, kernels="xla")
    ours, theirs = (AdamW(each.params, engine=each.engine, **options) for each in (xla, lesson))
    for step in range(4):
        ours.lr = theirs.lr = 0.1 / (step + 1)
        batches = [batch(lesson.config, seed=10 * step + i) for i in range(n)]
        count = sum(int((targets != -1).sum()) for _, targets in batches)
        rngs = [xla.engine.dropout_rng(1, step, i) for i in range(n)]
        expected = train_step(theirs, batches, [None] * n, count, max_norm)
        found = train_step(ours, batches, rngs, count, max_norm)
        assert [float(each) for each in found] == pytest.approx(expected, rel=1e-10)
    for a, b in ((xla.params, lesson.params), (ours.m, theirs.m), (ours.v, theirs.v)):
        assert_equal(dict(a), dict(b), rtol=1e-9)
    assert ours.t == 4


def test_gradients_on_the_host_and_on_the_device_give_the_same_bits():
    """The user's are arrays of NumPy, new ones that can be written to."""
    flats = []
    for on_host in (True, False):
        xla = model_of({}, kernels="xla")
        optimizer = AdamW(xla.params, engine=xla.engine)
        one = batch(xla.config)
        for _ in range(2):
            if on_host:
                _, grads = xla.loss_and_grads(*one)
                assert all(
                    type(each) is np.ndarray and each.flags.writeable for each in grads.values()
                )
                optimizer.step(grads, 0.5)
            else:
                train_step(optimizer, [one], [None], 16, 0.5)
        flats.append(xla.params.flat)
    np.testing.assert_array_equal(*flats)


def test_parameters_on_the_device_are_those_of_the_user():
    """Every kind of write counts at the next step, and reads give the values after the last step."""
    lesson, xla = model_of({}, kernels="reference"), model_of({}, kernels="xla")
    ours, theirs = (AdamW(each.params, engine=each.engine) for each in (xla, lesson))
    held = xla.params["ln_f.weight"]
    one = batch(lesson.config)

    def step():
        train_step(theirs, [one], [None], 16)
        train_step(ours, [one], [None], 16)
        assert np.isfinite(float(xla.evaluate(*one)))       # which reads nothing but the loss
        assert xla.params.there is not None and ours.m.there is not None

    step()
    for model in (lesson, xla):
        model.params["ln_f.weight"] = 0.5
    step()
    for model in (lesson, xla):
        model.params["wte.weight"][3] *= 2.0
    step()
    for model, optimizer in ((lesson, theirs), (xla, ours)):
        model.params.flat[:7] += 1.0
        model.params.tree["h"][1]["ln_1"]["bias"][...] = 0.25
        optimizer.v["wpe.weight"] = 1.0
    step()
    assert_equal(dict(xla.params), dict(lesson.params))
    np.testing.assert_array_equal(held, xla.params["ln_f.weight"])
    assert_equal(dict(ours.v), dict(theirs.v))


@pytest.mark.slow
def test_generation():
    """The logits of every token: of the prompt, of single tokens, and past the context, as the lesson's cache has them.
    """
    fields = {"lm_head_bias": True, "embedding_layer_norm": True,
              "scale_attn_by_inverse_layer_idx": True}
    lesson, xla = model_of(fields, kernels="reference"), model_of(fields, kernels="xla")
    expected, found = lesson.engine.reader(2).read, xla.engine.reader(2).read
    rng = np.random.default_rng(0)
    for n in (3, 1, 1, 3, 1, 1, 1):         # 11 tokens, and the context holds 8; three after five are padded to four
        idx = rng.integers(0, lesson.config.vocab_size, (2, n))
        np.testing.assert_allclose(found(idx), expected(idx), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_bfloat16_is_near_float64_and_float32_nearer(small_blocks):
    """Of the norm of each gradient; the parameters and what is returned are float32."""
    fields = {**SMALL, "n_embd": 24, "initializer_range": 0.2}
    exact = GPT(GPTConfig(**fields), seed=2, dtype="float64", kernels="reference")
    idx, targets = batch(exact.config)
    loss, grads = exact.loss_and_grads(idx, targets)
    for dtype, within in (("bfloat16", 1e-2), ("float32", 1e-5)):
        model = GPT(GPTConfig(**fields), seed=2, dtype=dtype, kernels="xla")
        loss_xla, grads_xla = model.loss_and_grads(idx, targets)
        errors = [np.linalg.norm(grads_xla[name] - grads[name]) for name in grads]
        size = np.linalg.norm([np.linalg.norm(grad) for grad in grads.values()])
        assert abs(loss_xla - loss) < within and np.linalg.norm(errors) < within * size
        assert {each.dtype for each in (*grads_xla.values(), model.params.flat)} == {np.dtype(np.float32)}
        assert dtype == "float32" or np.linalg.norm(errors) > 1e-4 * size       # and it is rounded


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_lowers_for_a_gpu(dtype, jax):
    """JAX's part of compiling. The rest needs CUDA's plugin."""
    xla = GPT(GPTConfig(**SMALL, dropout=0.1), dtype=dtype, kernels="xla")
    optimizer = AdamW(xla.params, engine=xla.engine)
    programs = []

    def run(what, program, arguments, *options, **named):
        programs.append(jax.jit(program).trace(*arguments))
        return right(what, program, arguments, *options, **named)

    right, xla.engine.run = xla.engine.run, run
    rngs = [xla.engine.dropout_rng(1, 0, 0)] * 2
    train_step(optimizer, [batch(xla.config)] * 2, rngs, 32, 1.0)
    texts = [each.lower(lowering_platforms=("cuda",)).as_text() for each in programs]
    assert ["stablehlo.dot_general" in text for text in texts] == [True, False]
    assert ["bf16" in text for text in texts] == [dtype == "bfloat16", False]
    assert "stablehlo.sqrt" in texts[1]


def test_what_is_refused(monkeypatch):
    config = GPTConfig(**SMALL)
    for options, says in (({"device": "gpu"}, "JAX finds no gpu .*xla-cuda12"),
                          ({"device": "mars"}, "device must be"), ({"dtype": "tf32"}, "tf32 needs a GPU"),
                          ({"dtype": "float16"}, "dtype must be")):
        with pytest.raises(UserError, match=says):
            GPT(config, kernels="xla", **options)
    model = GPT(config, kernels="xla")
    from npgpt import checks
    monkeypatch.setattr(checks, "machine_memory", lambda: 1000)
    with pytest.raises(UserError, match=r"of 1 x 3 x 6 tokens would take .*GB, but this machine has .*a smaller model"):
        model.loss_and_grads(*batch(config))


def test_tf32_needs_a_gpu_that_has_it():
    from npgpt.engine.xla.devices import DeviceParameters, devices_of
    from npgpt.engine.xla.engine import XLAEngine
    params = DeviceParameters(GPTConfig(**SMALL), np.float32, devices_of("cpu"))
    params.devices.first = SimpleNamespace(platform="gpu", device_kind="NVIDIA T4",
                                           compute_capability="7.5")
    with pytest.raises(UserError, match="capability 8.0 or higher, and NVIDIA T4 has 7.5"):
        XLAEngine(params, "tf32")


def test_the_settings_of_a_users_jax_stay(jax):
    """float64 is enabled only inside the engine."""
    model_of({}, kernels="xla").loss_and_grads(*batch(GPTConfig(**SMALL)))
    assert jax.numpy.ones(2).dtype == np.float32 and not jax.config.jax_enable_x64
    assert jax.config.jax_default_matmul_precision is None
