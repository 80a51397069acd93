"""Every line on a strict stand-in for CuPy: nothing leaves the GPU, and a training step never waits for it."""

import dataclasses

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, Trainer, TrainOptions
from npgpt.arrays import to_host
from npgpt.checkpoints.run import find_checkpoint, read_checkpoint
from npgpt.data.tokenizers import make_tokenizer
from npgpt.engine.update import NotFiniteError
from tests import strict_cupy
from tests.helpers.runs import refused

pytestmark = pytest.mark.slow

SMALL = {"vocab_size": 30, "block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 16}


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    strict_cupy.install(monkeypatch)


def model(device="gpu", dtype="float64", **fields):
    return GPT(GPTConfig(**{**SMALL, **fields}), seed=0, dtype=dtype, device=device, threads=1)


def batches(n=1, V=30):
    some = np.random.default_rng(0).integers(0, V, (n, 2, 3, 8))
    some[:, 1, 0, 2] = -1       # a target that does not count
    return some


def assert_equal(there, here):
    """An array on the GPU is the CPU's, of the same dtype."""
    assert isinstance(there, strict_cupy.ndarray) and there.dtype == here.dtype
    np.testing.assert_allclose(there.get(), here, rtol=1e-9, atol=1e-11 * abs(here).max())


@pytest.mark.parametrize("fields", [{"dropout": 0.2}, {"bias": False, "tie_word_embeddings": False, "causal": False},
                                    {"embedding_layer_norm": True, "activation": "gelu"},
                                    {"final_layer_norm": False, "lm_head_bias": True}], ids=str)
def test_a_step_waits_for_nothing(fields):
    """And gives the CPU's numbers, also with dropout: the stand-in draws the same masks."""
    found, expected, flats = [], [], []
    for records, device in ((found, "gpu"), (expected, "cpu")):
        made = model(device, **fields)
        optimizer = AdamW(made.params, engine=made.engine)
        for step, (idx, targets) in enumerate(batches(3)):
            loss, grads = made.loss_and_grads(idx, targets, made.engine.dropout_rng(1, step, 0))
            records += [loss, optimizer.step(grads, max_norm=0.5), made.evaluate(idx, targets)]
        assert strict_cupy.gpu.waits == []
        flats.append(made.params.flat)
    assert [float(value) for value in found] == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(flats[0].get(), flats[1], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("dtype", "compute_type"), [("float32", "FP32"), ("tf32", "TF32")])
def test_the_precision_of_matmuls(dtype, compute_type):
    """It is set only while the model runs: another program may share the process."""
    there, linalg = model(dtype=dtype), strict_cupy.linalg
    (idx, targets), = batches()
    there.loss_and_grads(idx, targets)
    there.evaluate(idx, targets)
    there.generate(idx[:, :3], 2)
    assert strict_cupy.gpu.compute_types == {getattr(linalg, f"COMPUTE_TYPE_{compute_type}")}
    assert strict_cupy.gpu.compute_type == linalg.COMPUTE_TYPE_DEFAULT


def test_forward_and_backward_and_what_is_saved(tmp_path):
    there, here = model(), model("cpu")
    (idx, targets), = batches()
    logits, loss = there.forward(idx, targets)
    expected, expected_loss = here.forward(idx, targets)
    assert_equal(logits, expected)
    assert loss == pytest.approx(expected_loss)
    grads, expected = there.backward(), here.backward()
    for name in expected:
        assert_equal(grads[name], expected[name])
    there.save_pretrained(tmp_path)
    for device in ("cpu", "gpu"):
        again = GPT.from_pretrained(tmp_path, dtype="float64", device=device)
        np.testing.assert_array_equal(to_host(again.params.flat), there.params.flat.get())


def test_generation_waits_once_a_token():
    there, here = model(), model("cpu")
    (idx, _), = batches()
    strict_cupy.gpu.waits.clear()
    tokens = there.generate(idx[:, :3], 12, seed=3)         # more than the context of 8 holds
    assert len(strict_cupy.gpu.waits) == 12, strict_cupy.gpu.waits
    np.testing.assert_array_equal(tokens, here.generate(idx[:, :3], 12, seed=3))


TEXT = "All the world's a stage, and all the men and women merely players. " * 8
OPTIONS = TrainOptions(batch_size=2, max_iters=12, lr_decay_iters=12, warmup_iters=2, eval_interval=100, eval_iters=2,
                       log_interval=5, gradient_accumulation_steps=2, dtype="float64")


def trainer(out_dir, device="gpu", dropout=0.0, **changes):
    tokenizer = make_tokenizer("char", TEXT)
    tokens = tokenizer.encode(TEXT)
    return Trainer(model(device, vocab_size=tokenizer.vocab_size, dropout=dropout), tokens[:400], tokens[400:],
                   dataclasses.replace(OPTIONS, **changes), out_dir, tokenizer, "a text")


def test_the_trainer_waits_twice_a_log_interval(tmp_path, monkeypatch):
    """For the loss, and for the gradient norm, which is ready by then. The last step is read before it is saved."""
    made = trainer(tmp_path, dropout=0.1)
    monkeypatch.setattr(made, "evaluate_and_save", lambda bar: None)
    monkeypatch.setattr(made, "save", lambda: None)
    strict_cupy.gpu.waits.clear()
    made.run(progress=False)
    assert len(strict_cupy.gpu.waits) == 2 * len([5, 10, 12]), strict_cupy.gpu.waits
    assert all("trainer.py" in place for place in strict_cupy.gpu.waits)


def test_a_run_continues_on_the_other_device(tmp_path):
    """From the GPU to the CPU and back; the checkpoints are the same files."""
    expected = trainer(None, "cpu")
    expected.run(progress=False)
    for device, until in (("gpu", 4), ("cpu", 8), ("gpu", 12)):
        part = trainer(tmp_path, device, max_iters=until)
        if until > 4:
            part.restore(read_checkpoint(find_checkpoint(tmp_path)))
        part.run(progress=False)
    for ours, theirs in ((part.model.params, expected.model.params), (part.optimizer.v, expected.optimizer.v)):
        difference = np.linalg.norm(ours.flat.get() - theirs.flat) / np.linalg.norm(theirs.flat)
        assert difference < 1e-9


@pytest.mark.parametrize(("name", "at", "options"), [
    ("loss", 7, {"stop_at": 7}), ("grad_norm", 7, {"stop_at": 7}), ("grad_norm", 4, {"eval_interval": 4}),
    ("loss", 4, {"log_interval": 4})], ids=["stopped", "stopped, norm", "evaluated", "logged"])
def test_a_step_that_is_not_finite_is_seen_before_it_is_saved(tmp_path, name, at, options):
    """At the end of an interval, and after Ctrl-C in the middle of one."""
    options = {"log_interval": 100, **options}
    stop_at = options.pop("stop_at", None)
    made = trainer(tmp_path, **options)
    step = made.train_step

    def spoiling():
        record = step()
        made.stop_requested = made.step == stop_at
        return {**record, name: made.model.params.xp.asarray(np.inf)} if made.step == at else record

    made.train_step = spoiling
    with pytest.raises(NotFiniteError, match="inf at step .*the checkpoint of step 0"):
        made.run(progress=False)
    assert [folder.name for folder in tmp_path.glob("step-*")] == ["step-00000000"]


def test_the_command_line(train, npgpt):
    """Train, sample and evaluate on the GPU; continue on the CPU in float32, but not as another kind of parameters."""
    gpu = ["--device", "gpu"]
    code, out, _ = train(*gpu, "--dtype", "tf32", "--max-iters", 3)
    assert code == 0 and "reference lines" in out and "--kernels xla" in out
    assert npgpt("sample", "out", *gpu, "--max-new-tokens", 5)[0] == 0
    code, out, _ = npgpt("eval", "out", *gpu)
    assert code == 0 and "perplexity" in out
    again = ["train", "--resume", "--max-iters", 6]
    for flags, words in (([], "--dtype float32"), (["--dtype", "float64"], "dtype is tf32")):
        refused(npgpt(*again, *flags), words)
    assert npgpt(*again, "--dtype", "float32")[0] == 0


def test_a_full_gpu_is_one_line(train):
    strict_cupy.gpu.memory = 1 << 20
    result = train("--device", "gpu", "--batch-size", 64, "--n-embd", 256)
    refused(result, "memory is full", "allocating", "--batch-size")
