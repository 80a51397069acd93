"""What the loop computes, keeps and refuses."""

import signal
import time

import numpy as np
import pytest

from npgpt import GPT, GPTConfig, UserError
from npgpt.checkpoints.run import find_checkpoint, read_checkpoint, step_folders
from npgpt.data.batches import random_crops
from npgpt.data.tokenizers import CharTokenizer
from npgpt.engine.adamw import NotFiniteError
from npgpt.training.metrics import append_metrics, read_metrics
from npgpt.training.options import TrainOptions, load_preset, preset_names
from npgpt.training.trainer import BATCHES, Trainer

TOKENS = np.random.default_rng(0).integers(0, 11, 300).astype(np.uint16)


def trainer_of(out_dir, dropout=0.0, **options):
    out_dir.mkdir(exist_ok=True)
    options = TrainOptions(**{"batch_size": 4, "max_iters": 6, "eval_interval": 2, "eval_iters": 2, "log_interval": 1,
                              "warmup_iters": 0, "lr_decay_iters": 0, "dtype": "float64", **options})
    config = GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=8, dropout=dropout)
    model = GPT(config, options.seed, options.dtype)
    return Trainer(model, TOKENS, TOKENS[:50], options, out_dir, CharTokenizer("abcdefghijk"), "letters")


def loss_and_grads(trainer, step):
    """What a trainer gives to its optimizer at a step, which is not taken."""
    given = []
    trainer.step, trainer.optimizer.step = step, lambda grads, max_norm: given.append(grads)
    return trainer.train_step()["loss"], given[0]


def test_accumulated_micro_batches_equal_the_full_batch(tmp_path):
    trainer = trainer_of(tmp_path, gradient_accumulation_steps=3)
    loss, grads = loss_and_grads(trainer, 7)
    rngs = [np.random.default_rng([trainer.options.seed, BATCHES, 7, i]) for i in range(3)]
    batches = [random_crops(TOKENS, 4, 8, rng) for rng in rngs]
    idx, targets = (np.concatenate(part) for part in zip(*batches, strict=True))
    assert len({row.tobytes() for row in idx}) > 8
    _, full_loss = trainer.model.forward(idx, targets)
    assert loss == pytest.approx(full_loss, rel=1e-12)
    for name, gradient in trainer.model.backward().items():
        np.testing.assert_allclose(grads[name], gradient, rtol=1e-9, atol=1e-14, err_msg=name)


def test_what_decays_is_an_option(tmp_path):
    for decay in ("matrices", "all"):
        trainer = trainer_of(tmp_path, decay=decay)
        trainer.optimizer.lr, before = 0.1, trainer.model.params["ln_f.weight"].copy()
        trainer.optimizer.step(trainer.model.params.zeros_like())
        decayed = trainer.model.params["ln_f.weight"] / before
        np.testing.assert_allclose(decayed, 1 - 0.1 * 0.1 if decay == "all" else 1.0, rtol=1e-12)


def test_on_evaluation_is_called_after_each_checkpoint(tmp_path):
    trainer, seen = trainer_of(tmp_path), []
    trainer.on_evaluation = lambda trainer: seen.append((trainer.step, find_checkpoint(tmp_path).name))
    assert trainer.run(progress=False)
    assert seen == [(step, f"step-{step:08d}") for step in (0, 2, 4, 6)]


def test_the_estimate_counts_every_pass(tmp_path, monkeypatch):
    clock = []
    trainer = trainer_of(tmp_path, max_iters=10, eval_interval=4, eval_iters=3, gradient_accumulation_steps=2)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.append(0.5) or sum(clock))
    assert trainer.estimate() == pytest.approx(0.5 * (10 * 2 + 3 * 2 * 3 / 3))      # one pass takes 0.5 s


def test_each_step_draws_another_batch_and_each_seed_others(tmp_path):
    def batch(seed, step):
        return loss_and_grads(trainer_of(tmp_path, seed=seed), step)[0]

    assert len({batch(1, 0), batch(1, 1), batch(2, 0)}) == 3
    assert batch(1, 1) == batch(1, 1)


def test_each_step_micro_batch_and_seed_drops_other_values(tmp_path, monkeypatch):
    """On batches that are all the same, so that only the masks can make the losses differ."""
    batch = TOKENS[None, :8].astype(int), TOKENS[None, 1:9].astype(int)
    monkeypatch.setattr("npgpt.training.trainer.random_crops", lambda *args: batch)

    def loss(step, micro_batches=1, seed=1):
        trainer = trainer_of(tmp_path, dropout=0.5, seed=seed, gradient_accumulation_steps=micro_batches)
        trainer.model.params.flat[:] = np.random.default_rng(0).standard_normal(trainer.model.params.flat.size)
        return loss_and_grads(trainer, step)[0]

    assert loss(0) == loss(0)
    assert len({loss(0), loss(1), loss(2), loss(0, seed=2), loss(0, micro_batches=2)}) == 5


