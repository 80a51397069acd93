"""What would be wrong in silence is refused in one line where a user's value comes in, and changes
nothing.
"""

import inspect
import math

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, Trainer, TrainOptions, UserError, load
from npgpt.data.tokenizers import ByteTokenizer, CharTokenizer
from npgpt.errors import one_line
from tests.helpers.runs import refusing

SHAPE = {"vocab_size": 7, "block_size": 6, "n_layer": 1, "n_head": 2, "n_embd": 4}
IDX = np.arange(6).reshape(2, 3)
BATCH = {"idx": IDX, "targets": IDX}
TOKENS = np.arange(60) % 7
NAN, INF = math.nan, math.inf

IDS = [np.full((2, 3), -1), np.full((2, 3), 7), IDX / 1.0, IDX[0], np.zeros((0, 3), int)]
CONTEXTS = [*IDS, np.zeros((2, 7), int)]
TARGETS = [np.full((2, 3), value) for value in (-1, -2, 7)] + [IDX / 1.0, IDX[:, :2]]
MASKS = [np.full((3, 3), NAN), np.full((3, 3), INF), np.zeros((3, 3), int), np.zeros(3)]
PADDING = [IDX * 0, [[1, 0, 1], [1, 1, 1]], [1, 1, 1]]
FRACTIONS = [-0.1, 1.0, NAN]
POSITIVE = [0, -1, NAN, INF, 10**400]
COUNTS = [0, -1, 1.5, 10**20]


class Scene:
    """A small model, and its optimizer after one step."""

    def __init__(self):
        self.model = GPT(GPTConfig(**SHAPE), threads=1)
        self.grads = self.model.loss_and_grads(**BATCH)[1]
        self.optimizer = AdamW(self.model.params)
        self.optimizer.step(self.grads)

    def values(self):
        """Return all that a call could change."""
        optimizer = self.optimizer
        arrays = optimizer.params.flat, optimizer.m.flat, optimizer.v.flat
        return optimizer.t, optimizer.lr, *(array.tobytes() for array in arrays)

    def step(self, lost="", more=(), changed=(), **named):
        grads = {name: array for name, array in self.grads.items() if name != lost}
        self.optimizer.step(grads | dict(more) | dict(changed), **named)


def generate(scene, **odd):
    scene.model.generate(**{"idx": IDX, "max_new_tokens": 2} | odd)


def hidden(scene, **odd):
    scene.model.hidden(IDX)
    scene.model.backward(**odd)


def forward_and_backward(scene, **odd):
    scene.model.forward(**BATCH)
    scene.model.backward(**odd)


