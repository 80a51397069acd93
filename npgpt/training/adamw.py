"""AdamW: steps scaled by the running size of each gradient, and weight decay kept apart from it."""

import math

import numpy as np

from npgpt.arrays import is_on_host, number
from npgpt.checks import MOST_THREADS, check, check_real, check_whole
from npgpt.engine.threads import available_cores, even_parts, in_threads
from npgpt.errors import UserError
from npgpt.model.parameters import Parameters

SLICE = 1 << 17     # values updated at a time: few enough that the temporaries of a slice stay in the cache


class NotFiniteError(UserError):
    """A loss or a gradient that is infinite or not a number; nothing was changed by the step that raised it."""


class AdamW:
    """AdamW (Loshchilov & Hutter 2017, arXiv:1711.05101) over the flat arrays of a model.

    params: a `Parameters`. lr: the step size, an attribute that a schedule may set before each step. betas: how slowly
    the two moments forget. eps: added to the root of the second moment. weight_decay: the share lr * weight_decay of
    every matrix is taken away in a step; biases, LayerNorm gains and other vectors are never decayed. threads: how many
    parts of the parameters are updated at once, by default one a core; the bits do not depend on it. On a GPU the fused
    kernels take the steps, where the model has them.
    Raises UserError for values out of range.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, threads=None):
        check("params", params, isinstance(params, Parameters), "a model's params")
        check_real("lr", lr)
        check("betas", betas, isinstance(betas, tuple | list) and len(betas) == 2, "two numbers")
        for beta in betas:
            check_real("each of betas", beta, below=1.0)
        check_real("eps", eps, above=0.0)
        check_real("weight_decay", weight_decay)
        if threads is not None:
            check_whole("threads", threads, 1, MOST_THREADS)
        self.params = params
        self.threads = (threads or available_cores()) if is_on_host(params.flat) else 1
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.m = params.zeros_like()        # running mean of the gradient
        self.v = params.zeros_like()        # running mean of its square
        self.t = 0                          # steps taken

    def step(self, grads, max_norm=None):
        """Clip, step, and return the gradient's norm as it was before clipping, a float.

        grads: a `Parameters` of the model's layout and dtype; it is not changed. max_norm: gradients of a larger global
        norm are scaled down to it. Raises NotFiniteError where the norm is not finite, and UserError for gradients of
        another model and a max_norm that is not above 0; then nothing has changed.

        On a GPU nobody waits for the card: the norm is a 0-d array there, and one that is not finite raises nothing,
        but makes the parameters as useless as it is. (The fused kernels leave them as they were.)
        """
        check("grads", grads, isinstance(grads, Parameters), "a mapping as backward and loss_and_grads return")
        if grads.shapes != self.params.shapes or grads.flat.dtype != self.params.flat.dtype:
            raise UserError("these are the gradients of another model: their names, shapes or dtype differ")
        check_real("lr", self.lr)
        if max_norm is not None:
            check_real("max_norm", max_norm, above=0.0)
        if self.params.fused:
            self.t += 1
            return self.params.fused.adamw(self, grads, max_norm)
        norm = global_norm(grads)
        if is_on_host(norm) and not math.isfinite(norm):
            raise NotFiniteError(f"the gradient norm is {norm}: lower the learning rate, or clip at a smaller norm")
        clip = 1.0 if max_norm is None else at_most_one(max_norm / (norm + 1e-6))
        self.t += 1
        n, n_matrix = self.params.flat.size, self.params.n_matrix
        size = SLICE if is_on_host(self.params.flat) else n
        slices = [(slice(start, min(start + size, end)), decay)
                  for begin, end, decay in ((0, n_matrix, self.weight_decay), (n_matrix, n, 0.0))
                  for start in range(begin, end, size)]

        def update(some):
            for part, decay in slices[some]:
                adamw_update(self.params.flat[part], grads.flat[part], self.m.flat[part], self.v.flat[part],
                             self.t, self.lr, *self.betas, self.eps, decay, clip)

        in_threads(update, even_parts(len(slices), self.threads))
        return norm


def adamw_update(p, g, m, v, t, lr, beta1, beta2, eps, weight_decay, clip=1.0):
    """One step on arrays of equal shape: p, m and v are updated in place, g clip is the gradient, t counts from 1.

    Both moments begin at zero; without m / (1 - beta1^t) and v / (1 - beta2^t) the first steps would be too small. As
    Kingma & Ba 2014 (arXiv:1412.6980, end of section 2) say, the two factors can be taken out of the arrays:

        lr m_hat / (sqrt(v_hat) + eps) = step_size m / (sqrt(v) + eps correction)
    """
    m *= beta1                                  # m = beta1 m + (1 - beta1) g
    m += ((1.0 - beta1) * clip) * g
    v *= beta2                                  # v = beta2 v + (1 - beta2) g^2
    v += ((1.0 - beta2) * clip * clip) * (g * g)
    correction = math.sqrt(1.0 - beta2**t)
    step_size = lr * correction / (1.0 - beta1**t)
    p *= 1.0 - lr * weight_decay
    p -= step_size * m / (np.sqrt(v) + eps * correction)


def at_most_one(value):
    """min(1, value), where the value is."""
    return min(1.0, value) if is_on_host(value) else np.minimum(1.0, value)


def global_norm(grads):
    """The length of all gradients seen as one vector, a `number`."""
    return number(np.sqrt(grads.flat @ grads.flat))
