"""`npgpt study`: what the page says, against the sources, the model and the gradient check, and
what it refuses.
"""

import ast
import base64
import dataclasses
import html
import importlib.util
import inspect
import json
import re

import numpy as np
import pytest

from npgpt import GPT, GPTConfig
from npgpt.data.tokenizers import CharTokenizer
from npgpt.layers import gelu_exact_backward
from npgpt.study.gradcheck.flow import Flow
from npgpt.study.gradcheck.measure import truth
from npgpt.study.gradcheck.source import read_source
from npgpt.study.gradcheck.verdicts import WRONG
from npgpt.study.page import page, whole_model
from npgpt.study.page.edits import view_name, views_of
from npgpt.study.page.whole_model import study_model
from tests.helpers.runs import refused, refusing
from tests.study.page.conftest import LESSONS, SLOW, for_each, studied

for module in ("jinja2", "pygments", "latex2mathml", "scipy"):
    pytest.importorskip(module, reason="makes the study page")

EACH = for_each(LESSONS)
SIDES = "forward", "backward"


@pytest.fixture(scope="module")
def model():
    """A model, its tokenizer, a text, and the `ModelStudy` of them."""
    text = "to be or not"
    tokenizer = CharTokenizer.from_text(text)
    model = GPT(
        GPTConfig(vocab_size=tokenizer.vocab_size, block_size=16, n_layer=2, n_head=3, n_embd=12),
        1,
        "float64",
    )
    return model, tokenizer, text, study_model(model, tokenizer, text, "a model")


def data_of(text):
    """What the page holds for its script."""
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1]
    )


@pytest.mark.parametrize("names", [["layernorm"], pytest.param([], marks=SLOW)])
def test_the_page(npgpt, tmp_path, names):
    """It fetches nothing from anywhere."""
    code, out, _ = npgpt("study", *names)
    text = (tmp_path / out.partition(": ")[0]).read_text()
    assert code == 0 and len(text.encode()) < 1.3e6
    data = data_of(text)
    views = [view_name(view) for name in names or LESSONS for view in views_of(LESSONS[name])]
    assert data["live"] is None and [each["name"] for each in data["layers"]] == views
    assert not re.search(
        r'(?:src|href|action)="(?!#|data:,)|url\(|@import|https?://(?!www\.w3\.org/)', text
    )


def entries_of(layer):
    """A layer's gradients: name -> what the page says of it."""
    return {each["name"]: each for entries in layer["entries"].values() for each in entries}


@EACH
@pytest.mark.parametrize("side", SIDES)
def test_each_line_of_the_source_is_in_one_row(name, side):
    """With its number and text, but for blank lines and comments on lines of their own."""
    units = [unit for row in studied(name)["rows"] for unit in row[side]]
    rows = [line for unit in units for line in unit["lines"]]
    shown = {number: html.unescape(re.sub(r"<[^>]*>", "", text)) for number, text in rows}
    assert len(shown) == len(rows)
    for number, line in enumerate(*inspect.getsourcelines(getattr(LESSONS[name], side))):
        text = line.strip()
        if text and not text.startswith("#") or number in shown:
            assert shown[number].split() == line.split()


@EACH
def test_partners_are_in_one_row_and_the_backward_reads_upwards(name):
    lesson, rows = LESSONS[name], studied(name)["rows"]
    undone = Flow(lesson.forward, lesson.backward).undone
    row_of = {row["line"]: i for i, row in enumerate(rows)}
    assert [*row_of] == sorted(row_of)
    at = {}
    for i, row in enumerate(rows):
        for unit in row["backward"]:
            at |= {number: i for number, _ in unit["lines"]}
        has_partner = row["why"] or any(unit["key"] for unit in row["backward"])
        assert has_partner or not any(row["line"] in lines for lines in undone.values())
    before = len(rows) - 1
    for line in sorted(undone):
        partners = {row_of[forward] for forward in undone[line]}
        assert not partners or at[line] in partners
        assert at[line] <= before or min(partners) > before, "below the line before it"
        before = at[line]


