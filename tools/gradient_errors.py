"""Print how far every gradient is from torch's: the cases and model variants of the tests, in float64.

    python tools/gradient_errors.py

For each array the largest absolute difference divided by the largest value of torch's array.
"""

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.cases import layer_cases
from tests.model.test_gpt import VARIANTS, batch, model_of
from tests.torch_gpt import torch_gpt, torch_loss, torch_parameters


def relative_error(ours, theirs):
    """The largest difference over the largest value."""
    theirs = theirs.detach().numpy()
    return abs(ours - theirs).max() / abs(theirs).max()


def layer_errors(case):
    """{"y": …, "dx": …} of one layer case."""
    y, _ = case.run(case.inputs)
    dy = np.asarray(np.random.default_rng(7).standard_normal(np.shape(y)))
    _, grads = case.run(case.inputs, dy)
    tensors = {name: torch.from_numpy(array).requires_grad_() for name, array in case.inputs.items()}
    reference = case.reference(torch, **tensors)
    reference.backward(torch.from_numpy(dy))
    return {"y": relative_error(y, reference),
            **{f"d{name}": relative_error(grads[f"d{name}"], tensor.grad) for name, tensor in tensors.items()}}


def model_errors(variant):
    """{"logits": …, "dwte.weight": …} of one variant of the whole model."""
    model = model_of(variant)
    idx, targets = batch(model.config)
    logits, _ = model.forward(idx, targets, rng=np.random.default_rng(5))
    grads = model.backward()
    tensors = torch_parameters(model.params)
    reference = torch_gpt(tensors, model.config, idx, rng=np.random.default_rng(5))
    torch_loss(reference, targets).backward()
    return {"logits": relative_error(logits, reference),
            **{f"d{name}": relative_error(grads[name], tensor.grad) for name, tensor in tensors.items()}}


def main():
    largest = 0.0
    for case in layer_cases():
        errors = layer_errors(case)
        largest = max(largest, *errors.values())
        print(f"{case.name:<40}", "  ".join(f"{name} {error:.1e}" for name, error in errors.items()))
    for name, variant in VARIANTS.items():
        errors = model_errors(variant)
        largest = max(largest, *errors.values())
        worst = max(errors, key=errors.get)
        print(f"{'model: ' + name:<40} logits {errors['logits']:.1e}  worst of {len(errors) - 1} parameters: "
              f"{worst} {errors[worst]:.1e}")
    print(f"largest of all: {largest:.1e}")


if __name__ == "__main__":
    main()
