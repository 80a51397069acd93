"""A Trainer with an optimizer, a schedule, rates of layers, batches and a loss of one's own."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, Trainer, TrainOptions, layers, load
from npgpt.checkpoints.run import find_checkpoint, read_checkpoint
from npgpt.data.tokenizers import CharTokenizer
from npgpt.training.metrics import read_metrics
from tests.cases import CPU_KERNELS
from tests.helpers.runs import bits, refused, refusing, succeeded

CONFIG = {"vocab_size": 11, "block_size": 8, "n_layer": 3, "n_head": 2, "n_embd": 8}
OPTIONS = {
    **{"batch_size": 4, "max_iters": 6, "eval_interval": 3, "eval_iters": 2, "log_interval": 1},
    **{"warmup_iters": 2, "dtype": "float64"},
}
TOKENS = np.random.default_rng(0).integers(0, 11, 300)
GROUPS = {"h.*": 0.5, "wte": 0.1, "h.1": 2.0, "*.bias": 0.0, "h.2.ln_1.bias": 3, "ln_f": 0.25}

KERNELS = ["reference", *CPU_KERNELS, pytest.param("xla", marks=pytest.mark.slow)]


def model_of(kernels="numpy", dropout=0.0):
    return GPT(GPTConfig(**CONFIG, dropout=dropout), dtype="float64", kernels=kernels, threads=1)


def trainer_of(
    model=None, tokens=TOKENS, val_tokens=TOKENS[:40], out_dir=None, options=None, **own
):
    options = TrainOptions(**OPTIONS | (options or {}))
    tokenizer = CharTokenizer("abcdefghijk")
    return Trainer(model or model_of(), tokens, val_tokens, options, out_dir, tokenizer, **own)


def batches(number):
    """Return another shape for each number, B of 2 to 4 and T of 3 to 8, with ignored targets."""
    rng = np.random.default_rng(number)
    ids = rng.integers(0, 11, (rng.integers(2, 5), rng.integers(4, 10)))
    return ids[:, :-1], np.where(rng.random(ids[:, 1:].shape) < 0.3, -1, ids[:, 1:])


class Momentum:
    """SGD with momentum, in the words of NumPy."""

    def __init__(self, params, lr=0.1):
        self.params, self.lr = params, lr
        self.v = {name: np.zeros_like(params[name]) for name in params}
        self.moments = {"momentum": self.v}

    def step(self, grads, max_norm, lr):
        for name, grad in grads.items():
            self.v[name] *= 0.9
            self.v[name] += grad
            self.params[name] -= lr * self.v[name]
        return float(np.sqrt(sum((grad * grad).sum() for grad in grads.values())))


class Forgetful(Momentum):
    """It says nothing about what it remembers."""

    def __init__(self, params):
        super().__init__(params)
        del self.moments


def test_groups_that_cannot_be():
    for groups, says in (
        ({"h": 0.5, "h.9": 0.5}, r"pattern in groups must be of parameters .* not 'h.9'"),
        ({"wte": -1.0}, "the factor of 'wte' must be a finite number"),
    ):
        with refusing(says):
            trainer_of(groups=groups)
    with refusing("must be of parameters that are trained"):
        AdamW(GPT(GPTConfig(**CONFIG), freeze="wte").params, groups={"wte": 0.5})


@pytest.mark.parametrize("n", [1, 3])
def test_batches_of_any_shape_and_a_resumed_run(tmp_path, n):
    """The gradient of a step is that of all targets of its micro-batches, whatever their shapes."""
    options = {"gradient_accumulation_steps": n, "eval_iters": 3}

    def made(folder):
        given = model_of(dropout=0.2), None, None, tmp_path / folder, options
        return trainer_of(*given, batches=batches)

    whole, model = made("whole"), model_of(dropout=0.2)
    optimizer, engine = AdamW(model.params, betas=(0.9, 0.99), engine=model.engine), model.engine
    assert whole.run(progress=False)
    losses = []
    for step in range(6):
        own = [batches(step * n + i) for i in range(n)]
        count = sum((targets != -1).sum() for _, targets in own)
        rngs = [engine.dropout_rng(1337, step, i) for i in range(n)]
        parts = [model.loss_and_grads(*own[i], rngs[i], count) for i in range(n)]
        losses.append(sum(loss for loss, _ in parts))
        grads = {}
        for name in model.params:
            grads[name] = sum(part[name] for _, part in parts)
        optimizer.step(grads, 1.0, whole.options.rate(step))
    np.testing.assert_allclose(whole.model.params.flat, model.params.flat, rtol=1e-9, atol=1e-12)
    records = read_metrics(tmp_path / "whole")
    assert [r["loss"] for r in records if "loss" in r] == pytest.approx(losses, rel=1e-10)
    # The train loss, of three of all numbers.
    parts = [batches(number) for number in (0, 2 * n, 4 * n)]
    counts = [(targets != -1).sum() for _, targets in parts]
    expected = np.average([model.evaluate(*batch) for batch in parts], weights=counts)
    assert records[-1] == {"step": 6, "train_loss": pytest.approx(expected, rel=1e-9)}

    first, again = made("parts"), made("parts")
    first.on_evaluation = lambda trainer, losses: trainer.step == 3 and trainer.request_stop()
    assert not first.run(progress=False)
    again.restore(tmp_path / "parts")
    assert again.step == 3 and again.run(progress=False)
    assert bits(tmp_path / "parts") == bits(tmp_path / "whole")


def test_tokens_per_second_are_those_read(tmp_path, monkeypatch):
    options = {"log_interval": 3, "eval_interval": 2}
    trainer = trainer_of(None, None, None, tmp_path, options, batches=batches)
    clock = iter(range(100))
    monkeypatch.setattr("npgpt.training.trainer.time.perf_counter", lambda: next(clock))
    trainer.run(progress=False)
    read = [np.size(batches(number)[0]) for number in range(6)]
    speeds = [r["tokens_per_second"] for r in read_metrics(tmp_path) if "loss" in r]
    assert speeds == [read[2], read[4] + read[5]]  # since the evaluation of step 2, and of step 4


def test_batches_that_cannot_be():
    for own, says in (
        ({}, "needs train_tokens or batches, one of them"),
        ({"batches": lambda number: (TOKENS[None, :9], TOKENS[None, 1:10])}, "9 tokens is longer"),
        ({"batches": lambda number: (TOKENS[None, :8], TOKENS[None, :7])}, "the shape"),
        ({"batches": batches, "options": {"epochs": 2}}, "set max_iters"),
        ({"batches": batches, "tokens": TOKENS}, "needs train_tokens or batches, one of them"),
    ):
        with refusing(says):
            trainer_of(**{"tokens": None, "val_tokens": None, **own})
    encoder = GPT(GPTConfig(**CONFIG, causal=False), dtype="float64")
    with refusing("causal=False sees the next token"):
        trainer_of(encoder, None, batches=batches)  # its validation would be of next tokens
    assert trainer_of(encoder, None, None, batches=batches).run(progress=False)


def test_an_adamw_of_ones_own_is_used_as_it_is(tmp_path):
    """Its lr counts in each step, and its steps before the run are not forgotten."""

    def made(steps):
        model = model_of()
        optimizer = AdamW(model.params, 0.02, (0.8, 0.9), weight_decay=0.0, engine=model.engine)
        optimizer.step(model.loss_and_grads(*batches(99))[1])
        options = {"max_iters": steps, "beta1": 0.5, "learning_rate": 9.0}
        return trainer_of(model, out_dir=tmp_path, options=options, optimizer=optimizer)

    trainer, again, by_hand = made(3), made(6), made(6)
    assert trainer.run(progress=False) and (trainer.optimizer.t, trainer.step) == (4, 3)
    again.restore(find_checkpoint(tmp_path))
    assert again.run(progress=False) and again.optimizer.t == 7
    for step in range(6):
        _, grads = by_hand.model.loss_and_grads(*by_hand._batch(step))
        by_hand.optimizer.step(grads, 1.0)
    assert (again.model.params.flat == by_hand.model.params.flat).all()
    with refusing("the params of another model"):
        trainer_of(optimizer=by_hand.optimizer)
    with refusing("groups are of the Trainer's AdamW"):
        trainer_of(by_hand.model, optimizer=by_hand.optimizer, groups=GROUPS)


@pytest.mark.parametrize("kernels", ["numpy", pytest.param("xla", marks=pytest.mark.slow)])
def test_an_optimizer_of_ones_own_resumes_with_the_same_bits(tmp_path, kernels):
    def made(folder, steps):
        model = model_of(kernels)
        own = {"optimizer": Momentum(model.params), "schedule": lambda step: 0.1 / (step + 1)}
        return trainer_of(model, out_dir=tmp_path / folder, options={"max_iters": steps}, **own)

    whole, first, again = made("whole", 6), made("parts", 3), made("parts", 6)
    assert whole.run(progress=False) and first.run(progress=False)
    again.restore(tmp_path / "parts")
    assert again.run(progress=False)
    assert (whole.model.params.flat == again.model.params.flat).all()
    assert bits(tmp_path / "whole") == bits(tmp_path / "parts")
    state = read_checkpoint(find_checkpoint(tmp_path / "whole")).state
    assert (state["own"], state["optimizer"], state["t"]) == (True, "Momentum", 6)


def test_what_cannot_be_resumed_is_one_line(npgpt):
    """An optimizer without moments trains and is saved; it never resumes from zero moments."""
    model = model_of()
    forgetful = Forgetful(model.params)
    assert trainer_of(model, out_dir="plain", optimizer=forgetful).run(progress=False)
    assert (load("plain", which="latest")[0].params.flat == model.params.flat).all()
    succeeded(npgpt("info plain"))
    succeeded(npgpt("sample plain --max-new-tokens 2"))
    resumed = npgpt("train --resume --out-dir plain")
    refused(resumed, "was trained in Python", "--init-from plain")
    for other in (None, Momentum(model.params), forgetful):
        says = "by the optimizer 'Forgetful', which .* cannot continue"
        with refusing(says):
            trainer_of(model, optimizer=other).restore("plain")
    # A run with groups keeps the moments of AdamW, but the command does not know the groups.
    assert trainer_of(out_dir="groups", groups=GROUPS).run(progress=False)
    refused(npgpt("train --resume --out-dir groups"), "functions, groups or an optimizer")
    with refusing("by the optimizer 'AdamW', which Momentum cannot"):
        trainer_of(model, optimizer=Momentum(model.params)).restore("groups")
    with refusing("was trained with groups, a schedule, batches or a loss"):
        trainer_of().restore("groups")
    path = find_checkpoint("groups") / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"t": "six"}))
    with refusing("t in .*state.json must be a whole number"):
        trainer_of(groups=GROUPS).restore("groups")


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("n", [1, 2])
def test_a_loss_of_ones_own(kernels, n):
    """Given as a function, the cross-entropy trains the same; evaluations are always of it."""

    def trained(factor):
        def loss(logits, targets):
            value, cache = layers.cross_entropy_forward(logits, targets)
            return factor * value, factor * layers.cross_entropy_backward(1.0, cache)

        model = model_of(kernels, dropout=0.1)
        own = {"optimizer": Momentum(model.params, 0.01), "loss": factor and loss}
        options = {"gradient_accumulation_steps": n, "grad_clip": 0.0}
        trainer = trainer_of(model, options=options, **own)
        losses = [trainer.train_step()["loss"] for _ in range(3)]
        return losses, model.params.flat, trainer.evaluate()["val"]

    plain, same, twice = trained(None), trained(1.0), trained(2.0)
    for ours, expected in zip(same, plain, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-12)
    assert twice[0][0] == pytest.approx(2 * plain[0][0], rel=1e-12)
    assert twice[2] != pytest.approx(plain[2], rel=1e-6)


def test_a_quiet_run_and_what_is_called(tmp_path, capsys):
    seen = []
    trainer = trainer_of(out_dir=tmp_path, on_evaluation=lambda *given: seen.append(given))
    assert trainer.run(progress=False) and capsys.readouterr() == ("", "")
    assert [(given[0], set(given[1])) for given in seen] == [(trainer, {"train", "val"})] * 3
    losses = [r["val_loss"] for r in read_metrics(tmp_path) if "val_loss" in r]
    assert [given[1]["val"] for given in seen] == losses
    trainer_of().run()
    assert capsys.readouterr().out.count("train loss") == 3


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"on_evaluation": lambda trainer: None}, "cannot be called with 2 arguments: too many"),
        ({"batches": [batches(0)]}, "batches must be a function"),
        ({"batches": lambda number: None}, r"batches\(0\) must be a pair"),
        ({"schedule": 1e-3}, "schedule must be a function"),
        ({"loss": lambda logits: (0.0, logits)}, "loss cannot be called"),
        ({"optimizer": Momentum}, "optimizer must be an object with step"),
        ({"optimizer": SimpleNamespace(step=lambda grads: 1.0, lr=1.0)}, "optimizer.step cannot"),
        ({"schedule": lambda step: None}, "the learning rate of step 0 must be"),
        ({"loss": lambda logits, targets: 0.0}, "returns must be a number, the loss, and dlogits"),
        ({"optimizer": SimpleNamespace(step=lambda *_: None, lr=1.0)}, "must be the gradient norm"),
    ],
)
def test_functions_that_cannot_be_used_are_named(own, says):
    tokens = None if "batches" in own else TOKENS
    with refusing(says):
        trainer_of(tokens=tokens, val_tokens=None, **own).train_step()


def test_numbers_of_numpy_and_tensors_are_taken():
    torch = pytest.importorskip("torch", reason="its tensors")
    rate = np.float32(1e-3)
    trainer = trainer_of(
        tokens=None,
        schedule=lambda step: rate,
        batches=lambda number: tuple(map(torch.tensor, batches(number))),
    )
    assert trainer.train_step()["lr"] == rate
