"""`npgpt study`: what the page says, against the sources, the model and the gradient check, and what it refuses."""

import ast
import base64
import collections
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
from npgpt.errors import UserError
from npgpt.layers import gelu_exact_backward
from npgpt.study.gradcheck.flow import Flow
from npgpt.study.gradcheck.measure import truth
from npgpt.study.gradcheck.source import read_source
from npgpt.study.gradcheck.verdicts import WRONG
from npgpt.study.lessons.table import chosen_lessons
from npgpt.study.page import page, whole_model
from npgpt.study.page.edits import view_name, views_of
from npgpt.study.page.whole_model import study_model
from tests.helpers.runs import refused

for module in ("jinja2", "pygments", "latex2mathml", "scipy"):
    pytest.importorskip(module, reason="makes the study page")

LESSONS = {each.name: each for each in chosen_lessons("all")}
EACH = pytest.mark.parametrize("name", LESSONS)


@pytest.fixture(scope="module")
def layers():
    """name -> `studied_layer` of every lesson."""
    return {name: page.studied_layer(lesson) for name, lesson in LESSONS.items()}


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


def test_the_whole_page(npgpt, tmp_path):
    """It fetches nothing from anywhere."""
    code, out, _ = npgpt("study")
    text = (tmp_path / "study.html").read_text()
    assert code == 0 and out.startswith("study.html: 1.") and len(text.encode()) < 1.3e6
    names = [each["name"] for each in data_of(text)["layers"]]
    assert data_of(text)["live"] is None
    assert names == [view_name(view) for each in LESSONS.values() for view in views_of(each)]
    assert not re.search(r'(?:src|href|action)="(?!#|data:,)|url\(|@import|https?://(?!www\.w3\.org/)', text)


def numbers(units):
    return [number for unit in units for number, _ in unit["lines"]]


@EACH
def test_each_line_of_the_source_is_in_one_row(layers, name):
    """With its number and text, but for blank lines and the backward's comments on lines of their
    own.
    """
    for side in ("forward", "backward"):
        rows = [
            line for row in layers[name]["rows"] for unit in row[side] for line in unit["lines"]
        ]
        shown = {number: html.unescape(re.sub(r"<[^>]*>", "", text)) for number, text in rows}
        assert len(shown) == len(rows)
        for number, line in enumerate(*inspect.getsourcelines(getattr(LESSONS[name], side))):
            if number not in shown:
                assert not line.strip() or side == "backward" and line.strip().startswith("#")
            else:
                assert shown[number].split() == line.split()


@EACH
def test_partners_are_in_one_row_and_the_backward_reads_upwards(layers, name):
    lesson, rows = LESSONS[name], layers[name]["rows"]
    undone = Flow(lesson.forward, lesson.backward).undone
    at = {line: i for i, row in enumerate(rows) for line in numbers(row["backward"])}
    of = {row["line"]: i for i, row in enumerate(rows)}
    assert [*of] == sorted(of)
    for row in rows:
        assert row["why"] or any(unit["key"] for unit in row["backward"]) or not any(
            row["line"] in lines for lines in undone.values())
    before = len(rows) - 1
    for line in sorted(undone):
        partners = {of[forward] for forward in undone[line]}
        assert not partners or at[line] in partners
        assert at[line] <= before or min(partners) > before, "below the line before it"
        before = at[line]


@EACH
def test_every_gradient_is_verified(layers, name):
    layer = layers[name]
    assert layer["right"] and all(checked.verdict != WRONG for checked in layer["checks"])
    found = {each["name"]: each for entries in layer["entries"].values() for each in entries}
    for checked in layer["checks"]:
        if checked.verdict == "ok":
            entry = found[f"d{checked.variable}"]
            assert "is verified" in entry["finding"] and entry["section"] in layer["sections"]
    assert {*layer["entries"]} <= {unit["key"] for row in layer["rows"] for unit in row["backward"]}


def test_the_long_way_has_the_gradients_that_the_fused_line_skips():
    lesson = LESSONS["layernorm"]
    layer = page.studied_layer(dataclasses.replace(lesson, backward=lesson.long_way))
    found = {
        each["name"]: each["finding"] for entries in layer["entries"].values() for each in entries
    }
    assert all(
        "is verified" in found[f"d{name}"] for name in ("mean", "centred", "var", "rstd", "x")
    )
    assert layer["data"]["planted"]
    [fused] = [text for text in layer["sections"]["rstd"] if "The cache holds no" in text]
    assert fused.startswith('<div class="fused">')


