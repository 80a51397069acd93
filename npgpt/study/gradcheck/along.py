"""The gradients of a block or of a whole model against differences along random directions.

The derivative along a direction u is measured in float64, with smaller and smaller steps, and
compared with sum(gradient * u). No entry of u is near 0, so a single wrong entry of a gradient
shows. One direction that agrees is enough: a mistake shows in all of them, and a kink, such as
ReLU's, may spoil some.
"""

import dataclasses
import itertools

import numpy as np

from npgpt import layers as lesson
from npgpt.arrays import to_host
from npgpt.engine.trial import random_arguments, validate
from npgpt.errors import UserError
from npgpt.model.config import GPTConfig
from npgpt.model.masks import draw_masks
from npgpt.model.tree import flatten, nest
from npgpt.study.gradcheck.check import TOLERANCE
from npgpt.study.gradcheck.measure import derivative
from npgpt.study.gradcheck.verdicts import NO_GRADIENT, OK, WRONG

STEPS = 0.01 * 0.3 ** np.arange(10)  # relative to the array's size, each along a new direction
ROUNDING = 2e-14  # of a sum, relative to the sizes of its terms, at most
INPUT = "x, the input"
# All sizes differ, so that no transposed array fits. Heads can be grouped, and rotated in pairs.
SIZES = GPTConfig(n_embd=24, n_head=4, n_inner=40, n_layer=2, block_size=7)
CASES = [
    ("", {}),
    ("with a mask and dropout", {"dropout": 0.3}),
    ("without biases, not causal", {"bias": False, "causal": False, "activation": "gelu"}),
]


class GradCheck:
    """What a check found; printed as a table.

    Attributes
    ----------
    right : bool
        Whether no gradient is wrong.
    errors : dict
        Name -> the error of its gradient, relative to the norm; None without a gradient.
    wrong : dict
        Name -> the first case in which it is wrong.
    remarks : list of str
        What could not be checked.
    """

    def __init__(self, seed: int | None):
        self.errors: dict[str, float | None] = {}
        self.wrong: dict[str, str] = {}
        self.remarks: list[str] = []
        self.rng = np.random.default_rng(seed)

    @property
    def right(self) -> bool:
        return not self.wrong

    @np.errstate(all="ignore")
    def add(self, name, case, value, array, gradients, rounding):
        """Check gradients of an array in one case; the largest error of all cases counts.

        value: change of the array -> the number whose gradients they are
        rounding: of that number
        """
        size = np.sqrt((array * array).mean()) or 1.0
        norm = np.linalg.norm(gradients[0])
        rounding = rounding / (STEPS[0] * size)
        best = np.inf
        for step in STEPS * size:
            u = self.rng.choice([-1.0, 1.0], array.shape) * self.rng.uniform(0.5, 1.5, array.shape)
            true = derivative(value, u, step)
            errors = [abs((each * u).sum() - true) for each in gradients]
            best = min(best, np.max(errors) - rounding)  # NaN is not below inf
            if best <= TOLERANCE * norm < np.inf:
                break
        else:
            self.wrong.setdefault(name, case)
        error = min(1.0, max(0.0, best) / max(norm, 1e-300))
        self.errors[name] = max(self.errors.get(name, 0.0), error)

    def __repr__(self) -> str:
        lines = ["gradient of                  off by  verdict"]
        for name, error in self.errors.items():
            verdict = f"{WRONG} {self.wrong[name]}" if name in self.wrong else OK
            said = NO_GRADIENT if error is None else f"{error:.1e}  {verdict}"
            lines.append(f"{name:<27}  {said}".rstrip())
        return "\n  ".join([*lines, *self.remarks])


def block_gradients(block, config, seed):
    """Check a `Block`; config: its only one, or None. Return a `GradCheck`."""
    found = GradCheck(seed)
    base = dataclasses.replace(config or SIZES, block=block)
    validate(base)
    layers = sorted({0, base.n_layer - 1})  # a block may depend on its number
    for (case, fields), layer in itertools.product(CASES[:2] if config else CASES, layers):
        try:
            check_case(found, case, dataclasses.replace(base, **fields), layer)
        except UserError as error:
            if not case:
                raise
            if layer == 0:
                found.remarks.append(f"not checked {case}: {error}")
    return found


def check_case(found, case, config, layer):
    """Check block number `layer` of a model with this config."""
    block = config.with_block().block
    x, dx_out, p, mask = random_arguments(config, np.float64, found.rng, B=3, T=5)
    B, T, _ = x.shape
    masks = draw_masks(config, B, T, np.float64, found.rng).blocks[layer]
    if case:
        scores = found.rng.standard_normal((B, config.n_head, T, T))
        mask = scores if mask is None else scores + mask

    def forward(arrays):
        p = dict(arrays)
        return block.forward(p.pop(INPUT), nest(p), config, layer, mask, masks, lesson)

    def value(change):
        return (forward(arrays | {name: array + change})[0] * dx_out).sum()

    arrays = {INPUT: x, **flatten(p)}
    x_out, cache = forward(arrays)
    dx, dp = block.backward(dx_out, cache, lesson)
    grads = {INPUT: dx, **flatten(dp)}
    rounding = ROUNDING * abs(x_out * dx_out).sum()
    for name, array in arrays.items():
        if name in grads:
            found.add(name, case, value, array, [grads[name]], rounding)
        else:
            found.errors[name] = None


def model_gradients(model, idx, targets, mask, seed):
    """Check a model's gradients; return a `GradCheck`."""
    found = GradCheck(seed)
    exact = model if model.dtype == "float64" else model.copied(dtype="float64")
    _, grads = exact.loss_and_grads(idx, targets, mask=mask)
    plain = exact.copied(device="cpu", kernels="reference")
    _, loss = plain.forward(idx, targets, mask=mask)
    others = plain.backward()

    def value(change):
        array[:] = start + change
        return plain.evaluate(idx, targets, mask)

    for name, gradient in grads.items():
        array = plain.params[name]
        start = array.copy()
        found.add(name, "", value, start, [to_host(gradient), others[name]], ROUNDING * loss)
        array[:] = start
    return found