@EACH
def test_every_gradient_is_verified(name):
    layer = studied(name)
    assert layer["right"] and all(checked.verdict != WRONG for checked in layer["checks"])
    found = entries_of(layer)
    for checked in layer["checks"]:
        if checked.verdict == "ok":
            entry = found[f"d{checked.variable}"]
            assert "is verified" in entry["finding"] and entry["section"] in layer["sections"]


def test_the_long_way_has_the_gradients_that_the_fused_line_skips():
    steps, view = page.studied_views(LESSONS["layernorm"])
    found = entries_of(steps)
    for name in "mean centred var rstd x".split():
        assert "is verified" in found[f"d{name}"]["finding"]
    [fused] = [text for text in steps["sections"]["rstd"] if "The cache holds no" in text]
    assert fused.startswith('<div class="fused">')
    assert view["verdict"].startswith("6 gradients verified; 4 more inside dx")


def test_a_skipped_gradient_is_beside_the_line_that_has_it():
    """Its derivation, or that of a line before it, is shown there."""
    for name in "layernorm", "cross_entropy", "attention":
        layer = studied(name)
        of = {each.forward_line: each.variable for each in layer["checks"]}
        skipped = {
            of[row["line"]]: row
            for row in layer["rows"]
            if of.get(row["line"]) in LESSONS[name].skipped
        }
        assert skipped.keys() == {*LESSONS[name].skipped}
        for variable, row in skipped.items():
            [entry] = layer["entries"][f"b{row['at']}"]
            assert variable in layer["data"]["built_on"][entry["section"]]


@EACH
def test_the_parts_of_a_picture_are_the_code_of_its_line(name):
    sources = {side[0]: read_source(getattr(LESSONS[name], side)) for side in SIDES}
    for line, parts in studied(name)["data"]["parts"].items():
        text = "".join(part if isinstance(part, str) else part[2 * len(part[2:])] for part in parts)
        if statement := sources[line[0]].statement_at(int(line[1:])):
            own = statement.text.replace(".swapaxes(-1, -2)", ".T")
            assert ast.unparse(ast.parse(text)) == ast.unparse(ast.parse(own))


@EACH
def test_the_steps_are_the_pass(name):
    """Forwards, then backwards; the last values of the inputs' gradients are those that the
    backward returns.
    """
    passed, arrays = (studied(name)["data"][key] for key in ("steps", "arrays"))
    sides = [step["line"][0] for step in passed]
    assert sides == sorted(sides, reverse=True) and {*sides} == {"f", "b"}
    last = {}
    for step in passed:
        last |= dict(step["arrays"])
    for variable, true in truth(LESSONS[name]).inputs.items():
        shown = arrays[last[f"d{variable}"]]
        assert shown["shape"] == list(true.shape)
        np.testing.assert_allclose(shown["values"], true.ravel(), rtol=1e-3, atol=1e-3)


def test_a_wrong_backward_shows():
    layer = page.studied_layer(
        dataclasses.replace(LESSONS["gelu_tanh"], backward=gelu_exact_backward)
    )
    assert not layer["right"] and "gradients WRONG" in layer["verdict"]


def chances_of(logits):
    return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


def test_the_losses_and_pulls_are_the_models(model):
    """The loss of one token is that of a batch in which no other token counts."""
    gpt, tokenizer, text, found = model
    ids = tokenizer.encode(text).astype(int)[None]
    for i, (loss, row) in enumerate(zip(found["losses"], found["pulls"], strict=True)):
        targets = np.where(np.arange(len(text) - 1) == i, ids[:, 1:], -1)
        assert loss == pytest.approx(gpt.forward(ids[:, :-1], targets)[1], rel=1e-3)
        dwpe = gpt.backward()["wpe.weight"]
        np.testing.assert_allclose(row, np.linalg.norm(dwpe[: i + 1], axis=-1), rtol=1e-3)
    assert found["loss"] == pytest.approx(np.mean(found["losses"]), rel=1e-3)


