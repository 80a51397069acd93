"""Random programs in the words that people use, by NumPy and by the compiled loops.

    python -m tests.helpers.programs 20000 --seed 1

Each line is tried on arrays when it is made, so that programs rarely raise. A program is called
with several sizes, constants and numbers of cores. What is compared: results, their dtypes and
shapes, which of them share memory, what the arguments hold afterwards, and errors.
"""

import argparse
import itertools
import random

import numpy as np

from tests.cases import LAYOUTS, arrays_in, small_parts
from tests.helpers.lines import assert_alike, defined, outcome

# Sizes and arrays as people call them; names in the loops, and in the functions that call them.
NAMES = """B T C D H N n c i j k x y z w b m s t u v h x_at x_all x_row x_c x_sums y_row rows row
out all shape size scale mean sum max min take abs exp tanh erf real add maximum range float loop
plain alone contiguous in_order over_blocks row_numbers free_cores part_0 part_1 rest stored base
number number0 number1 IndexError functools outer part mask idx eps values xhat dx dy layer config
result tmp total count weights bias rstd var flat number_0 made kernel""".split()
# What the forms are filled with: a, b, expressions of floats; c, an array of bools; t, a condition
# that Python decides; y, u, names to assign to; the others are arguments of the function.
FITTING = """
({a} + {b})
({a} - {b})
({a} * {b})
({b} * {a})
{a} / (np.abs({b}) + 1.0)
np.tanh({a})
np.exp(-np.abs({a}))
np.sqrt(np.abs({a}) + 0.1)
({a}) ** 2
np.maximum({a}, {b})
np.where({c}, {a}, {b})
np.where({c}, {b}, {a})
(-{a})
({a} if {t} else {b})
({a}).mean(axis=-1, keepdims=True)
({a}).sum(axis=-1, keepdims=True)
({a}).max(axis=-1, keepdims=True)
""".strip().splitlines()
EXPRESSIONS = (
    FITTING
    + """
np.where({c}, 1, 0)
np.where({c}, 3.0, -1.0)
np.sum({a}, axis=-1, keepdims=True)
({a}).sum(axis=0)
({a}).reshape(-1, {n}).sum(axis=0)
np.log(np.abs({a}) + 1.0)
np.take_along_axis({a}, {index}, axis=-1)
({c} * {a})
np.minimum({a}, {b})
np.square({a})
({a} + {s} * {n})
(({a}) ** 2) ** {n}
""".strip().splitlines()
)
NUMBERS = """
0.5
2
-1.5
{number}
{number} * 0.5
({s} - 1)
1.0 / ({n} + 1)
""".strip().splitlines()
CONDITIONS = """
{a} > {b}
{a} > 0.123
{a} <= {number}
{chosen}
{given}
{a} == {a}.max(axis=-1, keepdims=True)
""".strip().splitlines()
TESTS = """
{layer} > 0
{layer} > 2
{layer} > {number}
{flag}
not {flag}
{none} is None
{none} is not None
{layer} and {flag}
0 < {layer} < 3
{layer}
{s} > 0.5
{layer} % 2 == 0
{layer} == {n}
{x} is {z}
{s} + {layer} > 1
{layer} in (1, 3)
({layer} > 0) == {flag}
str({layer}) == "2"
""".strip().splitlines()
COMMON = """
{y} = {e}
{y} = {e}
{y} = {e}
{y} = {e}
{a} {op}= {e}
{a} {op}= {e}
{y} = {a} @ {square}
""".strip().splitlines()
STATEMENTS = (
    COMMON
    + """
{y} = {e}
{y} = {e}
{a} {op}= {e}
{y} = {a}
{y} = {a}
{y}, {u} = {e}, {a}
{y} = {u} = {e}
{y} = {c}
{s} = {s} * 0.5
{n} = {n} + 1
{s} = 2.0 if {t} else 0.5
{y} = {a}.shape
{y} = {a}.shape[-1]
assert {layer} >= 0
print(end='')
{y} = np.cumsum({e}, axis=-1)
{a} *= 0.5
{a} -= {a}.mean(axis=-1, keepdims=True)
{y} = {a}[..., :1]
{y} = {a}.reshape(-1, {n})
{y} = min({layer}, 1) * {s}
np.put_along_axis({a}, {index}, {a}.mean(axis=-1, keepdims=True) * {s}, axis=-1)
if {t}:
if {t}:
for {u} in range({layer}):
""".strip().splitlines()
)
# The sizes of the arrays in each call.
SIZES = [
    lambda n: n,
    lambda n: n + 2 * (n > 1),
    lambda n: n,
    lambda n: min(n, 1),
    lambda n: n * (n != 2),
]


