"""What the Trainer computes, saves and refuses."""

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from npgpt.checkpoints.run import find_checkpoint, read_checkpoint, step_folders
from npgpt.data.tokenizers import CharTokenizer
from npgpt.errors import NotFiniteError
from npgpt.training.metrics import append_metrics, read_metrics
from npgpt.training.options import PRESETS, TrainOptions, load_preset
from npgpt.training.trainer import Trainer
from tests.helpers.runs import refusing

TOKENS = np.random.default_rng(0).integers(0, 11, 300).astype(np.uint16)
OPTIONS = {
    **{"batch_size": 4, "max_iters": 6, "eval_interval": 2, "eval_iters": 2, "log_interval": 1},
    **{"warmup_iters": 0, "lr_decay_iters": 0, "dtype": "float64"},
}


def trainer_of(out_dir, train_tokens=TOKENS, val_tokens=TOKENS[:50], **options):
    out_dir.mkdir(exist_ok=True)
    options = TrainOptions(**OPTIONS | options)
    config = GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=8)
    model = GPT(config, options.seed, options.dtype)
    tokenizer = CharTokenizer("abcdefghijk")
    return Trainer(model, train_tokens, val_tokens, options, out_dir, tokenizer, "letters")


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"epochs": 3, "gradient_accumulation_steps": 2}, 14),
        ({"epochs": 2, "crop_length": 4}, 36),
        ({"epochs": 0}, 7),
    ],
)
def test_epochs_are_steps(tmp_path, options, steps):
    for decay, expected in ((None, steps), (60, 60), (0, 0)):
        trainer = trainer_of(tmp_path, max_iters=7, lr_decay_iters=decay, **options)
        assert (trainer.options.max_iters, trainer.options.last_decay_step) == (steps, expected)


def test_invalid_epochs(tmp_path):
    for options in ({"epochs": 1}, {"sampling": "sequential"}):
        with refusing("has 32 tokens and a batch in order needs 33"):
            trainer_of(tmp_path, train_tokens=TOKENS[:32], **options)
    with refusing("max_iters must be a whole number"):
        trainer_of(tmp_path, epochs=2**31 - 1)


def test_what_trains_shows_itself_in_a_line(tmp_path):
    trainer = trainer_of(tmp_path / "out")
    begun = f"{trainer.model}, step 0 of 6, best loss inf, out_dir={tmp_path / 'out'}"
    assert repr(trainer) == f"Trainer({begun})"
    trainer.run()
    assert f", step 6 of 6, best loss {trainer.best_loss:.4f}, " in repr(trainer)
    lr = f"lr={trainer.optimizer.lr:g}"
    assert repr(trainer.optimizer) == f"AdamW({lr}, betas=(0.9, 0.99), weight_decay=0.1, step 6)"


def test_the_best_and_the_latest_checkpoint_are_kept(tmp_path, monkeypatch):
    """And on_evaluation is called when the latest is there."""
    trainer, seen, losses = trainer_of(tmp_path), [], [3.0, 1.0, 2.0, 1.5]
    left = iter(losses)
    trainer.on_evaluation = lambda trainer, losses: seen.append(
        (find_checkpoint(tmp_path).name, losses["val"])
    )
    monkeypatch.setattr(trainer, "evaluate", lambda: {"train": 0.0, "val": next(left)})
    assert trainer.run()
    names = [f"step-{step:08d}" for step in (0, 2, 4, 6)]
    assert seen == list(zip(names, losses, strict=True))
    assert [folder.name for folder in step_folders(tmp_path)] == [names[1], names[3]]
    assert find_checkpoint(tmp_path).name == names[3]
    assert find_checkpoint(tmp_path, "best").name == names[1]
    assert find_checkpoint(tmp_path / names[1]).name == names[1]
    assert read_checkpoint(find_checkpoint(tmp_path)).state["best_loss"] == 1.0
    assert [r["val_loss"] for r in read_metrics(tmp_path) if "val_loss" in r] == losses


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_not_finite_leaves_the_last_checkpoint(
    tmp_path, monkeypatch, what
):
    trainer = trainer_of(tmp_path)
    compute = trainer.model.engine.loss_and_grads

    def poisoned(*batch):
        loss, grads = compute(*batch)
        if trainer.step == 5 and what == "gradient":
            grads["ln_f.bias"][:] = np.inf
        return (np.nan if trainer.step == 5 and what == "loss" else loss), grads

    monkeypatch.setattr(trainer.model.engine, "loss_and_grads", poisoned)
    with pytest.raises(NotFiniteError, match=f"the {what}.* at step 5: .* checkpoint of step 4"):
        trainer.run()
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
    for line in (b"[1]", b'{"loss": 1.0}', b'{"step": 1, "loss": NaN}', b"\xff", b"[" * 100_000):
        (tmp_path / "metrics.jsonl").write_bytes(line + b'\n{"step": 3}\n')
        assert read_metrics(tmp_path) == [{"step": 3}]


def test_presets_are_valid():
    for name in PRESETS:
        fields = load_preset(name)
        options = fields.keys() & TrainOptions.__dataclass_fields__.keys()
        TrainOptions(**{option: fields[option] for option in options})
    assert list(PRESETS) == ["bpe-small", "char-cpu", "char-gpu", "char-nanogpt", "finetune"]
