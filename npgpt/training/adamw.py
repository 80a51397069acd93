"""AdamW: steps scaled by the running size of each gradient, with weight decay apart from the gradient."""

import numpy as np

from npgpt.checks import MOST_THREADS, check, check_choice, check_whole
from npgpt.engine.adamw import adamw_step, check_numbers
from npgpt.engine.threads import available_cores
from npgpt.model.parameters import Parameters

DECAYS = ("matrices", "all")


class AdamW:
    """AdamW (Loshchilov & Hutter 2017, arXiv:1711.05101); the update rule is `adamw_update` in npgpt/engine/adamw.py.

    params: a model's `params`. lr: the step size, an attribute that a schedule may set before each step. betas: decay
    rates of the two moments. eps: added to the root of the second moment. weight_decay: every step multiplies what
    decays by 1 - lr * weight_decay. decay: what that is, "matrices" (the embeddings too, but no biases, LayerNorm gains
    and other vectors) or "all". threads: how many parts of the parameters are updated at once, by default one per core;
    the bits do not depend on it. engine: `model.engine` if it takes whole training steps (`engine.step`); by default
    NumPy or CuPy takes the step. The README compares the defaults with those of torch and nanoGPT.
    Raises UserError for values out of range.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, threads=None, engine=None,
                 decay="matrices"):
        check("params", params, isinstance(params, Parameters), "a model's params")
        check_choice("decay", decay, DECAYS)
        if threads is not None:
            check_whole("threads", threads, 1, MOST_THREADS)
        self.params, self.engine = params, engine
        self.threads = (threads or available_cores()) if params.xp is np else 1
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.t = 0                          # steps taken
        self.n_decay = params.n_matrix if decay == "matrices" else params.n_trained    # that many of `flat` decay
        self.check()
        # Running means of the gradient and of its square.
        self.m, self.v = engine.moments() if engine else (params.zeros_like(), params.zeros_like())

    def step(self, grads, max_norm=None):
        """Clip, take a step, and return the gradient norm before clipping, a float.

        grads: a mapping with the names, shapes and dtype of `params`, as `backward` and `loss_and_grads` return; it is
        not changed. max_norm: gradients of a larger global norm are scaled down to it. Raises NotFiniteError if the
        norm is not finite, and UserError for gradients of another model or a max_norm that is not above 0; then nothing
        has changed.

        On a GPU nothing waits: the norm is a 0-d array there. If it is not finite, no error is raised, and the
        parameters become NaN.
        """
        self.params.check_gradients("grads", grads)
        self.check(max_norm)
        if self.engine is not None:
            return self.engine.adamw_step(self, grads, max_norm)
        return adamw_step(self, grads, max_norm, self.threads)

    def check(self, max_norm=None):
        """Raise UserError if an attribute is out of range: they may be assigned to between steps."""
        check_numbers(self, max_norm)
        check_whole("threads", self.threads, 1, MOST_THREADS)
        right = self.engine is None or getattr(self.engine, "params", None) is self.params
        check("engine", self.engine, right, "the engine of the model whose params these are")
