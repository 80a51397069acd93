"""The study page is accessible: axe-core finds nothing, few tab stops, each picture has its own
name.
"""

import os
from pathlib import Path

import pytest

from tests.study.page.conftest import DESK, PHONE

pytestmark = pytest.mark.slow
AXE = os.environ.get("NPGPT_AXE")
needs_axe = pytest.mark.skipif(
    not AXE, reason="needs axe-core: npm install axe-core, NPGPT_AXE=.../axe.min.js"
)
MOST_STOPS = 120
DRAW_ALL = """async () => {
  for (const each of document.querySelectorAll("section")) {
    each.scrollIntoView();
    await new Promise(requestAnimationFrame);
  }
}"""
OPEN_ROWS = """(where) => {
  for (const each of document.querySelectorAll(`${where} .rows .toggle`)) each.click();
}"""
FOUND = """async () => (await axe.run(document, {
    resultTypes: ["violations"], rules: {"target-size": {enabled: true}}}))
    .violations.flatMap(({id, nodes}) => nodes.map(({target, failureSummary}) =>
        `${id}: ${target}: ${failureSummary}`))"""
STOPS = """() => [...document.querySelectorAll("*")].filter((each) =>
    each.tabIndex >= 0 && !each.disabled && each.checkVisibility()
    && (each.type !== "radio" || each.checked)).length"""
PICTURES = """() => [...document.querySelectorAll("[role=img]")]
    .filter((each) => each.checkVisibility())
    .map((each) => `${each.closest("section").id}: ${each.ariaLabel ?? ""}`)"""


@pytest.fixture
def drawn(visit):
    """drawn(name, width, scheme, where) -> the page with every layer drawn; where: the layers whose
    rows are open.
    """

    def drawn_(name, width, scheme="light", where="#none"):
        page = visit(name, width, color_scheme=scheme, reduced_motion="reduce")
        page.set_default_timeout(120_000)
        page.evaluate(OPEN_ROWS, where)
        page.evaluate(DRAW_ALL)
        return page

    return drawn_


@needs_axe
@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("study", DESK, "light"), ("live", PHONE, "dark")]
)
def test_axe_finds_nothing(drawn, name, width, scheme):
    page = drawn(name, width, scheme, "#linear")
    page.evaluate(Path(AXE).read_text())
    assert page.evaluate(FOUND) == []


def test_tab_stops_are_few_and_each_picture_has_a_name_of_its_own(drawn):
    """A name is unique within its layer, with every row open."""
    page = drawn("live", DESK)
    assert 0 < page.evaluate(STOPS) <= MOST_STOPS
    page.evaluate(OPEN_ROWS, ".layer")
    names = page.evaluate(PICTURES)
    assert (
        names
        and sorted(names) == sorted({*names})
        and not any(each.endswith(": ") for each in names)
    )