def test_the_next_tokens_and_maps_are_the_models(model):
    gpt, tokenizer, text, found = model
    logits, activations = gpt.run_with_cache(tokenizer.encode(text).astype(int)[None])
    chances = chances_of(logits[0, -1])
    best = np.argsort(-chances)[:5]
    texts, shown = zip(*found["next"], strict=True)
    assert "".join(texts) == tokenizer.decode(best).replace(" ", "·")
    np.testing.assert_allclose(shown, chances[best], rtol=1e-3)
    assert len(found["maps"]) == 6
    for layer, head, data in found["maps"]:
        weights = np.frombuffer(base64.b64decode(data), np.uint8).reshape(len(text) - 1, -1) / 255
        true = activations[f"h.{layer}.attn.att"][0, head, :-1, :-1]
        np.testing.assert_allclose(weights, true, atol=0.5 / 255 + 1e-6)


def test_the_logit_lens_is_the_model_without_its_last_blocks(model):
    """An edit that gives ln_f and the head an earlier state of the residual stream makes the same
    predictions.
    """
    gpt, tokenizer, text, found = model
    ids = tokenizer.encode(text).astype(int)
    _, activations = gpt.run_with_cache(ids[None, :-1], ids[None, 1:])
    for row, stream in zip(found["lens"], ("h.0.x", "h.1.x", "h.1.x_out"), strict=True):
        edit = {"h.1.x_out": lambda _, state=activations[stream]: state}
        chances = chances_of(gpt.forward(ids[None, :-1], edit=edit)[0][0])
        texts, _, shown = zip(*row, strict=True)
        assert "".join(texts) == tokenizer.decode(chances.argmax(axis=-1)).replace(" ", "·")
        np.testing.assert_allclose(shown, chances[range(len(ids) - 1), ids[1:]], rtol=1e-3)


def test_odd_characters_and_the_end_of_text_are_shown(model, gpt2):
    ids = whole_model.prompt_ids(model[0], gpt2, "<|endoftext|>be").tolist()
    assert ids == [50256, *gpt2.encode("be")]
    shown = [whole_model.shown(CharTokenizer(each), 0) for each in " \n\té\u202e"]
    assert shown == r"· ⏎ \t é \u202e".split()


def test_it_refuses_in_one_line(npgpt, tmp_path, monkeypatch):
    refused(npgpt("study", "softmax"), 'no layer "softmax"')
    refused(npgpt("study", "--prompt", "a"), "1 tokens")
    refused(npgpt("study", "--prompt", "a" * 65), "65 tokens")
    refused(npgpt("study", "--open", "--out", "page.html"), "--open writes no file")
    assert not (tmp_path / "study.html").exists()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused(npgpt("study"), "pygments", 'pip install "npgpt[study]"')


def test_a_model_that_is_not_finite(model):
    tokenizer, text = model[1:3]
    broken = GPT(model[0].config, 0)
    broken.params["ln_f.weight"][0] = np.nan
    with refusing("not finite"), np.errstate(invalid="ignore"):
        study_model(broken, tokenizer, text, "")


def test_a_page_without_lessons(npgpt, tmp_path):
    assert npgpt("look", "tiny", "--prompt", "To be")[0] == 0
    page = (tmp_path / "look.html").read_text()
    assert data_of(page)["model"]["tokens"] == [*"To·be"] and data_of(page)["layers"] == []
    assert all(f'id="{name}"' in page for name in re.findall(r'href="#(\w+)"', page))
    assert "<h1>A model on a text</h1>" in page
    body = page.partition("<body>")[2].partition("<script")[0]
    assert not re.search('id="walk"|<input|study --open|disabled', body)


def test_what_a_backward_returns_is_beside_what_the_forward_is_given():
    first, *others = studied("linear")["rows"]
    assert [unit["returns"] for unit in first["backward"]].count(True) == 1
    assert not any(unit["returns"] for row in others for unit in row["backward"])
