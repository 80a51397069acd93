"""AdamW: steps scaled by each gradient's running size; weight decay apart from the gradient."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from npgpt.arrays import is_on_host
from npgpt.checks import check_choice, check_real, require, shown
from npgpt.engine.reference import ReferenceEngine
from npgpt.engine.update import update_slices
from npgpt.errors import NotFiniteError
from npgpt.model.parameters import Parameters, matching
from npgpt.training.optimizer import restore_optimizer

DECAYS = ("matrices", "all")


def adamw_update(p, g, m, v, lr, step_size, eps, beta1, beta2, weight_decay, clip=1.0):
    """Apply one step to arrays of equal shape, in place.

        p = (1 - lr weight_decay) p - lr m_hat / (sqrt(v_hat) + eps)

    Parameters
    ----------
    p : array, the parameters
    g : array, their gradient before clipping
    m, v : arrays, the moments: running means of the clipped gradient and of its square
    lr : float, the learning rate
    step_size, eps : floats, from `corrections`
    beta1, beta2 : floats, the decay rates of m and v
    weight_decay : float
    clip : float, the factor of g

    Returns
    -------
    p, m, v
        New arrays for XLA, whose arrays cannot be written to.

    Notes
    -----
    m_hat = m / (1 - beta1^t) and v_hat = v / (1 - beta2^t) are the moments without their start at
    zero, in step t. `corrections` has moved the two factors into step_size and eps.
    """
    m *= beta1  # m = beta1 m + (1 - beta1) clip g
    m += ((1.0 - beta1) * clip) * g
    v *= beta2  # v = beta2 v + (1 - beta2) (clip g)^2
    v += ((1.0 - beta2) * clip * clip) * (g * g)
    p *= 1.0 - lr * weight_decay
    p -= step_size * m / (np.sqrt(v) + eps)
    return p, m, v


def corrections(lr, eps, beta1, beta2, t):
    """Return step_size and eps for step t of `adamw_update`.

    The factors of m_hat and v_hat can be moved out of the arrays (Kingma & Ba 2014,
    arXiv:1412.6980, end of section 2), with c = sqrt(1 - beta2^t):

        lr m_hat / (sqrt(v_hat) + eps) = lr c / (1 - beta1^t) m / (sqrt(v) + eps c)
    """
    c = math.sqrt(1.0 - beta2**t)
    return lr * c / (1.0 - beta1**t), eps * c


class AdamWStep(NamedTuple):
    """One step, which an engine applies to all parameters in parts.

    lr to weight_decay: as in `adamw_update`. decaying: the names of the parameters that decay.
    factors: pairs (name, factor of its learning rate), for others it is 1. rule: `adamw_update`, or
    what an engine has compiled from it.
    """

    lr: float
    step_size: float
    eps: float
    beta1: float
    beta2: float
    weight_decay: float
    decaying: frozenset
    max_norm: float | None
    factors: tuple = ()
    rule: Callable = adamw_update

    def clip(self, norm):
        """Return the factor of the gradients, min(1, max_norm / norm), but for 1e-6.

        Raises NotFiniteError if the norm is not finite, unless it is on a GPU.
        """
        if is_on_host(norm) and not math.isfinite(norm):
            raise NotFiniteError(
                f"the gradient norm is {norm}: lower the learning rate, or clip at a smaller norm"
            )
        if self.max_norm is None:
            return 1.0
        factor = self.max_norm / (norm + 1e-6)
        return min(1.0, factor) if is_on_host(factor) else np.minimum(1.0, factor)

    def factor_and_decay(self, name):
        """Return the factor of a parameter's learning rate, and its weight decay."""
        return dict(self.factors).get(name, 1.0), self.weight_decay * (name in self.decaying)

    def update(self, name, p, g, m, v, clip):
        """Apply `rule` to a part of the parameter `name`, and return p, m, v. clip: from `clip`."""
        factor, decay = self.factor_and_decay(name)
        return self.rule(
            p,
            g,
            m,
            v,
            factor * self.lr,
            factor * self.step_size,
            self.eps,
            self.beta1,
            self.beta2,
            decay,
            clip,
        )


def factors_of(names, groups):
    """Return the `factors` of an `AdamWStep`. Raises UserError if a pattern matches no name."""
    factors = {}
    for pattern, factor in groups.items():
        check_real(f"the factor of {shown(pattern)}", factor)
        found = matching(names, pattern)
        require("each pattern in groups", pattern, found, "of parameters that are trained")
        factors |= dict.fromkeys(found, float(factor))
    return tuple(factors.items())


