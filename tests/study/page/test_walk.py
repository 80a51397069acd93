"""The walk: its numbers against NumPy's, written here again."""

import json
from pathlib import Path

import numpy as np
import pytest

import npgpt
from npgpt import GPT, GPTConfig, load
from npgpt.data.tokenizers import CharTokenizer
from npgpt.study.page import walk
from npgpt.study.page.walk import walk_stops
from tests.cases import MODERN, VARIANTS
from tests.study.page.test_origins import entries_of, value_of
from tests.torch_gpt import unit_scale

TEXT = "abcab bac"
TITLES = ["The loss", "Predicted", "Through the head", "The last LayerNorm", "Used twice",
          "The same once", "Through attention", "To the row"]


def walked(text=TEXT, **options):
    """A model in which no gradient is small, its tokens, and their stops."""
    tokenizer = CharTokenizer.from_text(TEXT)
    sizes = {"block_size": 12, "n_layer": 2, "n_head": 3, "n_embd": 12} | options
    model = GPT(GPTConfig(vocab_size=tokenizer.vocab_size, **sizes), 1, "float64")
    unit_scale(model.params)
    ids = tokenizer.encode(text)
    return model, ids, walk_stops(model, lambda token: tokenizer.decode([token]), ids)


def made(stop):
    """The result that the shown arrays of a stop make, by what is said of its entries."""
    [step], arrays = stop["data"]["steps"], stop["data"]["arrays"]
    [[name, i]] = step["arrays"]
    found = []
    for _, tree, places in entries_of(step["from"][name], arrays[i]["shape"]):
        slots = [float(arrays[step["at"][of]]["values"][at]) for of, at in places]
        found.append(value_of(tree, slots))
    return np.array(found), np.array(arrays[i]["values"], float)


def test_each_stop_claims_the_gradient_of_its_line_and_measures_it():
    model, ids, stops = walked()
    targets = np.full((1, len(ids) - 1), -1)
    targets[0, -1] = ids[-1]
    logits, arrays = model.run_with_cache(ids[None, :-1], targets)
    grads, wte = model.backward(), model.params["wte.weight"]
    probs = np.exp(logits[0, -1]) / np.exp(logits[0, -1]).sum()
    dlogits = probs - (np.arange(len(probs)) == ids[-1])
    dhead = dlogits @ wte
    x = arrays["ln_f.x"][0, -1]
    rstd = 1 / np.sqrt(x.var() + 1e-5)
    xhat, dxhat = (x - x.mean()) * rstd, dhead * model.params["ln_f.weight"]
    dx = rstd * (dxhat - dxhat.mean() - xhat * (dxhat * xhat).mean())
    dx_mid = dx + arrays.grads["h.1.ln_2.x"][0, -1]
    dx_in = dx_mid + arrays.grads["h.1.ln_1.x"][0, -1]
    c = int(np.abs(dhead).argmax())
    claimed, measured = zip(*(stop["checked"] for stop in stops[1:]), strict=True)
    expected = [dlogits[ids[-1]], dhead[c], dx[c], dx_mid[c], dx_in[c]]
    np.testing.assert_allclose(claimed[:5], expected, rtol=1e-3)
    assert np.isclose(arrays.grads["h.1.attn.masked"][0, :, -1], claimed[5], rtol=1e-3).any()
    token = np.bincount(ids[:-1]).argmax()
    assert np.isclose(grads["wte.weight"][token], claimed[6], rtol=1e-3).any()
    assert measured == pytest.approx(claimed, rel=2e-3)
    loss = stops[0]["data"]["arrays"][0]["values"][0]
    assert stops[0]["checked"] is None and loss == pytest.approx(-np.log(probs[ids[-1]]), rel=1e-3)


def test_the_slope_is_measured_by_moving_the_number(monkeypatch):
    """A backward that is wrong differs from it at the stops that read it."""
    right = GPT.backward

    def wrong(self, *arguments):
        grads = right(self, *arguments)
        array = self._cache[3].activations.grads["h.1.x_mid"]
        array.flags.writeable = True
        array *= 1.5
        grads["wte.weight"] *= 1.5
        return grads

    monkeypatch.setattr(GPT, "backward", wrong)
    _, _, stops = walked()
    ratios = {stop["title"]: np.divide(*stop["checked"]) for stop in stops[1:]}
    off = [title for title, ratio in ratios.items() if abs(ratio - 1) > 0.01]
    assert [title[:8] for title in off] == [TITLES[4][:8], TITLES[7][:8]]


@pytest.mark.parametrize("text", [TEXT, "ab", "aa"])
@pytest.mark.parametrize("options", [
    *VARIANTS, {"activation": "gelu"}, {"n_layer": 1}, {"dropout": 0.5}])
def test_the_shown_numbers_make_the_claimed_one(options, text):
    model, _, stops = walked(text, **options)
    titles = [next(title for title in TITLES if stop["title"].startswith(title)) for stop in stops]
    assert (TITLES[3] in titles) == model.config.final_layer_norm and len(stops) >= 6
    for stop in stops:
        result, shown = made(stop)
        np.testing.assert_allclose(result, shown, rtol=1e-2, atol=0.03 * np.abs(shown).max())
        shapes = [each["shape"] for each in stop["data"]["arrays"]]
        assert [len(stop["labels"]), 1] in shapes
        if stop["checked"]:
            claimed, measured = stop["checked"]
            first = stop["first"] if len(shown) > 1 else 0
            assert shown[first] == pytest.approx(claimed, rel=1e-3)
            assert measured == pytest.approx(claimed, rel=5e-3, abs=1e-4)
    json.dumps(stops, allow_nan=False)


def test_of_many_entries_the_largest_are_shown(monkeypatch):
    monkeypatch.setattr(walk, "SHOWN", 2)
    model, tokenizer = load("tiny")
    stops = walk_stops(model, str, tokenizer.encode("To be"))
    assert {len(stop["labels"]) for stop in stops[:7]} == {2}
    for stop in stops:
        np.testing.assert_allclose(*made(stop), rtol=1e-2, atol=0.03)
        if stop["checked"]:
            assert stop["checked"][0] in stop["data"]["arrays"][0]["values"]


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
    config = GPTConfig(vocab_size=256, block_size=64, n_layer=1, n_head=1, n_embd=4,
                       final_layer_norm=False)
    found = walk_stops(GPT(config, block=MODERN), str, ids)
    assert [stop["title"][:8] for stop in found] == [each[:8] for each in (*TITLES[:3], TITLES[7])]
    monkeypatch.setattr(walk, "MOST_PARAMS", 10)
    assert walk_stops(model, str, ids) == []
