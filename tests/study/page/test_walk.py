"""The walk: what it claims is what its shown numbers make, and what moving a number measures."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import npgpt
from npgpt import GPT, GPTConfig, load
from npgpt.data.tokenizers import CharTokenizer
from npgpt.study.page import walk
from npgpt.study.page.walk import walk_stops
from tests.cases import MODERN, VARIANTS
from tests.study.page.test_origins import assert_terms
from tests.torch_gpt import unit_scale

TEXT = "abcab bac"
TITLES = """The loss|Predicted|Through the head|The last LayerNorm|Used twice|The same once
Through attention|To the row""".replace("\n", "|").split("|")


def walked(text=TEXT, **options):
    """A model in which no gradient is small, its tokens, and their stops."""
    tokenizer = CharTokenizer.from_text(TEXT)
    sizes = {"block_size": 12, "n_layer": 2, "n_head": 3, "n_embd": 12} | options
    model = GPT(GPTConfig(vocab_size=tokenizer.vocab_size, **sizes), 1, "float64")
    unit_scale(model.params)
    ids = tokenizer.encode(text)
    return model, ids, walk_stops(model, lambda token: tokenizer.decode([token]), ids)


@pytest.mark.parametrize(
    "options", [*VARIANTS, {"activation": "gelu"}, {"n_layer": 1}, {"dropout": 0.5}]
)
def test_the_shown_numbers_make_the_claimed_one(options):
    """The claimed one is the gradient, as measured by moving the number."""
    for text in TEXT, *["ab", "aa"] * (options == {"n_layer": 1}):
        model, ids, stops = walked(text, **options)
        kinds = [re.match("|".join(TITLES), stop["title"])[0] for stop in stops]
        assert (TITLES[3] in kinds) == model.config.final_layer_norm and len(stops) >= 6
        for stop in stops:
            assert_consistent(stop)
        targets = np.full((1, len(ids) - 1), -1)
        targets[0, -1] = ids[-1]
        loss = model.forward(ids[None, :-1], targets)[1]
        shown = stops[0]["data"]["arrays"][0]["values"][0]
        assert stops[0]["checked"] is None and shown == pytest.approx(loss, rel=1e-3)
        json.dumps(stops, allow_nan=False)
        _, arrays = model.run_with_cache(ids[None, :-1], targets)
        model.backward()
        largest = np.abs(arrays.grads["head.x"][0, -1]).max()  # is followed
        if kinds[2] == TITLES[2]:  # not with a bias of the head
            assert abs(stops[2]["checked"][0]) == pytest.approx(largest, rel=1e-3)


def assert_consistent(stop):
    assert assert_terms(stop["data"], 0.03) == []
    shown = stop["data"]["arrays"][0]["values"]
    assert [len(stop["labels"]), 1] in [each["shape"] for each in stop["data"]["arrays"]]
    if stop["checked"]:
        claimed, measured = stop["checked"]
        assert shown[stop["first"] if len(shown) > 1 else 0] == pytest.approx(claimed, rel=1e-3)
        assert measured == pytest.approx(claimed, rel=5e-3, abs=1e-4)


def test_the_line_of_code_is_there():
    files = {path.name: path for path in Path(npgpt.__file__).parent.glob("[lm]*/*.py")}
    for stop in walked()[2]:
        line = stop["line"]
        text = files[line["file"]].read_text().splitlines()[line["number"] - 1]
        assert text.split("#")[0].strip() == line["text"]
        assert line["address"].endswith(f"{line['number']}")


def test_what_a_model_lacks_is_left_out(monkeypatch):
    model, tokenizer = load("tiny")
    before, ids = model.params.flat.copy(), tokenizer.encode("To be, or not to be")
    stops = walk_stops(model, str, ids)
    assert len(stops) == 8 and len(json.dumps(stops, separators=(",", ":"))) < 12_000
    np.testing.assert_array_equal(model.params.flat, before)
    config = GPTConfig(256, block_size=64, n_layer=1, n_head=1, n_embd=4, final_layer_norm=False)
    titles = [stop["title"] for stop in walk_stops(GPT(config, block=MODERN), str, ids)]
    assert all(map(str.startswith, titles, (*TITLES[:3], TITLES[7]))) and len(titles) == 4
    monkeypatch.setattr(walk, "MOST_PARAMS", 10)
    assert walk_stops(model, str, ids) == []
