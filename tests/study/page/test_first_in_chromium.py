"""The first screen and the map in headless Chromium: what is dragged, chosen, pressed and played."""

import re

import numpy as np
import pytest

from tests.helpers.chromium import expect
from tests.study.page.conftest import PHONE

pytestmark = pytest.mark.slow


def array(page, name):
    """The numbers that the first screen shows of an array."""
    shape = map(int, page.locator(f".array[data-of={name}] small").text_content().split(" × "))
    numbers = page.locator(f".array[data-of={name}] i").all_inner_texts()
    return np.array(numbers, float).reshape(*shape)


def assert_consistent(page, name, *place):
    """The shown arrays, loss and slopes follow from the shown x and weight."""
    x, weight = given = array(page, "x"), array(page, "weight")
    dy = (x @ weight - 1) / 2
    for each, value in {"y": x @ weight, "dy": dy, "dweight": x.T @ dy, "dx": dy @ weight.T}.items():
        np.testing.assert_allclose(array(page, each), value, rtol=0, atol=0.00501)
    chosen = given[name == "weight"]
    losses = []
    for nudge in (0.0, 1e-4, -2e-4):
        chosen[place] += nudge
        losses.append(((x @ weight - 1) ** 2).mean())
    slope = (losses[1] - losses[2]) / 2e-4
    assert page.inner_text("#first-loss") == f"{losses[0]:.2f}"
    said = re.fullmatch(rf"d{name}\[(\d),(\d)\] says (.*); measured slope (.*): ✓ right",
                        page.inner_text(".says"))
    np.testing.assert_allclose([*map(float, said.groups())], [*place, slope, slope], rtol=0, atol=0.00501)


def cell(page, name, n):
    return page.locator(f".array[data-of={name}] i").nth(n)


def test_a_number_is_dragged_and_the_rest_follows(visit):
    page = visit("live")
    assert_consistent(page, "weight", 1, 0)
    old = array(page, "x")[1, 2]
    last = cell(page, "x", 5)
    here, there = {"x": 9, "y": 20}, {"x": 9, "y": -40}
    last.drag_to(last, source_position=here, target_position=there, force=True)
    assert array(page, "x")[1, 2] == pytest.approx(old + 1, abs=0.02)
    assert_consistent(page, "x", 1, 2)


def test_the_keyboard(visit):
    """One tab stop for each array."""
    page = visit("live")
    page.focus(".array[data-of=x] .cells")
    for key in ["ArrowRight", "ArrowRight", "+", "-", "+"]:
        page.keyboard.press(key)
    assert array(page, "x")[0].tolist() == [0.9, -0.4, 0.3]
    assert page.locator(".arrays [tabindex='0']").count() == 6
    assert_consistent(page, "x", 0, 1)
    for key in ["Tab", "ArrowDown", "ArrowDown"]:
        page.keyboard.press(key)
    assert_consistent(page, "weight", 1, 0)
    for _ in range(25):
        page.keyboard.press("+")
    assert array(page, "weight")[1, 0] == 3.0           # the largest


@pytest.mark.parametrize(("name", "n", "sum_", "lit"), [
    ("dweight", 2,
     ["dweight[1,0]", "x[0,1]·dy[0,0] + x[1,1]·dy[1,0]", "(-0.5)·(-1.09) + 1.2·0.195", "0.78"],
     {"x": [1, 4], "dy": [0, 2]}),
    ("dx", 0, ["dx[0,0]", "dy[0,0]·weight[0,0] + dy[0,1]·weight[0,1]",
               "(-1.09)·(-0.50) + (-0.80)·(-0.80)", "1.19"],
     {"dy": [0, 1], "weight": [0, 1]}),
    ("y", 3, ["y[1,1]", "x[1,0]·weight[0,1] + x[1,1]·weight[1,1] + x[1,2]·weight[2,1]",
              "(-1.10)·(-0.80) + 1.20·0.30 + 0.80·0.90", "1.96"],
     {"x": [3, 4, 5], "weight": [1, 3, 5]}),
    ("dy", 0, ["dy[0,0]", "2·(y[0,0] - 1) / 4", "2·((-1.18) - 1) / 4", "-1.09"], {"y": [0]}),
    ("weight", 2, ["weight[1,0] = 1.10"], {}),
])
@pytest.mark.parametrize("width", [PHONE, 1440])
def test_a_number_is_clicked(visit, name, n, sum_, lit, width):
    page = visit("study", width)
    cell(page, name, n).click()
    assert [each for each in page.locator(".first .why code").all_inner_texts() if each] == sum_
    chosen = page.locator(f".array[data-of={name}] i").nth(n)
    expect(chosen).to_have_class(re.compile("chosen"))
    expect(page.locator(".says")).to_contain_text("✓ right")
    found = page.evaluate("""() => [...document.querySelectorAll(".array")].map((each) =>
        [each.dataset.of, [...each.querySelectorAll("i")].flatMap(
            ({classList}, n) => classList.contains("on") ? n : [])])""")
    assert {each: cells for each, cells in found if cells} == lit


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("dy.T @ x", "it is transposed"),
        ("x.T @ dy", None),
        ("x.T @ y", "WRONG, 2.9 times too large"),
    ],
)
def test_a_wrong_line_is_called_wrong(visit, line, what):
    page = visit("live")
    page.get_by_role("radio", name=line, exact=True).check(force=True)
    expect(page.locator(".says")).to_contain_text(what or "✓ right")
    expect(page.locator(".mark")).to_have_text("✗ WRONG" if what else "✓ right")


def test_the_backward_is_played(visit):
    page = visit("study", reduced_motion="reduce")
    page.click("#play")
    assert page.locator(".arrays .gone").count() == 6                # dy, dweight, dx and their arrows
    expect(page.locator(".arrays .now")).to_have_attribute("data-of", "dloss")
    for left in (4, 2, 0):
        expect(page.locator(".arrays .gone")).to_have_count(left)
    expect(page.locator(".arrays .now")).to_have_count(0)
