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

from npgpt import GPT, GPTConfig
from npgpt.cli.study import fresh_model
from npgpt.data.tokenizers import TOKENIZER_FILE, CharTokenizer, save_tokenizer
from npgpt.errors import UserError
from npgpt.layers import attention_forward, gelu_exact_backward
from npgpt.study.exercises.exercise import level_text
from npgpt.study.gradcheck.check import OK, WRONG
from npgpt.study.gradcheck.flow import Flow
from npgpt.study.gradcheck.measure import truth
from npgpt.study.gradcheck.source import read_source
from npgpt.study.gradcheck.trace import recording
from npgpt.study.judge.hints import hints, package_statements
from npgpt.study.judge.own_backward import uncalled
from npgpt.study.lessons.table import LAYERS, chosen_lessons
from npgpt.study.page import page, steps, whole_model
from npgpt.study.page.edits import asked_lines
from npgpt.study.page.whole_model import study_model
from tests.cli.test_train import refused

for module in ("jinja2", "pygments", "latex2mathml", "scipy"):
    pytest.importorskip(module, reason="makes the study page")

LESSONS = {each.name: each for each in chosen_lessons("all")}
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
    assert len(text.encode()) < 1e6 and data_of(text)["live"] is None and "connect-src" not in text
    assert [each["name"] for each in data_of(text)["layers"]] == list(LESSONS)
    for name in LAYERS.keys() - uncalled(GPTConfig()):
        assert f'href="#{name}"' in text.partition('id="map"')[2].partition("</section>")[0], name
    assert not re.search(r'(?:src|href|action)="(?!#|data:,)|url\(|@import|https?://(?!www\.w3\.org/)', text)


@EACH
def test_the_source_is_shown_with_its_numbers(layers, name):
    """All of it; in a long line the comment may be nearer."""
    def text(line):
        return re.sub(r"(?<=\S) +# ", "  # ", line)

    for function, units in ((LESSONS[name].forward, layers[name]["forward"]),
                            (LESSONS[name].backward, layers[name]["ways"][0]["units"])):
        lines, first = inspect.getsourcelines(function)
        shown = [(number, html.unescape(re.sub(r"<[^>]*>", "", row)))
                 for unit in units for number, row in unit["lines"]]
        assert [(number, text(row)) for number, row in shown] == [
            (first + i, text(line.rstrip("\n"))) for i, line in enumerate(lines)]
        [docstring] = [unit["lines"] for unit in units if unit["doc"]]
        assert len(docstring) == function.__doc__.count("\n") + 1


@EACH
def test_partners_are_there_and_every_gradient_is_verified(layers, name):
    layer = layers[name]
    for way in layer["ways"]:
        lines = way["entries"]
        active = {unit["key"] for unit in (*layer["forward"], *way["units"])}
        assert active >= set(lines) >= {step["line"] for step in way["steps"].steps}
        for line, entry in ((line, entry) for line, entries in lines.items() for entry in entries):
            assert entry["partner"] is None or entry["partner"] in active and entry["partner"][0] != line[0]
            assert entry["section"] is None or entry["section"] in layer["derivation"].sections
        for checked in way["checks"]:
            entry = next(each for each in lines[f"f{checked.forward_line}"] if each["name"] == checked.variable)
            assert entry["finding"] and "WRONG" not in entry["finding"] and entry["verdict"] != WRONG
            if entry["verdict"] == "ok":
                back = next(each for each in lines[entry["partner"]] if each["name"] == f"d{checked.variable}")
                assert back["partner"][0] == "f" and back["other"] == checked.variable and entry["section"]
                used = {use for use, _, _ in entry["uses"]}
                assert not used or checked.forward_text != "(argument)" or set(back["lit"]) == used
                if checked.variable != "mask":          # all but the result, which the caller uses
                    assert used or checked.forward_line == max(each.forward_line for each in way["checks"])
    assert layer["right"]


@EACH
def test_the_derivation_has_the_order_of_the_backward(layers, name):
    layer = layers[name]
    lines = [int(layer["lines"][section][1:]) for section in layer["derivation"].sections
             if section in layer["lines"]]
    assert lines == sorted(lines) and len(lines) >= 2


