"""A lesson: the record of a pair of functions, with all that programs know of it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from npgpt.model.parameters import flatten, nest, parameter_shapes
from npgpt.study.lessons.setting import PLAIN, shape_of


@dataclasses.dataclass(frozen=True, eq=False)
class Lesson:
    """A pair of functions and its facts; with `at`, also the arrays to call it with.

    title: in words; shapes: argument -> sizes by letters, "B T C", of each array that gets a
    gradient, in the order of the backward's results. An argument whose name is a switch may be
    missing: then it and its gradient are None. others(setting, rng): the forward's other arguments.
    switches: what may be off in a `Setting`. skipped: variables whose gradients a fused gradient
    skips. params: of a composite layer, the prefix of its parameters in a model's, "h.0.mlp."; they
    are its argument `p`. torch(torch, **arguments): the same function in torch, if it has one.
    long_way: a backward without fused gradients.

    inputs: name -> array for all that gets a gradient; those with a dot in their name, such as
    "c_fc.weight", are the leaves of `p`. constants: the other arguments.
    """

    title: str
    forward: Callable
    backward: Callable
    shapes: dict[str, str]
    others: Callable[..., dict] = lambda setting, rng: {}
    switches: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    params: str | None = None
    torch: Callable | None = None
    long_way: Callable | None = None
    inputs: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    constants: dict = dataclasses.field(default_factory=dict)

    @property
    def name(self):
        """The functions' name without "_forward"; commands use it."""
        return self.forward.__name__.removesuffix("_forward")

    @property
    def derivation(self):
        """The file of its derivation."""
        return Path(__file__).with_name(f"{self.name}.md")

    is_own = is_pair = is_one_function = False  # see `Pair`
    has_upstream = True
    proved = None
    may_be_frozen = ()  # see `OwnBlock`

    key = name  # what `lesson_named` finds it by

    @property
    def is_composite(self):
        """Whether it calls other layers. If so, it has a parameter tree, and its backward takes
        `ops`.
        """
        return self.params is not None

    @property
    def results(self):
        """The inputs whose gradients the backward returns, in order, before a tree; None for one
        not in `inputs`.
        """
        return tuple(self.shapes)

    @property
    def upstream(self):
        """The name of the backward's first argument: the gradient of the output."""
        return self.backward.__code__.co_varnames[0]

    def at(self, setting=PLAIN):
        """Return the lesson with arrays for a setting, the same ones every time."""
        rng = np.random.default_rng([setting.seed, *self.name.encode()])
        sizes = setting.sizes.by_letter
        inputs = {
            name: setting.offset + setting.spread * rng.standard_normal(shape_of(letters, sizes))
            for name, letters in self.shapes.items()
        }
        if self.is_composite:
            for name, shape in parameter_shapes(setting.model).items():
                if name.startswith(self.params):
                    array = setting.spread * rng.standard_normal(shape) / len(shape)
                    inputs[name.removeprefix(self.params)] = array
        missing = [name for name in inputs if name in self.switches and not setting.has(name)]
        constants = self.others(setting, rng) | dict.fromkeys(missing)
        setting.with_zeros([*inputs.values()])
        inputs = {name: value for name, value in inputs.items() if name not in missing}
        found = dataclasses.replace(self, constants=constants, inputs=inputs)
        return found.mapped(setting.arranged)

    def run_forward(self, inputs, forward=None):
        """Call the forward, or a function with the same arguments. Return (y, cache)."""
        arguments = {name: value for name, value in inputs.items() if name in self.shapes}
        if self.is_composite:
            leaves = {name: value for name, value in inputs.items() if name not in self.shapes}
            arguments["p"] = nest(leaves)
        return (forward or self.forward)(**arguments, **self.constants)

    def run_backward(self, dy, cache, backward=None):
        """Call the backward, or a function with the same arguments. Return {"dx": …}, a gradient
        for each input.
        """
        return self.named(self.apply(backward or self.backward, self.arguments(dy, cache)))

    def arguments(self, dy, cache):
        """Return the arguments of the backward."""
        return [*as_tuple(dy), cache, *([self.constants["ops"]] if self.is_composite else [])]

    def apply(self, backward, arguments):
        """Call a function as the backward; return its result."""
        return backward(*arguments)

    def named(self, result):
        """Name the results of a backward: arrays, and the leaves of a tree."""
        result = as_tuple(result)
        named = {f"d{name}": gradient for name, gradient in zip(self.results, result, strict=False)}
        if result and isinstance(result[-1], dict):
            named |= flatten(result[-1], "d")
        return named

    def mapped(self, function):
        """Return the lesson with function(array) for each array."""
        return dataclasses.replace(
            self,
            inputs=map_arrays(function, self.inputs),
            constants=map_arrays(function, self.constants),
        )


def as_tuple(value):
    """Return a tuple as it is, and any other value in one."""
    return value if isinstance(value, tuple) else (value,)


def map_arrays(function, value):
    """Apply `function` to each array in nested dicts, lists and (named) tuples."""
    if isinstance(value, np.ndarray):
        return function(value)
    if isinstance(value, dict):
        return {name: map_arrays(function, each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        mapped = [map_arrays(function, each) for each in value]
        return type(value)(*mapped) if hasattr(value, "_fields") else type(value)(mapped)
    return value
