"""The study page is accessible: axe-core finds nothing, few tab stops, large targets, each picture has its own name."""

import os
from pathlib import Path

import pytest

from tests.study.page.conftest import DESK, PHONE

pytestmark = pytest.mark.slow
AXE = os.environ.get("NPGPT_AXE")
needs_axe = pytest.mark.skipif(not AXE, reason="needs axe-core: npm install axe-core, NPGPT_AXE=.../axe.min.js")
everywhere = pytest.mark.parametrize(("name", "width"), [(name, width) for name in ("study", "live")
                                                         for width in (DESK, PHONE)])
MOST_STOPS, SMALLEST = 120, 24
DRAW_ALL = """async () => {
  for (const each of document.querySelectorAll("section")) {
    each.scrollIntoView();
    await new Promise(requestAnimationFrame);
  }
}"""
OPEN_ROWS = """(where) => {
  for (const each of document.querySelectorAll(`${where} .rows:not([hidden]) .toggle`)) each.click();
}"""
FOUND = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations.flatMap(({id, nodes}) =>
    nodes.map(({target, failureSummary}) => `${id}: ${target}: ${failureSummary}`))"""
STOPS = """() => [...document.querySelectorAll("*")].filter((each) =>
    each.tabIndex >= 0 && !each.disabled && each.checkVisibility() && (each.type !== "radio" || each.checked)).length"""
# A label is a target, too; a link in a sentence has the height of the line.
SMALL = """(least) => {
  const isInline = (each) => each.matches("a") && getComputedStyle(each).display === "inline"
    && each.parentElement.textContent.trim() !== each.textContent.trim();
  return [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")]
    .filter((each) => each.checkVisibility() && !each.disabled && !isInline(each))
    .map((each) => [each, ...[each, each.closest("label")].filter(Boolean).map((part) => part.getBoundingClientRect())])
    .filter(([, ...sizes]) => sizes.every(({width, height}) => Math.min(width, height) < least - 0.05))
    .map(([each, {width, height}]) => `${each.outerHTML.slice(0, 90)}: ${width.toFixed(1)} x ${height.toFixed(1)}`);
}"""
PICTURES = """() => [...document.querySelectorAll("[role=img]")].filter((each) => each.checkVisibility())
    .map((each) => `${each.closest("section").id}: ${each.ariaLabel ?? ""}`)"""


@pytest.fixture
def drawn(visit):
    """drawn(name, width, scheme, where) -> the page with every layer drawn; where: the layers whose rows are open."""
    def drawn_(name, width, scheme="light", where="#none"):
        page = visit(name, width, color_scheme=scheme, reduced_motion="reduce")
        page.set_default_timeout(120_000)
        page.evaluate(OPEN_ROWS, where)
        page.evaluate(DRAW_ALL)
        return page

    return drawn_


@needs_axe
@everywhere
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(drawn, name, width, scheme):
    page = drawn(name, width, scheme, "#linear")
    page.evaluate(Path(AXE).read_text())
    assert page.evaluate(FOUND) == []


@everywhere
def test_few_tab_stops(drawn, name, width):
    assert 0 < drawn(name, width).evaluate(STOPS) <= MOST_STOPS


@everywhere
def test_targets_are_large(drawn, name, width):
    assert drawn(name, width, where="#linear").evaluate(SMALL, SMALLEST) == []


@everywhere
def test_each_picture_has_a_name_of_its_own(drawn, name, width):
    """Within its layer, with every row open."""
    names = drawn(name, width, where=".layer").evaluate(PICTURES)
    assert names and sorted(names) == sorted({*names}) and not any(each.endswith(": ") for each in names)
