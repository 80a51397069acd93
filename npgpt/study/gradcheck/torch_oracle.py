"""A second opinion: torch's gradients of a lesson's inputs, by the same function in torch (extra `test`)."""

import numpy as np
import torch

from npgpt.study.gradcheck.digits import is_exact, rounded
from npgpt.study.lessons.lesson import map_arrays


def gradients(lesson, dy):
    """Return {input: torch's gradient, float64} of sum(dy * y)."""
    inputs = {name: tensor(array).requires_grad_() for name, array in lesson.inputs.items()}
    y = lesson.torch(torch, **inputs, **map_arrays(tensor, lesson.constants))
    results, given = (each if isinstance(each, tuple) else (each,) for each in (y, dy))
    torch.autograd.backward(results, [tensor(each) for each in given])
    return {name: np.zeros(each.shape) if each.grad is None else each.grad.numpy() for name, each in inputs.items()}


def tensor(array):
    return torch.tensor(rounded(array) if is_exact(array) else array)
