"""Every line on a strict stand-in for CuPy: nothing leaves the GPU, and a training step never waits
for it.

Nor does it copy before a matmul, add in any order, leave its GPU, or fill the memory with
temporaries.
"""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, Trainer, TrainOptions
from npgpt.checkpoints.run import find_checkpoint, read_checkpoint
from npgpt.data.tokenizers import make_tokenizer
from npgpt.engine.gpu import array_type
from npgpt.errors import NotFiniteError
from tests import strict_cupy
from tests.cases import train_step
from tests.helpers.runs import refused

pytestmark = pytest.mark.slow

SMALL = {"vocab_size": 30, "block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 16}


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    strict_cupy.install(monkeypatch)


def model(device="gpu", dtype="float64", kernels="auto", **fields):
    config = GPTConfig(**{**SMALL, **fields})
    return GPT(config, 0, dtype, device=device, threads=1, kernels=kernels)


def batches(n=1, V=30):
    some = np.random.default_rng(0).integers(0, V, (n, 2, 3, 8))
    some[:, 1, 0, 2] = -1  # a target that does not count
    return some


@pytest.mark.parametrize(
    "fields",
    [
        {"dropout": 0.2},
        {"bias": False, "tie_word_embeddings": False, "causal": False},
        {"embedding_layer_norm": True, "activation": "gelu"},
        {"final_layer_norm": False, "lm_head_bias": True},
    ],
    ids=str,
)
def test_a_step_waits_for_nothing(fields):
    """And gives the CPU's numbers, also with dropout: the stand-in draws the same masks."""
    found, expected, flats = [], [], []
    for records, device in ((found, "gpu"), (expected, "cpu")):
        made = model(device, **fields)
        optimizer = AdamW(made.params, engine=made.engine)
        for step, (idx, targets) in enumerate(batches(3)):
            loss, grads = made.loss_and_grads(
                idx, targets, made.engine.dropout_rng(1, step, 7 * step)
            )
            records += [loss, optimizer.step(grads, max_norm=0.5), made.evaluate(idx, targets)]
        assert strict_cupy.gpu.waits == strict_cupy.gpu.copies == strict_cupy.gpu.atomics == []
        flats.append(made.params.flat)
    assert [float(value) for value in found] == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(flats[0].get(), flats[1], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kernels", ["auto", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "tf32"])
def test_the_precision_of_matmuls(dtype, kernels):
    """Of two matrices and of many. It is set only while the model runs: another program may share
    the process.
    """
    there, gpu = model(dtype=dtype, kernels=kernels), strict_cupy.gpu
    assert there.engine.description.startswith("a stand-in for a GPU, by CuPy")
    ((idx, targets),) = batches()
    linalg, cublas = strict_cupy.linalg, strict_cupy.cublas
    handle = there.engine.device.cublas_handle
    linalg.set_compute_type(np.float32, linalg.COMPUTE_TYPE_TF32)  # CUPY_TF32=1
    cublas.setMathMode(handle, 3)
    there.loss_and_grads(idx, targets)
    there.evaluate(idx, targets)
    assert bool(gpu.copies) == bool(gpu.atomics) == (kernels == "reference")  # as written
    there.generate(idx[:, :3], 2)
    there.forward(idx, targets)
    there.backward()
    assert gpu.precisions == {(dtype, 2), (dtype, 3)}
    assert gpu.compute_type == linalg.COMPUTE_TYPE_TF32 and cublas.getMathMode(handle) == 3


def test_each_model_stays_on_its_gpu(tmp_path):
    """And leaves the caller's current one as it is. Two take turns; each draws, trains, writes, and
    is saved.
    """
    strict_cupy.gpu.devices = 2
    models = [model(device, "float32", dropout=0.1) for device in ("gpu", "gpu:1")]
    optimizers = [AdamW(each.params, engine=each.engine) for each in models]
    for idx, targets in batches(2):
        losses = []
        for made, optimizer in zip(models, optimizers, strict=True):
            rngs = [made.engine.dropout_rng(0, optimizer.t, 0)] * 2
            loss, norm = train_step(optimizer, [(idx, targets)] * 2, rngs, 46, 1.0)
            made.params["ln_f.bias"] = 0.5
            logits, _ = made.forward(idx, targets)
            others = made.evaluate(idx, targets), made.score(idx[:1]), made.hidden(idx)
            grads = made.backward(np.ones((3, 8, 16)))
            found = [loss, norm, logits, *others, *grads.values()]
            assert {each.device.id for each in found} == {models.index(made)}
            losses.append(float(loss))
            made.generate(idx[:1, :3], 2, mask=np.array([[0, 1, 1]]))
        assert losses[0] == losses[1]
    models[1].save_pretrained(tmp_path)
    again = GPT.from_pretrained(tmp_path, device="gpu:1")
    assert again.params.flat.device.id == 1 and again.params.flat.get().any()
    assert strict_cupy.gpu.current == 0


@pytest.fixture
def gemm(monkeypatch):
    """Calls of cuBLAS for batched matmuls; entries of `change` replace the call's arguments."""
    right, calls, change = strict_cupy.cublas.gemmStridedBatchedEx, [], {}

    def called(*given):
        calls.append(given)
        return right(*(change.get(i, argument) for i, argument in enumerate(given)))

    monkeypatch.setattr(strict_cupy.cublas, "gemmStridedBatchedEx", called)
    return SimpleNamespace(calls=calls, change=change)


def laid_out(array, order):
    """The array on the GPU, with its axes in this order in memory."""
    there = strict_cupy.cupy.asarray(np.ascontiguousarray(array.transpose(order)))
    return there.transpose(*np.argsort(order))


@pytest.mark.parametrize(
    ("m", "n", "dtype", "calls"),
    [
        ((2, 3, 4, 5), (2, 3, 5, 6), "float32", 2),
        ((5, 2, 4, 3), (5, 2, 3, 1), "float64", 2),
        ((2, 3, 4, 5), (2, 1, 5, 6), "float32", 0),
        ((2, 3, 0, 5), (2, 3, 5, 6), "float32", 0),
        ((3, 4, 5), (3, 5, 6), "float32", 0),
    ],
)
def test_batched_matmuls(gemm, m, n, dtype, calls):
    """Any axis may be the innermost in memory; cuBLAS is called for the shorter of the two leading
    axes. Else CuPy is.
    """
    rng, Array = np.random.default_rng(0), array_type()
    a, b = rng.standard_normal(m).astype(dtype), rng.standard_normal(n).astype(dtype)
    for order in itertools.permutations(range(len(m))):
        for other in itertools.permutations(range(len(m))):
            x, y = laid_out(a, order), laid_out(b, other)
            gemm.calls.clear()
            for ours in (x.view(type=Array) @ y, x @ y.view(type=Array)):
                np.testing.assert_allclose(ours.get(), a @ b, rtol=1e-5, atol=1e-6)
                assert type(ours) is strict_cupy.ndarray and ours.dtype == dtype
            assert len(gemm.calls) == 2 * calls


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        (9, 1, "INVALID_VALUE"),  # a leading dimension
        (10, 10**6, "IllegalAddress"),  # a stride
        (20, 10**6, "IllegalAddress"),  # how many matrices
        (21, strict_cupy.cublas.CUBLAS_COMPUTE_64F, "NOT_SUPPORTED"),
        (0, 5, "NOT_INITIALIZED"),  # the handle
        (6, None, "IllegalAddress"),  # the factor alpha, which cuBLAS reads on the host
    ],
)
def test_what_cublas_refuses(gemm, argument, value, error):
    """Also the stand-in: memory beyond an array, too small leading dimensions, types."""
    a = strict_cupy.cupy.ones((2, 3, 4, 4), "float32")
    gemm.change[argument] = a.data.ptr if value is None else value
    with pytest.raises(RuntimeError, match=error):
        a.view(type=array_type()) @ a


