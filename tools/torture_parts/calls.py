"""Calls of the API that make no sense: UserError, with nothing changed, is the only right answer."""

import dataclasses
import math

import numpy as np
from torture_parts.running import complaints, note, run

from npgpt import GPT, AdamW, GPTConfig, UserError
from npgpt.errors import one_line

NAN, INF = math.nan, math.inf
ODD = {         # for an argument or a field of that type
    "int": [-1, 1.5, True, "1", [], NAN, b"1", 10**18], "float": [-0.1, NAN, INF, True, "1", []],
    "bool": [0, 1, "true", []], "str": ["relu", 1, [], {}]}
FIELDS = {field.name: [*(value for kind in ODD if kind in str(field.type) for value in ODD[kind]),
                       *([] if "None" in str(field.type) else [None])] for field in dataclasses.fields(GPTConfig)}
IDS = [None, [[1, 2], [3]], "To be", [[None]], {},
       *(np.zeros(shape, int) for shape in ((1, 2, 2), (3,), (), (0, 3), (2, 0))),
       *(np.ones((2, 3), dtype) for dtype in (float, bool, complex, object)), np.full((2, 3), 2**64 - 1, np.uint64),
       *(np.full((2, 3), value) for value in (-2, 7, 10**6))]
TOO_LONG = np.zeros((2, 7), int)
TARGETS = [*(np.full((2, 3), value) for value in (-1, -2, 7)), np.zeros((2, 3)), np.zeros((2, 2), int), "x", 1]
SHAPE = {"vocab_size": 7, "block_size": 6, "n_layer": 1, "n_head": 2, "n_embd": 4}
IDX = np.arange(6).reshape(2, 3)
BATCH = {"idx": IDX, "targets": IDX}
OF_OTHER_MODELS = [GPT(GPTConfig(**SHAPE | {name: n})).params for name, n in
                   (("n_embd", 8), ("n_layer", 2), ("vocab_size", 9))]


class Scene:
    """A small model and its optimizer after one step."""

    def __init__(self, rng):
        self.model = GPT(GPTConfig(**SHAPE, bias=rng.random() < 0.7, tie_word_embeddings=rng.random() < 0.5),
                         seed=rng.randrange(100), dtype=rng.choice(["float32", "float64"]), threads=1)
        self.optimizer = AdamW(self.model.params, threads=1)
        self.grads = self.model.loss_and_grads(**BATCH)[1]
        self.optimizer.step(self.grads)

    def values(self):
        mappings = (self.model.params, self.optimizer.m, self.optimizer.v)
        return [array.tobytes() for mapping in mappings for array in mapping.values()], self.optimizer.t

    def step(self, lr=1e-3, **odd):
        self.optimizer.lr = lr
        self.optimizer.step(**{"grads": self.grads, **odd})


CALLS = {       # what -> (the call, {argument: odd values})
    "GPTConfig": (lambda s, **odd: GPT(GPTConfig(**SHAPE | odd), threads=1), FIELDS | {"n_head": [0, 3, *ODD["int"]]}),
    "GPT": (lambda s, **odd: GPT(**{"config": s.model.config} | odd), {
        "config": [None, 5, {}, "gpt2"], "seed": [-1, 1.5, "x", [-1]], "threads": [0, *ODD["int"]],
        "kernels": [None, "fast", 1, []], "dtype": ["int8", "float16", "", None, complex, 5, [], "tf32", "bfloat16"],
        "device": [None, "tpu", 5, "gpu:x", "", []]}),
    "forward": (lambda s, **odd: s.model.forward(**BATCH | odd), {
        "idx": [*IDS, TOO_LONG], "targets": TARGETS, "rng": [5, "x", []]}),
    "backward": (lambda s, **odd: GPT(s.model.config).backward(), {"no forward": [0]}),
    "loss_and_grads": (lambda s, **odd: s.model.loss_and_grads(**BATCH | odd), {
        "idx": [*IDS, TOO_LONG], "targets": [None, *TARGETS], "rng": [5, "x"],
        "count": [-1, 0, True, 1.5, NAN, "1", []]}),
    "evaluate": (lambda s, **odd: s.model.evaluate(**BATCH | odd), {
        "idx": [*IDS, TOO_LONG], "targets": [None, *TARGETS]}),
    "generate": (lambda s, **odd: s.model.generate(**{"idx": IDX, "max_new_tokens": 2} | odd), {
        "temperature": [None, *ODD["float"]], "top_k": [0, 1.5, -1, True, "1", NAN], "top_p": [0, 2, *ODD["float"]],
        "seed": [-1, 1.5, "x"], "eos_token_id": [7, *ODD["int"]], "max_new_tokens": [-1, 1.5, None, "1", True, NAN],
        "idx": IDS}),
    "AdamW": (lambda s, **odd: AdamW(**{"params": s.model.params} | odd), {
        "params": [None, {}, np.zeros(3)], "lr": [None, *ODD["float"]], "threads": [0, *ODD["int"]],
        "betas": [(0.9,), (0.9, 0.95, 0.99), 0.9, None, (), (1.0, 0.9), (0.9, -0.1), (NAN, 0.9), "ab"],
        "eps": [0, None, *ODD["float"]], "weight_decay": [None, *ODD["float"]]}),
    "AdamW.step": (lambda s, **odd: s.step(**odd), {
        "grads": [*OF_OTHER_MODELS, None, {}, [], "x"], "max_norm": [0, *ODD["float"]], "lr": [None, *ODD["float"]]}),
    "params[name] = value": (lambda s, item: s.model.params.__setitem__(*item), {"item": [
        ("typo", None), ("typo", 0), (5, 0), (None, 0), *(("wte.weight", odd) for odd in (
            None, np.zeros(3), "x", [[1], 2], np.zeros((4, 1)), [1, 2])), ("ln_f.weight", None)]}),
    "from_pretrained": (lambda s, **odd: GPT.from_pretrained(**odd), {
        "name_or_path": ["missing", "", None, 5, "a/b/c", ".", "no.safetensors", [], "x" * 5000, "\0"]}),
    "save_pretrained": (lambda s, folder: s.model.save_pretrained(folder), {"folder": [None, 5, [], 1.5]}),
}
SINGLE = [(name, {key: value}) for name, (_, odd) in CALLS.items() for key in odd for value in odd[key]]


def setup_calls(folder):
    """Calls share nothing."""


def calls(rng, number, folder, made):
    name, arguments = SINGLE[number] if number < len(SINGLE) else rng.choice(SINGLE)
    if number >= len(SINGLE):           # first every odd value by itself, then two together
        key, values = rng.choice(list(CALLS[name][1].items()))
        arguments = {key: rng.choice(values), **arguments}

    def job():
        scene = Scene(rng)
        before = scene.values()
        try:
            CALLS[name][0](scene, **arguments)
            note("accepted without a word")
        except UserError as error:
            if one_line(error, 2000) != str(error):
                note("an error of several lines, or too long")
        if scene.values() != before:
            note("something was changed")

    what = f"{name}({'several' if len(arguments) > 1 else ''.join(arguments)})"
    shown = " ".join(f"{name} {arguments}"[:300].split())
    return [f"{what}: {text} | {shown}" for text in complaints(run(job, folder), "a call", codes=(0,))]