class AdamW:
    """AdamW; `adamw_update` is its rule.

    lr, betas, eps and weight_decay may be set between steps; `moments` and t are what a checkpoint
    keeps.

    Parameters
    ----------
    params : Parameters
        A model's `params`.
    lr : float
        The learning rate; assign to it, or pass a new one to `step`.
    betas : two floats
        Decay rates of the two moments.
    eps : float
        Added to the root of the second moment.
    weight_decay : float
        Every step multiplies the decaying parameters by 1 - lr * weight_decay.
    engine : ReferenceEngine, or None
        `model.engine`, which then takes the steps with its threads and compiled loops; the bits do
        not depend on its threads. None: NumPy, or CuPy on a GPU, takes them in one thread.
    decay : "matrices" or "all"
        "matrices": with the embeddings, without biases, LayerNorm gains and other vectors.
    groups : dict, or None
        Name pattern -> factor of the learning rate, as in {"h.*": 0.5, "h.0": 0.1}, for layer-wise
        rates. Patterns are those of `freeze`; if several match, the last one counts. The weight
        decay scales with the rate, as in torch's parameter groups. Factor 0 trains nothing.

    Raises
    ------
    UserError
        A value is out of range, or a pattern matches no trained parameter.

    References
    ----------
    Loshchilov & Hutter 2017, arXiv:1711.05101. betas, weight_decay and decay are by default
    nanoGPT's; torch's are (0.9, 0.999), 0.01 and "all".
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        engine: ReferenceEngine | None = None,
        decay: str = "matrices",
        groups: Mapping[str, float] | None = None,
    ):
        check_choice("decay", decay, DECAYS)
        check_real("lr", lr)
        for beta in betas:
            check_real("each of betas", beta, below=1.0)
        check_real("eps", eps, above=0.0)
        check_real("weight_decay", weight_decay)
        require(
            "engine",
            engine,
            engine is None or engine.params is params,
            "the engine of the model whose params these are",
        )
        self.params = params
        self.engine = engine
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.t = 0  # steps taken
        self.decaying = frozenset(
            name for name, shape in params.trained.items() if decay == "all" or len(shape) > 1
        )
        self.factors = factors_of(params.trained, groups or {})
        # Running means of the gradient and of its square.
        self.m = params.zeros_like()
        self.v = params.zeros_like()

    def __repr__(self):
        return (
            f"AdamW(lr={self.lr:g}, betas={self.betas}, weight_decay={self.weight_decay:g}, step "
            f"{self.t:,})"
        )

    def step(
        self,
        grads: Mapping[str, np.ndarray],
        max_norm: float | None = None,
        lr: float | None = None,
    ) -> float:
        """Clip, take a step, and return the gradient norm before clipping.

        Parameters
        ----------
        grads : dict
            With the names, shapes and dtype of `params`, as `backward` and `loss_and_grads` return.
            It is not changed.
        max_norm : float, or None
            Gradients of a larger global norm are scaled down to it.
        lr : float, or None
            The learning rate from now on.

        Returns
        -------
        float
            On a GPU nothing waits: the norm is a 0-d array there. If it is not finite, no error is
            raised, and the parameters become NaN.

        Raises
        ------
        NotFiniteError
            The norm is not finite. Neither parameters nor moments have changed.
        UserError
            The gradients are of another model, or a value is out of range. Nothing has changed.
        """
        lr = self.lr if lr is None else lr
        self.params.check_gradients("grads", grads)
        check_real("lr", lr)
        check_real("max_norm", max_norm, above=0.0, or_none=True)
        t = self.t + 1
        step_size, eps = corrections(lr, self.eps, *self.betas, t)
        step = AdamWStep(
            lr,
            step_size,
            eps,
            *self.betas,
            self.weight_decay,
            self.decaying,
            max_norm,
            self.factors,
        )
        moments = self.m, self.v
        if self.engine is None:
            norm = update_slices(self.params, grads, moments, step)
        else:
            norm = self.engine.adamw_step(grads, moments, step)
        self.lr = lr
        self.t = t
        return norm

    @property
    def moments(self) -> dict[str, Parameters]:
        """What a checkpoint keeps, by the prefix of its names there."""
        return {"m": self.m, "v": self.v}

    def restore(self, checkpoint) -> None:
        """Continue from the parameters, the moments and the step of a `Checkpoint`.

        Raises UserError if a file does not fit, or is of another optimizer.
        """
        restore_optimizer(self, self.params, checkpoint)
