"""What the Trainer computes, saves and refuses."""


import numpy as np
import pytest

from npgpt import GPT, GPTConfig, UserError
from npgpt.checkpoints.run import find_checkpoint, fingerprint, read_checkpoint, step_folders
from npgpt.data.tokenizers import CharTokenizer
from npgpt.errors import NotFiniteError
from npgpt.training.evaluation import evaluate_split
from npgpt.training.loop import batch_starts
from npgpt.training.metrics import append_metrics, read_metrics
from npgpt.training.options import PRESETS, TrainOptions, load_preset
from npgpt.training.trainer import Trainer
from tests.torch_gpt import torch_gpt, torch_parameters, unit_scale

TOKENS = np.random.default_rng(0).integers(0, 11, 300).astype(np.uint16)
# Of 10 tokens, 6 are prompts', of at most 4 tokens.
ANSWERS = np.ma.array(
    TOKENS, mask=(np.random.default_rng(1).random(300) < 0.75) & (np.arange(300) % 5 > 0)
)


def trainer_of(out_dir, dropout=0.0, train_tokens=TOKENS, val_tokens=TOKENS[:50], **options):
    out_dir.mkdir(exist_ok=True)
    options = TrainOptions(**{"batch_size": 4, "max_iters": 6, "eval_interval": 2, "eval_iters": 2, "log_interval": 1,
                              "warmup_iters": 0, "lr_decay_iters": 0, "dtype": "float64", **options})
    config = GPTConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=8, dropout=dropout)
    model = GPT(config, options.seed, options.dtype)
    return Trainer(model, train_tokens, val_tokens, options, out_dir, CharTokenizer("abcdefghijk"), "letters")


def drawn(trainer, steps):
    """Return the micro-batches [(x, y)] of a trainer's first steps."""
    crops, options = trainer.crops["train"], trainer.options
    return [crops.at(batch_starts(crops, options, step, i)) for step in range(steps)
            for i in range(options.gradient_accumulation_steps)]


@pytest.mark.parametrize("data", [TOKENS, ANSWERS], ids=["stream", "answers"])
def test_the_loss_and_gradients_of_three_micro_batches_are_torchs_of_all_their_targets(tmp_path, data):
    torch = pytest.importorskip("torch")
    trainer = trainer_of(tmp_path, train_tokens=data, gradient_accumulation_steps=3)
    unit_scale(trainer.model.params)
    idx, targets = (np.concatenate(part) for part in zip(*drawn(trainer, 1), strict=True))
    tensors = torch_parameters(trainer.model.params)
    logits = torch_gpt(tensors, trainer.model.config, idx)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten(),
                                                 ignore_index=-1)
    expected.backward()
    assert len({row.tobytes() for row in idx}) > 4          # the micro-batches differ
    assert data is TOKENS or len({(row != -1).sum() for row in targets.reshape(3, -1)}) > 1     # of different shares
    given = []
    trainer.model.engine.adamw_step = lambda grads, *_: (
        given.append(grads) or 0.0
    )  # no step is taken
    loss, (grads,) = trainer.train_step()["loss"], given
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    for name, gradient in grads.items():
        np.testing.assert_allclose(gradient, tensors[name].grad, rtol=1e-9, atol=1e-12, err_msg=name)


def test_evaluation_on_answers_is_the_mean_over_their_targets(tmp_path):
    """Each window of 8 tokens predicts the token after each, unless it is of a prompt."""
    trainer, n = trainer_of(tmp_path, val_tokens=ANSWERS[:81], batch_size=4, eval_iters=5), 0
    unit_scale(trainer.model.params)
    losses = []
    for start in range(0, 80, 8):
        window = ANSWERS.data[start:start + 9].astype(int)
        logits, _ = trainer.model.forward(window[None, :-1])
        losses += [
            np.log(np.exp(row).sum()) - row[target]
            for row, target, masked in zip(
                logits[0], window[1:], ANSWERS.mask[start + 1 : start + 9], strict=True
            )
            if not masked
        ]
    loss, n = evaluate_split(trainer.model, ANSWERS[:81])
    assert (
        loss == pytest.approx(np.mean(losses), rel=1e-12)
        and n == len(losses) == 80 - ANSWERS.mask[1:81].sum()
    )
    batches = [trainer.crops["val"].at(starts) for starts in trainer.crops["val"].evenly(5, 4)]
    losses = [trainer.model.evaluate(*batch) * (batch[1] != -1).sum() for batch in batches]
    counts = [(targets != -1).sum() for _, targets in batches]
    assert trainer.evaluate()["val"] == pytest.approx(sum(losses) / sum(counts), rel=1e-12)


def test_a_split_shorter_than_a_crop_is_one_crop(tmp_path, capsys):
    """Each split has its own length: a short validation does not shorten what is trained on."""
    trainer = trainer_of(tmp_path, val_tokens=TOKENS[:4])
    assert trainer.crop_length == 8 and trainer.crops["val"].length == 3
    assert (
        capsys.readouterr().out
        == "the validation split has 4 tokens, so its crops have 3 instead of 8\n"
    )
    unit_scale(trainer.model.params)
    expected = trainer.model.evaluate(TOKENS[None, :3], TOKENS[None, 1:4])
    assert trainer.evaluate()["val"] == pytest.approx(expected, rel=1e-12)
    trainer = trainer_of(tmp_path, train_tokens=TOKENS[:6])
    assert trainer.crop_length == 5 and "the train split has 6 tokens" in capsys.readouterr().out
    assert trainer.run() and read_metrics(tmp_path)[1]["step"] == 1
    with pytest.raises(
        UserError, match="the validation split has 1 tokens, none .*--val-fraction 0"
    ):
        trainer_of(tmp_path, val_tokens=TOKENS[:1])


