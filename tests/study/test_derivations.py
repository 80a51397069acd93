"""The derivations: one for every pair, a section for every variable that has a gradient, and HTML that is clean."""

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
import types
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import npgpt.layers
from npgpt.errors import UserError
from npgpt.model import transformer as gpt
from npgpt.model.parameters import Block, Parameters
from npgpt.study import mathematics
from npgpt.study.lessons import lessons

pytest.importorskip("latex2mathml", reason="converts the formulas")

FOLDER = Path(mathematics.__file__).parent / "derivations"
MATHML = {"math", "mrow", "mi", "mo", "mn", "mtext", "mspace", "msub", "msup", "msubsup", "mfrac", "msqrt", "munder",
          "mover", "munderover", "mstyle"}


def forwards():
    """name of the pair -> its forward, for every `x_forward` with an `x_backward` in the layers and the model."""
    modules = [importlib.import_module(f"npgpt.layers.{module.name}")
               for module in pkgutil.iter_modules(npgpt.layers.__path__)]
    return {name.removesuffix("_forward"): function for module in (*modules, gpt)
            for name, function in vars(module).items()
            if name.endswith("_forward") and function.__module__ == module.__name__
            and hasattr(module, name.replace("_forward", "_backward"))}


PAIRS = forwards()


def assignments(function):
    """(names that are bound, names that are read) of each statement of a function, and of functions inside it."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound = {part.id for target in targets for part in ast.walk(target)
                     if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
            yield bound, {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}


def final_values(function, call):
    """name -> value of all arguments and variables of a function, and of functions inside it, when it last returned."""
    code = inspect.unwrap(function).__code__
    codes = {code, *(each for each in code.co_consts if isinstance(each, types.CodeType))}
    values = {}

    def at_return(frame, event, _):
        if event == "return":
            values.update(frame.f_locals)
        return at_return

    before = sys.gettrace()
    sys.settrace(lambda frame, event, _: at_return if frame.f_code in codes else None)
    try:
        call()
    finally:
        sys.settrace(before)
    return values


def floats(value):
    """The floating numbers of an array, a NumPy number or a mapping of parameters as an array; None for all else."""
    if isinstance(value, Parameters | Block):
        return np.array(getattr(value, "parameters", value).flat)
    is_floating = isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f"
    return np.array(value) if is_floating else None


def variables_with_gradient(name):
    """The arguments and variables of a pair's forward that have a gradient.

    Those that hold floating numbers and depend on the inputs that get one: they change when all of those do. That
    leaves out shapes, indexes and caches, which are no floating arrays, and masks, scales and shares, which do not
    change. (`_` is what the forward does not use.)
    """
    lesson = lessons()[name]
    rng = np.random.default_rng(0)
    others = {key: value + rng.standard_normal(value.shape) for key, value in lesson.inputs.items()}
    first, second = (final_values(lesson.forward, lambda inputs=inputs: lesson.run_forward(inputs))
                     for inputs in (lesson.inputs, others))
    missing = {each for bound, _ in assignments(lesson.forward) for each in bound} - set(first)
    assert not missing, f"the lesson's forward never comes to the lines that assign {missing}"
    return {key for key, value in first.items() if key != "_" and floats(value) is not None
            and not np.array_equal(floats(value), floats(second[key]))}


def test_every_pair_has_a_file_and_a_lesson():
    assert len(PAIRS) >= 15
    assert {file.stem for file in FOLDER.iterdir()} == set(PAIRS) == set(lessons())
    assert all(lesson.forward is PAIRS[name] for name, lesson in lessons().items())


@pytest.mark.parametrize("name", PAIRS)
def test_a_section_for_every_variable_that_has_a_gradient(name):
    derivation = mathematics.read_derivation(name)
    assert set(derivation.sections) == variables_with_gradient(name)
    assert derivation.introduction and all(derivation.sections.values())
    headings = re.findall(r"^## (.*)$", (FOLDER / f"{name}.md").read_text(), re.MULTILINE)
    assert list(derivation.sections) == headings, "a heading twice, or one that the parser did not see"


def test_what_has_no_gradient():
    found = variables_with_gradient("cross_entropy")
    assert "logits" in found and not found & {"share", "counted", "column", "targets", "count", "softmax_loss"}
    assert not variables_with_gradient("attention") & {"mask", "dropout_mask", "scale"}
    assert "mix" in variables_with_gradient("tiled_attention")      # filled in an inner function, part by part
    assert "p" in variables_with_gradient("block")


@pytest.mark.parametrize("name", PAIRS)
def test_sections_stand_in_backward_order(name):
    """Of `v = f(w)`, v comes first: dw is made of dv."""
    order = list(mathematics.read_derivation(name).sections)
    for bound, read in assignments(PAIRS[name]):
        for later in (read - bound).intersection(order):
            assert all(order.index(v) < order.index(later) for v in bound.intersection(order)), (bound, later)


@pytest.mark.parametrize("name", PAIRS)
def test_every_section_derives_its_gradient(name):
    """The section of v has dv in a formula or as code, or, where the output's gradient is given, at least that."""
    _, *sections = re.split(r"^## ", (FOLDER / f"{name}.md").read_text(), flags=re.MULTILINE)
    for section in sections:
        variable = section.split("\n")[0]
        gradient = {"p": "dweight", "params": "dwte"}.get(variable, f"d{variable}")
        assert re.search(rf"(?<!\w){gradient}(?!\w)", section.replace(r"\_", "_")), variable


