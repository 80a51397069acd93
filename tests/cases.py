"""The layers under test: the lessons at several settings, at unit scale, and the same functions in
torch.

The tests run every case against torch and in float32, with two tables of operations: the
lesson's, `npgpt.layers`, and the CPU engine's, cut into parts so small that there are several of
everything.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import numpy as np

from npgpt import GPTConfig, layers
from npgpt.engine.cpu import CPUEngine
from npgpt.engine.threads import using_cores
from npgpt.model import variants
from npgpt.model.parameters import Parameters
from npgpt.study.lessons.lesson import Lesson, map_arrays
from npgpt.study.lessons.setting import Setting, Sizes
from npgpt.study.lessons.table import LAYERS
from tests import torch_gpt

SIZES = Sizes(B=3, T=5, C=12, H=3, V=11, S=5, F=48, P=7)
B, T, C, H, V, *_ = SIZES
# Functions that give an array another layout in memory: C's, Fortran's, with gaps, backwards.
LAYOUTS = [
    np.copy,
    np.asfortranarray,
    lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    lambda array: np.flip(np.flip(array).copy()),
]
CPU_KERNELS = ["numpy", *["numba"] * (find_spec("numba") is not None)]
MODERN = (
    Path(__file__).parents[1] / "tools" / "examples" / "modern_block.py"
)  # with parameters of its own
# What model/variants.py is for: each alone, and all together.
EACH = {
    "embedding_layer_norm": True,
    "final_layer_norm": False,
    "tie_word_embeddings": False,
    "lm_head_bias": True,
    "causal": False,
    "positions": "none",
}
VARIANTS = [*({name: value} for name, value in EACH.items()), EACH]
LORA, FROZEN = (
    MODERN.with_name("lora_block.py"),
    "*.weight,*.bias",
)  # a block, and what it has no gradients of
SMALL = {"vocab_size": V, "block_size": T + 2, "n_layer": 2, "n_head": H, "n_embd": C}


def train_step(optimizer, batches, rngs, count, max_norm=None):
    """Take a step as `npgpt.training.loop` does; return the loss and the norm."""
    loss, grads = optimizer.engine.loss_and_grads(batches, rngs, count)
    return loss, optimizer.step(grads, max_norm)


@dataclasses.dataclass
class Case:
    """A lesson with arrays and with the functions of a table, which run within `parts`."""

    name: str
    lesson: Lesson
    parts: Callable = contextlib.nullcontext

    @property
    def inputs(self):
        return self.lesson.inputs

    def forward(self, **inputs):
        """Return the output and the cache; the other arguments get the dtype of the inputs."""
        dtype = next(iter(inputs.values())).dtype
        lesson = self.lesson.mapped(
            lambda array: array.astype(dtype) if array.dtype.kind == "f" else array
        )
        with self.parts():
            return lesson.run_forward(inputs)

    def backward(self, dy, cache):
        """Return {"dx": …}."""
        with self.parts():
            grads = self.lesson.run_backward(dy, cache)
        return {name: grad for name, grad in grads.items() if grad is not None}

    def reference(self, torch, **tensors):
        """Return torch's output."""
        constants = {name: value for name, value in self.lesson.constants.items() if name != "ops"}
        lesson = dataclasses.replace(self.lesson, constants=map_arrays(torch.from_numpy, constants))
        return lesson.run_forward(
            tensors,
            functools.partial(lesson.torch, torch)
            if lesson.torch
            else getattr(torch_gpt, f"torch_{lesson.name}"),
        )

    def run(self, inputs, dy=None):
        """Return the output and, given the upstream gradient, {"dx": …}; checks that nothing given
        was written to.
        """
        with unchanged((inputs, self.lesson.constants)):
            y, cache = self.forward(**inputs)
            if dy is None:
                return y, None
            with unchanged((dy, cache)):
                grads = self.backward(dy, cache)
        assert grads.keys() == {f"d{name}" for name in inputs}, (
            "gradients of other arrays than the inputs"
        )
        return y, grads


@contextlib.contextmanager
def unchanged(value):
    """Within it, no array in a nest of dicts, tuples and lists may be written to."""
    frozen = [(array, array.tobytes()) for array in arrays_in(value)]
    yield
    assert all(array.tobytes() == before for array, before in frozen), "an argument was written to"


def arrays_in(value):
    """Return every array in a nest of dicts, tuples and lists."""
    found = []
    map_arrays(found.append, value)
    return found


