"""The derivations: one for every pair, a section for every variable that has a gradient, and clean HTML."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from npgpt import layers
from npgpt.model import transformer
from npgpt.study.exercises import mathematics
from npgpt.study.exercises.exercise import Step, key_of, notes_of, statements
from npgpt.study.gradcheck.measure import traced_forward
from npgpt.study.gradcheck.source import backward_tree
from npgpt.study.lessons import basics
from npgpt.study.lessons.table import LAYERS, LESSONS, lesson_named

pytest.importorskip("latex2mathml", reason="converts the formulas")

FOLDER = Path(basics.__file__).parent
PAIRS = {name.removesuffix("_forward"): getattr(module, name) for module in (basics, layers, transformer)
         for name in vars(module) if name.endswith("_forward")}
EACH_PAIR = pytest.mark.parametrize("name", PAIRS)


def text_of(name):
    return LESSONS[name].derivation.read_text()


def variables_with_gradient(name):
    """The arguments and variables of a pair's forward that have a gradient: no shapes, masks and scales.

    The tree of parameters, `p`, is the variable of the parameters' gradients.
    """
    lesson = lesson_named(name)
    variables = {each.name for each in traced_forward(lesson)[2] if not each.constant}
    arguments = {each for each in lesson.inputs if "." not in each}
    return variables | arguments | {"p"} if lesson.is_composite else variables | arguments


def test_every_pair_has_a_file_and_a_lesson():
    assert {file.stem for file in FOLDER.glob("*.md")} == set(PAIRS) == set(LESSONS)
    assert list(LESSONS)[4:] == list(LAYERS)
    assert all(lesson.forward is PAIRS[name] for name, lesson in LESSONS.items())


@EACH_PAIR
def test_a_section_for_every_variable_that_has_a_gradient(name):
    introduction, sections = mathematics.parse_derivation(text_of(name))
    assert set(sections) == variables_with_gradient(name)
    assert introduction and all(sections.values())
    assert list(sections) == re.findall(r"^## (.*)$", text_of(name), re.MULTILINE)


@EACH_PAIR
def test_quoted_lines_are_in_the_source(name):
    """The source has every expression that a derivation quotes: a changed line needs a changed derivation."""
    source = re.sub(r"\s+", " ", inspect.getsource(inspect.getmodule(PAIRS[name])))
    for quote in re.findall(r"`([^`]*)`", re.sub(r"\s+", " ", text_of(name))):
        if re.search(r"\(\w| \* | @ | = |\+=", quote):
            assert quote in source or "+=" in quote and name == "embedding", quote


@EACH_PAIR
def test_notes_are_on_lines_of_the_backward(name):
    number = 0
    for what in ["long way"] * (LESSONS[name].long_way is not None) + ["level 3"]:
        lesson, is_long = Step(name, what).lesson, what == "long way"
        notes = {key: note for key, note in notes_of(lesson).items() if (note.level == 0) == is_long}
        keys = [key_of(each) for each in statements(backward_tree(lesson))]
        assert len(keys) == len(set(keys)), "the judge fills a blank with the package's statement of the same key"
        assert notes and set(notes) <= set(keys)
        assert all(note.level in (0, 1, 2, 3) and note.hint.endswith(".") for note in notes.values())
        assert is_long or [note.level for note in notes.values()].count(1) == 1
        number += len(notes)
        for key, note in notes.items():
            assert note.mistake is None or key_of(ast.parse(note.mistake).body[0]) == key or key == "np.add.at"
    assert len(re.findall(r"^hint: ", text_of(name), re.MULTILINE)) == number, "two notes on one line"


def test_markdown_becomes_html_and_text_is_escaped():
    introduction, sections = mathematics.parse_derivation(
        "<script>1</script> & `a < b`\nis $a<b$.\n\n$$\\mathrm{dy\\_rows}_{nj} \\text{<script>}$$\n\n"
        "## dy\n\n## y\n\nline: a[:T]\nhint: B\n      c.\n\n`y`.")
    first, second = introduction
    assert first.startswith("<p>&lt;script&gt;1&lt;/script&gt; &amp; <code>a &lt; b</code>\nis <math ")
    assert 'display="inline"' in first and first.endswith(".</p>") and 'display="block"' in second
    assert "<msub><mi>dy_rows</mi><mrow><mi>n</mi><mi>j</mi></mrow></msub>" in second and "<script" not in second
    assert sections == {"dy": [], "y": ["<p><code>y</code>.</p>"]}
