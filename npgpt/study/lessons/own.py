"""A user's forward and backward as a lesson: two functions, or the methods of a class, that know
nothing of npgpt.

The forward's arguments are the inputs. Those of the backward are the upstream gradients, one for
each result; what the forward takes or assigns under the same name; and the cache. An object is its
own cache: each forward gets a fresh copy. A gradient is found in what the backward returns, in
attributes, in a dict or list of gradients, or in a local variable.
"""

import copy
import dataclasses
import functools
import inspect
from pathlib import Path

import numpy as np

from npgpt.arrays import broadcasts
from npgpt.errors import UserError
from npgpt.model.tree import nest
from npgpt.study.gradcheck.check import check_lesson
from npgpt.study.gradcheck.spelling import variable_of
from npgpt.study.gradcheck.verdicts import OK, ROUNDED
from npgpt.study.lessons.inputs import drawn, sizes_of
from npgpt.study.lessons.lesson import map_arrays
from npgpt.study.lessons.own_call import (
    Call,
    Locals,
    Rest,
    is_number,
    kind_of,
    labels_of,
    leaves_of,
)
from npgpt.study.lessons.own_state import World, float_arrays, follow, parts_of, with_arrays
from npgpt.study.lessons.setting import PLAIN

# What is called dinputs may be the gradient of the only input.
GENERIC = "inputs input x X".split()


