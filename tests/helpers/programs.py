"""Random programs in the words that people use, by NumPy and by the compiled loops.

    python -m tests.helpers.programs 20000 --seed 1

Each line is tried on arrays when it is made, so that programs rarely raise. A program is called
with several sizes, constants and numbers of cores. What is compared: results, their dtypes and
shapes, which of them share memory, what the arguments hold afterwards, and errors.
"""

import argparse
import collections
import itertools
import random

import numpy as np

from tests.cases import LAYOUTS, arrays_in, small_parts
from tests.helpers.lines import assert_alike, defined, outcome

# Sizes and arrays as people call them; names in the loops, and in the functions that call them.
NAMES = """B T C D H N n c i j k x y z w b m s t u v h x_at x_all x_row x_c x_sums y_row rows row out
all shape size scale mean sum max min take abs exp tanh erf real add maximum range float loop plain
alone contiguous in_order over_blocks row_numbers free_cores part_0 part_1 rest stored base number
number0 number1 IndexError functools outer part mask idx eps values xhat dx dy layer config result
tmp total count weights bias rstd var flat number_0 made kernel""".split()
FITTING = [
    "({a} + {b})",
    "({a} - {b})",
    "({a} * {b})",
    "({b} * {a})",
    "{a} / (np.abs({b}) + 1.0)",
    "np.tanh({a})",
    "np.exp(-np.abs({a}))",
    "np.sqrt(np.abs({a}) + 0.1)",
    "({a}) ** 2",
    "np.maximum({a}, {b})",
    "np.where({c}, {a}, {b})",
    "np.where({c}, {b}, {a})",
    "(-{a})",
    "({a} if {t} else {b})",
    "({a}).mean(axis=-1, keepdims=True)",
    "({a}).sum(axis=-1, keepdims=True)",
    "({a}).max(axis=-1, keepdims=True)",
]
EXPRESSIONS = [
    *FITTING,
    "np.where({c}, 1, 0)",
    "np.where({c}, 3.0, -1.0)",
    "np.sum({a}, axis=-1, keepdims=True)",
    "({a}).sum(axis=0)",
    "({a}).reshape(-1, {n}).sum(axis=0)",
    "np.log(np.abs({a}) + 1.0)",
    "np.take_along_axis({a}, {i}, axis=-1)",
    "({c} * {a})",
    "np.minimum({a}, {b})",
    "np.square({a})",
    "({a} + {s} * {n})",
    "(({a}) ** 2) ** {n}",
]
COMMON = [*["{y} = {e}"] * 4, *["{a} {op}= {e}"] * 2, "{y} = {a} @ {square}"]
STATEMENTS = [
    *["{y} = {e}"] * 6,
    *["{a} {op}= {e}"] * 3,
    "{y} = {a}",
    "{y} = {a}",
    "{y}, {u} = {e}, {a}",
    "{y} = {u} = {e}",
    "{y} = {c}",
    "{y} = np.where({c}, 1, 0)",
    "{y} = np.where({c}, 3.0, -1.0)",
    "{s} = {s} * 0.5",
    "{n} = {n} + 1",
    "{s} = 2.0 if {t} else 0.5",
    "{y} = {a}.shape",
    "{y} = {a}.shape[-1]",
    "assert {layer} >= 0",
    "print(end='')",
    "{y} = {a} @ {square}",
    "{y} = np.cumsum({e}, axis=-1)",
    "{a} *= 0.5",
    "{a} -= {a}.mean(axis=-1, keepdims=True)",
    "{y} = {a}[..., :1]",
    "{y} = {a}.reshape(-1, {n})",
    "{y} = min({layer}, 1) * {s}",
    "np.put_along_axis({a}, {i}, {a}.mean(axis=-1, keepdims=True) * {s}, axis=-1)",
    "if",
    "if",
    "for",
]


