"""AdamW: steps scaled by the running size of each gradient, with weight decay apart from the gradient."""

from collections.abc import Mapping

import numpy as np

from npgpt.checkpoints.run import read_tensors
from npgpt.checks import check_choice, check_real, require
from npgpt.engine.cpu import CPUEngine, cpu_kernels
from npgpt.engine.reference import ReferenceEngine
from npgpt.engine.threads import available_cores
from npgpt.engine.update import AdamWStep
from npgpt.model.parameters import Parameters

DECAYS = ("matrices", "all")


class AdamW:
    """AdamW (Loshchilov & Hutter 2017, arXiv:1711.05101); the update rule is `adamw_update` in npgpt/engine/update.py.

    params: a model's `params`. lr: the step size; assign to it, or pass a new one to `step`. betas: decay rates of the
    two moments. eps: added to the root of the second moment. weight_decay: every step multiplies the decaying
    parameters by 1 - lr * weight_decay. decay: "matrices" (with the embeddings, without biases, LayerNorm gains and
    other vectors) or "all". engine: `model.engine`, which then takes the steps (the bits do not depend on
    its threads); by default the fastest installed kernels on all cores, or CuPy on a GPU.
    Raises UserError for values out of range.

    betas, weight_decay and decay are by default nanoGPT's; torch's are (0.9, 0.999), 0.01 and "all".
    """

    def __init__(self, params: Parameters, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.95),
                 eps: float = 1e-8, weight_decay: float = 0.1, engine: ReferenceEngine | None = None,
                 decay: str = "matrices"):
        check_choice("decay", decay, DECAYS)
        check_real("lr", lr)
        for beta in betas:
            check_real("each of betas", beta, below=1.0)
        check_real("eps", eps, above=0.0)
        check_real("weight_decay", weight_decay)
        if engine is None:
            if params.xp is np:
                engine = CPUEngine(params, available_cores(), cpu_kernels())
            else:
                from npgpt.engine.gpu import GPUEngine
                engine = GPUEngine(params)
        require(
            "engine",
            engine,
            engine.params is params,
            "the engine of the model whose params these are",
        )
        self.params, self.engine = params, engine
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.t = 0                          # steps taken
        self.n_decay = params.n_matrix if decay == "matrices" else params.n_trained    # the first of `flat` decay
        self.m, self.v = engine.moments()   # running means of the gradient and of its square

    def step(self, grads: Mapping[str, np.ndarray], max_norm: float | None = None, lr: float | None = None) -> float:
        """Clip, take a step, and return the gradient norm before clipping.

        grads: a mapping with the names, shapes and dtype of `params`, as `backward` and `loss_and_grads` return; it is
        not changed. max_norm: gradients of a larger global norm are scaled down to it. lr: the step size from now on.
        Raises NotFiniteError if the norm is not finite, and UserError for gradients of another model or values out of
        range; then neither parameters nor moments have changed.

        On a GPU nothing waits: the norm is a 0-d array there. If it is not finite, no error is raised, and the
        parameters become NaN.
        """
        self.params.check_gradients("grads", grads)
        norm = self.engine.adamw_step(grads, (self.m, self.v), self._next(max_norm, lr))
        self.t += 1
        return norm

    def train_step(self, batches: list, rngs: list, count: int, max_norm: float | None = None,
                   lr: float | None = None) -> tuple[float, float]:
        """Compute the loss and the gradients of all micro-batches, take a `step`, and return the loss and the norm.

        batches, rngs, count: as in `ReferenceEngine.step`. Raises as `step` does.
        """
        loss, norm = self.engine.step(
            batches, rngs, count, (self.m, self.v), self._next(max_norm, lr)
        )
        self.t += 1
        return loss, norm

    def restore(self, checkpoint) -> None:
        """Continue from the parameters, the moments and the step of a `Checkpoint`.

        Raises UserError if a file does not fit.
        """
        read_tensors(checkpoint.folder / "model.safetensors", {"": self.params})
        read_tensors(checkpoint.folder / "optimizer.safetensors", {"m.": self.m, "v.": self.v})
        self.t = checkpoint.state["step"]

    def _next(self, max_norm, lr):
        """Return the `AdamWStep` to take now. Raises UserError if lr or max_norm is out of range.
        """
        lr = self.lr if lr is None else lr
        check_real("lr", lr)
        check_real("max_norm", max_norm, above=0.0, or_none=True)
        self.lr = lr
        return AdamWStep(lr, self.betas, self.eps, self.weight_decay, self.n_decay, self.t + 1, max_norm)
