"""`npgpt study`: what the page says, against the sources, the model and the gradient check, and what it refuses."""

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

from npgpt import GPT, GPTConfig, load
from npgpt.data.tokenizers import TOKENIZER_FILE, ByteTokenizer, CharTokenizer, save_tokenizer
from npgpt.errors import UserError
from npgpt.layers import gelu_exact_backward
from npgpt.study.gradcheck.check import WRONG
from npgpt.study.gradcheck.flow import Flow
from npgpt.study.gradcheck.measure import truth
from npgpt.study.gradcheck.source import read_source
from npgpt.study.lessons.table import LAYERS, chosen_lessons
from npgpt.study.page import page, whole_model
from npgpt.study.page.whole_model import study_model
from tests.cases import MODERN
from tests.helpers.runs import refused
from tests.torch_gpt import unit_scale

for module in ("jinja2", "pygments", "latex2mathml", "scipy"):
    pytest.importorskip(module, reason="makes the study page")

LESSONS = {each.name: each for each in chosen_lessons("all")}
FORWARD = {name: {*Flow(each.forward, each.backward).code.values()} for name, each in LESSONS.items()}
EACH = pytest.mark.parametrize("name", LESSONS)


@pytest.fixture(scope="module")
def layers():
    """name -> the `StudiedLayer` of every lesson."""
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
    code, out, _ = npgpt("study")
    text = (tmp_path / "study.html").read_text()
    assert code == 0 and out == f"study.html: {(tmp_path / 'study.html').stat().st_size / 1e6:.2f} MB\n"
    assert len(text.encode()) < 1.2e6 and data_of(text)["live"] is None and "connect-src" not in text
    assert [each["name"] for each in data_of(text)["layers"]] == list(LESSONS)
    for name in LAYERS.keys() - {"gelu_exact", "lora"}:
        assert f'href="#{name}"' in text.partition('id="map"')[2].partition("</section>")[0], name
    assert not re.search(r'(?:src|href|action)="(?!#|data:,)|url\(|@import|https?://(?!www\.w3\.org/)', text)


def numbers(units):
    return [number for unit in units for number, _ in unit["lines"]]


@EACH
def test_each_line_of_the_source_is_in_one_row(layers, name):
    """With its number and text, but for blank lines and comments that quote a line of the forward."""
    def text(line):
        return re.sub(r"(?<=\S) +# ", "  # ", line.strip())

    lesson = LESSONS[name]
    for way, backward in zip(layers[name]["ways"], (lesson.backward, lesson.long_way), strict=False):
        for side, function in (("forward", lesson.forward), ("backward", backward)):
            units = [unit for row in way["rows"] for unit in row[side]]
            shown = {number: html.unescape(re.sub(r"<[^>]*>", "", row))
                     for unit in units for number, row in unit["lines"]}
            assert len(shown) == len(numbers(units))
            lines, first = inspect.getsourcelines(function)
            for number, line in enumerate(lines, first):
                if shown.get(number) is None:
                    assert not line.strip() or side == "backward" and text(line).lstrip("# ") in FORWARD[name], line
                elif line.strip()[:1] != "#":
                    assert text(shown[number]) == text(line)
            [docstring] = [unit["lines"] for unit in units if unit["doc"]]
            assert len(docstring) == function.__doc__.count("\n") + 1


@EACH
def test_partners_are_in_one_row_and_the_backward_reads_upwards(layers, name):
    lesson = LESSONS[name]
    for way, backward in zip(layers[name]["ways"], (lesson.backward, lesson.long_way), strict=False):
        undone, rows = Flow(lesson.forward, backward).undone, way["rows"]
        at = {line: i for i, row in enumerate(rows) for line in numbers(row["backward"])}
        of = {row["line"]: i for i, row in enumerate(rows)}
        assert [row["line"] for row in rows] == sorted(row["line"] for row in rows)
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
    for way in layer["ways"]:
        entries = way["entries"]
        keys = {unit["key"] for row in way["rows"] for unit in (*row["forward"], *row["backward"])}
        assert keys >= set(entries) >= {step["line"] for step in way["steps"].steps if step["line"][0] == "b"}
        for checked in way["checks"]:
            assert checked.verdict != WRONG
            if checked.verdict == "ok":
                entry, *_ = [each for found in entries.values() for each in found
                             if each["name"] == f"d{checked.variable}" and each["verdict"]]
                assert "is verified" in entry["finding"] and entry["section"] in layer["sections"]
    assert layer["right"]
    lines = [int(layer["lines"][section][1:]) for section in layer["sections"] if section in layer["lines"]]
    assert lines == sorted(lines) and len(lines) >= 2, "the derivation has the order of the backward"


