"""What the `Trainer` needs of an optimizer of one's own, and how one continues from a checkpoint."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from npgpt.checkpoints.run import Checkpoint, read_tensors
from npgpt.checks import check_whole, shown
from npgpt.errors import UserError


class Optimizer(Protocol):
    """What `Trainer(optimizer=)` needs.

    Also, as attributes:
    lr: its learning rate; without a schedule each step is given this one.
    moments: all that it remembers, {kind: mapping name -> float array}, such as
        {"m": params.zeros_like()}, or {} for nothing. Checkpoints keep it. An optimizer without
        this attribute trains, but its runs cannot be resumed.
    t: the steps taken, if it counts them; checkpoints keep it.
    """

    def step(self, grads: dict[str, np.ndarray], max_norm: float | None, lr: float, /) -> float:
        """Change the parameters, and return the norm of the gradients before clipping.

        grads: name -> array, as `GPT.loss_and_grads` returns them
        max_norm: `grad_clip` of the options, or None
        lr: the learning rate of this step
        """


def restore_optimizer(optimizer, params, checkpoint: Checkpoint) -> None:
    """Continue from the parameters, the moments and the step of a checkpoint.

    Raises UserError if it is of another optimizer, or a file does not fit.
    """
    state, folder, name = checkpoint.state, checkpoint.folder, type(optimizer).__name__
    trained_by = state.get("optimizer", "AdamW")
    if trained_by != name:
        raise UserError(
            f"{folder} was trained by the optimizer {shown(trained_by)}, not by {name}: "
            "give that one as Trainer(optimizer=), or begin a new run with the model of npgpt.load"
        )
    moments: Mapping | None = getattr(optimizer, "moments", None)
    if moments is None:
        raise UserError(
            f"{name} has no attribute `moments`, so {folder} does not have what it remembers: "
            "begin a new run with the model of npgpt.load"
        )
    check_whole(f"t in {folder / 'state.json'}", t := state.get("t", state["step"]))
    read_tensors(folder / "model.safetensors", {"": params})
    kinds = {f"{kind}.": arrays for kind, arrays in moments.items()}
    read_tensors(folder / "optimizer.safetensors", kinds)
    if hasattr(optimizer, "t"):
        optimizer.t = t