def test_the_two_views_of_a_layer():
    """Both counts are the gradient check's, and the steps end with the lines that they become."""
    for name, skipped in (("layernorm", 4), ("cross_entropy", 5), ("attention", 3)):
        steps, view = page.studied_views(LESSONS[name])
        counts = collections.Counter(each.verdict for each in view["checks"])
        said = f"{counts['ok']} gradients verified; {skipped} more inside d"
        assert view["verdict"].startswith(said)
        assert counts["fused"] == skipped and view["steps"] == steps["verdict"]
        texts = [re.sub("<[^>]*>", "", unit["lines"][0][1]) for unit in steps["become"]]
        lines = {each.first for each in read_source(LESSONS[name].backward).statements}
        assert any(f"d{each.through[1:]} = " in text for each in view["checks"] if each.through
                   for text in texts)
        assert {unit["line"] for unit in steps["become"]} <= lines
        assert steps["sections"] and not view["sections"]
        undone = {row["line"] for row in steps["rows"]
                  if row["at"] or any(unit["key"] for unit in row["backward"])}
        fused = {each.forward_line for each in view["checks"] if each.verdict == "fused"}
        assert fused <= undone


def test_a_skipped_gradient_is_beside_the_line_that_has_it(layers):
    """Its derivation, or that of a line before it, is shown there."""
    for name, layer in layers.items():
        of = {each.forward_line: each.variable for each in layer["checks"]}
        skipped = {of[row["line"]]: row for row in layer["rows"]
                   if of.get(row["line"]) in LESSONS[name].skipped}
        assert skipped.keys() == {*LESSONS[name].skipped}
        for variable, row in skipped.items():
            [entry] = layer["entries"][f"b{row['at']}"]
            assert variable in layer["data"]["built_on"][entry["section"]]


@EACH
def test_an_equation_of_pictures_is_its_line(layers, name):
    """The parts of a line are its code. A matmul's arrays, as they were when the line ran, have that product."""
    lesson, data, products = LESSONS[name], layers[name]["data"], 0
    sources = {"f": read_source(lesson.forward), "b": read_source(lesson.backward)}
    arrays = [np.reshape(each["values"], each["shape"]) for each in data["arrays"]]
    for line, parts in data["parts"].items():
        text = "".join(part if isinstance(part, str) else part[2 * len(part[2:])] for part in parts)
        statement = sources[line[0]].statement_at(int(line[1:]))
        own = statement.text.replace(".swapaxes(-1, -2)", ".T") if statement else text
        assert not statement or ast.dump(ast.parse(text)) == ast.dump(ast.parse(own))
    for step in data["steps"]:
        match data["parts"].get(step["line"]):
            case [[made, True], " = ", [a, False, *a_flipped], " @ ", [b, False, *b_flipped]]:
                a, b = arrays[step["at"][a]], arrays[step["at"][b]]
                product = (a.swapaxes(-1, -2) if a_flipped else a) @ (
                    b.swapaxes(-1, -2) if b_flipped else b
                )
                np.testing.assert_allclose(
                    product, arrays[dict(step["arrays"])[made]], rtol=5e-3, atol=5e-3
                )
                products += 1
    assert products == {"linear": 3, "head": 3, "attention": 6, "lora": 6}.get(name, 0)


@EACH
def test_the_steps_are_the_pass(layers, name):
    """Forwards, then backwards; the last values of the inputs' gradients are those that the backward returns."""
    passed, arrays = (layers[name]["data"][key] for key in ("steps", "arrays"))
    sides = [step["line"][0] for step in passed]
    assert sides == sorted(sides, reverse=True) and {*sides} == {"f", "b"}
    assert all(
        len(dict(step["arrays"])) == len(step["arrays"]) for step in passed
    )  # not two turns of a loop
    for variable, true in truth(LESSONS[name]).inputs.items():
        shown = [
            arrays[i] for step in passed for each, i in step["arrays"] if each == f"d{variable}"
        ][-1]
        assert shown["shape"] == list(true.shape)
        np.testing.assert_allclose(
            np.reshape(shown["values"], true.shape), true, rtol=1e-3, atol=1e-3
        )