@pytest.mark.parametrize("name", PAIRS)
def test_the_html_is_clean(name):
    derivation = mathematics.read_derivation(name)
    fragments = derivation.introduction + [each for section in derivation.sections.values() for each in section]
    assert any("<math" in each for each in fragments)
    for fragment in fragments:
        tree = ElementTree.fromstring(fragment)         # well-formed, or this raises
        tags = {element.tag.rpartition("}")[2] for element in tree.iter()}
        assert tags <= MATHML | {"p", "code"}, tags
        shown = "".join(tree.itertext())
        assert not re.search(r"[$\\`]", shown), shown


@pytest.mark.parametrize("name", PAIRS)
def test_quoted_lines_are_in_the_source(name):
    """An assignment that a derivation quotes stands in the source just so: a changed line changes its derivation."""
    function = inspect.unwrap(PAIRS[name])
    module = importlib.import_module(function.__module__)
    source = re.sub(r"\s+", " ", inspect.getsource(module))
    text = re.sub(r"\s+", " ", (FOLDER / f"{name}.md").read_text())
    for quote in re.findall(r"`([^`]*)`", text):
        if re.search(r"\(| \* | @ | = |\+=", quote):
            start = quote.partition("…")[0]
            assert start in source, quote


def test_what_is_not_ours_is_escaped():
    derivation = mathematics.parse_derivation(
        "<script>1</script> & `a < b <script>` $a<b$ $\\text{<script>}$\n\n$$\\text{<script>}$$\n\n## x\n\n<script>")
    html = "".join(derivation.introduction + derivation.sections["x"])
    assert "<script" not in html
    assert html.startswith("<p>&lt;script&gt;1&lt;/script&gt; &amp; <code>a &lt; b &lt;script&gt;</code> <math")
    assert derivation.sections == {"x": ["<p>&lt;script&gt;</p>"]}


def test_markdown():
    derivation = mathematics.parse_derivation(
        "One\ntwo.\n\n$$\\mathrm{dy\\_rows}_{nj}$$\n\n## dy\n\n## y\n\n`y` is $y$.")
    first, second = derivation.introduction
    assert first == "<p>One\ntwo.</p>"
    assert 'display="block"' in second
    assert "<msub><mi>dy_rows</mi><mrow><mi>n</mi><mi>j</mi></mrow></msub>" in second
    assert derivation.sections["dy"] == []
    (paragraph,) = derivation.sections["y"]
    assert re.fullmatch(r'<p><code>y</code> is <math [^>]*display="inline"[^>]*>.*<mi>y</mi>.*</math>\.</p>', paragraph)


def test_a_name_without_a_derivation():
    with pytest.raises(UserError, match='no derivation of "../setup"'):
        mathematics.read_derivation("../setup")


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "latex2mathml.converter", None)
    with pytest.raises(UserError, match=re.escape('pip install "npgpt[study]"')):
        mathematics.read_derivation("linear")
