"""`npgpt study`: what the page says, against the sources, the model and the gradient check, and what it refuses."""

import base64
import html
import importlib.util
import inspect
import json
import re
import time

import numpy as np
import pytest

from npgpt import GPT, AdamW, GPTConfig
from npgpt.cli import study
from npgpt.cli.study import fresh_model
from npgpt.data.tokenizers import ByteTokenizer, CharTokenizer
from npgpt.errors import UserError
from npgpt.layers.attention import attention_forward
from npgpt.model.transformer import gpt_backward, gpt_forward
from npgpt.study import page, whole_model
from npgpt.study.gradcheck import WRONG
from npgpt.study.lessons import lessons
from npgpt.study.trace import recording
from npgpt.study.whole_model import prompt_ids, study_model
from tests.cli.test_train import refused

for module in ("jinja2", "pygments", "latex2mathml", "scipy"):
    pytest.importorskip(module, reason="makes the study page")

NAMES = list(lessons())


@pytest.fixture(scope="module")
def layers():
    """name -> the `StudiedLayer` of every lesson."""
    return {name: page.studied_layer(lesson) for name, lesson in lessons().items()}


@pytest.fixture(scope="module")
def model():
    """A model, its tokenizer, a text, and the `ModelStudy` of them."""
    text = "to be or not"
    tokenizer = CharTokenizer.from_text(text)
    model = GPT(GPTConfig(vocab_size=tokenizer.vocab_size, block_size=16, n_layer=2, n_head=3, n_embd=12), 1, "float64")
    return model, tokenizer, text, study_model(model, tokenizer, text, "a model")