class Program:
    """A random function: its source, and equal arguments as often as one asks for them."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.seed, self.dtype = seed, self.pick(np.float64, np.float64, np.float32)
        lead = [self.pick(1, 2, 3, 5) for _ in range(self.pick(1, 2, 2, 3))]
        C = self.pick(1, 2, 3, 4, 7, 9)
        row, one = (*lead, C), (*lead, 1)
        self.shapes = {"x": row, "z": row, "given": row, "chosen": row, "k": one, "index": one}
        self.shapes |= {"w": (C,), "m": row[self.pick(*range(len(row))) :], "square": (C, C)}
        self.constants = {
            "s": self.pick(0.7, -1.5),
            "n": self.pick(1, 2, 3),
            "layer": self.pick(0, 1, 2),
            "flag": self.pick(True, False),
            "none": None,
            "strong": np.float64(0.3),
        }
        self.fitting = self.pick(0.0, 0.5, 0.9)  # how many forms are surely those of a loop
        self.same = self.rng.random() < 0.1  # x and z are one array
        roles = [*self.shapes, *self.constants]
        names = self.rng.sample(NAMES, len(roles) + 6)
        self.called = dict(zip(roles, names, strict=False))
        self.free = names[len(roles) :]  # of values
        self.env, self.lines = self.begin(), []
        for _ in range(self.pick(3, 5, 8, 12)):
            self.add(self.statement())
        known = [name for name in self.env if name not in ("np", "__builtins__")]
        some = [self.pick(*known) for _ in range(self.pick(1, 2, 4))]
        returned = self.pick(some, known)
        body = "\n    ".join([*self.lines, f"return {', '.join(returned)},"])
        self.source = f"def f({', '.join(self.called.values())}):\n    {body}\n"

    def pick(self, *options):
        return self.rng.choice(options)

    def arguments(self, call=0):
        """Return role -> argument of a call: other sizes and constants in each."""
        rng, resized = np.random.default_rng([self.seed, call]), SIZES[call]
        made = {}
        for role, shape in self.shapes.items():
            shape = tuple(map(resized, shape))
            if role in ("given", "chosen"):
                made[role] = rng.random(shape) < 0.5
            elif role == "index":
                made[role] = rng.integers(0, max(1, resized(self.shapes["w"][0])), shape)
            else:
                layout = LAYOUTS[rng.integers(len(LAYOUTS)) if call in (1, 2) else 0]
                made[role] = layout(rng.standard_normal(shape)).astype(self.dtype)
        if self.same:
            made["z"] = made["x"]
        constants = dict(self.constants)
        if call:
            constants |= {"layer": (constants["layer"] + 2 * call) % 7, "s": 0.4}
        if call in (2, 4):
            constants |= {"flag": not constants["flag"], "n": 4, "none": made["z"] * 2.0}
        return made | constants

    def add(self, lines):
        """Append lines if they run, and their numbers stay small."""
        fresh = self.begin()
        try:
            with np.errstate(all="ignore"):
                exec("\n".join([*self.lines, *lines]), fresh)
        except Exception:
            return
        numbers = [each for each in fresh.values() if isinstance(each, np.ndarray | float)]
        if all(np.isfinite(each).all() and np.abs(each).max(initial=0) < 1e4 for each in numbers):
            self.lines += lines
            self.env = fresh

    def begin(self):
        """Return the names before the first line."""
        return dict(zip(self.called.values(), self.arguments().values(), strict=True)) | {"np": np}

    def fill(self, forms, **more):
        """Return one of the forms, filled with arguments, and with what else it may need."""
        number = self.named(lambda value: np.ndim(value) == 0 and not isinstance(value, bool))
        return self.pick(*forms).format(**self.called, number=number, **more)

    def named(self, fits):
        """Return a name of an array or number that fits."""
        numbers = {
            name: each
            for name, each in self.env.items()
            if isinstance(each, np.ndarray | float | int)
        }
        return self.pick(*[name for name, each in numbers.items() if fits(each)] or ["0.5"])

    def floats(self):
        return self.named(lambda value: np.ndim(value) and value.dtype.kind == "f")

    def expression(self, depth):
        """Return the text of an expression of floats."""
        if not depth or self.rng.random() < 0.1:
            return self.floats()
        a, b = self.expression(depth - 1), self.expression(depth - 1)
        b = self.pick(b, b, self.fill(NUMBERS))
        forms = FITTING if self.rng.random() < self.fitting else EXPRESSIONS
        return self.fill(forms, a=a, b=b, c=self.condition(), t=self.fill(TESTS))

    def condition(self):
        """Return the text of an array of bools."""
        return self.fill(CONDITIONS, a=self.floats(), b=self.floats())

    def statement(self, nested=False):
        """Return the lines of a statement."""
        line = self.fill(
            COMMON if nested or self.rng.random() < self.fitting else STATEMENTS,
            y=self.pick(*self.free, *self.called.values()),
            u=self.pick(*self.free),
            a=self.floats(),
            e=self.expression(self.pick(1, 2, 3)),
            c=self.condition(),
            t=self.fill(TESTS),
            op=self.pick(*"+-*"),
        )
        if line.startswith("for"):
            return [line, f"    {self.floats()} *= 0.9"]
        if line.startswith("if"):
            body, other = self.indented(), self.indented()
            return [line, *body, *self.pick([], ["else:", *other])]
        return [line]

    def indented(self):
        """Return one or two statements inside a condition."""
        lines = []
        for _ in range(self.pick(1, 2)):
            lines += [f"    {each}" for each in self.statement(True)]
        return lines


def difference(program, compile_lines):
    """Return how a program differs from NumPy's: a word, or "" if it does not."""
    function = defined(program.source)
    compiled = compile_lines(function)
    tolerance = 1e-9 if program.dtype is np.float64 else 1e-3
    for call, cores in itertools.product(range(len(SIZES)), (1, 3)):
        given, same = (tuple(program.arguments(call).values()) for _ in range(2))
        with small_parts(row_bytes=100, cores=cores):
            plain, ours = outcome(function, *given), outcome(compiled, *same)
        if isinstance(plain, type) or isinstance(ours, type):
            if plain is not ours:
                return "errors"
            continue
        for kind, pair in (("results", (ours, plain)), ("arguments", (same, given))):
            if types(pair[0]) != types(pair[1]):
                return f"dtype or shape of {kind}"
            try:
                assert_alike(*pair, tolerance)
            except AssertionError:
                return f"numbers of {kind}"
        if shared(ours) != shared(plain):
            return "shared memory"
    return ""


def types(values):
    return [
        (np.shape(each), each.dtype) if isinstance(each, np.ndarray | np.generic) else type(each)
        for each in values
    ]


def shared(values):
    """Return for all pairs of arrays whether they share memory."""
    return [np.may_share_memory(*pair) for pair in itertools.combinations(arrays_in(values), 2)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("n", type=int)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    from npgpt.engine.loops.lines import compile_lines
    from tests.engine.test_loops import loops_by

    differ = 0
    for seed in range(args.seed * args.n, (args.seed + 1) * args.n):
        program = Program(seed)
        with loops_by("python"):
            kind = difference(program, compile_lines)
        if kind:
            differ += 1
            print(f"{kind}, program {seed}, {program.dtype.__name__}:\n{program.source}")
    print(f"{args.n} programs, {differ} differ")


if __name__ == "__main__":
    main()
