"""The derivations: one for every pair, a section for every variable with a gradient, clean HTML."""

import ast
import dataclasses
import inspect
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from npgpt import layers
from npgpt.model import transformer
from npgpt.study.exercises import mathematics
from npgpt.study.exercises.exercise import Step, key_of, notes_of, statements
from npgpt.study.gradcheck.digits import wide
from npgpt.study.gradcheck.measure import exact, traced_forward, upstream
from npgpt.study.gradcheck.source import backward_tree
from npgpt.study.gradcheck.trace import Recorded
from npgpt.study.lessons import basics
from npgpt.study.lessons.setting import Setting, Sizes
from npgpt.study.lessons.table import LAYERS, LESSONS, lesson_named
from tests.study.exercises.formulas import Formula, letters_in

pytest.importorskip("latex2mathml", reason="converts the formulas")

FOLDER = Path(basics.__file__).parent
PAIRS = {
    name.removesuffix("_forward"): getattr(module, name)
    for module in (basics, layers, transformer)
    for name in vars(module)
    if name.endswith("_forward")
}
EACH_PAIR = pytest.mark.parametrize("name", PAIRS)


def text_of(name):
    return LESSONS[name].derivation.read_text()


def test_every_pair_has_a_file_and_a_lesson():
    assert {file.stem for file in FOLDER.glob("*.md")} == {*PAIRS} == {*LESSONS}
    assert [*LESSONS][4:] == [*LAYERS]
    assert all(lesson.forward is PAIRS[name] for name, lesson in LESSONS.items())


@EACH_PAIR
def test_a_section_for_every_variable_that_has_a_gradient(name):
    """No shapes, masks and scales; `p` is the variable of the parameters' gradients."""
    lesson = lesson_named(name)
    introduction, sections = mathematics.parse_derivation(text_of(name))
    wanted = {each.name for each in traced_forward(lesson)[2] if not each.constant}
    wanted |= {each for each in lesson.inputs if "." not in each} | {*["p"][: lesson.is_composite]}
    assert {*sections} == wanted
    assert introduction and all(sections.values())
    assert [*sections] == re.findall("(?m)^## (.*)$", text_of(name))


@EACH_PAIR
def test_quoted_lines_are_in_the_source(name):
    """The source has every expression that a derivation quotes: a changed line needs a new one."""
    source = " ".join(inspect.getsource(inspect.getmodule(PAIRS[name])).split())
    for quote in re.findall("`([^`]*)`", " ".join(text_of(name).split())):
        if re.search(r"\(\w| \* | @ | = |\+=", quote):
            assert quote in source or quote == "dwte[idx] += dtoken"


@EACH_PAIR
def test_notes_are_on_lines_of_the_backward(name):
    number = 0
    for what in ["long way"] * bool(LESSONS[name].long_way) + ["level 3"]:
        lesson, is_long = Step(name, what).lesson, what == "long way"
        notes = {key: note for key, note in notes_of(lesson).items() if is_long == (not note.level)}
        keys = [*map(key_of, statements(backward_tree(lesson)))]
        assert len(keys) == len({*keys}), "a blank is filled with the statement of the same key"
        assert notes and notes.keys() <= {*keys}
        levels = [note.level for note in notes.values()]
        assert is_long or {*levels} <= {1, 2, 3} and levels.count(1) == 1
        number += len(notes)
        for key, note in notes.items():
            mistake = note.mistake and key_of(ast.parse(note.mistake).body[0])
            assert mistake in (None, key) or key == "np.add.at"
    assert text_of(name).count("\nhint: ") == number, "two notes on one line"


def test_markdown_becomes_html_and_text_is_escaped():
    introduction, sections = mathematics.parse_derivation(
        "<script>1</script> & `a < b`\nis $a<b$.\n\n"
        "$$\\mathrm{dy\\_rows}_{nj} \\text{<script>}$$\n\n"
        "## dy\n\n## y\n\nline: a[:T]\nhint: B\n      c.\n\n`y`."
    )
    first, second = introduction
    assert first.startswith(
        "<p>&lt;script&gt;1&lt;/script&gt; &amp; <code>a &lt; b</code>\nis <math "
    )
    assert 'display="inline"' in first and first.endswith(".</p>") and 'display="block"' in second
    assert "<msub><mi>dy_rows</mi><mrow><mi>n</mi><mi>j</mi></mrow></msub>" in second
    assert "<script" not in second
    assert sections == {"dy": [], "y": ["<p><code>y</code>.</p>"]}


# a derivation | letter -> how far it counts | what the formulas call otherwise | formulas
STEPS = """
layernorm | n=2 c=4 e=4 | C=4 | 21
cross_entropy | n=2 i=5 j=5 | k=column | 14
attention | n=2 i=2 j=3 l=3 d=4 | | 19
"""
# 2.0 / C is exact
SMALL = Setting(Sizes(B=1, T=2, C=4, H=1, V=5, S=3, F=5, P=3), off=frozenset({"ignored", "mask"}))


def values_of(layer):
    """Each variable of a layer, of its backward and of its long way, with 60 digits: name -> array.

    Axes of length 1 are left out, as in the formulas.
    """
    lesson, found = lesson_named(layer, SMALL), {}
    for backward in lesson.long_way, lesson.backward:
        exactly = exact(dataclasses.replace(lesson, backward=backward))
        runs = [
            Recorded(each, lambda value: not isinstance(value, tuple))
            for each in (exactly.forward, exactly.backward)
        ]
        y, cache = exactly.run_forward(exactly.inputs, runs[0].function)
        exactly.run_backward(upstream(exactly, y), cache, runs[1].function)
        found |= exactly.inputs | exactly.constants
        found |= {each.name: each.value for run in runs for each in run.record}
    if layer == "cross_entropy":
        found["is_largest"] = found["probs"] == found["probs"].max(axis=-1, keepdims=True)
    return {name: np.squeeze(value) for name, value in found.items()}


@pytest.mark.parametrize("row", STEPS.strip().split("\n"))
def test_each_step_of_a_derivation_is_right_to_60_digits(row):
    """All sides of each equation, at all indexes."""
    layer, letters, names, number = (each.strip() for each in row.split("|"))
    sizes = {letter: int(size) for letter, size in re.findall(r"(\w)=(\d)", letters)}
    values, lesson = values_of(layer), lesson_named(layer)
    for new, old in re.findall(r"(\w)=(\w+)", names):
        values[new] = np.asarray(wide(float(old))) if old.isdigit() else values[old]
    keys = [f"d{heading}" for heading, _ in mathematics.blocks(text_of(layer)) if heading]
    shown = "\n".join(mathematics.derivation_text(lesson, keys)[0])
    checked = 0
    for text in re.findall(r"(?m)^    (.*)$", shown):
        text = text.replace(" or 0 if ignored", "")
        text = text.replace("∂M[n]/∂logits[n,j]", "is_largest[n,j]")
        if "ᵀ" in text or text.startswith("dprobs"):  # a matrix; a loss that is not computed
            continue
        sides = [each for each in text.split(" = ") if not each.startswith("∂")]
        free = letters_in(" ".join(sides))
        for turn in itertools.product(*(range(sizes[each]) for each in free)):
            at = {"n": 1} | dict(zip(free, turn, strict=True))
            first, *others = [Formula(each, values, sizes)(at) for each in sides]
            assert all(abs(each - first) < 1e-50 for each in others), (text, at)
        checked += len(sides) > 1
    assert checked == int(number)
