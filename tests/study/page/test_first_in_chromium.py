"""The first screen and the map in headless Chromium: drag, choose, press and play."""

import re

import numpy as np
import pytest

from tests.helpers.chromium import expect

pytestmark = pytest.mark.slow


def array(page, name):
    """The numbers that the first screen shows of an array."""
    shape = map(int, page.locator(f".array[data-of={name}] small").text_content().split(" × "))
    numbers = page.locator(f".array[data-of={name}] i").all_inner_texts()
    return np.array(numbers, float).reshape(*shape)


def assert_consistent(page, name, *place):
    """The shown arrays, loss and slopes follow from the shown x and weight."""
    x, weight = array(page, "x"), array(page, "weight")
    dy = (x @ weight - 1) / 2
    values = {"y": x @ weight, "dy": dy, "dweight": x.T @ dy, "dx": dy @ weight.T}
    for each, value in values.items():
        np.testing.assert_allclose(array(page, each), value, rtol=0, atol=0.00501)
    assert page.inner_text("#first-loss") == f"{((x @ weight - 1) ** 2).mean():.2f}"
    slope = values[f"d{name}"][place]
    said = re.fullmatch(
        rf"d{name}\[(\d),(\d)\] says (.*); measured slope (.*): ✓ right", page.inner_text(".says")
    )
    shown = [*map(float, said.groups())]
    np.testing.assert_allclose(shown, [*place, slope, slope], rtol=0, atol=0.00501)


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
    assert array(page, "weight")[1, 0] == 3.0  # the largest


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
