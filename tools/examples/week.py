"""An experimenter's week: ten wishes, ten lines or fewer each, with "tiny", which comes along.

python tools/examples/week.py
"""

import copy

import numpy as np

from npgpt import AdamW, Trainer, TrainOptions, load

TEXT = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer. " * 20
model, tokenizer = load("tiny")
tokens = tokenizer.encode(TEXT)
idx, targets = tokens[:1280].reshape(20, 64), tokens[1:1281].reshape(20, 64)
FEW = TrainOptions(max_iters=20, eval_interval=20, eval_iters=1, batch_size=8)


def softmax(logits):
    exps = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True)


def trained(**doors):
    """Train a copy of the model for 20 steps; return its losses on TEXT before and after."""
    losses, data = [], () if "batches" in doors else (tokens,)
    new = copy.deepcopy(model)

    def note(trainer, found):
        losses.append(found["train"])

    Trainer(new, *data, options=FEW, on_evaluation=note, **doors).run(progress=False)
    return losses


def label_smoothing():
    """A loss of one's own: the true distribution mixed with the uniform one."""

    def loss(logits, targets):
        probs, V = softmax(logits), logits.shape[-1]
        true = 0.9 * np.eye(V, dtype=logits.dtype)[targets] + 0.1 / V
        return -(true * np.log(probs)).sum() / targets.size, (probs - true) / targets.size

    return trained(loss=loss)


def distillation():
    """A student with noise in its weights learns the teacher's distributions."""
    student, true = copy.deepcopy(model), softmax(model(idx)[0])
    student.params.flat[:] += 0.05 * np.random.default_rng(0).standard_normal(student.params.size)
    optimizer, losses = AdamW(student.params), []
    for _ in range(10):
        loss, grads = student.loss_and_grads(
            idx,
            dlogits=lambda logits: (
                (true * np.log(true / softmax(logits))).sum(axis=-1).mean(),
                (softmax(logits) - true) / targets.size,
            ),
        )
        optimizer.step(grads)
        losses.append(loss)
    return losses


def preferences():
    """DPO (Rafailov et al. 2023): of each pair of rows, the first is preferred to the second."""
    new, sign = copy.deepcopy(model), np.where(np.arange(20) % 2, -1.0, 1.0)[:, None]
    optimizer, losses = AdamW(new.params, lr=1e-4), []
    for _ in range(10):
        gained = (new.score(idx) - model.score(idx)).sum(axis=-1, keepdims=True)
        margins = 0.1 * (sign * gained).reshape(10, 2).sum(axis=1)
        factors = np.repeat(0.1 / (1.0 + np.exp(margins)) / 10, 2)[:, None] * sign
        weights = np.broadcast_to(factors, (20, 63))
        optimizer.step(new.loss_and_grads(idx[:, :-1], idx[:, 1:], count=1, weights=weights)[1])
        losses.append(np.log1p(np.exp(-margins)).mean())
    return losses


def mixture_with_a_curriculum():
    """Batches are a function of their number: short rows first, then longer ones, two sources."""

    def batches(number):
        T = 16 if number < 10 else 64
        starts = np.random.default_rng(number).integers(0, 600, 8) + 700 * (number % 3 == 0)
        rows = np.stack([tokens[start : start + T + 1] for start in starts])
        return rows[:, :-1], rows[:, 1:]

    return trained(batches=batches)


def rates_by_layer():
    """Lower layers learn more slowly; the rate falls linearly to 0."""
    return trained(
        schedule=lambda step: 1e-3 * (1.0 - step / 20),
        groups={"wte": 0.1, "wpe": 0.1, "h.0": 0.3, "h.1": 0.6},
    )


class Lion:
    """An optimizer of one's own (Chen et al. 2023): the sign of a mean of gradients."""

    def __init__(self, params, lr=1e-4):
        self.params, self.lr = params, lr
        self.moments = {"m": params.zeros_like()}

    def step(self, grads, max_norm, lr):
        for name, m in self.moments["m"].items():
            self.params[name] -= lr * np.sign(0.9 * m + 0.1 * grads[name])
            m += 0.01 * (grads[name] - m)
        return np.sqrt(sum((each**2).sum() for each in grads.values()))


def lion():
    new, losses = copy.deepcopy(model), []
    trainer = Trainer(
        new,
        tokens,
        options=FEW,
        optimizer=Lion(new.params),
        on_evaluation=lambda trainer, found: losses.append(found["train"]),
    )
    trainer.run(progress=False)
    return losses


def moving_average():
    """An average of the weights (EMA): its loss beside that of the weights themselves."""
    new, average = copy.deepcopy(model), copy.deepcopy(model)
    optimizer = AdamW(new.params, lr=3e-3)
    for start in np.arange(40) % 15:
        optimizer.step(new.loss_and_grads(idx[start : start + 4], targets[start : start + 4])[1])
        average.params.flat[:] += 0.1 * (new.params.flat - average.params.flat)
    return [new.evaluate(idx, targets), average.evaluate(idx, targets)]


def steering_vector():
    """A vector in the residual stream learns the text; the model stays as it is."""
    vector, losses = np.zeros(model.config.n_embd, np.float32), []
    for _ in range(20):
        _, loss = model.forward(idx, targets, add={"h.1.x_out": vector})
        vector -= 0.3 * model.backward()["h.1.x_out"]
        losses.append(loss)
    return losses


def soft_heads():
    """Which heads matter? A gain for each head of block 2; its gradient at 1 is minus their use."""
    gain, found = np.ones((model.config.n_head, 1, 1), np.float32), []

    def gated(mix):  # (B, H, T, D)
        def backward(dmix):
            found.extend((dmix * mix).sum(axis=(0, 2, 3)))
            return dmix * gain

        return mix * gain, backward

    model.forward(idx, targets, edit={"h.2.attn.mix": gated})
    model.backward()
    return found


def beams():
    """Three beams of ten tokens: total log-probability, and the likeliest text."""
    reader, total = model.reader(1), np.zeros((1, 1))
    logits = reader.read(tokens[None, :9])[:, -1]
    for _ in range(10):
        scores = (total + np.log(softmax(logits))).ravel()
        best = np.argsort(-scores)[:3]
        total = scores[best, None]
        reader.reorder(best // 256)
        logits = reader.read(best[:, None] % 256)[:, -1]
    return [total[0, 0], tokenizer.decode(reader.tokens[0])]


WISHES = [
    label_smoothing,
    distillation,
    preferences,
    mixture_with_a_curriculum,
    rates_by_layer,
    lion,
    moving_average,
    steering_vector,
    soft_heads,
    beams,
]

if __name__ == "__main__":
    for wish in WISHES:
        found = [each if isinstance(each, str) else f"{each:.4f}" for each in wish()]
        print(f"{wish.__name__.replace('_', ' ')}: {', '.join(found[:1] + found[-1:])}")