def data_of(text):
    """What the page holds for its script."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def values(layer, step, name):
    """The values of the array of that name in a step."""
    (i,) = [i for each, i in step["arrays"] if each == name]
    array = layer.data["arrays"][i]
    return np.reshape([float(value) for value in array["values"]], array["shape"])


def test_the_whole_page_is_small_and_soon_made(npgpt, tmp_path):
    start = time.perf_counter()
    code, out, _ = npgpt("study")
    seconds = time.perf_counter() - start
    text = (tmp_path / "study.html").read_text()
    assert code == 0 and out == f"study.html: {(tmp_path / 'study.html').stat().st_size / 1e6:.2f} MB\n"
    assert len(text.encode()) < 3e6 and seconds < 60        # 10 on a quiet machine
    assert [each["name"] for each in data_of(text)["layers"]] == NAMES
    for name in NAMES:
        assert text.count(f'id="{name}"') == 1
        assert f'href="#{name}"' in text.partition('id="map"')[2].partition("</section>")[0], name
    assert not re.search(r'(?:src|href|action)="(?!#|data:,)|url\(|@import|https?://(?!www\.w3\.org/)', text)


def test_one_layer_alone(npgpt, tmp_path):
    assert npgpt("study", "linear", "--out", "one.html")[0] == 0
    text = (tmp_path / "one.html").read_text()
    assert [each["name"] for each in data_of(text)["layers"]] == ["linear"]
    links = set(re.findall(r'href="#([^"]*)"', text))
    assert "linear" in links and all(f'id="{link}"' in text for link in links)


@pytest.mark.parametrize("name", NAMES)
def test_the_source_is_shown_with_its_numbers(layers, name):
    lesson = lessons()[name]
    for function, units in ((lesson.forward, layers[name].forward), (lesson.backward, layers[name].backward)):
        function = inspect.unwrap(function)
        with open(inspect.getsourcefile(function)) as file:
            there = file.read().split("\n")
        shown = [row for unit in units for row in unit.lines]
        assert [number for number, _ in shown] == list(range(shown[0][0], shown[-1][0] + 1))
        assert there[shown[0][0] - 1].startswith(f"def {function.__name__}(")
        for number, text in shown:
            assert html.unescape(re.sub(r"<[^>]*>", "", text)) == there[number - 1]


@pytest.mark.parametrize("name", NAMES)
def test_every_line_that_is_pointed_to_is_there(layers, name):
    layer = layers[name]
    active = {f"{side}{unit.first}" for side, units in (("f", layer.forward), ("b", layer.backward))
              for unit in units if unit.active}
    assert set(layer.data["lines"]) == active >= {step["line"] for step in layer.data["steps"]}
    for line, entries in layer.data["lines"].items():
        for entry in entries:
            assert entry["partner"] is None or entry["partner"] in active and entry["partner"][0] != line[0]
            assert entry["section"] is None or entry["section"] in layer.derivation.sections


@pytest.mark.parametrize("name", NAMES)
def test_partners_are_mutual_and_every_gradient_is_certified(layers, name):
    layer = layers[name]
    lines = layer.data["lines"]
    for checked in layer.checks:
        entry = next(each for each in lines[f"f{checked.forward_line}"] if each["name"] == checked.variable)
        assert entry["certificate"] and entry["verdict"] != WRONG
        if entry["verdict"] == "ok":
            back = next(each for each in lines[entry["partner"]] if each["name"] == f"d{checked.variable}")
            assert back["partner"][0] == "f" and back["other"] == checked.variable and entry["section"]
    assert layer.right


def test_partners_and_certificates_of_layernorm(layers):
    """The lines by their text, so that the file may move them."""
    layer = layers["layernorm"]
    text_of = {f"{side}{number}": html.unescape(re.sub(r"<[^>]*>", "", text)).strip()
               for side, units in (("f", layer.forward), ("b", layer.backward)) for unit in units
               for number, text in unit.lines}
    line_of = {text.split(" = ")[0]: line for line, text in text_of.items() if line[0] == "f" and " = " in text}

    def entry(variable):
        return next(each for each in layer.data["lines"][line_of[variable]] if each["name"] == variable)

    assert text_of[entry("xhat")["partner"]].startswith("dxhat = dscaled * weight")
    assert text_of[entry("var")["partner"]].startswith("dx = rstd * (")
    assert "dvar is skipped" in entry("var")["certificate"] and entry("var")["other"] == "dx"
    assert "dxhat is certified" in entry("xhat")["certificate"] and entry("xhat")["section"] == "xhat"
    weight = next(each for each in layer.data["lines"][f"f{layer.forward[0].first}"] if each["name"] == "weight")
    assert text_of[weight["partner"]].startswith("dweight = column_dot")


@pytest.mark.parametrize("name", NAMES)
def test_the_steps_are_the_pass(layers, name):
    """Forwards, then backwards; the last values of the inputs' gradients are those that the backward returns."""
    layer, lesson = layers[name], lessons()[name]
    sides = [step["line"][0] for step in layer.data["steps"]]
    assert sides == sorted(sides, reverse=True) and set(sides) == {"f", "b"}
    truth = page.truth(lesson)
    for variable in lesson.inputs:
        steps = [step for step in layer.data["steps"] if any(each == f"d{variable}" for each, _ in step["arrays"])]
        shown = values(layer, steps[-1], f"d{variable}")
        np.testing.assert_allclose(shown, truth.inputs[variable], rtol=1e-3, atol=1e-3)


def test_a_wrong_backward_shows():
    lesson = lessons()["dropout"]
    broken = type(lesson)(**{**vars(lesson), "backward": wrong_dropout_backward})
    layer = page.studied_layer(broken)
    assert not layer.right and "1 gradients WRONG" in layer.verdict


def wrong_dropout_backward(dy, mask):
    """A planted mistake."""
    dx = dy + mask
    return dx


def test_what_is_not_finite_becomes_json():
    value = page.summary(np.array([-np.inf, 1.0, np.nan, 2.0]))
    assert value["values"] == ["-inf", 1.0, "nan", 2.0] and value["low"] == 1.0 and sum(value["counts"]) == 2
    json.dumps(value, allow_nan=False)
    json.dumps(page.summary(np.full((2, 2), np.inf)), allow_nan=False)