@pytest.mark.parametrize(("name", "variable", "uses"), [
    ("gelu_tanh", "x", [("inner = ", "dx_inside = ", "dx_inside"), ("y = ", "dx_outside = ", "dx_outside")]),
    ("gelu_exact", "x", [("phi = ", "dx_inside = ", "dx_inside"), ("y = ", "dx_outside = ", "dx_outside")]),
    ("layernorm", "x", [("mean = ", "dx = ", "dx"), ("centred = ", "dx = ", "dx")]),
    ("linear", "bias", [("y_rows = y_rows + bias", "dbias = ", "dbias")]),
    ("embedding", "wte", [("token = ", "np.add.at(dwte", "dwte")]),
    ("block", "x", [("norm_1, ln_1 = ", "dx_normed, ", "dx_normed"), ("x_mid = ", "dx = ", "dx_mid")]),
    ("block", "x_mid", [("norm_2, ln_2 = ", "dx_mid_normed, ", "dx_mid_normed"), ("x_out = ", "dx_mid = ", "dx_out")]),
    ("block", "attn.c_attn.bias", [("attended, attn = ", "dnorm_1, dp_attn = ", "dp_attn")]),
    ("gpt", "wte.weight", [("head_weight = ", "dwte = dwte + ", "dhead_weight"),
                           ("x, embedding = ", "dwte, dwpe = ", "dwte")]),
])
def test_each_use_causes_a_share_of_the_gradient(layers, name, variable, uses):
    sources = {"f": read_source(LESSONS[name].forward), "b": read_source(LESSONS[name].backward)}
    entry = next(entry for entries in layers[name]["ways"][0]["entries"].values() for entry in entries
                 if entry["name"] == variable and entry["verdict"] == OK)
    for (use, share, term), (begin, back, own) in zip(entry["uses"], uses, strict=True):
        text = [sources[key[0]].statement_at(int(key[1:])).text for key in (use, share)]
        assert text[0].startswith(begin) and text[1].startswith(back) and term == own


@EACH
def test_comments_and_docstrings_decide_nothing(name, monkeypatch, request):
    """What the lines of a backward undo and contribute is the same without them, and with others."""
    lesson, original, found = LESSONS[name], inspect.getsourcelines, []
    for words in ("", "y = x: so dx is dy", None):
        def reworded(function, words=words):
            lines, first = original(function)
            text = re.sub("# .*", words and f"# {words}", "".join(lines))
            text = re.sub('"""(?s:.*?)"""', lambda doc: f'"""{words}' + "\n" * doc[0].count("\n") + '"""', text)
            return text.splitlines(keepends=True), first

        monkeypatch.setattr(inspect, "getsourcelines", original if words is None else reworded)
        for cached in (read_source, Flow):
            cached.cache_clear()
            request.addfinalizer(cached.cache_clear)
        quotes = re.findall("^ +# .*", level_text(lesson, 1, "file.py"), re.MULTILINE)
        hinted = [hints(lesson, key)[0] for key, _ in package_statements(lesson)]
        found.append([quotes, hinted, [way["entries"] for way in page.studied_layer(lesson)["ways"]]])
    assert found[0] == found[1] == found[2] and quotes


@EACH
def test_the_factors_of_a_matmul_have_the_product(layers, name):
    """As they were when the line ran."""
    for way in layers[name]["ways"]:
        for step in way["steps"].steps:
            if "factors" not in step:
                continue
            values = [np.reshape(array["values"], array["shape"]) for array in
                      (way["steps"].arrays[i] for _, i, *_ in [*step["factors"], *step["arrays"]])]
            a, b = (value.swapaxes(-1, -2) if flipped else value
                    for value, (_, _, flipped) in zip(values, step["factors"], strict=False))
            np.testing.assert_allclose(a @ b, values[2], rtol=5e-3, atol=5e-3)
    count = sum("factors" in step for way in layers[name]["ways"] for step in way["steps"].steps)
    assert count == {"linear": 3, "head": 3, "attention": 6, "lora": 6}.get(name, 0)


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