class Program:
    """A random function: its source, and equal arguments as often as one asks for them."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.seed, self.dtype = seed, self.pick(np.float64, np.float64, np.float32)
        lead = [self.pick(1, 2, 3, 5) for _ in range(self.pick(1, 2, 2, 3))]
        C, part = self.pick(1, 2, 3, 4, 7, 9), self.pick(*range(len(lead) + 1))
        self.shapes = {
            "x": (*lead, C),
            "z": (*lead, C),
            "w": (C,),
            "k": (*lead, 1),
            "m": (*lead[part:], C),
            "square": (C, C),
            "given": (*lead, C),
            "index": (*lead, 1),
            "chosen": (*lead, C),
        }
        self.constants = {
            "s": self.pick(0.7, -1.5),
            "n": self.pick(1, 2, 3),
            "layer": self.pick(0, 1, 2),
            "flag": self.pick(True, False),
            "none": None,
            "strong": np.float64(0.3),
        }
        self.fitting = self.pick(0.0, 0.5, 0.9)  # how many forms are surely those of a loop
        self.same = self.rng.random() < 0.1
        names = self.rng.sample(NAMES, len(NAMES))
        roles = [*self.shapes, *self.constants]
        self.called = dict(zip(roles, names, strict=False))
        self.free = names[len(roles) : len(roles) + 6]  # of values
        self.env, self.lines = self.begin(), []
        for _ in range(self.pick(3, 5, 8, 12)):
            self.add(self.statement())
        known = [name for name in self.env if name not in ("np", "__builtins__")]
        some = [self.pick(*known) for _ in range(self.pick(1, 2, 4))]
        returned = self.pick(some, known)
        arguments = ", ".join(self.called.values())
        body = "\n    ".join([*self.lines, f"return {', '.join(returned)},"])
        self.source = f"def f({arguments}):\n    {body}\n"

    def pick(self, *options):
        return self.rng.choice(options)

    def arguments(self, call=0):
        """Return role -> argument of a call: other sizes and constants in each."""
        rng = np.random.default_rng([self.seed, call])
        resized = (
            lambda size: size,
            lambda size: size + 2 * (size > 1),
            lambda size: size,
            lambda size: min(size, 1),
            lambda size: size * (size != 2),
        )[call]
        made = {}
        for role, shape in self.shapes.items():
            shape = tuple(map(resized, shape))
            if role in ("given", "chosen"):
                array = rng.random(shape) < 0.5
            elif role == "index":
                array = rng.integers(0, max(1, resized(self.shapes["w"][0])), shape)
            else:
                array = LAYOUTS[rng.integers(len(LAYOUTS) if call in (1, 2) else 1)](
                    rng.standard_normal(shape)
                )
            made[role] = array.astype(self.dtype) if array.dtype.kind == "f" else array
        if self.same:
            made["z"] = made["x"]
        constants = self.constants | (
            {"layer": (self.constants["layer"] + 2 * call) % 7, "s": 0.4} if call else {}
        )
        if call in (2, 4):
            constants |= {"flag": not constants["flag"], "n": 4, "none": made["z"] * 2.0}
        return made | constants

    def add(self, lines):
        """Append lines if they run, and their numbers stay small."""
        try:
            with np.errstate(all="ignore"):
                exec("\n".join([*self.lines, *lines]), fresh := self.begin())
        except Exception:
            return
        if all(
            np.isfinite(value).all() and np.abs(value).max(initial=0) < 1e4
            for value in fresh.values()
            if isinstance(value, np.ndarray | float) and np.asarray(value).dtype.kind == "f"
        ):
            self.lines += lines
            self.env = fresh

    def begin(self):
        """Return the names before the first line."""
        return dict(zip(self.called.values(), self.arguments().values(), strict=True)) | {"np": np}

    # Names and expressions.

    def named(self, kinds, array=True):
        """Return a name of an array, or of a number, of some kinds of dtype."""
        found = [
            name
            for name, value in self.env.items()
            if isinstance(value, np.ndarray | float | int)
            and not isinstance(value, bool)
            and (np.ndim(value) > 0) == array
            and np.asarray(value).dtype.kind in kinds
        ]
        return self.pick(*found) if found else "0.5"

    def number(self):
        return self.pick(
            "0.5",
            "2",
            "-1.5",
            self.named("fi", array=False),
            f"{self.named('fi', array=False)} * 0.5",
            f"({self.called['s']} - 1)",
            f"1.0 / ({self.called['n']} + 1)",
        )

    def expression(self, depth):
        """Return the text of an expression of floats."""
        if not depth or self.rng.random() < 0.1:
            return self.named("f")
        a, b = self.expression(depth - 1), self.expression(depth - 1)
        b = self.pick(b, b, self.number())
        form = self.pick(*(FITTING if self.rng.random() < self.fitting else EXPRESSIONS))
        more = {name: self.called[role] for name, role in (("s", "s"), ("n", "n"), ("i", "index"))}
        return form.format(a=a, b=b, c=self.condition(), t=self.test(), **more)

    def condition(self):
        """Return the text of an array of bools."""
        a, b = self.named("f"), self.pick(self.named("f"), "0.123", self.number())
        return self.pick(
            f"{a} > {b}",
            f"{a} <= {b}",
            self.called["chosen"],
            self.called["given"],
            f"{a} == {a}.max(axis=-1, keepdims=True)",
        )

    def test(self):
        """Return the text of a condition that Python decides, in one of the ways that people have."""
        layer, flag, none, s, n = (
            self.called[role] for role in ("layer", "flag", "none", "s", "n")
        )
        return self.pick(
            f"{layer} > 0",
            f"{layer} > {self.pick(1, 2, 3, 4)}",
            flag,
            f"not {flag}",
            f"{none} is None",
            f"{none} is not None",
            f"{layer} and {flag}",
            f"0 < {layer} < 3",
            layer,
            f"{s} > 0.5",
            f"{layer} % 2 == 0",
            f"{layer} == {n}",
            f"{self.called['x']} is {self.called['z']}",
            f"{s} + {layer} > 1",
            f"{layer} in (1, 3)",
            f"({layer} > 0) == {flag}",
            f'f"{{{layer}}}" == "2"',
        )

    # Statements.

    def statement(self, nested=False):
        target, array = self.pick(*self.free, *self.called.values()), self.named("f")
        value, layer, s, n = (
            self.expression(self.pick(1, 2, 3)),
            *(self.called[role] for role in ("layer", "s", "n")),
        )
        form = self.pick(*(COMMON if self.rng.random() < self.fitting else STATEMENTS))
        if form == "if" and not nested:
            branches = [
                [f"    {line}" for _ in range(self.pick(1, 2)) for line in self.statement(True)]
                for _ in "ab"
            ]
            return [
                f"if {self.test()}:",
                *branches[0],
                *(["else:", *branches[1]] if self.pick(True, False) else []),
            ]
        if form in ("for", "if"):
            return [
                f"for {self.pick(*self.free)} in range({layer}):",
                *(f"    {line}" for line in [f"{array} *= 0.9"]),
            ]
        return [
            form.format(
                y=target,
                u=self.pick(*self.free),
                a=array,
                e=value,
                c=self.condition(),
                t=self.test(),
                s=s,
                n=n,
                layer=layer,
                op=self.pick(*"+-*"),
                square=self.called["square"],
                i=self.called["index"],
            )
        ]


def difference(program, compile_lines):
    """Return how a program differs from NumPy's: a word, or "" if it does not."""
    function = defined(program.source)
    ours = compile_lines(function)
    for call, cores in itertools.product(range(5), (1, 3)):
        found, given = [], []
        for each in (function, ours):
            arguments = [*program.arguments(call).values()]
            with small_parts(row_bytes=100, cores=cores):
                found.append(outcome(each, *arguments))
            given.append(tuple(arguments))
        plain, mine = found
        if isinstance(plain, type) or isinstance(mine, type):
            if plain is mine:
                continue
            return (
                f"raises {mine.__name__}"
                if isinstance(mine, type)
                else f"does not raise {plain.__name__}"
            )
        tolerance = 1e-9 if program.dtype is np.float64 else 1e-3
        for kind, pair in (("results", (mine, plain)), ("arguments", given[::-1])):
            if types(pair[0]) != types(pair[1]):
                return f"dtype or shape of {kind}"
            try:
                assert_alike(*pair, tolerance)
            except AssertionError:
                return f"numbers of {kind}"
        if shared(mine) != shared(plain):
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
    parser.add_argument("--by", default="python", choices=["python", "numba"])
    parser.add_argument(
        "--show", type=int, default=3, help="how many programs that differ are printed"
    )
    args = parser.parse_args()
    from npgpt.engine.loops.lines import compile_lines
    from npgpt.engine.loops.segment import kernel
    from tests.engine.test_loops import loops_by

    kinds, loops = collections.Counter(), 0
    for seed in range(args.seed * args.n, (args.seed + 1) * args.n):
        program = Program(seed)
        with loops_by(args.by):
            kind = difference(program, compile_lines)
            loops += kernel.cache_info().misses
        kinds[kind] += bool(kind)
        if kind and kinds.total() <= args.show:
            print(f"{kind}, program {seed}, {program.dtype.__name__}:\n{program.source}")
    print(f"{args.n} programs, {loops} loops, {kinds.total()} differ: {dict(kinds)}")


if __name__ == "__main__":
    main()
