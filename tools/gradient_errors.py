"""Print the error of every gradient against torch, for the cases and variants of the tests, in float64.

    python tools/gradient_errors.py

The error of an array is the largest absolute difference divided by the largest absolute value of torch's.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent.parent))

from npgpt import GPT
from tests.cases import engine_cases, layer_cases
from tests.checkpoints.test_transformers import IDX, TARGETS, logits_of, theirs_of
from tests.checkpoints.test_transformers import VARIANTS as GPT2_VARIANTS
from tests.test_api import VARIANTS, batch, model_of
from tests.torch_gpt import ours_and_torchs, torch_loss


def relative_error(ours, theirs):
    """Return the largest difference over the largest value."""
    theirs = theirs.detach().numpy()
    return abs(ours - theirs).max() / abs(theirs).max()


def layer_errors(case):
    """Return {"y": …, "dx": …} of one layer case."""
    dy = np.random.default_rng(7).standard_normal(np.shape(case.run(case.inputs)[0]))
    y, grads = case.run(case.inputs, np.asarray(dy))
    tensors = {name: torch.from_numpy(array).requires_grad_() for name, array in case.inputs.items()}
    reference = case.reference(torch, **tensors)
    reference.backward(torch.as_tensor(dy))
    return {"y": relative_error(y, reference),
            **{f"d{name}": relative_error(grads[f"d{name}"], tensor.grad) for name, tensor in tensors.items()}}


def model_errors(variant):
    """{"logits": …, "dwte.weight": …} of one variant of the whole model."""
    model = model_of(variant)
    idx, targets = batch(model.config)
    (logits, _, grads), (reference, _, tensors) = ours_and_torchs(model, idx, targets)
    return {"logits": relative_error(logits, reference),
            **{f"d{name}": relative_error(grads[name], tensor.grad) for name, tensor in tensors.items()}}


def transformers_errors(variant):
    """{"logits": …, "dwte.weight": …, "logits of the export": …} of a GPT-2 that transformers saved, and back again."""
    with tempfile.TemporaryDirectory() as folder:
        theirs = theirs_of(variant)
        theirs.save_pretrained(f"{folder}/theirs")
        model = GPT.from_pretrained(f"{folder}/theirs", dtype="float64")
        model.save_pretrained(f"{folder}/ours")
        export = transformers.GPT2LMHeadModel.from_pretrained(f"{folder}/ours", attn_implementation="eager",
                                                              dtype=torch.float64)
    logits, _ = model.forward(IDX, TARGETS)
    grads = model.backward()
    reference = logits_of(theirs)
    torch_loss(reference, TARGETS).backward()
    return {"logits": relative_error(logits, reference),
            "logits of the export": relative_error(logits, logits_of(export)),
            **{f"d{name}": relative_error(grads[name.removeprefix("transformer.")], parameter.grad)
               for name, parameter in theirs.named_parameters()}}


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    largest = 0.0
    for case in layer_cases() + engine_cases():
        errors = layer_errors(case)
        largest = max(largest, *errors.values())
        print(f"{case.name:<60}", "  ".join(f"{name} {error:.1e}" for name, error in errors.items()))
    for what, variants, compare in (("model", VARIANTS, model_errors),
                                    ("transformers", GPT2_VARIANTS, transformers_errors)):
        for name, variant in variants.items():
            errors = compare(variant)
            largest = max(largest, *errors.values())
            logits = "  ".join(f"{name} {error:.1e}" for name, error in errors.items() if name.startswith("logits"))
            worst = max((name for name in errors if name.startswith("d")), key=errors.get)
            print(f"{what + ': ' + name:<60} {logits}  worst parameter: {worst} {errors[worst]:.1e}")
    print(f"largest of all: {largest:.1e}")


if __name__ == "__main__":
    main()
