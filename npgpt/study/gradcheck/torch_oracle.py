"""A second opinion: torch's autograd over the very lines of our forwards.

The forwards run on torch tensors. NumPy dispatches `np.exp`, `np.where` and the like to the tensors' class, which calls
torch's functions, and torch records them. Only this file needs torch (extra `test`).
"""

import dataclasses

import numpy as np
import torch

from npgpt.study.gradcheck.probe import with_probes
from npgpt.study.lessons.lesson import map_arrays


class Array(torch.Tensor):
    """A float64 or integer tensor that behaves like a NumPy array in our forwards."""

    dtype = np.dtype(np.float64)        # for dtype=x.dtype

    def __array_ufunc__(self, ufunc, method, *arguments):
        return getattr(torch, ufunc.__name__)(*arguments)       # exp, log, sqrt, tanh, and SciPy's erf

    def __array_function__(self, function, types, arguments, named):
        ours = {np.where: torch.where, np.take_along_axis: lambda x, at, axis: torch.take_along_dim(x, at, axis),
                np.triu: lambda x, k: torch.triu(x, k),
                np.full: lambda shape, value, **_: as_tensor(np.full(shape, value)),
                np.full_like: lambda x, value, shape: as_tensor(np.full(shape, value))}
        return ours[function](*arguments, **named)

    def max(self, axis, keepdims):
        return self.amax(axis, keepdims)

    def sum(self, axis=None, keepdims=False, dtype=None):
        return torch.sum(self, axis, keepdims, dtype=torch.float64)

    def transpose(self, *axes):
        return self.permute(axes)


def gradients(lesson, dy):
    """Return autograd's gradients, {input name, or (intermediate name, its occurrence): array}."""
    inputs = {name: as_tensor(array).requires_grad_() for name, array in lesson.inputs.items()}
    made, counts = {}, {}

    def probe(name, value):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            counts[name] = counts.get(name, -1) + 1
            value = value.view_as(value)        # two names of one array get separate gradients
            if value.requires_grad:
                value.retain_grad()
                made[name, counts[name]] = value
        return value

    on_torch = dataclasses.replace(lesson, constants=map_arrays(as_tensor, lesson.constants))
    y, _ = on_torch.run_forward(inputs, with_probes(lesson.forward, probe))
    y.as_subclass(torch.Tensor).backward(torch.tensor(dy))
    return {key: np.zeros(tensor.shape) if tensor.grad is None else tensor.grad.numpy()
            for key, tensor in (inputs | made).items()}


def as_tensor(array):
    return torch.tensor(array).as_subclass(Array)