def test_generation_waits_once_a_token():
    there, here = model(), model("cpu")
    ((idx, _),) = batches()
    strict_cupy.gpu.waits.clear()
    tokens = there.generate(idx[:, :3], 12, seed=3)  # more than the context of 8 holds
    assert len(strict_cupy.gpu.waits) == 12, strict_cupy.gpu.waits
    np.testing.assert_array_equal(tokens, here.generate(idx[:, :3], 12, seed=3))


TEXT = "All the world's a stage, and all the men and women merely players. " * 8
OPTIONS = TrainOptions(
    batch_size=2,
    max_iters=12,
    lr_decay_iters=12,
    warmup_iters=2,
    eval_interval=100,
    eval_iters=2,
    log_interval=5,
    gradient_accumulation_steps=2,
    dtype="float64",
)


def trainer(out_dir, device="gpu", dropout=0.0, **changes):
    tokenizer = make_tokenizer("char", TEXT)
    tokens = tokenizer.encode(TEXT)
    return Trainer(
        model(device, vocab_size=tokenizer.vocab_size, dropout=dropout),
        tokens[:400],
        tokens[400:],
        dataclasses.replace(OPTIONS, **changes),
        out_dir,
        tokenizer,
        "a text",
    )


def test_the_trainer_waits_twice_a_log_interval(tmp_path, monkeypatch):
    """For the loss, and for the gradient norm, which is ready by then. The last step is read before
    it is saved.
    """
    made = trainer(tmp_path, dropout=0.1)
    monkeypatch.setattr(made, "evaluate_and_save", lambda bar: None)
    monkeypatch.setattr(made, "save", lambda: None)
    strict_cupy.gpu.waits.clear()
    made.run()
    assert len(strict_cupy.gpu.waits) == 2 * len([5, 10, 12]), strict_cupy.gpu.waits
    assert all("trainer.py" in place for place in strict_cupy.gpu.waits)


