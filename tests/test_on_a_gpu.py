"""Every line on a strict stand-in for CuPy: nothing leaves the card, and a step of training never waits for it."""

import dataclasses
import time

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, UserError
from npgpt.arrays import array_module, to_host
from npgpt.checkpoints.run import find_checkpoint, read_checkpoint
from npgpt.cli.main import main
from npgpt.data.tokenizers import make_tokenizer
from npgpt.engine.philox import Philox
from npgpt.layers.attention_tiles import head_groups
from npgpt.training import adamw
from npgpt.training.adamw import NotFiniteError
from npgpt.training.evaluation import evaluate_split
from npgpt.training.metrics import read_metrics
from npgpt.training.options import TrainOptions
from npgpt.training.trainer import Trainer
from tests import strict_cupy
from tests.cases import layer_cases
from tests.cuda.card import EmulatedCard

CASES = layer_cases()
SMALL = {"vocab_size": 30, "block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 16}


@pytest.fixture(autouse=True)
def card(monkeypatch):
    """CuPy's stand-in; its counts are of what the test does."""
    return strict_cupy.install(monkeypatch)


def model(device="gpu", **fields):
    return GPT(GPTConfig(**{**SMALL, **fields}), seed=0, dtype="float64", device=device, kernels="reference", threads=1)


def batch(n=1, seed=0, V=30):
    return np.random.default_rng(seed).integers(0, V, (2 * n, 3, 8)).reshape(n, 2, 3, 8)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_layers(case, card):
    """The same numbers as in NumPy, without a wait. (The loss counts its targets on the host, where it is told to.)"""
    inputs = {name: card.asarray(array) for name, array in case.inputs.items()}
    y, cache = case.forward(**case.inputs)
    dy = np.random.default_rng(0).standard_normal(np.shape(y))
    expected = case.backward(dy, cache)

    y_there, cache_there = case.forward(**inputs)
    dy_there = card.asarray(dy)
    grads = case.backward(dy_there, cache_there)
    counted = "cross-entropy" in case.name and "part of a batch" not in case.name       # without `count` given
    assert strict_cupy.syncs == (1 if counted else 0), strict_cupy.sync_places
    assert_equal(y_there, y)
    grads, expected = (value if isinstance(value, tuple) else (value,) for value in (grads, expected))
    for gradient, of in zip(grads, expected, strict=True):
        assert_equal(gradient, of)


def assert_equal(there, here):
    if here is None:
        assert there is None
        return
    assert isinstance(there, strict_cupy.ndarray)
    here = np.asarray(here)
    np.testing.assert_allclose(there.get(), here, rtol=1e-9, atol=1e-11 * max(1e-300, abs(here).max()))


@pytest.mark.parametrize("fields", [{}, {"dropout": 0.2}, {"bias": False}, {"tie_word_embeddings": False},
                                    {"causal": False}, {"embedding_layer_norm": True}, {"activation": "gelu"},
                                    {"vocab_size": 700}], ids=str)
def test_a_step_waits_for_nothing(fields):
    """And has the numbers of the CPU, dropout masks included where they come from Philox."""
    V = fields.get("vocab_size", 30)
    there, here = model(**fields), model("cpu", **fields)
    optimizers = AdamW(there.params), AdamW(here.params)
    strict_cupy.reset()
    records = []
    for step, (idx, targets) in enumerate(batch(3, V=V)):
        targets[0, 2] = -1
        loss, grads = there.loss_and_grads(idx, targets, there.dropout_rng(1, step, 0))
        records.append((loss, optimizers[0].step(grads, max_norm=0.5), there.evaluate(idx, targets)))
    assert strict_cupy.syncs == 0, strict_cupy.sync_places

    for step, (idx, targets) in enumerate(batch(3, V=V)):
        targets[0, 2] = -1
        loss, grads = here.loss_and_grads(idx, targets, Philox(1, step))
        expected = loss, optimizers[1].step(grads, max_norm=0.5), here.evaluate(idx, targets)
        assert [float(value) for value in records[step]] == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(there.params.flat.get(), here.params.flat, rtol=1e-7, atol=1e-9)


def test_forward_and_backward():
    there, here = model(), model("cpu")
    (idx, targets), = batch()
    logits, loss = there.forward(idx, targets)
    expected, expected_loss = here.forward(idx, targets)
    assert_equal(logits, expected)
    assert loss == pytest.approx(expected_loss)
    grads, expected = there.backward(), here.backward()
    for name in expected:
        assert_equal(grads[name], expected[name])


def test_what_is_saved_from_the_card_is_the_model(tmp_path):
    there = model()
    there.save_pretrained(tmp_path)
    for device in ("cpu", "gpu"):
        again = GPT.from_pretrained(tmp_path, dtype="float64", device=device, kernels="reference")
        np.testing.assert_array_equal(to_host(again.params.flat), there.params.flat.get())


def test_generation_waits_once_a_token():
    there, here = model(), model("cpu")
    (idx, _), = batch()
    strict_cupy.reset()
    tokens = there.generate(idx[:, :3], 12, seed=3)         # more than the context of 8 holds
    assert strict_cupy.syncs == 12, strict_cupy.sync_places
    np.testing.assert_array_equal(tokens, here.generate(idx[:, :3], 12, seed=3))


def test_ids_out_of_range_are_refused_before_they_wrap():
    with pytest.raises(UserError, match="from 0 to 29"):
        model().loss_and_grads(np.full((1, 4), 30), np.zeros((1, 4), int))


OPTIONS = TrainOptions(batch_size=2, max_iters=12, lr_decay_iters=12, warmup_iters=2, eval_interval=100, eval_iters=2,
                       log_interval=5, gradient_accumulation_steps=2, dtype="float64")
TEXT = "All the world's a stage, and all the men and women merely players. " * 8


@pytest.fixture
def emulated(card, monkeypatch):
    """The fused kernels, which the stand-in for CuPy has none to run, are emulated."""
    monkeypatch.setattr("npgpt.engine.cuda.card.Card",
                        lambda precision, head_size: EmulatedCard(precision, head_size, xp=card))


@pytest.fixture(params=["reference", "fused"])
def kernels(request, emulated):
    """Both ways to compute on a card: the lines, and the fused kernels."""
    return request.param


def trainer(out_dir, device="gpu", kernels="reference", **changes):
    tokenizer = make_tokenizer("char", TEXT)
    tokens = tokenizer.encode(TEXT)
    config = GPTConfig(**{**SMALL, "n_head": 1, "vocab_size": tokenizer.vocab_size,
                          "dropout": changes.pop("dropout", 0.0)})
    dtype = "float32" if kernels == "fused" else "float64"
    made = GPT(config, seed=0, dtype=dtype, device=device, kernels=kernels, threads=1)
    assert (made.fused is not None) == (kernels == "fused" and device == "gpu")
    options = dataclasses.replace(OPTIONS, dtype=dtype, **changes)
    return Trainer(made, tokenizer, tokens[:400], tokens[400:], "a text", options, out_dir)


def test_the_trainer_waits_once_a_log_interval(tmp_path, monkeypatch, kernels):
    """Twice: for the loss, and for the gradient's norm, which is there by then. The last step is read to be saved."""
    made = trainer(tmp_path, dropout=0.1, kernels=kernels)
    monkeypatch.setattr(made, "evaluate_and_save", lambda bar: None)
    monkeypatch.setattr(made, "save", lambda: None)
    strict_cupy.reset()
    made.run(progress=False)
    assert strict_cupy.syncs == 2 * len([5, 10, 12]), strict_cupy.sync_places
    assert all("trainer.py" in place for place in strict_cupy.sync_places)


def test_a_run_goes_on_on_the_other_device(tmp_path, kernels):
    """From the card to the CPU and back; the checkpoints are the same files."""
    expected = trainer(tmp_path, "cpu", kernels, max_iters=12)
    (tmp_path / "all").mkdir()
    expected.out_dir = tmp_path / "all"
    expected.run(progress=False)
    out_dir = tmp_path / "parts"
    out_dir.mkdir()
    for device, until in (("gpu", 4), ("cpu", 8), ("gpu", 12)):
        part = trainer(out_dir, device, kernels, max_iters=until)
        if until > 4:
            part.restore(read_checkpoint(find_checkpoint(out_dir)))
        part.run(progress=False)
    for ours, theirs, within in ((part.model.params, expected.model.params, {"reference": 1e-9, "fused": 1e-4}),
                                 (part.optimizer.v, expected.optimizer.v, {"reference": 1e-9, "fused": 1e-4})):
        difference = np.linalg.norm(ours.flat.get() - theirs.flat) / np.linalg.norm(theirs.flat)
        assert difference < within[kernels]


@pytest.mark.parametrize("at", [3, 5])
def test_a_loss_that_is_not_finite_is_seen_before_anything_is_saved(tmp_path, at, kernels):
    """At the next log interval: what was saved before stays, and nothing after it is."""
    made = trainer(tmp_path, kernels=kernels, max_iters=9, log_interval=5)
    step = made.train_step

    def spoiling():
        if made.step == at:
            made.model.params["ln_f.weight"][0] = np.inf
        return step()

    made.train_step = spoiling
    with pytest.raises(NotFiniteError, match="the checkpoint of step 0"):
        made.run(progress=False)
    assert [folder.name for folder in tmp_path.glob("step-*")] == ["step-00000000"]


@pytest.mark.parametrize(("name", "options", "stop_at"), [
    ("loss", {}, 7), ("grad_norm", {}, 7), ("grad_norm", {"log_interval": 100, "eval_interval": 4}, None),
    ("grad_norm", {"log_interval": 4}, None)], ids=["stopped", "stopped, norm", "evaluated", "logged"])
def test_a_step_is_looked_at_before_it_is_saved(tmp_path, name, options, stop_at):
    """Whatever makes the trainer save or go on from it: the end of an interval, or Ctrl-C in the middle of one."""
    made = trainer(tmp_path, **{"max_iters": 12, "log_interval": 100, **options})
    step = made.train_step

    def spoiling():
        record = step()
        made.stop_requested = made.step == stop_at
        if made.step == (stop_at or 4):
            record[name] = made.model.xp.asarray(np.float64(np.inf))
        return record

    made.train_step = spoiling
    with pytest.raises(NotFiniteError, match="inf at step"):
        made.run(progress=False)
    assert [folder.name for folder in tmp_path.glob("step-*")] == ["step-00000000"]


def test_the_speed_is_that_of_the_steps_since_the_last_record(tmp_path, monkeypatch):
    """A step is only ordered, not done, when it returns; and the time of evaluations does not count."""
    made, clock = trainer(tmp_path, max_iters=10, eval_interval=7, log_interval=5), [0.0]
    step, evaluate = made.train_step, made.evaluate_and_save

    def taking(seconds, function):
        def timed(*arguments):
            clock[0] += seconds
            return function(*arguments)
        return timed

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    made.train_step, made.evaluate_and_save = taking(0.5, step), taking(1000.0, evaluate)
    made.run(progress=False)
    records = [record for record in read_metrics(tmp_path) if "tokens_per_second" in record]
    assert [record["tokens_per_second"] for record in records] == [2 * 2 * 8 / 0.5] * 2


def test_a_card_is_given_much_at_once(card, monkeypatch):
    """Not the small pieces that suit the caches of a CPU."""
    monkeypatch.setattr(adamw, "SLICE", 8)
    updates = []
    monkeypatch.setattr(adamw, "adamw_update", lambda *arguments: updates.append(arguments))
    there = model()
    AdamW(there.params).step(there.params.zeros_like())
    assert len(updates) == 2        # matrices, which decay, and vectors
    assert len(head_groups(card.zeros((4, 3, 128, 64)), 4096)) == 1 < len(head_groups(np.zeros((4, 3, 128, 64)), 4096))


def test_masks_are_those_of_the_step_and_the_micro_batch():
    drawn = model().dropout_rng(7, 8, 9).random((3, 5))
    np.testing.assert_array_equal(drawn.get(), Philox(7, 8, 9).random((3, 5)))


def test_the_command_line(tmp_path, capsys):
    """Train, resume on the CPU, sample on the card: one line names the card and why its kernels are not used."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT * 4)
    flags = ["--n-layer", "1", "--n-head", "2", "--n-embd", "16", "--block-size", "16", "--batch-size", "2",
             "--eval-iters", "1", "--warmup-iters", "1", "--lr-decay-iters", "9"]
    out = ["--out-dir", str(tmp_path / "out")]
    assert main(["train", "--corpus", str(text), "--device", "gpu", "--kernels", "reference", "--max-iters", "3",
                 *flags, *out]) == 0
    assert "the layers' own lines (the reference lines were asked for)" in capsys.readouterr().out
    assert main(["train", "--resume", "--max-iters", "6", *out]) == 0
    assert main(["sample", str(tmp_path / "out"), "--device", "gpu", "--kernels", "reference",
                 "--max-new-tokens", "5"]) == 0
    assert main(["eval", str(tmp_path / "out"), "--device", "gpu", "--kernels", "reference"]) == 0
    assert "perplexity" in capsys.readouterr().out


@pytest.mark.usefixtures("emulated")
def test_a_run_in_bfloat16_goes_on_in_float32(tmp_path, capsys):
    """Its parameters are float32; so it is sampled, and goes on, where there is no card. But not as float64."""
    text, out = tmp_path / "text.txt", ["--out-dir", str(tmp_path / "out")]
    text.write_text(TEXT * 4)
    assert main(["train", "--corpus", str(text), "--device", "gpu", "--dtype", "bfloat16", "--max-iters", "3",
                 "--n-layer", "1", "--n-head", "1", "--n-embd", "16", "--block-size", "8", "--batch-size", "2",
                 "--eval-iters", "1", "--warmup-iters", "1", "--lr-decay-iters", "9", *out]) == 0
    assert "fused kernels" in capsys.readouterr().out
    assert main(["sample", str(tmp_path / "out"), "--max-new-tokens", "5"]) == 0
    again = ["train", "--resume", "--max-iters", "5", *out]
    assert main(again) == 2
    assert "--dtype float32" in capsys.readouterr().err
    assert main([*again, "--dtype", "float64"]) == 2
    assert "dtype is bfloat16" in capsys.readouterr().err
    assert main([*again, "--dtype", "float32"]) == 0


def test_an_evaluation_is_a_plain_number():
    tokens = np.random.default_rng(0).integers(0, 30, 50)
    there, here = (evaluate_split(model(device), tokens, progress=False) for device in ("gpu", "cpu"))
    assert type(there.loss) is float and there.loss == pytest.approx(here.loss, rel=1e-12)


def test_a_card_that_is_full_is_one_line(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text(TEXT * 40)
    strict_cupy.set_memory_limit(3 << 20)
    assert main(["train", "--corpus", str(text), "--device", "gpu", "--kernels", "reference", "--n-layer", "1",
                 "--n-head", "2", "--n-embd", "64", "--block-size", "64", "--batch-size", "64",
                 "--out-dir", str(tmp_path / "out")]) == 2
    line, = capsys.readouterr().err.splitlines()[-1:]
    for words in ("memory is full", "needs", "are free", "--batch-size"):
        assert words in line


def test_bfloat16_needs_the_kernels():
    with pytest.raises(UserError, match="bfloat16 needs the fused kernels.*reference.*float32"):
        GPT(GPTConfig(**SMALL), dtype="bfloat16", device="gpu", kernels="reference")
    with pytest.raises(UserError, match="they need a GPU"):
        GPT(GPTConfig(**SMALL), dtype="tf32")


def test_arrays_come_back(card):
    np.testing.assert_array_equal(to_host(card.arange(3)), [0, 1, 2])
    assert array_module("gpu:0") is card
