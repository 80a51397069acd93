"""The gradients of a block or of a whole model against differences along random directions.

The derivative along a direction u is measured in float64 by central differences with smaller and
smaller steps, extrapolated to 0 (Richardson), and compared with sum(gradient * u). No entry of u is
near 0, so a single wrong entry of a gradient shows. One direction that agrees is enough: a mistake
shows in all of them, and a kink, as ReLU has, may spoil one.
"""

import dataclasses

import numpy as np

from npgpt import layers
from npgpt.arrays import to_host
from npgpt.engine.trial import trial, validate
from npgpt.errors import UserError
from npgpt.model.config import GPTConfig
from npgpt.model.masks import draw_masks
from npgpt.model.tree import flatten, nest
from npgpt.study.gradcheck.check import NO_GRADIENT, OK, TOLERANCE, WRONG

DIRECTIONS, STEPS = 3, 10
ROUNDING = 5e-14        # of a sum of terms, relative to their sizes, at most
INPUT = "x, the input"
# All sizes differ, so that no transposed array fits. Heads can be grouped, and rotated in pairs.
B, T, SIZES = 3, 5, GPTConfig(n_embd=24, n_head=4, n_inner=40, n_layer=2, block_size=7)
CASES = {
    "": {},
    "with a mask and dropout": {"dropout": 0.3},
    "without biases, not causal": {"bias": False, "causal": False, "activation": "gelu"},
}


class GradCheck:
    """What was found: `right`, and a table.

    errors: name -> the relative error of its gradient, or None without one.
    wrong: name -> in which case it is wrong, or "".
    remarks: what could not be checked.
    """

    def __init__(self):
        self.errors, self.wrong, self.remarks = {}, {}, []

    @property
    def right(self) -> bool:
        return not self.wrong

    def add(self, name, error, where=""):
        """Note an error; the largest of all cases counts."""
        if error is not None and not error <= TOLERANCE:
            self.wrong.setdefault(name, where)
        self.errors[name] = error if error is None else max(self.errors.get(name, 0.0), error)

    def __repr__(self) -> str:
        lines = [f"  {'gradient of':<28} {'error':>8}  verdict"]
        for name, error in self.errors.items():
            verdict = f"{WRONG} {self.wrong[name]}" if name in self.wrong else OK
            lines.append(f"  {name:<28} {NO_GRADIENT:>8}" if error is None else f"  {name:<28} {error:8.1e}  {verdict}")
        return "\n".join([*map(str.rstrip, lines), *self.remarks])


def block_gradients(block, config, seed):
    """Check a `Block`; config: its only one, or None. Return a `GradCheck`."""
    found, base = GradCheck(), dataclasses.replace(config or SIZES, block=block)
    validate(base)
    for where, fields in CASES.items():
        if config is None or "bias" not in fields:
            try:
                check_case(found, where, dataclasses.replace(base, **fields), seed)
            except UserError as error:
                if not where:
                    raise
                found.remarks.append(f"  not checked {where}: {error}")
    return found


def check_case(found, where, config, seed):
    """Add the errors of a block with this config; where: the name of its case."""
    rng, block = np.random.default_rng([seed, len(where)]), config.with_block().block
    x, dx_out, p, mask = trial(config, np.float64, rng, B, T)
    arrays, masks = {INPUT: x, **flatten(p)}, draw_masks(config, *x.shape[:2], x.dtype, rng).blocks[1]
    if where:
        scores = rng.standard_normal((len(x), config.n_head, x.shape[1], x.shape[1]))
        mask = scores + (0.0 if mask is None else mask)

    def run(arrays):
        p = {name: array for name, array in arrays.items() if name != INPUT}
        return block.forward(arrays[INPUT], nest(p), config, 1, mask, masks, layers)

    x_out, cache = run(arrays)
    dx, dp = block.backward(dx_out, cache, layers)
    grads, rounding = {INPUT: dx, **flatten(dp)}, ROUNDING * abs(x_out * dx_out).sum()
    for name, array in arrays.items():
        def value(change, name=name):
            return (run(arrays | {name: arrays[name] + change})[0] * dx_out).sum()

        error = None if name not in grads else relative_error(value, array, grads[name], rounding, rng)
        found.add(name, error, where)


def model_gradients(model, idx, targets, mask, seed):
    """Check a model's gradients; return a `GradCheck`."""
    found, rng = GradCheck(), np.random.default_rng(seed)
    exact = model if model.dtype == "float64" else model.copied(dtype="float64")
    _, grads = exact.loss_and_grads(idx, targets, mask=mask)
    plain = exact.copied(device="cpu", kernels="reference")
    loss = plain.forward(idx, targets, mask=mask)[1]
    others = plain.backward()
    for name, gradient in grads.items():
        array, gradient = plain.params[name].copy(), to_host(gradient)

        def value(change, name=name, array=array):
            plain.params[name] = array + change
            return plain.evaluate(idx, targets, mask)

        error = relative_error(value, array, gradient, ROUNDING * loss, rng)
        plain.params[name] = array
        apart = np.linalg.norm(others[name] - gradient)
        found.add(name, max(error, apart / max(np.linalg.norm(gradient), ROUNDING)))
    return found


def relative_error(value, array, gradient, rounding, rng):
    """Return the error of an array's gradient along the direction in which it is smallest.

    It is relative to the gradient's norm; below the rounding of the differences it is 0.
    value: change of the array -> the number whose gradient it is; rounding: of that number
    """
    size, norm = 0.1 * (np.sqrt((array * array).mean()) or 1.0), np.linalg.norm(gradient)
    best, allowed = np.inf, TOLERANCE * norm + rounding / size
    for _ in range(DIRECTIONS):
        u = rng.choice([-1.0, 1.0], array.shape) * rng.uniform(0.5, 1.5, array.shape)
        expected, row = (gradient * u).sum(), []
        for k in range(STEPS):
            h, before = size * 0.25**k, row
            row = [(value(h * u) - value(-h * u)) / (2.0 * h)]
            for j, each in enumerate(before):
                row.append(row[j] + (row[j] - each) / (16.0**(j + 1) - 1.0))
            best = min(best, *(abs(each - expected) for each in row))
            if best <= allowed:
                return max(0.0, best - rounding / size) / (norm or 1.0)
    return best / norm if best < norm else 1.0