@EACH
def test_each_statement_of_a_backward_can_be_typed(layers, name):
    """Its text begins with the stub, and the levels hide what the exercises leave out."""
    source, typed = read_source(LESSONS[name].backward), layers[name]["data"]["typed"]
    assert list(typed) == [f"b{each.first}" for each in source.statements]
    for each, line in zip(source.statements, typed.values(), strict=True):
        assert ast.unparse(ast.parse(line["text"])) == each.text and line["text"].startswith(line["stub"])
    for level in layers[name]["data"]["levels"]:
        left = {f"b{line}" for line in asked_lines(LESSONS[name], level)}
        assert {line for line, each in typed.items() if each["level"] and each["level"] <= level} == left


def test_a_comment_in_parts():
    """A shape, with that of the example; what tells the answer; and, in a long line, nearer to the code."""
    row = '<span class="n">y</span>      <span class="c1"># (..., C): &lt;why&gt;</span>'
    shape = '<span class="sizes" title="(..., C)" data-here="(4, 5, 6)">(..., C)</span>'
    for line, gap in (("y      # (..., C): <why>", 6), ("y" * 81, 2)):
        assert page.with_comment(row, line, [4, 5, 6], {"y"}) == (
            f'<span class="n">y</span>{" " * gap}<span class="c1"># {shape}</span>'
            '<span class="c1 tells">: &lt;why&gt;</span>')
    for shown, told in (("# y = exp(x)", ", and so: y"), ("# y = exp(x)", ""), ("", "# it grows: y"), ("", "# y = 1")):
        row = f'    <span class="c1">{shown}{told}</span>'
        assert page.with_comment(row, f"    {shown}{told}", None, {"", "y = exp(x)"}) == (
            "    " + page.span("c1", shown) + page.span("c1 tells", told))


def test_a_wrong_backward_shows():
    layer = page.studied_layer(dataclasses.replace(LESSONS["gelu_tanh"], backward=gelu_exact_backward))
    assert not layer["right"] and "gradients WRONG" in layer["verdict"]


def test_values_that_are_not_finite_become_json():
    value = steps.summary(np.array([-np.inf, 1.0, np.nan, 2.0]))
    assert value["values"] == ["-inf", 1.0, "nan", 2.0] and (value["low"], value["high"]) == (1.0, 2.0)


def test_the_losses_pulls_and_maps_are_the_models(model):
    """The loss of one token is that of a batch in which no other token counts."""
    gpt, tokenizer, text, found = model
    ids = tokenizer.encode(text).astype(int)[None]
    assert found.tokens == list(text.replace(" ", "·"))
    for i, (loss, row) in enumerate(zip(found.losses, found.pulls, strict=True)):
        targets = np.full_like(ids[:, 1:], -1)
        targets[0, i] = ids[0, i + 1]
        assert loss == pytest.approx(gpt.forward(ids[:, :-1], targets)[1], rel=1e-6)
        dwpe = gpt.backward()["wpe.weight"]
        np.testing.assert_allclose(row, np.linalg.norm(dwpe[:i + 1], axis=-1), rtol=1e-6)
        np.testing.assert_allclose(dwpe[i + 1:], 0.0, atol=1e-12)       # no loss depends on what comes after
    assert found.loss == pytest.approx(np.mean(found.losses))
    chances = np.exp(gpt.forward(ids)[0][0, -1])
    best = np.argsort(-chances)[:10]
    assert [text for text, _ in found.next] == list(tokenizer.decode(best).replace(" ", "·"))
    np.testing.assert_allclose([chance for _, chance in found.next], (chances / chances.sum())[best], rtol=1e-3)
    with recording([attention_forward]) as record:
        gpt.forward(ids[:, :-1])
    att = [each.value[0] for each in record if each.name == "att"]
    assert [(layer, head) for layer, head, _ in found.maps] == [(i, j) for i in range(2) for j in range(3)]
    for layer, head, data in found.maps:
        weights = np.frombuffer(base64.b64decode(data), np.uint8).reshape(len(text) - 1, -1) / 255
        np.testing.assert_allclose(weights, att[layer][head], atol=0.5 / 255 + 1e-6)