@contextlib.contextmanager
def small_parts(row_bytes=4 * C * 8, queries=2, tile_bytes=4 * T * 8, kept=512, cores=2):
    """Within it, the CPU engine works on blocks of 4 rows and on tiles of 2 queries and 2 heads, on
    two cores.
    """
    with (
        mock.patch("npgpt.engine.row_blocks.BLOCK_BYTES", row_bytes),
        using_cores(cores),
        mock.patch.multiple(
            "npgpt.engine.tiles", QUERIES=queries, BLOCK_BYTES=tile_bytes, KEPT=kept
        ),
    ):
        yield


def engine_cases(cores=2):
    """Return `layer_cases`, in the same order, by the CPU engine in small parts, once with each
    kernels.
    """

    def ops_by(kernels):
        return lambda config: CPUEngine(Parameters(config), 2, kernels).ops

    parts = functools.partial(small_parts, cores=cores)
    return [
        dataclasses.replace(case, name=f"{case.name}, in parts by {kernels}", parts=parts)
        for kernels in CPU_KERNELS
        for case in layer_cases(ops_by(kernels))
    ]


def layer_cases(ops_of=lambda config: layers):
    """Return a fresh list of all cases: each lesson, with each switch off, and what else takes
    another branch.

    ops_of: a function of a config that returns the table of operations. The arrays are the same
    every time.
    """
    rng, cases = np.random.default_rng(20240), []

    def case(name, words="", shapes=(), constants=(), sizes=(), **fields):
        lesson = dataclasses.replace(LAYERS[name], shapes=LAYERS[name].shapes | dict(shapes))
        lesson = lesson.at(Setting(SIZES._replace(**dict(sizes)), layer=1, **fields))
        ops = ops_of(lesson.constants.get("config", GPTConfig(tie_word_embeddings=False)))
        constants = lesson.constants | dict(constants)
        if lesson.is_composite:
            constants["ops"] = ops
        table, key = (variants, "model") if name == "gpt" else (ops, name)
        forward = getattr(table, f"{key}_forward", lesson.forward)
        backward = getattr(table, f"{key}_backward", lesson.backward)
        lesson = dataclasses.replace(
            lesson, forward=forward, backward=backward, constants=constants
        )
        cases.append(Case(f"{name}, {words}" if words else name, lesson))

    for name, lesson in LAYERS.items():
        case(name)
        for switch in lesson.switches:
            case(
                name,
                f"{switch} off",
                off={switch},
                eps=0.5,
                sizes={"V": 700 if switch == "repeated" else V},
            )
    case("linear", "on rows", shapes={"x": "4 C"})
    case("lora", "on rows without bias", shapes={"x": "4 C"}, constants={"bias": None})
    for name in ("layernorm", "gelu_tanh", "gelu_exact"):
        case(
            name, "large x and eps", spread=2.0, eps=0.5
        )  # the eps shows whether the backward knows about it
    case(
        "cross_entropy",
        "some ignored",
        spread=2.0,
        constants={"targets": rng.integers(-1, 3, (B, T))},
    )
    case("embedding", "V=700", sizes={"V": 700})

    hidden = (rng.random((B, H, T, T)) < 0.3) & ~np.eye(
        T, dtype=bool
    )  # each query sees at least one key
    added = np.where(hidden[:, :1], -np.inf, rng.standard_normal((B, 1, T, T)))
    case("attention", "two queries on five keys", sizes={"T": 2})
    case("attention", "a mask for each entry", constants={"mask": added})
    case("attention", "a mask for each head", constants={"mask": np.where(hidden, -np.inf, 0.5)})
    case("gpt", "a mask for each entry", constants={"mask": added})
    case(
        "gpt",
        "a mask, causal off",
        options=(("n_layer", 2), ("dropout", 0.0), ("causal", False)),
        constants={"mask": rng.standard_normal((T, T))},
    )

    for name, config, sizes in (
        ("mlp", {"bias": False, "mlp_bias": True}, {"F": 7}),
        ("self_attention", {}, {"H": 1}),
        ("self_attention", {"scale_attn_weights": False}, {}),
        ("self_attention", {"scale_attn_by_inverse_layer_idx": True}, {}),
        ("self_attention", {"bias": False, "qkv_bias": True, "dropout": 0.3}, {}),
        ("gpt", {}, {"V": 700}),
        ("gpt", {"tie_word_embeddings": False}, {"V": 700}),
        *(("gpt", fields, {}) for fields in VARIANTS),
    ):
        options = tuple({"n_layer": 2, "dropout": 0.0, **config}.items())
        case(name, f"{config | sizes}", options=options, sizes=sizes)
    return cases
