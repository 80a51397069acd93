"""What the `Trainer` needs of an optimizer, and how one continues from a checkpoint."""

from typing import Protocol

import numpy as np

from npgpt.checkpoints.run import Checkpoint, moments_of, read_tensors
from npgpt.checks import check_whole, shown
from npgpt.errors import UserError


class Optimizer(Protocol):
    """What `Trainer(optimizer=)` needs.

    Attributes
    ----------
    lr : float
        Without a schedule, each step is given this one.
    moments : dict, optional
        All that it remembers, {kind: mapping name -> float array}, such as {"m":
        params.zeros_like()}, or {} for nothing. Checkpoints keep it. Make it a property if a step
        replaces the mappings. Without it the optimizer trains, but its runs cannot be resumed.
    t : int, optional
        The steps taken, if it counts them; checkpoints keep it.
    """

    lr: float

    def step(self, grads: dict[str, np.ndarray], max_norm: float | None, lr: float, /) -> float:
        """Change the parameters, and return the norm of the gradients before clipping.

        Parameters
        ----------
        grads : dict, name -> array, as `GPT.loss_and_grads` returns them
        max_norm : float, `grad_clip` of the options, or None
        lr : float, the learning rate of this step
        """


def restore_optimizer(optimizer, params, checkpoint: Checkpoint) -> None:
    """Continue from the parameters, the moments and the step of a checkpoint.

    Raises UserError if it is of another optimizer, or a file does not fit.
    """
    state = checkpoint.state
    folder = checkpoint.folder
    name = type(optimizer).__name__
    trained_by = state.get("optimizer", "AdamW")
    if trained_by != name or not hasattr(optimizer, "moments"):
        raise UserError(
            f"{folder} was trained by the optimizer {shown(trained_by)}, which {name} cannot "
            "continue: give Trainer(optimizer=…) that one, which needs an attribute `moments`, or "
            "begin a new run with the model of npgpt.load"
        )
    check_whole(f"t in {folder / 'state.json'}", t := state.get("t", state["step"]))
    read_tensors(folder / "model.safetensors", params)
    read_tensors(folder / "optimizer.safetensors", moments_of(optimizer))
    if hasattr(optimizer, "t"):
        optimizer.t = t