@EACH
def test_an_equation_of_pictures_is_its_line(layers, name):
    """The parts of a line are its code. A matmul's arrays, as they were when the line ran, have that product."""
    lesson, products = LESSONS[name], 0
    for way, backward in zip(layers[name]["ways"], (lesson.backward, lesson.long_way), strict=False):
        steps, sources = way["steps"], {"f": read_source(lesson.forward), "b": read_source(backward)}
        for line, parts in steps.parts.items():
            text = "".join(part if isinstance(part, str) else f"{part[0]}.swapaxes(-1, -2)" if part[2:] else part[0]
                           for part in parts)
            statement = sources[line[0]].statement_at(int(line[1:]))
            assert not statement or ast.dump(ast.parse(text.replace(".T.T", ".T"))) == ast.dump(
                ast.parse(re.sub(r"(\w+)\.T\b", r"\1.swapaxes(-1, -2)", statement.text)))
        for step in steps.steps:
            parts = steps.parts.get(step["line"], [])
            names, texts = ([part for part in parts if isinstance(part, str) == is_text] for is_text in (False, True))
            if texts == [" = ", " @ "]:
                made, a, b = (np.reshape(steps.arrays[i]["values"], steps.arrays[i]["shape"]) for i in (
                    dict(step["arrays"])[names[0][0]], step["at"][names[1][0]], step["at"][names[2][0]]))
                a, b = (each.swapaxes(-1, -2) if part[2:] else each for each, part in ((a, names[1]), (b, names[2])))
                np.testing.assert_allclose(a @ b, made, rtol=5e-3, atol=5e-3)
                products += 1
    assert products == {"linear": 3, "head": 3, "attention": 6, "lora": 6}.get(name, 0)


@EACH
def test_the_steps_are_the_pass(layers, name):
    """Forwards, then backwards; the last values of the inputs' gradients are those that the backward returns."""
    assert len(layers[name]["ways"]) == 1 + (name == "layernorm")
    for way in layers[name]["ways"]:
        passed, arrays = way["steps"].steps, way["steps"].arrays
        sides = [step["line"][0] for step in passed]
        assert sides == sorted(sides, reverse=True) and set(sides) == {"f", "b"}
        assert all(len(dict(step["arrays"])) == len(step["arrays"]) for step in passed)     # not two turns of a loop
        for variable, true in truth(LESSONS[name]).inputs.items():
            shown = [arrays[i] for step in passed for each, i in step["arrays"] if each == f"d{variable}"][-1]
            assert shown["shape"] == list(true.shape)
            np.testing.assert_allclose(np.reshape(shown["values"], true.shape), true, rtol=1e-3, atol=1e-3)


def test_a_wrong_backward_shows():
    layer = page.studied_layer(dataclasses.replace(LESSONS["gelu_tanh"], backward=gelu_exact_backward))
    assert not layer["right"] and "gradients WRONG" in layer["verdict"]


def test_the_losses_pulls_and_maps_are_the_models(model):
    """The loss of one token is that of a batch in which no other token counts."""
    gpt, tokenizer, text, found = model
    ids = tokenizer.encode(text).astype(int)[None]
    assert found["tokens"] == list(text.replace(" ", "·"))
    for i, (loss, row) in enumerate(zip(found["losses"], found["pulls"], strict=True)):
        targets = np.full_like(ids[:, 1:], -1)
        targets[0, i] = ids[0, i + 1]
        assert loss == pytest.approx(gpt.forward(ids[:, :-1], targets)[1], rel=1e-3)
        dwpe = gpt.backward()["wpe.weight"]
        np.testing.assert_allclose(row, np.linalg.norm(dwpe[:i + 1], axis=-1), rtol=1e-3)
        np.testing.assert_allclose(dwpe[i + 1:], 0.0, atol=1e-12)       # no loss depends on what comes after
    assert found["loss"] == pytest.approx(np.mean(found["losses"]), rel=1e-3)
    chances = np.exp(gpt.forward(ids)[0][0, -1])
    best = np.argsort(-chances)[:10]
    assert [text for text, _ in found["next"]] == list(tokenizer.decode(best).replace(" ", "·"))
    np.testing.assert_allclose([chance for _, chance in found["next"]], (chances / chances.sum())[best], rtol=1e-3)
    _, arrays = gpt.run_with_cache(ids[:, :-1])
    att = [arrays[f"h.{i}.attn.att"][0] for i in range(2)]
    assert [(layer, head) for layer, head, _ in found["maps"]] == [(i, j) for i in range(2) for j in range(3)]
    for layer, head, data in found["maps"]:
        weights = np.frombuffer(base64.b64decode(data), np.uint8).reshape(len(text) - 1, -1) / 255
        np.testing.assert_allclose(weights, att[layer][head], atol=0.5 / 255 + 1e-6)


