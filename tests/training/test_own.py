"""A Trainer with an optimizer, a schedule, rates of layers, batches and a loss of one's own."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, Trainer, TrainOptions, UserError, load
from npgpt.checkpoints.run import find_checkpoint, read_checkpoint
from npgpt.data.tokenizers import CharTokenizer
from npgpt.layers.loss import cross_entropy_backward, cross_entropy_forward
from npgpt.training.metrics import read_metrics
from tests.cases import CPU_KERNELS
from tests.helpers.runs import bits, refused
from tests.torch_gpt import torch_parameters, unit_scale

CONFIG = {"vocab_size": 11, "block_size": 8, "n_layer": 3, "n_head": 2, "n_embd": 8}
OPTIONS = {
    "batch_size": 4,
    "max_iters": 6,
    "eval_interval": 3,
    "eval_iters": 2,
    "log_interval": 1,
    "warmup_iters": 2,
    "dtype": "float64",
}
TOKENS = np.random.default_rng(0).integers(0, 11, 300)
GROUPS = {"h.*": 0.5, "wte": 0.1, "h.1": 2.0, "*.bias": 0.0, "h.2.ln_1.bias": 3, "ln_f": 0.25}


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


class Plain:
    """SGD, which says nothing about what it remembers."""

    lr = 0.1

    def __init__(self, params):
        self.params, self.given = params, []

    def step(self, grads, max_norm, lr):
        self.given.append((max_norm, lr))
        for name, grad in grads.items():
            self.params[name] -= lr * grad
        return 1.0


@pytest.mark.parametrize(
    "kernels", [None, "reference", *CPU_KERNELS, pytest.param("xla", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("decay", ["matrices", "all"])
def test_rates_of_layers_are_those_of_torchs_groups(kernels, decay):
    """Of several patterns the last counts; neighbours with other rates are not one slice."""
    torch = pytest.importorskip("torch", reason="torch, the oracle, is in the extra test")
    model = model_of(kernels or "numpy")
    unit_scale(model.params)
    factors = {name: 1.0 for name in model.params}
    factors |= {name: 0.5 for name in factors if name.startswith("h.")}
    factors |= {name: 2.0 for name in factors if name.startswith("h.1.")}
    factors |= {name: 0.0 for name in factors if name.endswith(".bias")}
    factors |= {"wte.weight": 0.1, "h.2.ln_1.bias": 3.0, "ln_f.weight": 0.25, "ln_f.bias": 0.25}
    tensors = torch_parameters(model.params)
    reference = torch.optim.AdamW(
        [
            {"params": [tensor], "weight_decay": 0.3 * (decay == "all" or tensor.ndim > 1)}
            for tensor in tensors.values()
        ],
        betas=(0.9, 0.95),
    )
    engine = kernels and model.engine
    optimizer = AdamW(model.params, weight_decay=0.3, engine=engine, decay=decay, groups=GROUPS)
    rng = np.random.default_rng(1)
    for step in range(5):
        grads = {name: rng.standard_normal(array.shape) for name, array in model.params.items()}
        for (name, tensor), group in zip(tensors.items(), reference.param_groups, strict=True):
            tensor.grad, group["lr"] = (
                torch.from_numpy(grads[name]),
                factors[name] * 0.1 / (step + 1),
            )
        norm = torch.nn.utils.clip_grad_norm_(tensors.values(), 1e9).item()
        reference.step()
        assert float(optimizer.step(grads, 1e9, 0.1 / (step + 1))) == pytest.approx(norm, rel=1e-12)
        for name, tensor in tensors.items():
            ours, theirs = model.params[name], tensor.detach().numpy()
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12, err_msg=name)


def test_a_schedule_and_groups_are_the_steps_of_adamw():
    def schedule(step):
        return 0.1 / (step + 1)

    trainer = trainer_of(schedule=schedule, groups=GROUPS)
    assert trainer.run(progress=False)
    model = model_of()
    optimizer = AdamW(model.params, 1.0, (0.9, 0.99), engine=model.engine, groups=GROUPS)
    for step in range(6):
        _, grads = model.loss_and_grads(*trainer._batch(step))
        optimizer.step(grads, 1.0, schedule(step))
    assert (trainer.model.params.flat == model.params.flat).all()
    with pytest.raises(UserError, match=r"pattern in groups must be of parameters .* not 'h.9'"):
        trainer_of(groups={"h": 0.5, "h.9": 0.5})
    with pytest.raises(UserError, match="the factor of 'wte' must be a finite number"):
        trainer_of(groups={"wte": -1.0})
    with pytest.raises(UserError, match="must be of parameters that are trained"):
        AdamW(GPT(GPTConfig(**CONFIG), freeze="wte").params, groups={"wte": 0.5})


@pytest.mark.parametrize("n", [1, 3])
def test_batches_of_any_shape_and_a_resumed_run(tmp_path, n):
    """The gradient of a step is that of all targets of its micro-batches, whatever their shapes."""

    def made(folder):
        options = {"gradient_accumulation_steps": n, "eval_iters": 3}
        return trainer_of(
            model_of(dropout=0.2), None, None, tmp_path / folder, options, batches=batches
        )

    whole, model = made("whole"), model_of(dropout=0.2)
    optimizer, losses = AdamW(model.params, betas=(0.9, 0.99), engine=model.engine), []
    assert whole.run(progress=False)
    for step in range(6):
        own = [batches(step * n + i) for i in range(n)]
        count = sum((targets != -1).sum() for _, targets in own)
        rngs = [model.engine.dropout_rng(1337, step, i) for i in range(n)]
        parts = [
            model.loss_and_grads(*batch, rng, count) for batch, rng in zip(own, rngs, strict=True)
        ]
        losses.append(sum(loss for loss, _ in parts))
        grads = {name: sum(grads[name] for _, grads in parts) for name in model.params}
        optimizer.step(grads, 1.0, whole.options.rate(step))
    np.testing.assert_allclose(whole.model.params.flat, model.params.flat, rtol=1e-9, atol=1e-12)
    records = read_metrics(tmp_path / "whole")
    assert [r["loss"] for r in records if "loss" in r] == pytest.approx(losses, rel=1e-10)
    # The train loss, of three of all numbers.
    parts = [batches(number) for number in (0, 2 * n, 4 * n)]
    counts = [(targets != -1).sum() for _, targets in parts]
    expected = np.average([model.evaluate(*batch) for batch in parts], weights=counts)
    assert records[-1] == {"step": 6, "train_loss": pytest.approx(expected, rel=1e-9)}

    first = made("parts")
    first.on_evaluation = lambda trainer, losses: trainer.step == 3 and trainer.request_stop()
    assert not first.run(progress=False)
    again = made("parts")
    again.restore(tmp_path / "parts")
    assert (
        again.step == 3
        and again.run(progress=False)
        and bits(tmp_path / "parts") == bits(tmp_path / "whole")
    )
    found = [
        [(r["step"], r.get("loss")) for r in read_metrics(tmp_path / run)]
        for run in ("whole", "parts")
    ]
    assert found[0] == found[1]


def test_tokens_per_second_are_those_read(tmp_path, monkeypatch):
    trainer = trainer_of(
        None, None, None, tmp_path, {"log_interval": 3, "eval_interval": 2}, batches=batches
    )
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
        with pytest.raises(UserError, match=says):
            trainer_of(**{"tokens": None, "val_tokens": None, **own})
    encoder = GPT(GPTConfig(**CONFIG, causal=False), dtype="float64")
    with pytest.raises(UserError, match="causal=False sees the next token"):
        trainer_of(encoder, None, batches=batches)  # its validation would be of next tokens
    assert trainer_of(encoder, None, None, batches=batches).run(progress=False)


def test_an_adamw_of_ones_own_is_used_as_it_is(tmp_path):
    """Its lr counts in each step, and its steps before the run are not forgotten."""

    def made(out_dir=None, steps=6):
        model = model_of()
        optimizer = AdamW(model.params, 0.02, (0.8, 0.9), weight_decay=0.0, engine=model.engine)
        optimizer.step(model.loss_and_grads(*batches(99))[1])
        options = {"max_iters": steps, "beta1": 0.5, "learning_rate": 9.0}
        return trainer_of(model, out_dir=out_dir, options=options, optimizer=optimizer)

    trainer, by_hand = made(tmp_path, 3), made()
    model, optimizer = by_hand.model, by_hand.optimizer
    assert trainer.run(progress=False) and (trainer.optimizer.t, trainer.step) == (4, 3)
    assert {r["lr"] for r in read_metrics(tmp_path) if "lr" in r} == {0.02}
    again = made(tmp_path)
    again.restore(find_checkpoint(tmp_path))
    assert again.optimizer.t == 4
    again.optimizer.lr, again.optimizer.betas = 0.01, (0.7, 0.9)  # which stay
    assert again.run(progress=False) and (again.optimizer.t, again.optimizer.lr) == (7, 0.01)
    for step in range(6):
        if step == 3:
            optimizer.lr, optimizer.betas = 0.01, (0.7, 0.9)
        optimizer.step(model.loss_and_grads(*by_hand._batch(step))[1], 1.0)
    assert (again.model.params.flat == model.params.flat).all()
    with pytest.raises(UserError, match="the params of another model"):
        trainer_of(optimizer=optimizer)
    with pytest.raises(UserError, match="groups are of the Trainer's AdamW"):
        trainer_of(model, optimizer=optimizer, groups=GROUPS)


@pytest.mark.parametrize("kernels", ["numpy", pytest.param("xla", marks=pytest.mark.slow)])
def test_an_optimizer_of_ones_own_resumes_with_the_same_bits(tmp_path, kernels):
    def run(folder, steps):
        model = model_of(kernels)
        optimizer = Momentum(model.params)
        trainer = trainer_of(
            model,
            out_dir=tmp_path / folder,
            options={"max_iters": steps},
            optimizer=optimizer,
            schedule=lambda step: 0.1 / (step + 1),
        )
        if steps == 6 and folder == "parts":
            trainer.restore(tmp_path / folder)
        assert trainer.run(progress=False)
        return trainer

    run("parts", 3)
    assert (run("whole", 6).model.params.flat == run("parts", 6).model.params.flat).all()
    assert bits(tmp_path / "whole") == bits(tmp_path / "parts")
    state = read_checkpoint(find_checkpoint(tmp_path / "whole")).state
    assert (state["own"], state["optimizer"], state["t"]) == (True, "Momentum", 6)


def test_what_cannot_be_resumed_is_one_line(npgpt, text_file, tmp_path):
    """An optimizer without moments trains and is saved; its run never continues from zero moments.
    """
    model = model_of()
    trainer = trainer_of(
        model, out_dir="plain", optimizer=Plain(model.params), schedule=lambda step: step / 100
    )
    assert trainer.run(progress=False) and trainer.optimizer.given == [
        (1.0, step / 100) for step in range(6)
    ]
    assert (load("plain", which="latest")[0].params.flat == model.params.flat).all()
    assert npgpt("info", "plain")[0] == npgpt("sample", "plain", "--max-new-tokens", 2)[0] == 0
    kept = bits("plain")
    refused(
        npgpt("train", "--resume", "--out-dir", "plain"),
        "was trained in Python",
        "--init-from plain",
    )
    for optimizer in (None, Momentum(model.params), Plain(model.params)):
        with pytest.raises(
            UserError, match="by the optimizer 'Plain', which .* cannot continue"
        ) as caught:
            trainer_of(model, optimizer=optimizer).restore("plain")
        assert "\n" not in str(caught.value)
    assert bits("plain") == kept
    # A run with groups keeps the moments of AdamW, but the command does not know the groups.
    assert trainer_of(out_dir="groups", groups=GROUPS).run(progress=False)
    refused(npgpt("train", "--resume", "--out-dir", "groups"), "functions, groups or an optimizer")
    with pytest.raises(UserError, match="by the optimizer 'AdamW', which Momentum cannot"):
        trainer_of(model, optimizer=Momentum(model.params)).restore("groups")
    path = find_checkpoint("groups") / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"t": "six"}))
    with pytest.raises(UserError, match="t in .*state.json must be a whole number"):
        trainer_of(groups=GROUPS).restore("groups")
    with pytest.raises(UserError, match="was trained with groups, a schedule, batches or a loss"):
        trainer_of().restore("groups")


@pytest.mark.parametrize(
    "kernels", ["reference", "numpy", "numba", pytest.param("xla", marks=pytest.mark.slow)])
@pytest.mark.parametrize("n", [1, 2])
def test_a_loss_of_ones_own(kernels, n):
    """Given as a function, the cross-entropy trains the same; evaluations are always of it."""

    def loss(logits, targets):
        value, cache = cross_entropy_forward(logits, targets)
        return factor * value, factor * cross_entropy_backward(1.0, cache)

    options, found = {"gradient_accumulation_steps": n, "grad_clip": 0.0}, []
    for factor in (None, 1.0, 2.0):
        model = model_of(kernels, dropout=0.1)
        trainer = trainer_of(
            model, options=options, loss=factor and loss, optimizer=Momentum(model.params, 0.01)
        )
        records = [trainer.train_step() for _ in range(6)]
        found.append(
            [[record["loss"] for record in records], model.params.flat, trainer.evaluate()["val"]]
        )
    plain, same, twice = found
    assert same[0] == pytest.approx(plain[0], rel=1e-12) and same[2] == pytest.approx(
        plain[2], rel=1e-12
    )
    np.testing.assert_allclose(same[1], plain[1], rtol=1e-9, atol=1e-12)
    assert twice[0][0] == pytest.approx(2 * plain[0][0], rel=1e-12) and twice[2] != pytest.approx(
        plain[2], rel=1e-6
    )


def test_a_quiet_run_and_what_is_called(tmp_path, capsys):
    seen = []
    trainer = trainer_of(out_dir=tmp_path, on_evaluation=lambda *given: seen.append(given))
    assert trainer.run(progress=False) and capsys.readouterr() == ("", "")
    assert [(given[0], set(given[1])) for given in seen] == [(trainer, {"train", "val"})] * 3
    assert [given[1]["val"] for given in seen] == [
        r["val_loss"] for r in read_metrics(tmp_path) if "val_loss" in r
    ]
    trainer_of().run()
    assert capsys.readouterr().out.count("train loss") == 3
    with pytest.raises(
        UserError, match="on_evaluation cannot be called with 2 arguments: too many"
    ):
        trainer_of(on_evaluation=lambda trainer: None)
    for own, says in (
        ({"batches": [batches(0)]}, "batches must be a function"),
        ({"batches": lambda: batches(0)}, "batches cannot be called with 1 arguments"),
        ({"batches": lambda number: None}, r"batches\(0\) must be a pair"),
        ({"schedule": 1e-3}, "schedule must be a function"),
        ({"schedule": lambda: 1e-3}, "schedule cannot be called"),
        ({"loss": lambda logits: (0.0, logits)}, "loss cannot be called"),
        ({"optimizer": Momentum}, "optimizer must be an object with step"),
        ({"optimizer": SimpleNamespace(step=lambda *_: 1.0)}, "optimizer must be an object with"),
        ({"optimizer": SimpleNamespace(step=lambda grads: 1.0, lr=1.0)}, "optimizer.step cannot"),
        ({"options": {"max_iters": 3}, "plain": True}, "options must be TrainOptions"),
    ):
        with pytest.raises(UserError, match=says):
            if own.pop("plain", False):
                Trainer(trainer.model, TOKENS, **own)
            trainer_of(tokens=None if "batches" in own else TOKENS, val_tokens=None, **own)
    for own, says in (
        ({"schedule": lambda step: None}, "the learning rate of step 0 must be"),
        ({"loss": lambda logits, targets: 0.0}, "returns must be a number, the loss, and dlogits"),
        ({"optimizer": SimpleNamespace(step=lambda *_: None, lr=1.0)}, "must be the gradient norm"),
    ):
        with pytest.raises(UserError, match=says):
            trainer_of(**own).train_step()
    rate = np.float32(1e-3)             # as torch's batches, and NumPy's numbers
    tensors = trainer_of(tokens=None, schedule=lambda step: rate, batches=lambda number: tuple(
        map(pytest.importorskip("torch", reason="its tensors").tensor, batches(number))))
    assert tensors.train_step()["lr"] == rate
    trainer.on_evaluation = lambda: None
    trainer.options = dataclasses.replace(trainer.options, max_iters=9)
    with pytest.raises(UserError, match="cannot be called"):
        trainer.run()
    assert trainer.step == 6


def test_what_is_set_between_runs_counts():
    def stop(trainer, losses):
        trainer.options = dataclasses.replace(trainer.options, max_iters=trainer.step + 3)
        trainer.request_stop()

    trainer = trainer_of(on_evaluation=stop)
    assert not trainer.run(progress=False) and trainer.step == 0
    trainer.on_evaluation, trainer.schedule = None, lambda step: 0.0
    before = trainer.model.params.flat.copy()
    assert trainer.run(progress=False) and trainer.step == 3  # an earlier request is over
    assert (trainer.model.params.flat == before).all()
    trainer.options = dataclasses.replace(
        trainer.options, max_iters=4, batch_size=7, learning_rate=0.5, min_lr=0.0
    )
    trainer.schedule = None
    record = trainer.train_step()
    assert record["lr"] == trainer.options.rate(3) > 0.0 and len(trainer._batch(3)[0]) == 7
    assert (trainer.model.params.flat != before).any()