def test_a_wrong_backward_shows():
    layer = page.studied_layer(dataclasses.replace(LESSONS["gelu_tanh"], backward=gelu_exact_backward))
    assert not layer["right"] and "gradients WRONG" in layer["verdict"]


def test_the_losses_pulls_and_maps_are_the_models(model):
    """The loss of one token is that of a batch in which no other token counts."""
    gpt, tokenizer, text, found = model
    ids = tokenizer.encode(text).astype(int)[None]
    for i, (loss, row) in enumerate(zip(found["losses"], found["pulls"], strict=True)):
        targets = np.full_like(ids[:, 1:], -1)
        targets[0, i] = ids[0, i + 1]
        assert loss == pytest.approx(gpt.forward(ids[:, :-1], targets)[1], rel=1e-3)
        dwpe = gpt.backward()["wpe.weight"]
        np.testing.assert_allclose(row, np.linalg.norm(dwpe[:i + 1], axis=-1), rtol=1e-3)
    assert found["loss"] == pytest.approx(np.mean(found["losses"]), rel=1e-3)
    logits, activations = gpt.run_with_cache(ids)
    chances = np.exp(logits[0, -1]) / np.exp(logits[0, -1]).sum()
    best = np.argsort(-chances)[:5]
    assert [text for text, _ in found["next"]] == list(tokenizer.decode(best).replace(" ", "·"))
    np.testing.assert_allclose([chance for _, chance in found["next"]], chances[best], rtol=1e-3)
    assert len(found["maps"]) == 6
    for layer, head, data in found["maps"]:
        weights = np.frombuffer(base64.b64decode(data), np.uint8).reshape(len(text) - 1, -1) / 255
        true = activations[f"h.{layer}.attn.att"][0, head, :-1, :-1]
        np.testing.assert_allclose(weights, true, atol=0.5 / 255 + 1e-6)


def test_the_logit_lens_is_the_model_without_its_last_blocks(model):
    """An edit that gives ln_f and the head an earlier state of the residual stream makes the same predictions."""
    gpt, tokenizer, text, found = model
    ids = tokenizer.encode(text).astype(int)
    _, activations = gpt.run_with_cache(ids[None, :-1], ids[None, 1:])
    for row, stream in zip(found["lens"], ("h.0.x", "h.1.x", "h.1.x_out"), strict=True):
        logits, _ = gpt.forward(ids[None, :-1], edit={"h.1.x_out": lambda _, stream=stream: activations[stream]})
        probs = np.exp(logits[0]) / np.exp(logits[0]).sum(axis=-1, keepdims=True)
        assert [each for each, _, _ in row] == list(tokenizer.decode(probs.argmax(axis=-1)).replace(" ", "·"))
        np.testing.assert_allclose([each for _, _, each in row], probs[range(len(ids) - 1), ids[1:]], rtol=1e-3)


def test_a_large_model_leaves_out_gradients(model, monkeypatch):
    gpt, tokenizer, text, found = model
    monkeypatch.setattr(whole_model, "MOST_WORK", 6 * gpt.params.flat.size * 10)
    less = study_model(gpt, tokenizer, text, "")
    assert less["pulls"] == found["pulls"][:4] and len(less["losses"]) == len(text) - 1


def test_odd_characters_and_the_end_of_text_are_shown(model, gpt2):
    ids = whole_model.prompt_ids(model[0], gpt2, "<|endoftext|>be").tolist()
    assert ids == [50256, *gpt2.encode("be")]
    assert [whole_model.shown(CharTokenizer(each), 0) for each in " \n\té\u202e"] == ["·", "⏎", "\\t", "é", "\\u202e"]


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
    with pytest.raises(UserError, match="not finite"), np.errstate(invalid="ignore"):
        study_model(broken, tokenizer, text, "")


def test_a_page_without_lessons(npgpt, tmp_path):
    assert npgpt("look", "tiny", "--prompt", "To be")[0] == 0
    page = (tmp_path / "look.html").read_text()
    assert data_of(page)["model"]["tokens"] == [*"To·be"] and data_of(page)["layers"] == []
    assert all(f'id="{name}"' in page for name in re.findall(r'href="#(\w+)"', page))
    assert "<title>npgpt: a model on a text</title>" in page
    assert page.count("<h1>") == 1 and "<h1>A model on a text</h1>" in page
    body = page.partition("<body>")[2].partition("<script")[0]
    assert not any(each in body for each in ('id="walk"', "<input", "study --open", "disabled"))