@dataclasses.dataclass(frozen=True, eq=False)
class Pair(Call):
    """A user's pair. shapes: of the inputs, by the names of `flatten`; values: the other arguments;
    file: or None.

    what: how commands call it, with its constructor's arguments; layer: the object, or None;
    weights: its `Weight`s; given: the texts of --input; convert: what happens to its other arrays;
    buffers: the names of the others; fixed: inputs that are not drawn.
    """

    values: dict = dataclasses.field(default_factory=dict)
    file: Path | None = None
    what: str = ""
    given: tuple[str, ...] = ()
    world: World = dataclasses.field(default_factory=World)
    layer: object = None
    weights: tuple = ()
    buffers: tuple = ()
    fixed: dict = dataclasses.field(default_factory=dict)
    convert: object = staticmethod(lambda array: array.astype(np.float64))

    is_own = is_pair = True
    name = property(lambda self: self.what.partition("(")[0])
    is_one_function = property(lambda self: self.forward is self.backward)
    key = property(lambda self: " --input ".join([f"{self.file}:{self.what}", *self.given]))
    derivation = property(lambda self: self.file.with_suffix(".md"))
    results = property(lambda self: tuple(self.inputs))

    def at(self, setting=PLAIN):
        rng = np.random.default_rng([setting.seed, *self.name.encode()])
        sizes = sizes_of(self.shapes.values(), setting.seed)
        inputs, constants = {}, {}
        for name, spec in self.shapes.items():
            array = self.fixed.get(name)
            if array is None:
                array = drawn(spec, sizes, rng, setting.spread)
            is_constant = array.dtype.kind != "f" or spec.endswith(("constant", "onehot"))
            (constants if is_constant else inputs)[name] = array
        arrays = float_arrays(self.layer)
        for each in self.weights:
            array = arrays[each.identity]
            inputs[each.name] = rng.standard_normal(array.shape) / max(array.ndim, 1)
        return dataclasses.replace(self, inputs=inputs, constants=constants)

    def mapped(self, function):
        return dataclasses.replace(
            super().mapped(function), convert=lambda array: function(array.astype(np.float64))
        )

    @functools.cached_property
    def proved(self):
        """The lines of the backward whose gradients are right."""
        return {each.backward_line for each in check_lesson(self) if each.verdict in (OK, ROUNDED)}

    def run_forward(self, inputs, forward=None):
        self.world.reset(self.forward, self.backward)
        arguments = self.arguments_of(inputs)
        before = ()
        if self.layer is not None:
            arrays = {key: self.convert(each) for key, each in float_arrays(self.layer).items()}
            arrays |= {each.identity: np.copy(inputs[each.name]) for each in self.weights}
            before = (with_arrays(self.layer, arrays),)
        called = Locals(forward or self.forward)
        # local variables cost time
        run = called if self.caches or before and not self.weights else called.function
        result = run(*before, **map_arrays(np.copy, arguments))
        if not self.is_one_function:
            return self.split(result, before, arguments, called.found)
        if not isinstance(result, tuple) or len(result) < 2:
            raise UserError(
                f"{self.forward.__name__} returned {kind_of(result)}, not the loss and its "
                "gradients"
            )
        return loss_first(result)[0], Rest()

    def arguments_of(self, inputs):
        """Return the forward's arguments by name; its inputs may be parts of dicts."""
        arrays = inputs | self.constants
        found = nest({name: arrays[name] for name in self.shapes})
        found = {name: as_sequence(each) for name, each in found.items()}
        taken = inspect.signature(self.forward).parameters
        values = {name: value for name, value in self.values.items() if name in taken}
        return found | copy.deepcopy(values)

    def apply(self, backward, arguments):
        """Call a backward as its users do; return all gradients by name."""
        if self.is_one_function:
            result = backward(**map_arrays(np.copy, self.arguments_of(self.inputs)))
            _, *gradients = loss_first(result)
            return self.collected(gradients[0] if len(gradients) == 1 else gradients, {})
        called = Locals(backward)
        layer = arguments[: self.layer is not None]
        start = [np.copy(follow(*layer, each.path)) for each in self.weights]
        return self.collected(called(*arguments), called.found, layer, start)

    def collected(self, result, local, before=(), start=()):
        """Return {"dx": gradient, …} of an input or weight each, found in the result or where the
        layer keeps it.
        """
        found = self.returned(result)
        for each, old in zip(self.weights, start, strict=True):
            value = each.found(*before, old, local)
            found[f"d{each.name}"] = found.get(f"d{each.name}") if value is None else value
        for kept in map(parts_of, before):
            left = [name for name in self.inputs if found.get(f"d{name}") is None]
            for key in kept.keys() - self.inputs.keys() if left else ():
                name = variable_of(key, left)
                if not name and len(left) == 1 and variable_of(key, GENERIC):
                    name = left[0]
                if name and is_number(kept[key]):
                    found[f"d{name}"] = kept[key]
        found = {
            f"d{name}": as_broadcast(found[f"d{name}"], np.shape(value))
            for name, value in self.inputs.items()
            if found.get(f"d{name}") is not None
        }
        if self.inputs and not found:
            raise UserError(
                f"{self.backward.__name__} returned {kind_of(result)}, not a gradient for each of "
                f'{", ".join(self.inputs)}; what needs none is "constant", see npgpt gradcheck '
                "--help"
            )
        return found

    def named(self, result):
        is_named = isinstance(result, dict) and {*result} <= {f"d{name}" for name in self.inputs}
        return result if is_named else self.collected(result, {})

    def kept_at(self, name):
        """Return the path in the object to the gradient of a weight; None if it is not kept in the
        object.
        """
        for each in self.weights:
            if each.name == name and isinstance(each.gradient, float):
                return each.path  # changed by a step of that size
            if each.name == name and isinstance(each.gradient, tuple):
                return each.gradient
        return None

    def returned(self, result):
        """Return {"dx": gradient, …} of what a backward returned."""
        found, unnamed = {}, {}  # path -> value
        for path, value in leaves_of(result):
            keys = [key for key in path if isinstance(key, str)]
            variable = keys and self.variable(keys[-1])
            if variable:
                found[f"d{variable}"] = value
            elif not keys:
                unnamed[path] = value
        arguments = [name for name in self.order if f"d{name}" not in found]
        inputs = [name for name in arguments if name in self.inputs]
        for names in (inputs, arguments) if not self.is_one_function else ():
            if len(unnamed) == len(names):
                gradients = map("d{}".format, names)
                return found | dict(zip(gradients, unnamed.values(), strict=True))
        labels = labels_of(self.backward)
        if self.is_one_function:  # after the loss
            labels = {(path[0] - 1, *path[1:]): name for path, name in labels.items() if path}
        rest = []
        for path, value in unnamed.items():
            variable = variable_of(labels.get(path, ""), self.inputs)
            if variable and f"d{variable}" not in found:
                found[f"d{variable}"] = value
            else:
                rest.append(value)
        left = [name for name in inputs if f"d{name}" not in found]
        left.sort(key=lambda name: "." in name)
        if len(rest) == len(unnamed) and len(rest) in (1, len(left)):
            found |= {f"d{name}": value for name, value in zip(left, rest, strict=False)}
        return found

    @property
    def order(self):
        """The names of the inputs, and of the forward's other arguments, in the order in which the
        forward takes them.
        """
        found = []
        for name in [*inspect.signature(self.forward).parameters][self.layer is not None :]:
            found += [each for each in self.shapes if each.split(".")[0] == name] or [name]
        return found

    def variable(self, key):
        """Return the input that a key of a dict of gradients stands for, or None."""
        last = {name.rpartition(".")[2]: name for name in self.inputs}
        return last.get(key) or variable_of(key, self.inputs)


def loss_first(result):
    """Return the results of a loss with its gradients; some return `grads, cost`."""
    return result[::-1] if isinstance(result[0], dict) and len(result) == 2 else result


def as_broadcast(gradient, shape):
    """Return a gradient in the shape of its array, if `array -= lr * gradient` does so: (5,) for
    (1, 5).
    """
    given = np.shape(gradient)
    is_alike = np.size(gradient) == np.prod(shape, dtype=int) and broadcasts(given, shape)
    return np.reshape(gradient, shape) if given != shape and is_alike else gradient


def as_sequence(value):
    """Return a dict with the keys 0, 1, … as a list; anything else as it is."""
    if isinstance(value, dict) and [*value] == [*range(len(value))]:
        return [*value.values()]
    return value