@pytest.mark.parametrize(
    ("tokens", "options", "steps"),
    [
        (TOKENS, {"epochs": 3, "gradient_accumulation_steps": 2}, 14),
        (TOKENS, {"epochs": 2, "crop_length": 4}, 36),
    ],
)
def test_epochs_are_steps(tmp_path, tokens, options, steps):
    for decay, expected in ((None, steps), (60, 60), (0, 0)):
        trainer = trainer_of(
            tmp_path, train_tokens=tokens, max_iters=50, lr_decay_iters=decay, **options
        )
        assert (trainer.options.max_iters, trainer.options.last_decay_step) == (steps, expected)
    assert trainer_of(tmp_path, train_tokens=tokens, max_iters=7, **{**options, "epochs": 0}).options.max_iters == 7


def test_invalid_epochs(tmp_path):
    for options in ({"epochs": 1}, {"sampling": "sequential"}):
        with pytest.raises(UserError, match="has 32 tokens and a batch in order needs 33"):
            trainer_of(tmp_path, train_tokens=TOKENS[:32], **options)
    with pytest.raises(UserError, match="max_iters must be a whole number"):
        trainer_of(tmp_path, epochs=2**31 - 1)


def test_what_trains_shows_itself_in_a_line(tmp_path):
    trainer = trainer_of(tmp_path / "out")
    begun = f"{trainer.model}, step 0 of 6, best loss inf, out_dir={tmp_path / 'out'}"
    assert repr(trainer) == f"Trainer({begun})"
    trainer.run()
    assert f", step 6 of 6, best loss {trainer.best_loss:.4f}, " in repr(trainer)
    lr = f"lr={trainer.optimizer.lr:g}"
    assert repr(trainer.optimizer) == f"AdamW({lr}, betas=(0.9, 0.99), weight_decay=0.1, step 6)"


def test_a_run_of_encoded_tokens_is_resumed_by_the_command(npgpt, text_file, tmp_path):
    """The command reads the same tokens as uint16."""
    text = text_file.read_text()
    tokenizer = CharTokenizer.from_text(text)
    splits = map(tokenizer.encode, (text[:int(len(text) * 0.9)], text[int(len(text) * 0.9):]))
    size = {"block_size": 8, "n_layer": 1, "n_head": 1, "n_embd": 8}
    model = GPT(GPTConfig(vocab_size=tokenizer.vocab_size, **size))
    options = TrainOptions(max_iters=2, eval_iters=1)
    Trainer(model, *splits, options, tmp_path / "out", tokenizer, str(text_file)).run()
    assert npgpt("train", "--resume", "--max-iters", 3)[0] == 0


def test_the_fingerprint_covers_what_is_masked():
    mask = ANSWERS.mask
    others = [ANSWERS, TOKENS + 1, np.ma.array(TOKENS, mask=False), np.ma.array(TOKENS, mask=~mask),
              np.ma.array(TOKENS + mask, mask=mask)]        # other prompts
    assert len({fingerprint(each) for each in (TOKENS, *others)}) == 6
    assert fingerprint(TOKENS, TOKENS) != fingerprint(TOKENS, None) == fingerprint(TOKENS)


def test_the_best_and_the_latest_checkpoint_are_kept(tmp_path, monkeypatch):
    """And on_evaluation is called when the latest is there."""
    trainer, seen, losses = trainer_of(tmp_path), [], iter([3.0, 1.0, 2.0, 1.5])
    trainer.on_evaluation = lambda trainer, losses: seen.append(
        (trainer.step, find_checkpoint(tmp_path).name, losses["val"])
    )
    monkeypatch.setattr(trainer, "evaluate", lambda: {"train": 0.0, "val": next(losses)})
    assert trainer.run()
    assert seen == [
        (step, f"step-{step:08d}", loss)
        for step, loss in zip((0, 2, 4, 6), (3.0, 1.0, 2.0, 1.5), strict=True)
    ]
    assert [folder.name for folder in step_folders(tmp_path)] == ["step-00000002", "step-00000006"]
    assert find_checkpoint(tmp_path).name == "step-00000006"
    assert find_checkpoint(tmp_path, "best").name == "step-00000002"
    assert find_checkpoint(tmp_path / "step-00000002").name == "step-00000002"
    assert read_checkpoint(find_checkpoint(tmp_path)).state["best_loss"] == 1.0
    assert [r["val_loss"] for r in read_metrics(tmp_path) if "val_loss" in r] == [3.0, 1.0, 2.0, 1.5]


def test_without_validation_the_latest_checkpoint_is_the_best(tmp_path):
    """Also if its loss is higher."""
    trainer = trainer_of(tmp_path, val_tokens=None)
    evaluate = trainer.evaluate
    trainer.evaluate = lambda: {"train": evaluate()["train"] + trainer.step}
    assert trainer.run() and [folder.name for folder in step_folders(tmp_path)] == ["step-00000006"]
    records = [record for record in read_metrics(tmp_path) if "train_loss" in record]
    assert [record.keys() - {"step", "train_loss"} for record in records] == [set()] * 4
    state = read_checkpoint(find_checkpoint(tmp_path, "best")).state
    assert (state["best_step"], state["best_loss"]) == (6, records[-1]["train_loss"])


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_not_finite_leaves_the_last_checkpoint(tmp_path, monkeypatch, what):
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
        TrainOptions(**{key: value for key, value in fields.items() if key in TrainOptions.__dataclass_fields__})
    assert list(PRESETS) == ["bpe-small", "char-cpu", "char-gpu", "char-nanogpt", "finetune"]
