"""A second opinion: torch's autograd over the very lines of our forwards.

The forwards are run on torch tensors: the few NumPy functions that their lines call are answered by torch's, and torch
records the operations. Only the gradient check asks for it, and only this file needs torch (extra `test`).
"""

import contextlib
import sys
from unittest import mock

import numpy as np
import torch

import npgpt.layers.attention_tiles
import npgpt.layers.gelu
from npgpt.model.parameters import Block
from npgpt.study.probe import with_probes


class Array(torch.Tensor):
    """A tensor whose methods take NumPy's arguments."""

    def max(self, axis, keepdims):
        return self.amax(dim=axis, keepdim=keepdims)

    def transpose(self, *axes):
        return self.permute(axes)

    def astype(self, dtype):
        return self.to(dtype)


class TorchNumPy:
    """What stands for `np` in the layers: torch where the arguments are tensors, NumPy for the rest."""

    NAMES = {"take_along_axis": "take_along_dim", "maximum": "clamp"}      # of an array and a number

    finfo = torch.finfo

    def __getattr__(self, name):
        ours = getattr(np, name)
        if not callable(ours) or isinstance(ours, type):
            return ours

        def call(*arguments, **named):
            if not any(isinstance(argument, torch.Tensor) for argument in arguments):
                return ours(*arguments, **named)
            if "axis" in named:
                named["dim"] = named.pop("axis")
            return getattr(torch, self.NAMES.get(name, name))(*arguments, **named)

        return call


class TorchParameters(dict):
    """Parameters as the model's forwards read them."""

    def __init__(self, config, arrays):
        super().__init__(arrays)
        self.config = config
        if config.tie_word_embeddings and "wte.weight" in arrays:
            self["lm_head.weight"] = self["wte.weight"]

    def block(self, i):
        return Block(self, f"h.{i}.")


def gradients(lesson, dy):
    """What autograd says, {name of an input, or (name of an intermediate, its occurrence): gradient as an array}."""
    inputs = {name: as_tensor(array).requires_grad_() for name, array in lesson.inputs.items()}
    constants = {name: as_tensor(value) if isinstance(value, np.ndarray) else value
                 for name, value in lesson.constants.items()}
    made, counts = {}, {}

    def probe(line, name, value):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            occurrence = counts[name] = counts.get(name, -1) + 1
            if value.requires_grad:
                value.retain_grad()
                made[name, occurrence] = value
        return value

    with layers_on_torch():
        forward = with_probes(lesson.forward, probe)
        if "config" not in constants:
            y, _ = forward(**inputs, **constants)
        elif "idx" in constants:
            y, _ = forward(constants["idx"], TorchParameters(constants["config"], inputs))
        else:
            params = TorchParameters(constants["config"], {name: inputs[name] for name in inputs if name != "x"})
            y, _ = forward(inputs["x"], params.block(0), params.config, 0)
    y.backward(as_tensor(np.asarray(dy)))
    held = {key: tensor for key, tensor in (inputs | made).items() if tensor.is_leaf or tensor.retains_grad}
    return {key: tensor.grad.numpy() for key, tensor in held.items() if tensor.grad is not None}


def as_tensor(array):
    return torch.tensor(array).as_subclass(Array)


@contextlib.contextmanager
def layers_on_torch():
    """Within it, the layers' modules take tensors."""
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("npgpt.layers.") or name == "npgpt.engine.sums":
                if hasattr(module, "np"):
                    stack.enter_context(mock.patch.object(module, "np", TorchNumPy()))
        stack.enter_context(mock.patch.object(npgpt.layers.attention_tiles, "causal_mask", causal_mask))
        stack.enter_context(mock.patch.object(npgpt.layers.gelu, "import_erf", lambda: torch.special.erf))
        yield


def causal_mask(size, like):
    return torch.full((size, size), -torch.inf, dtype=like.dtype).triu(1).as_subclass(Array)
