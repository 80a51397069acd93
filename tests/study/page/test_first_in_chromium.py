"""The first screen and the map in headless Chromium: what is dragged, chosen, pressed and played."""

import re

import numpy as np
import pytest

from npgpt import load
from npgpt.study.page.whole_model import study_model
from tests.helpers.chromium import expect, play
from tests.study.page.conftest import PHONE

pytestmark = pytest.mark.slow

STUDY = study_model(*load("tiny"), "To be", "a model")
STAGES = STUDY["stages"]
WATCH = """() => { window.seen = []; const count = (each) => document.querySelectorAll(each).length;
    new MutationObserver(() => seen.push([
        document.querySelector(".here.box").dataset.box, document.querySelector("#map-block").value,
        count(".box output:not(:empty)")].join(" ")))
    .observe(document.querySelector("#map"), {attributes: true, subtree: true, attributeFilter: ["class"]}); }"""


def array(page, name):
    """The numbers that the first screen shows of an array."""
    shape = map(int, page.locator(f"[data-of={name}] small").text_content().split(" × "))
    return np.array(page.locator(f".array[data-of={name}] span").all_inner_texts(), float).reshape(*shape)


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
    said = re.fullmatch(rf"d{name}\[(\d), (\d)\] says (.*); measured slope (.*): ✓ right", page.inner_text(".says"))
    np.testing.assert_allclose([*map(float, said.groups())], [*place, slope, slope], rtol=0, atol=0.00501)


def test_a_number_is_dragged_and_the_rest_follows(visit):
    page = visit("live")
    assert_consistent(page, "weight", 1, 0)
    cell, old = page.locator(".array[data-of=x] span").nth(5), array(page, "x")[1, 2]
    cell.drag_to(
        cell, source_position={"x": 9, "y": 20}, target_position={"x": 9, "y": -40}, force=True
    )
    assert array(page, "x")[1, 2] == pytest.approx(old + 1, abs=0.02)
    assert_consistent(page, "x", 1, 2)


def test_the_keyboard(visit):
    """One tab stop for each array; the arrows do not step through a layer."""
    page = visit("live")
    page.focus("[data-of=x] [tabindex='0']")
    for key in ["ArrowRight", "ArrowUp", "+", "ArrowDown", "-", "ArrowUp"]:
        page.keyboard.press(key)
    assert array(page, "x")[0].tolist() == [0.9, -0.4, 0.3] and page.locator(".arrays [tabindex='0']").count() == 2
    assert_consistent(page, "x", 0, 1)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.ariaLabel") == "weight[1, 0]"


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
    page.focus("[data-of=x] span")
    page.get_by_role("radio", name=line, exact=True).check()
    expect(page.locator(".says")).to_contain_text(what or "✓ right")
    expect(page.locator(".mark")).to_have_text("✗ WRONG" if what else "✓ right")


def test_the_backward_is_played_through_the_whole_model(visit):
    page = visit("live", reduced_motion="reduce")
    page.evaluate(WATCH)
    page.click("#play")
    assert page.locator(".arrays .gone").count() == 6                # dy, dweight, dx and their arrows
    play(page, [("js", "seen.at(-1)?.startsWith('embedding') && seen.length", len(STAGES))])
    for (n, stage), seen in zip(reversed([*enumerate(STAGES)]), page.evaluate("seen"), strict=True):
        block = next((each["layer"] for each in STAGES[n:] if each["layer"] is not None), 0)
        filled = sum(each["layer"] in (None, block) for each in STAGES[n:])
        assert seen == f"{stage['box']} {block} {filled}"


def test_a_token_and_a_block_are_chosen_on_a_phone(visit):
    page = visit("live", PHONE, has_touch=True)
    for token, block in [(3, 0), (1, 0), (2, 1)]:
        page.click(f"#map-tokens label >> nth={token}")
        page.select_option("#map-block", str(block))
        assert [*map(float, page.locator(".box output").all_inner_texts())] == [
            float(f"{norm:.2g}") for norm, stage in zip(STUDY["flow"][token - 1], STAGES, strict=True)
            if stage["layer"] in (None, block)]
    assert page.locator("#map-tokens :disabled").count() == 1         # the first