CALLS = {  # the call -> {argument: odd values}
    lambda s, **odd: GPTConfig(**SHAPE | odd): {
        "n_head": [3, *COUNTS],
        "n_layer": COUNTS,
        "n_inner": COUNTS,
        "eos_token_id": [-1, "1"],
        "dropout": FRACTIONS,
        "mlp_pdrop": FRACTIONS,
        "layer_norm_epsilon": POSITIVE,
        "initializer_range": [-1.0, NAN],
        "bias": [1, "true"],
        "mlp_bias": [0],
        "causal": [None],
        "activation": ["relu", None],
    },
    lambda s, **odd: TrainOptions(**odd): {
        "batch_size": COUNTS,
        "warmup_iters": [-1, 1.5],
        "seed": [-1, 2**63],
        "learning_rate": POSITIVE,
        "eps": POSITIVE,
        "weight_decay": [-0.1, NAN],
        "beta1": FRACTIONS,
        "val_fraction": FRACTIONS,
        "min_lr": [1.0, NAN],
        "lr_decay_iters": [100, -1],
        "sampling": ["sorted"],
        "decay": ["none"],
        "dtype": ["float16"],
    },
    lambda s, **odd: GPT(GPTConfig(**SHAPE), **odd): {
        "seed": [-1, 1.5, 2**63],
        "dtype": ["float16", "bfloat", np.float64],
        "kernels": ["fast"],
        "threads": COUNTS,
        "device": ["gpu:x", "cudas"],
        "init": ["xavier"],
        "freeze": ["h.9", "wte,wpe,h,ln_f"],
        "block": [object()],
    },
    lambda s, **odd: s.model.forward(**BATCH | odd): {
        "idx": CONTEXTS,
        "targets": TARGETS,
        "mask": MASKS,
    },
    lambda s, **odd: s.model.loss_and_grads(**BATCH | odd): {
        "idx": CONTEXTS,
        "targets": TARGETS,
        "mask": MASKS,
        "count": [0, -1, NAN],
        "weights": [1.0, "x", np.full(IDX.shape, NAN)],
        "dlogits": [lambda logits: (0.0, logits)],
    },
    lambda s, **odd: s.model.evaluate(**BATCH | odd): {"idx": CONTEXTS, "targets": TARGETS},
    lambda s, **odd: s.model.score(**odd): {"idx": [*IDS, np.zeros((2, 8), int), IDX[:, :1]]},
    lambda s, **odd: s.model.hidden(**odd): {"idx": CONTEXTS},
    lambda s, **odd: GPT(GPTConfig(**SHAPE)).backward(**odd): {"dhidden": [None]},
    hidden: {"dhidden": [None, 1.0, np.zeros((2, 3))]},
    forward_and_backward: {"dhidden": [np.zeros((2, 3, 4))]},
    generate: {
        "idx": IDS,
        "max_new_tokens": [-1, 1.5],
        "temperature": [-1.0, NAN],
        "top_k": COUNTS,
        "top_p": [0, 2, NAN],
        "seed": [-1],
        "eos_token_id": [7, -1],
        "mask": PADDING,
        "stop": [[[]]],
    },
    lambda s, value: s.model.params.__setitem__("ln_f.bias", value): {
        "value": [[1, 2], np.zeros((4, 1))]
    },
    lambda s, **odd: AdamW(s.model.params, **odd): {
        "lr": [-1.0, NAN],
        "eps": POSITIVE,
        "weight_decay": [-0.1, NAN],
        "betas": [(1.0, 0.9), (0.9, NAN)],
        "decay": ["none"],
        "engine": [GPT(GPTConfig(**SHAPE)).engine],
    },
    Scene.step: {
        "lost": ["ln_f.bias"],
        "more": [{"more": np.zeros(4)}],
        "max_norm": POSITIVE,
        "lr": [-1.0, NAN],
        "changed": [
            {"ln_f.bias": array}
            for array in (np.zeros(3, "f4"), np.zeros((1, 4), "f4"), np.zeros(4))
        ],
    },
    lambda s, **odd: Trainer(s.model, **{"train_tokens": TOKENS, "val_tokens": TOKENS} | odd): {
        "train_tokens": [TOKENS / 1.0, TOKENS.reshape(6, 10), TOKENS[:1]],
        "val_tokens": [TOKENS / 1.0, TOKENS[:1]],
        "options": [TrainOptions(crop_length=7)],
    },
    lambda s, ids: CharTokenizer("abc").decode(ids): {"ids": [[3], [-1], [0.5], [[0]]]},
    lambda s, ids: ByteTokenizer().decode(ids): {"ids": [[256], [[0]]]},
    lambda s, **odd: load(**{"name_or_path": "tiny"} | odd): {
        "name_or_path": ["", "nul\0byte"],
        "which": ["newest"],
    },
    lambda s, **odd: GPT.from_pretrained("tiny", **odd): {"freeze": ["w*x", "*", "h.9"]},
}


@pytest.fixture(scope="module")
def scene():
    return Scene()


@pytest.mark.parametrize("call", CALLS, ids=map(str, range(len(CALLS))))
def test_what_would_be_wrong_in_silence_is_refused_and_changes_nothing(scene, call):
    before = scene.values()
    for argument, values in CALLS[call].items():
        for value in values:
            with pytest.raises(UserError) as caught:
                call(scene, **{argument: value})
                pytest.fail(f"accepted without a word: {argument} {value}")
            assert one_line(caught.value, 2000) == str(caught.value)
            assert scene.values() == before, (argument, value)


@pytest.mark.parametrize(
    ("method", "keyword", "says"),
    [
        ("__call__", "input_ids", "forward has no argument input_ids: give it first, as idx"),
        ("__call__", "attention_mask", "use mask"),
        ("forward", "labels", "use targets, which are one token later"),
        ("hidden", "output_hidden_states", "use run_with_cache"),
        ("run_with_cache", "use_cache", "leave it out"),
        ("generate", "max_length", "use max_new_tokens"),
        ("stream", "do_sample", "use temperature"),
    ],
)
def test_keywords_of_transformers_are_answered_with_ours(scene, method, keyword, says):
    method, given = getattr(scene.model, method), {"idx": IDX} if keyword != "input_ids" else {}
    with refusing(says):
        method(**given, **{keyword: IDX})
    shown = inspect.signature(method).parameters  # by help()
    assert "idx" in shown and keyword not in shown and "keywords" not in shown


def test_other_unknown_keywords_are_pythons(scene):
    for keyword in ("max_length", "ids"):  # forward has nothing instead of max_length
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{keyword}'"):
            scene.model.forward(IDX, **{keyword: 1})


def test_numbers_of_numpy_can_be_stored():
    assert type(GPTConfig(vocab_size=TOKENS.max() + 1).vocab_size) is int
    assert type(TrainOptions(learning_rate=np.float32(0.5)).learning_rate) is float
