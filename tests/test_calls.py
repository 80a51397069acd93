"""Invalid calls of the API must raise a one-line UserError and change nothing."""

import dataclasses
import math
import types
from importlib.util import find_spec

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig, Trainer, TrainOptions, UserError, load
from npgpt.arrays import to_host
from npgpt.data.hf_tokenizer import HFTokenizer
from npgpt.data.token_files import Documents
from npgpt.data.tokenizers import (
    TOKENIZER_FILE,
    ByteTokenizer,
    CharTokenizer,
    GPT2Tokenizer,
    NoTokenizer,
    make_tokenizer,
    save_tokenizer,
)
from npgpt.errors import one_line
from npgpt.training.evaluation import evaluate_split
from tests import strict_cupy

pytestmark = pytest.mark.filterwarnings("error")        # NumPy must not warn in addition

SHAPE = {"vocab_size": 7, "block_size": 6, "n_layer": 1, "n_head": 2, "n_embd": 4}
IDX = np.arange(6).reshape(2, 3)
BATCH = {"idx": IDX, "targets": IDX}
TOKENS = np.arange(60) % 7
TOKENIZERS = {"char": CharTokenizer("abc"), "byte": ByteTokenizer(), "gpt2": GPT2Tokenizer(), "none": NoTokenizer(7)}
if find_spec("tokenizers"):
    TOKENIZERS["hf"] = HFTokenizer({"version": "1.0", "added_tokens": [],
                                    "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}})


class Scene:
    """A small model, and its optimizer after one step."""

    def __init__(self, folder, device):
        self.folder, self.model = folder, GPT(GPTConfig(**SHAPE), device=device, threads=1)
        self.grads = self.model.loss_and_grads(**BATCH)[1]
        self.optimizer = AdamW(self.model.params)
        self.optimizer.step(self.grads)
        self.trainer = Trainer(self.model, TOKENS, TOKENS)
        self.model.save_pretrained(folder)
        save_tokenizer(CharTokenizer("abc"), folder / TOKENIZER_FILE)

    def values(self):
        """Return all that a call could change."""
        optimizers = self.optimizer, self.trainer.optimizer
        arrays = [each.flat for it in optimizers for each in (it.params, it.m, it.v)] + list(self.grads.values())
        return [it.t for it in optimizers], [to_host(array).tobytes() for array in arrays]

    def step(self, grads=None, max_norm=None, **later):
        """Take a step after assignments to attributes of the optimizer."""
        before = dict(vars(self.optimizer))
        vars(self.optimizer).update(later)
        try:
            self.optimizer.step(self.grads if grads is None else grads, max_norm)
        finally:
            vars(self.optimizer).update({name: before[name] for name in later})


NAN, INF = math.nan, math.inf
ODD = {         # for an argument or a field of that type
    "int": [-1, 1.5, True, "1", [], NAN, b"1", 10**20], "float": [-0.1, NAN, INF, True, "1", [], 1j, 10**400],
    "bool": [0, 1, "true", []], "str": ["relu", 1, [], {}, np.zeros(2)]}
SEED, COUNT, STEP = [-1, 1.5, "x", [-1], 2**63], [0, *ODD["int"]], [None, *ODD["int"]]


def fields(dataclass):
    """field -> odd values."""
    return {field.name: [*(value for kind in ODD if kind in str(field.type) for value in ODD[kind]),
                         *([] if "None" in str(field.type) else [None])] for field in dataclasses.fields(dataclass)}


# Functions make a value for the scene.
IDS = [None, [[1, 2], [3]], "To be", [[None]], {}, [[2**70]],
       *(np.zeros(shape, int) for shape in ((1, 2, 2), (3,), (), (0, 3), (2, 0))),
       *(np.ones((2, 3), dtype) for dtype in (float, bool, complex, object)), np.full((2, 3), 2**64 - 1, np.uint64),
       *(np.full((2, 3), value) for value in (-2, 7, 10**6))]
CONTEXTS = [*IDS, np.zeros((2, 7), int)]
TARGETS = [*(np.full((2, 3), value) for value in (-1, -2, 7)), np.zeros((2, 3)), np.zeros((2, 2), int), "x", 1]
MASKS = [*(np.full((3, 3), value) for value in (1e39, NAN, INF, 0, True, 0j)), np.zeros((3, 2)), np.zeros(3), "x", 5,
         np.full((2, 3), 2)]
EDITS = [5, "x", [], {"typo": abs}, {5: abs}, {"h.0.attn.mix": None}, {"h.0.x_mid": "x"},
         *({"h.0.attn.mix": lambda array, odd=odd: odd} for odd in (None, "x", 0.0, 1j, np.ones((2, 3)), [[1], [1]])),
         {"h.0.attn.mix": lambda array: np.full(array.shape, 1e39)}]
RNGS = [5, "x", [], np.random.RandomState(0)]
DHIDDEN = [None, "x", 1.0, [[1.0], [1.0, 2.0]], np.zeros((2, 3)), np.full((2, 3, 4), 1e39), np.ones((2, 3, 4), complex)]
GRADS = [None, 5, {}, [], "x", lambda s: list(s.grads.values()), lambda s: s.grads | {"more": s.grads["ln_f.bias"]},
         lambda s: {name: array for name, array in s.grads.items() if name != "ln_f.bias"},
         *(lambda s, odd=odd: s.grads | {"ln_f.bias": odd} for odd in (None, 0.0, [0.0] * 4, "x", np.zeros(4))),
         *(lambda s, shape=shape: s.grads | {"ln_f.bias": s.model.params.xp.zeros(shape, "f4")}
           for shape in (3, (1, 4), ())),
         lambda s: s.grads | {"ln_f.bias": s.model.params.xp.zeros(4, "f8")},
         *(lambda s, odd=odd: GPT(GPTConfig(**SHAPE | odd), threads=1).params
           for odd in ({"n_embd": 8}, {"n_layer": 2}, {"vocab_size": 9}))]
ADD_TO = [*GRADS[1:], lambda s: s.model.params, lambda s: dict(s.model.params),
          lambda s: s.grads | {"ln_f.bias": s.model.params["ln_f.bias"]},
          lambda s: s.grads | {"ln_f.bias": s.model.params["wpe.weight"][1]}]
STOPS = [None, 5, "", [""], [[]], [5, 6], [[5, 99]], [[0.5]], "a", [["a"]]]
LATER = {"lr": [None, *ODD["float"]], "eps": [0, None, *ODD["float"]], "weight_decay": [None, *ODD["float"]],
         "betas": [(0.9,), (0.9, 0.95, 0.99), 0.9, None, (), (1.0, 0.9), (0.9, -0.1), (NAN, 0.9), "ab"]}
ENGINES = [5, "x", lambda s: GPT(s.model.config, threads=1).engine]
STREAM = [None, 5, "x", [1, 2, 3], range(60), *(TOKENS.astype(dtype) for dtype in (float, bool, complex, object, "V1")),
          TOKENS.reshape(6, 10), np.array(5), object()]
PATHS = [None, 5, "", [], 1.5, b"x", "\0", "\ud800", "x" * 5000, "x/" * 5000]
MADE = {"dtype": ["int8", "float16", "", complex, 5, [], "bfloat16"], "threads": COUNT, "kernels": [None, "fast", []],
        "device": [None, 5, "gpu:x", "", np.zeros(2)], "block": [5, "x", (1, 2), (len,), []]}
FREEZE = ["x", 5, [5], ["h.9"], "wte,wpe,h,ln_f", None]
LOADED = {"name_or_path": [*PATHS, "missing", "a/b/c", "no.safetensors"], "revision": [5, []], **MADE}
TEXTS = [None, 5, 1.5, b"x", [], ["a"], np.array(["a"])]
SEQUENCES = [None, 5, "1", 1.5, [1.5], [True], [2**70], [-1], [10**6], [[0], [0]], [[0], []], [None], ["0"], object(),
             np.array(1), np.array([1j])]
TOKENIZER_CALLS = {
    "encode": ("text", TEXTS), **{name: ("ids", [b"x", {0: 0}, *SEQUENCES]) for name in ("decode", "decode_bytes")},
    "count_bytes": ("tokens", [b"x", {0: 0}, *SEQUENCES]), "decode_stream": ("tokens", SEQUENCES)}

CALLS = {       # what -> (the call, {argument: odd values})
    "GPTConfig": (lambda s, **odd: GPT(GPTConfig(**SHAPE | odd), threads=1), {
        **fields(GPTConfig), "n_head": [0, 3, *STEP], "layer_norm_epsilon": [0.0, *ODD["float"]],
        "initializer_range": [1e39, *ODD["float"]]}),
    "TrainOptions": (lambda s, **odd: TrainOptions(**odd), {
        **fields(TrainOptions), "min_lr": [1.0, *ODD["float"]], "lr_decay_iters": [100, *ODD["int"]]}),
    "GPT": (lambda s, **odd: GPT(**{"config": s.model.config} | odd), {
        "config": [None, 5, {}, "gpt2"], "seed": SEED, "init": [None, 5, [], "xavier"], "freeze": FREEZE, **MADE}),
    "forward": (lambda s, **odd: s.model.forward(**BATCH | odd), {
        "idx": CONTEXTS, "targets": TARGETS, "rng": RNGS, "mask": MASKS, "edit": EDITS}),
    "run_with_cache": (lambda s, **odd: s.model.run_with_cache(**BATCH | odd), {
        "idx": CONTEXTS, "edit": EDITS}),
    "score": (lambda s, idx: s.model.score(idx), {"idx": [*IDS, np.zeros((2, 8), int), np.zeros((2, 1), int)]}),
    "hidden": (lambda s, **odd: s.model.hidden(**{"idx": IDX} | odd), {"idx": CONTEXTS, "rng": RNGS, "mask": MASKS}),
    "backward": (lambda s, dhidden: GPT(s.model.config, threads=1).backward(dhidden), {"dhidden": [None, 5]}),
    "backward of hidden": (lambda s, dhidden: (s.model.hidden(IDX), s.model.backward(dhidden)), {"dhidden": DHIDDEN}),
    "backward of forward": (lambda s, dhidden: (s.model(**BATCH), s.model.backward(dhidden)), {"dhidden": DHIDDEN[1:]}),
    "loss_and_grads": (lambda s, **odd: s.model.loss_and_grads(**BATCH | odd), {
        "idx": CONTEXTS, "targets": [None, *TARGETS], "rng": RNGS, "mask": MASKS, "count": COUNT}),
    "evaluate": (lambda s, **odd: s.model.evaluate(**BATCH | odd), {
        "idx": CONTEXTS, "targets": [None, *TARGETS], "mask": MASKS}),
    **{name: (lambda s, name=name, **odd: getattr(s.model, name)(**{"idx": IDX, "max_new_tokens": 2} | odd), {
        "idx": IDS, "temperature": [None, *ODD["float"]], "top_k": COUNT, "top_p": [0, 2, *ODD["float"]], "seed": SEED,
        "eos_token_id": [7, *ODD["int"]], "max_new_tokens": STEP, "stop": STOPS, "n": STEP, "tokenizer": [5, "char"],
        "mask": [5, "x", [1, 1, 1], IDX[:1] * 0, IDX * 0, IDX * 0 + 2, 1.0 - IDX * 0, [[1, 0, 1], [1, 1, 1]]],
        "edit": EDITS[:3]}) for name in ("generate", "stream")},
    "params[name] = value": (lambda s, name="ln_f.bias", value=0.0: s.model.params.__setitem__(name, value), {
        "name": ["typo", 5, None, [], {}], "value": [None, True, 10**400, 1e39, "x", 1j, {}, [[1], [1, 2]], [1, 2],
                                                     np.full(4, 1e39), np.zeros((4, 1)), np.zeros(4, bool)]}),
    "AdamW": (lambda s, **odd: AdamW(**{"params": s.model.params} | odd), {
        **LATER, "params": [None, {}, np.zeros(3)], "decay": ["vectors", None, 5, []],
        "engine": ENGINES}),
    "AdamW.step": (Scene.step, {"grads": GRADS[1:], "max_norm": [0, 1j, *ODD["float"]], **LATER}),
    "Trainer": (lambda s, **odd: Trainer(**{"model": s.model, "train_tokens": TOKENS, "val_tokens": TOKENS} | odd), {
        "train_tokens": [*STREAM, TOKENS[:6]], "val_tokens": [*STREAM[1:], TOKENS[:6]],
        "model": [None, 5, "x", [], GPT, lambda s: s.optimizer],
        "options": [5, {}, "x", TrainOptions(crop_length=7)], "out_dir": PATHS[1:],
        "tokenizer": [5, 0, "char", [], CharTokenizer], "corpus_name": [5, 0, b"x", []]}),
    "Documents": (lambda s, **odd: Documents(**{"tokens": TOKENS, "starts": [0, 9]} | odd), {
        "tokens": STREAM, "starts": [None, 5, "x", [], [1, 9], [0, 1], [0, 9, 5], [0, -3], [0, 10**6], [0.0, 9.0],
                                     [[0, 9]], [[0], []], [False]],
        "prompts": [5, "x", [], [1], [1, -1], [9, 1], [1.0, 1.0], [[1, 1]], [[1], []], [True, True]],
        "pad_token_id": [-1, True, "1", 2**16]}),
    "evaluate_split": (lambda s, tokens=TOKENS, stride=None: evaluate_split(s.model, tokens, stride, progress=False), {
        "tokens": [*STREAM, TOKENS[:1]], "stride": [7, *COUNT]}),
    **{f"{kind}.{name}": (lambda s, kind=kind, name=name, **odd: list(getattr(TOKENIZERS[kind], name)(*odd.values())), {
        argument: values}) for kind in TOKENIZERS for name, (argument, values) in TOKENIZER_CALLS.items()},
    **{f"{kind}.batch": (lambda s, kind=kind, **odd: TOKENIZERS[kind].batch(**{"texts": ["a"], "length": 2} | odd), {
        "texts": [5, "ab", None, {}, ["a", 5], [b"a"]], "length": [None, *COUNT]}) for kind in TOKENIZERS},
    "CharTokenizer": (lambda s, chars: CharTokenizer(chars), {"chars": ["", "aa", *TEXTS]}),
    "from_text": (lambda s, text: CharTokenizer.from_text(text), {"text": ["", *TEXTS]}),
    "HFTokenizer": (lambda s, description: HFTokenizer(description), {"description": [None, 5, "x", [], {}]}),
    "HFTokenizer.open": (lambda s, name: HFTokenizer.open(name), {"name": [*PATHS, "a/b/c"]}),
    "make_tokenizer": (lambda s, **odd: make_tokenizer(**{"name": "char"} | odd), {
        "name": ["", "word", *PATHS], "text": [None, *TEXTS]}),
    "from_pretrained": (lambda s, **odd: GPT.from_pretrained(**{"name_or_path": s.folder} | odd), {
        **LOADED, "freeze": FREEZE, "lora_rank": [0, *ODD["int"]], "lora_alpha": [0, *ODD["float"]],
        "adapter": [*PATHS[1:], "missing"]}),
    "load": (lambda s, **odd: load(**{"name_or_path": s.folder} | odd), {
        **LOADED, "which": [None, "newest", 5, []]}),
    "save_pretrained": (lambda s, **given: s.model.save_pretrained(**{"folder": "model", **given}),
                        {"folder": PATHS, "dtype": ["int8", "", complex, 5, [], "bfloat16"]}),
}
ALONE = [(name, argument) for name, (_, odd) in CALLS.items() for argument in odd]


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def scene(request, tmp_path_factory):
    """A scene, also on the stand-in for a GPU; in an empty folder, which stays empty."""
    folder = tmp_path_factory.mktemp("empty")
    with pytest.MonkeyPatch.context() as monkeypatch:
        strict_cupy.install(monkeypatch)
        monkeypatch.chdir(folder)
        yield Scene(tmp_path_factory.mktemp("model"), request.param)
    assert not list(folder.iterdir())


@pytest.mark.parametrize(("name", "argument"), ALONE, ids=map(" ".join, ALONE))
def test_an_odd_value_is_refused_in_one_line_and_changes_nothing(scene, name, argument):
    call, odd = CALLS[name]
    for value in odd[argument]:
        value, before = value(scene) if isinstance(value, types.FunctionType) else value, scene.values()
        with pytest.raises(UserError) as caught:
            call(scene, **{argument: value})
            pytest.fail(f"accepted without a word: {name} {argument} {value}")
        assert one_line(caught.value, 2000) == str(caught.value)
        assert scene.values() == before, value