def test_the_logit_lens_is_the_model_without_its_last_blocks(model):
    """An edit that gives ln_f and the head an earlier state of the residual stream makes the same predictions."""
    gpt, tokenizer, text, found = model
    ids = tokenizer.encode(text).astype(int)
    _, activations = gpt.run_with_cache(ids[None, :-1], ids[None, 1:])
    assert len(found.lens) == 3 and found.lens != [found.lens[0]] * 3
    for row, stream in zip(found.lens, ("h.0.x", "h.1.x", "h.1.x_out"), strict=True):
        logits, _ = gpt.forward(ids[None, :-1], edit={"h.1.x_out": lambda _, stream=stream: activations[stream]})
        probs = np.exp(logits[0]) / np.exp(logits[0]).sum(axis=-1, keepdims=True)
        assert [each for each, _, _ in row] == list(tokenizer.decode(probs.argmax(axis=-1)).replace(" ", "·"))
        np.testing.assert_allclose([each for _, each, _ in row], probs.max(axis=-1), rtol=1e-3)
        np.testing.assert_allclose([each for _, _, each in row], probs[range(len(ids) - 1), ids[1:]], rtol=1e-3)
    _, grads = gpt.loss_and_grads(ids[None, :-1], ids[None, 1:])
    np.testing.assert_allclose(found.norms, np.linalg.norm(grads["wpe.weight"][:len(ids) - 1], axis=-1), rtol=1e-9)


def test_a_page_of_one_model_and_no_lessons(npgpt, model, tmp_path):
    gpt, tokenizer, text, found = model
    gpt.save_pretrained(tmp_path / "mine")
    save_tokenizer(tokenizer, tmp_path / "mine" / TOKENIZER_FILE)
    code, out, _ = npgpt("look", "mine", "--prompt", text)
    page = (tmp_path / "look.html").read_text()
    assert code == 0 and re.fullmatch(r"look.html: 0.\d\d MB\n", out) and data_of(page)["layers"] == []
    assert data_of(page)["model"]["tokens"] == found.tokens and len(data_of(page)["model"]["lens"]) == 3
    assert all(f'id="{name}"' in page for name in re.findall(r'href="#(\w+)"', page))
    refused(npgpt("look", "mine", "--prompt", text, "--out", "no/page.html"), "no/page.html cannot be written")
    refused(npgpt("look", "mine"), "--prompt")
    refused(npgpt("look", "--prompt", text), "out")


def test_a_large_model_leaves_out_maps_and_gradients(model, monkeypatch):
    gpt, tokenizer, text, found = model
    assert found.left_out == []
    monkeypatch.setattr(whole_model, "MOST_MAPS", 4)
    monkeypatch.setattr(whole_model, "MOST_WORK", 6 * gpt.params.flat.size * 10)
    less = study_model(gpt, tokenizer, text, "")
    assert [(layer, head) for layer, head, _ in less.maps] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert less.pulls == found.pulls[:4] and len(less.losses) == len(text) - 1
    assert "first 2" in less.left_out[0] and "first 4 of 11" in less.left_out[1]


def test_markup_and_odd_characters_are_text(npgpt, tmp_path):
    planted = "<script>alert(1)</script>"
    found = study_model(*fresh_model("ab"), "ab", '<img src="x">')
    found.tokens[0] = planted
    text = page.study_page([LESSONS["dropout"]], found).decode()
    assert "<script>alert" not in text and "<img" not in text and "\\u003cscript\\u003ealert" in text
    assert whole_model.shown(" a\n\t\u202e\udc80") == "·a⏎\\t\\u202e\\udc80"
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
    pulls = study_model(encoder, tokenizer, text, "").pulls
    assert {len(row) for row in pulls} == {len(text) - 1} and pulls[0][-1] > 0.0       # each token sees all others
    encoder.params["ln_f.weight"][0] = np.nan
    with pytest.raises(UserError, match="not finite"), np.errstate(invalid="ignore"):
        study_model(encoder, tokenizer, text, "")