def test_the_flow_is_the_gradient_for_each_output():
    """Against central differences of the loss for every entry of each box's output, named where it is read."""
    gpt = GPT(GPTConfig(vocab_size=3, block_size=4, n_layer=2, n_head=1, n_embd=3), 1, "float64")
    tokenizer, text = CharTokenizer("abc"), "abca"
    unit_scale(gpt.params)
    found = study_model(gpt, tokenizer, text, "")
    read = {"ln_1": "attn.x", "c_attn": "attn.c_attn.y", "attention": "attn.merged", "c_proj": "attended", "ln_2":
            "mlp.x", "c_fc": "mlp.gelu.x", "gelu": "mlp.c_proj.x", "mlp_c_proj": "mlp_out"}
    outputs = [(None, "embedding", "h.0.x"), *((i, box, f"h.{i}.{name}") for i in (0, 1) for box, name in read.items()),
               (None, "ln_f", "head.x"), (None, "head", "head.logits")]
    assert [tuple(each.values()) for each in found["stages"]] == [*(each[:2] for each in outputs), (None, "loss")]
    ids = tokenizer.encode(text).astype(int)[None]
    idx, targets = ids[:, :2], np.array([[-1, ids[0, 2]]])
    for (_, box, name), norm in zip(outputs, found["flow"][1], strict=False):
        steps = 1e-5 * np.eye(gpt.run_with_cache(idx)[1][name].size)
        high, low = np.array([gpt.forward(idx, targets, edit={name: lambda y, step=step: y + step.reshape(y.shape)})[1]
                              for step in [*steps, *-steps]]).reshape(2, -1)
        slopes = (high - low) / 2e-5
        assert norm == pytest.approx(np.linalg.norm(slopes), rel=1e-3), (box, name)
    assert {row[-1] for row in found["flow"]} == {1.0} and len(found["flow"]) == len(found["pulls"]) == 3


def test_boxes_that_a_model_lacks_are_left_out_of_the_flow():
    config = GPTConfig(vocab_size=3, block_size=4, n_layer=1, n_head=1, n_embd=4, final_layer_norm=False)
    gpt = GPT(config, block=MODERN)
    found = study_model(gpt, CharTokenizer("abc"), "abca", "")
    assert [each["box"] for each in found["stages"]] == ["embedding", "head", "loss"] and len(found["flow"][0]) == 3


def test_the_logit_lens_is_the_model_without_its_last_blocks(model):
    """An edit that gives ln_f and the head an earlier state of the residual stream makes the same predictions."""
    gpt, tokenizer, text, found = model
    ids = tokenizer.encode(text).astype(int)
    _, activations = gpt.run_with_cache(ids[None, :-1], ids[None, 1:])
    assert len(found["lens"]) == 3 and found["lens"] != [found["lens"][0]] * 3
    for row, stream in zip(found["lens"], ("h.0.x", "h.1.x", "h.1.x_out"), strict=True):
        logits, _ = gpt.forward(ids[None, :-1], edit={"h.1.x_out": lambda _, stream=stream: activations[stream]})
        probs = np.exp(logits[0]) / np.exp(logits[0]).sum(axis=-1, keepdims=True)
        assert [each for each, _, _ in row] == list(tokenizer.decode(probs.argmax(axis=-1)).replace(" ", "·"))
        np.testing.assert_allclose([each for _, each, _ in row], probs.max(axis=-1), rtol=1e-3)
        np.testing.assert_allclose([each for _, _, each in row], probs[range(len(ids) - 1), ids[1:]], rtol=1e-3)
    _, grads = gpt.loss_and_grads(ids[None, :-1], ids[None, 1:])
    norms = np.linalg.norm(grads["wpe.weight"][:len(ids) - 1], axis=-1)
    np.testing.assert_allclose(found["norms"][:-1], norms, rtol=1e-3)