def test_a_signal_right_after_its_handler_is_set_stops_the_run(tmp_path, monkeypatch):
    set_handler = signal.signal

    def set_and_send(number, handler):
        before = set_handler(number, handler)
        if callable(handler) and handler.__name__ == "request_stop":
            handler(number, None)
        return before

    monkeypatch.setattr(signal, "signal", set_and_send)
    trainer = trainer_of(tmp_path)
    assert not trainer.run(progress=False) and trainer.step == 0 and find_checkpoint(tmp_path).name == "step-00000000"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_best_and_the_latest_checkpoint_are_kept(tmp_path, monkeypatch):
    trainer = trainer_of(tmp_path)
    losses = iter([3.0, 1.0, 2.0, 1.5])
    monkeypatch.setattr(trainer, "evaluate", lambda: {"train": 0.0, "val": next(losses)})
    assert trainer.run(progress=False)
    assert [folder.name for folder in step_folders(tmp_path)] == ["step-00000002", "step-00000006"]
    assert find_checkpoint(tmp_path).name == "step-00000006"
    assert find_checkpoint(tmp_path, "best").name == "step-00000002"
    assert find_checkpoint(tmp_path / "step-00000002").name == "step-00000002"
    assert read_checkpoint(find_checkpoint(tmp_path)).state["best_loss"] == 1.0
    assert [r["val_loss"] for r in read_metrics(tmp_path) if "val_loss" in r] == [3.0, 1.0, 2.0, 1.5]


def test_evaluation_is_the_mean_over_crops_of_each_split(tmp_path):
    trainer = trainer_of(tmp_path, eval_iters=7, batch_size=6)
    starts = np.linspace(0, 50 - 9, 42).astype(int)[:, None] + np.arange(8)
    _, expected = trainer.model.forward(TOKENS[:50][starts], TOKENS[:50][starts + 1])
    assert trainer.evaluate()["val"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_what_is_not_finite_stops_the_run_and_leaves_the_last_good_checkpoint(tmp_path, monkeypatch, what):
    trainer = trainer_of(tmp_path)
    compute = trainer.model.engine.loss_and_grads

    def poisoned(*batch):
        loss, grads = compute(*batch)
        if trainer.step == 5 and what == "gradient":
            grads["ln_f.bias"][:] = np.inf
        return (np.nan if trainer.step == 5 and what == "loss" else loss), grads

    monkeypatch.setattr(trainer.model.engine, "loss_and_grads", poisoned)
    with pytest.raises(NotFiniteError, match=f"the {what}.* at step 5: .* checkpoint of step 4"):
        trainer.run(progress=False)
    checkpoint = read_checkpoint(find_checkpoint(tmp_path))
    assert checkpoint.state["step"] == 4
    fresh = trainer_of(tmp_path / "other")
    fresh.restore(checkpoint)
    assert np.isfinite(fresh.model.params.flat).all() and fresh.step == fresh.optimizer.t == 4


def test_a_metrics_line_that_a_kill_cut_off_is_left_out(tmp_path):
    append_metrics(tmp_path, {"step": 1, "loss": 2.0})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 2, "lo')
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 2.0}]
    for line in (b"[1]", b'{"loss": 1.0}', b'{"step": "one"}', b'{"step": -1}', b'{"step": 1, "loss": NaN}', b"5",
                 b"\xff", b"\0\0", b"[" * 100_000, b'{"step": 1, "loss": 1' + b"0" * 400 + b"}"):
        (tmp_path / "metrics.jsonl").write_bytes(line + b'\n{"step": 3}\n')
        assert read_metrics(tmp_path) == [{"step": 3}]


def test_presets_are_valid():
    for name in preset_names():
        fields = load_preset(name)
        TrainOptions(**{key: value for key, value in fields.items() if key in TrainOptions.__dataclass_fields__})
    assert preset_names() == ["bpe-small", "char-cpu", "char-gpu", "finetune"]


@pytest.mark.parametrize(("options", "says"), [
    ({"learning_rate": 0.0}, "learning_rate"), ({"max_iters": 0}, "max_iters"), ({"beta2": 1.0}, "beta2"),
    ({"min_lr": 1.0}, "min_lr"), ({"warmup_iters": 2000}, "lr_decay_iters"), ({"dtype": "int8"}, "dtype"),
    ({"eval_iters": 0}, "eval_iters"), ({"batch_size": 1.5}, "batch_size"),
    ({"decay": "vectors"}, "decay must be one of matrices, all"), ({"decay": np.zeros(2)}, "decay must be one of"),
])
def test_options_that_make_no_sense_are_named(options, says):
    with pytest.raises(UserError, match=says):
        TrainOptions(**options)


def test_a_preset_with_an_unknown_field_or_no_toml_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("n_layers = 3")
    with pytest.raises(UserError, match="n_layers"):
        load_preset(path)
    path.write_text("n_layer: 3")
    with pytest.raises(UserError, match="TOML"):
        load_preset(path)
    with pytest.raises(UserError, match="char-cpu"):
        load_preset("char-tpu")


def test_the_speed_is_that_of_the_steps_since_the_last_record(tmp_path, monkeypatch):
    """The time of evaluations does not count."""
    trainer, clock = trainer_of(tmp_path, max_iters=10, eval_interval=7, log_interval=5), [0.0]
    step, evaluate = trainer.train_step, trainer.evaluate_and_save

    def taking(seconds, function):
        def timed(*arguments):
            clock[0] += seconds
            return function(*arguments)
        return timed

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    trainer.train_step, trainer.evaluate_and_save = taking(0.5, step), taking(1000.0, evaluate)
    trainer.run(progress=False)
    records = [record for record in read_metrics(tmp_path) if "tokens_per_second" in record]
    assert [record["tokens_per_second"] for record in records] == [4 * 8 / 0.5] * 2