def test_the_losses_and_pulls_are_the_models(model):
    gpt, tokenizer, text, found = model
    ids = tokenizer.encode(text).astype(int)[None]
    assert found.tokens == list(text.replace(" ", "·"))
    for i, (loss, row) in enumerate(zip(found.losses, found.pulls, strict=True)):
        logits, cache = gpt_forward(ids[:, :-1], gpt.params)
        scores = logits[0, i] - logits[0, i].max()
        assert loss == pytest.approx(np.log(np.exp(scores).sum()) - scores[ids[0, i + 1]], rel=1e-6)
        dlogits = np.zeros_like(logits)
        dlogits[0, i] = np.exp(scores) / np.exp(scores).sum()
        dlogits[0, i, ids[0, i + 1]] -= 1.0
        with recording([gpt_backward]) as record:
            gpt_backward(dlogits, cache, gpt.params.zeros_like())
        dx = [each.value for each in record if each.name == "dx"][-1][0]
        np.testing.assert_allclose(row, np.linalg.norm(dx[:i + 1], axis=-1), rtol=1e-6)
        np.testing.assert_allclose(dx[i + 1:], 0.0, atol=1e-12)     # no loss depends on what comes after
    assert found.loss == pytest.approx(np.mean(found.losses))


def test_the_norms_and_ratios_are_those_of_a_step(model):
    gpt, tokenizer, text, found = model
    ids = tokenizer.encode(text).astype(int)[None]
    twin = GPT(gpt.config, None, "float64")
    twin.params.flat[:] = gpt.params.flat
    _, grads = twin.loss_and_grads(ids[:, :-1], ids[:, 1:])
    AdamW(twin.params, lr=1e-3).step(grads)
    tensors = {tensor.name: tensor for _, tensors in found.parts for tensor in tensors}
    assert set(tensors) == set(gpt.params)
    for name, tensor in tensors.items():
        assert tensor.norm == pytest.approx(np.linalg.norm(grads[name]), rel=1e-9)
        before, moved = np.linalg.norm(gpt.params[name]), np.linalg.norm(twin.params[name] - gpt.params[name])
        assert tensor.ratio == (pytest.approx(moved / before, rel=1e-6) if before else None)
    block = next(whole for whole, _ in found.parts if whole.name == "block 1")
    whole = np.concatenate([grads[name].ravel() for name in grads if name.startswith("h.1.")])
    assert block.norm == pytest.approx(np.linalg.norm(whole))


def test_the_maps_are_the_attention(model):
    gpt, tokenizer, text, found = model
    with recording([attention_forward]) as record:
        gpt.forward(tokenizer.encode(text).astype(int)[None, :-1])
    att = [each.value[0] for each in record if each.name == "att"]
    T = len(text) - 1
    assert [(layer, head) for layer, head, _ in found.maps] == [(i, j) for i in range(2) for j in range(3)]
    for layer, head, data in found.maps:
        weights = np.frombuffer(base64.b64decode(data), np.uint8).reshape(T, T) / 255
        np.testing.assert_allclose(weights, att[layer][head], atol=0.5 / 255 + 1e-6)


def test_what_is_too_much_is_left_out_and_said(model, monkeypatch):
    gpt, tokenizer, text, found = model
    assert found.left_out == []
    monkeypatch.setattr(whole_model, "MOST_MAPS", 4)
    monkeypatch.setattr(whole_model, "MOST_WORK", 6 * gpt.params.flat.size * 10)
    less = study_model(gpt, tokenizer, text, "")
    assert [(layer, head) for layer, head, _ in less.maps] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert less.pulls == found.pulls[:4] and len(less.losses) == len(text) - 1
    assert "first 2" in less.left_out[0] and "first 4 of 11" in less.left_out[1]


def test_an_encoders_tokens_see_all_others(model):
    tokenizer, text = model[1:3]
    config = GPTConfig(vocab_size=tokenizer.vocab_size, block_size=16, n_layer=1, n_head=1, n_embd=8, causal=False)
    found = study_model(GPT(config, 0), tokenizer, text, "")
    assert {len(row) for row in found.pulls} == {len(text) - 1} and found.pulls[0][-1] > 0.0