def test_a_page_of_one_model_and_no_lessons(npgpt, model, tmp_path):
    gpt, tokenizer, text, found = model
    gpt.save_pretrained(tmp_path / "mine")
    save_tokenizer(tokenizer, tmp_path / "mine" / TOKENIZER_FILE)
    code, out, _ = npgpt("look", "mine", "--prompt", text)
    page = (tmp_path / "look.html").read_text()
    assert code == 0 and re.fullmatch(r"look.html: 0.\d\d MB\n", out) and data_of(page)["layers"] == []
    assert data_of(page)["model"]["tokens"] == found["tokens"] and len(data_of(page)["model"]["lens"]) == 3
    assert all(f'id="{name}"' in page for name in re.findall(r'href="#(\w+)"', page))
    refused(npgpt("look", "mine", "--prompt", text, "--out", "no/page.html"), "no/page.html cannot be written")
    refused(npgpt("look", "mine"), "--prompt")


def test_a_large_model_leaves_out_maps_and_gradients(model, monkeypatch):
    gpt, tokenizer, text, found = model
    assert found["left_out"] == []
    monkeypatch.setattr(whole_model, "MOST_MAPS", 4)
    monkeypatch.setattr(whole_model, "MOST_WORK", 6 * gpt.params.flat.size * 10)
    less = study_model(gpt, tokenizer, text, "")
    assert [(layer, head) for layer, head, _ in less["maps"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert less["pulls"] == found["pulls"][:4] and len(less["losses"]) == len(text) - 1
    assert "first 2" in less["left_out"][0] and "first 4 of 11" in less["left_out"][1]


def test_markup_and_odd_characters_are_text(npgpt, tmp_path):
    planted = "<script>alert(1)</script>"
    found = study_model(*load("tiny"), "ab", '<img src="x">')
    found["tokens"][0] = planted
    text = page.study_page([LESSONS["dropout"]], found).decode()
    assert "<script>alert" not in text and "<img" not in text and "\\u003cscript\\u003ealert" in text
    assert [whole_model.shown(CharTokenizer(each), 0) for each in " \n\té\u202e"] == ["·", "⏎", "\\t", "é", "\\u202e"]
    assert [whole_model.shown(ByteTokenizer(), each) for each in "é".encode()] == ["\\xc3", "\\xa9"]
    refused(npgpt("study", "dropout", "--prompt", "ab\udc80"), "--prompt must be UTF-8 text")
    assert not (tmp_path / "study.html").exists()


@pytest.mark.parametrize(("arguments", "says"), [
    (["softmax"], ['no layer "softmax"', "cross_entropy", "self_attention"]),
    (["--checkpoint", "nowhere"], ["nowhere"]),
    (["--prompt", ""], ["0 tokens"]),
    (["--prompt", "a"], ["1 tokens"]),
    (["--prompt", "a" * 65], ["65 tokens", "at most 64"]),
    (["--out", "no/such/folder/page.html"], ["no/such/folder/page.html cannot be written"]),
    (["--open", "--out", "page.html"], ["--open writes no file"]),
    (["--open", "--exercises", "text.txt"], ["text.txt"]),
])
def test_it_refuses_in_one_line(npgpt, tmp_path, arguments, says):
    refused(npgpt("study", *arguments), *says)
    assert not (tmp_path / "study.html").exists()


def test_a_missing_library_is_named_with_its_extra(npgpt, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused(npgpt("study"), "pygments", 'pip install "npgpt[study]"')


def test_an_encoder_and_a_model_that_is_not_finite(model):
    tokenizer, text = model[1:3]
    config = GPTConfig(vocab_size=tokenizer.vocab_size, block_size=16, n_layer=1, n_head=1, n_embd=8, causal=False)
    encoder = GPT(config, 0)
    pulls = study_model(encoder, tokenizer, text, "")["pulls"]
    assert {len(row) for row in pulls} == {len(text) - 1} and pulls[0][-1] > 0.0       # each token sees all others
    encoder.params["ln_f.weight"][0] = np.nan
    with pytest.raises(UserError, match="not finite"), np.errstate(invalid="ignore"):
        study_model(encoder, tokenizer, text, "")