def test_a_run_continues_on_the_other_device(tmp_path):
    """From the GPU to the CPU and back; the checkpoints are the same files."""
    expected = trainer(None, "cpu")
    expected.run()
    for device, until in (("gpu", 4), ("cpu", 8), ("gpu", 12)):
        part = trainer(tmp_path, device, max_iters=until)
        if until > 4:
            part.restore(read_checkpoint(find_checkpoint(tmp_path)))
        part.run()
    for ours, theirs in (
        (part.model.params, expected.model.params),
        (part.optimizer.v, expected.optimizer.v),
    ):
        difference = np.linalg.norm(ours.flat.get() - theirs.flat) / np.linalg.norm(theirs.flat)
        assert difference < 1e-9


@pytest.mark.parametrize(
    ("at", "stopped", "options"), [(7, True, {}), (4, False, {"eval_interval": 4})]
)
def test_a_step_that_is_not_finite_is_seen_before_it_is_saved(tmp_path, at, stopped, options):
    """At the end of an interval, and after Ctrl-C in the middle of one."""
    made = trainer(tmp_path, log_interval=100, **options)
    step = made.train_step

    def spoiling():
        record = step()
        if made.step == at:
            made.stop_requested, record["loss"] = stopped, made.model.params.xp.asarray(np.inf)
        return record

    made.train_step = spoiling
    with pytest.raises(NotFiniteError, match="inf at step .*the checkpoint of step 0"):
        made.run()
    assert [folder.name for folder in tmp_path.glob("step-*")] == ["step-00000000"]


def test_the_command_line(train, npgpt):
    """Train, sample and evaluate on the GPU; continue on the CPU in float32, but not as another
    kind of parameters. CuPy would only warn of tf32 on an old GPU, and compute in float32.
    """
    gpu, tf32 = ["--device", "gpu"], ["--dtype", "tf32"]
    strict_cupy.gpu.compute_capability = "75"
    refused(train(*gpu, *tf32), "8.0 or higher", "has 7.5", "--dtype float32")
    strict_cupy.gpu.compute_capability = "90"
    code, out, _ = train(*gpu, *tf32, "--max-iters", 3)
    assert code == 0 and "by CuPy" in out
    assert npgpt("sample", "out", *gpu, "--max-new-tokens", 5)[0] == 0
    assert "perplexity" in npgpt("eval", "out", *gpu)[1]
    again = ["train", "--resume", "--max-iters", 6]
    refused(npgpt(*again), "--dtype float32")
    refused(npgpt(*again, "--dtype", "float64"), "dtype is tf32")
    assert npgpt(*again, "--dtype", "float32")[0] == 0


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [("memory", 1 << 20, "allocating"), ("cublas_status", 3, "CUBLAS_STATUS_ALLOC_FAILED")],
)
def test_a_full_gpu_is_one_line(train, name, value, says):
    """Also if cuBLAS finds no room for itself."""
    setattr(strict_cupy.gpu, name, value)
    result = train("--device", "gpu", "--batch-size", 64, "--n-embd", 256)
    refused(result, "memory is full", says, "--batch-size")


def test_the_experimenters_doors():
    """On the stand-in, which refuses NumPy's arrays: what tests/gpu/test_model.py runs on a GPU."""
    from tests.gpu.test_model import doors

    config = GPTConfig(**{**SMALL, "vocab_size": 65, "block_size": 40})
    batch = np.random.default_rng(0).integers(0, 65, (2, 3, 40))
    expected = doors(GPT(config, dtype="float64"), batch)
    found = doors(GPT(config, dtype="float64", device="gpu"), batch)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-8, atol=1e-12, err_msg=name)