def test_planted_markup_is_text(npgpt, tmp_path):
    planted = "</script><script>alert(1)</script>&<b>"
    assert npgpt("study", "dropout", "--prompt", planted)[0] == 0
    text = (tmp_path / "study.html").read_text()
    assert "alert(" not in text and "<b>" not in text       # a token a character
    assert text.count("<script") == text.count("</script>") == 2
    assert "".join(data_of(text)["model"]["tokens"]) == planted
    assert '<span class="text">&lt;</span>' in text


def test_a_whole_script_in_a_token_and_a_name_is_text():
    found = study_model(*fresh_model("ab"), "ab", '<img src="x">')
    found.tokens[0] = "<script>alert(1)</script>"
    text = page.study_page([lessons()["dropout"]], found)
    assert "<script>alert" not in text and "<img" not in text and "\\u003cscript\\u003ealert" in text


def test_what_has_no_glyph_is_made_visible():
    assert whole_model.shown(" a\n\t\u202e\udc80") == "·a⏎\\t\\u202e\\udc80"


def test_an_argument_that_is_no_text(npgpt, tmp_path):
    assert npgpt("study", "dropout", "--prompt", "ab\udc80")[0] == 0
    (tmp_path / "study.html").read_bytes().decode("utf-8")


def test_a_run_is_studied(npgpt, train, tmp_path):
    assert train("--max-iters", 3)[0] == 0
    assert npgpt("study", "linear", "--checkpoint", "out", "--prompt", "To be,")[0] == 0
    text = (tmp_path / "study.html").read_text()
    assert "".join(data_of(text)["model"]["tokens"]) == "To·be," and "h.0.attn.c_attn.weight" in text
    refused(npgpt("study", "--checkpoint", "out", "--prompt", "To € be"), "'€'", "position 3")
    refused(npgpt("study", "--checkpoint", "out", "--prompt", "To be, or"), "9 tokens", "at most 8")


@pytest.mark.parametrize(("arguments", "says"), [
    (["softmax"], ['no layer "softmax"', "softmax_loss", "self_attention"]),
    (["--checkpoint", "nowhere"], ["nowhere"]),
    (["--prompt", ""], ["prompt is empty"]),
    (["--prompt", "a"], ["1 tokens", "at least two"]),
    (["--prompt", "a" * 65], ["65 tokens", "at most 64"]),
    (["--out", "no/such/folder/page.html"], ["no/such/folder/page.html cannot be written"]),
    (["--out", "."], ["cannot be written"]),
])
def test_it_refuses_in_one_line(npgpt, tmp_path, arguments, says):
    refused(npgpt("study", *arguments), *says)
    assert not (tmp_path / "study.html").exists()


@pytest.mark.parametrize("missing", ["jinja2", "pygments", "latex2mathml"])
def test_a_missing_library_is_named_with_its_extra(npgpt, monkeypatch, missing):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else there(name))
    refused(npgpt("study"), missing, 'pip install "npgpt[study]"')


def test_a_checkpoint_that_is_not_finite(model):
    gpt, tokenizer, text, _ = model
    broken = GPT(gpt.config, 0)
    broken.params["ln_f.weight"][0] = np.nan
    with pytest.raises(UserError, match="not finite"), np.errstate(invalid="ignore"):
        study_model(broken, tokenizer, text, "")


def test_the_limit_is_the_models_or_the_pages(model):
    config = GPTConfig(vocab_size=256, block_size=200, n_layer=1, n_head=1, n_embd=4)
    assert len(prompt_ids(GPT(config), ByteTokenizer(), "é" * 32)) == 64
    with pytest.raises(UserError, match="66 tokens"):
        prompt_ids(GPT(config), ByteTokenizer(), "é" * 33)


def test_it_opens_the_browser_when_asked(npgpt, monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr(study.webbrowser, "open", opened.append)
    assert npgpt("study", "dropout")[0] == 0 and not opened
    assert npgpt("study", "dropout", "--open")[0] == 0
    assert opened == [(tmp_path / "study.html").as_uri()]
