"""The study page in headless Chromium, without a network."""

import re
from pathlib import Path

import pytest

from npgpt.cli.study import fresh_model
from npgpt.study.lessons import lessons
from npgpt.study.page import study_page
from npgpt.study.whole_model import study_model

for module in ("jinja2", "pygments", "latex2mathml", "scipy"):
    pytest.importorskip(module, reason="makes the study page")
playwright = pytest.importorskip("playwright.sync_api", reason="drives the browser")

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(
    not CHROMIUM.exists(), reason="needs Debian's chromium: apt-get install chromium")]

PLANTED = "<script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The page of all layers, on a prompt with planted markup."""
    model = study_model(*fresh_model(PLANTED), PLANTED, "<b>a model</b>")
    model.tokens[0] = PLANTED           # a tokenizer with such a token
    path = tmp_path_factory.mktemp("page") / "study.html"
    path.write_text(study_page(list(lessons().values()), model))
    return path


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as api:
        with api.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]) as started:
            yield started


@pytest.fixture
def open_page(browser, file):
    """open_page(width, scheme) -> the page; at the end: no request but the file, no error, no dialog."""
    complaints, requests = [], set()

    def open_(width=1440, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: requests.add(request.url))
        page.goto(file.as_uri())
        return page

    yield open_
    assert complaints == [] and {url for url in requests if not url.startswith("data:")} == {file.as_uri()}
    for context in browser.contexts:
        context.close()


def classes(page, selector):
    return set(page.locator(selector).get_attribute("class").split())


def line(page, side, begin):
    """The selector of LayerNorm's line that begins so."""
    (found,) = [unit for unit in page.locator(f"#layernorm .{side} .unit.active").all()
                if unit.inner_text().split("\n")[1].strip().startswith(begin)]
    return f'#layernorm [data-line="{found.get_attribute("data-line")}"]'


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_overflows_and_every_layer_is_there(open_page, width, scheme):
    page = open_page(width, scheme)
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    forward, backward = (page.locator(f"#linear .{side}.code").bounding_box() for side in ("forward", "backward"))
    assert (backward["x"] > forward["x"] + forward["width"]) == (width == 1440)         # side by side, else stacked
    assert (backward["y"] > forward["y"] + forward["height"]) == (width == 390)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")        # opens all details
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    for name in lessons():
        assert page.locator(f"#{name} .cells i").first.bounding_box()["width"] >= 3
        assert page.locator(f"#{name} math").count()
    assert page.evaluate("[...document.links].every(a => document.querySelector(a.getAttribute('href')))")
    page.emulate_media(media="print")
    assert not page.locator(".bar").is_visible() and not page.locator("#linear .stepper").is_visible()


def test_the_partner_lights_up_under_the_pointer(open_page):
    page = open_page()
    forward, backward = line(page, "forward", "xhat = "), line(page, "backward", "dxhat = ")
    page.hover(forward)
    assert "here" in classes(page, forward) and "lit" in classes(page, backward)
    assert page.locator("#layernorm .lit").count() == 1
    assert page.locator("#layernorm .card.here h4").inner_text() == "xhat"
    assert page.locator("#layernorm .card.there h4").inner_text() == "dxhat"
    assert "4 × 5 × 6" in page.locator("#layernorm .card.here .facts").inner_text()
    assert "dxhat is verified" in page.locator("#layernorm .finding").inner_text()
    page.hover(backward)
    assert "here" in classes(page, backward) and "lit" in classes(page, forward)
    page.hover("#layernorm h2")
    assert not classes(page, forward) & {"lit", "here"}


def test_keyboard_and_tap(open_page):
    page = open_page(390)
    forward, backward = line(page, "forward", "xhat = "), line(page, "backward", "dxhat = ")
    page.click(line(page, "forward", "centred = "))
    assert "lit" in classes(page, line(page, "backward", "dx = "))
    assert "dcentred is skipped" in page.locator("#layernorm .finding").inner_text()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert "here" in classes(page, forward) and "lit" in classes(page, backward)
    page.keyboard.press("Enter")
    page.evaluate("document.activeElement.blur()")
    assert "lit" in classes(page, backward), "Enter did not make it stay"


def test_the_value_under_the_pointer_is_read_out(open_page):
    """Of (B, H, T, D) the first axis is side by side: the readout names the right value."""
    page = open_page()
    page.click("#attention .tabs button >> text=k")
    cells, output = page.locator("#attention .card.here .cells"), page.locator("#attention .card.here output")
    size = cells.bounding_box()
    k = lessons()["attention"].inputs["k"]
    for i, index in ((-1, (3, 1, 6, 2)), (5, (1, 0, 0, 2))):        # the cells of a row come one after another
        cells.locator("i").nth(i).hover()
        assert output.inner_text() == f"k[{', '.join(map(str, index))}] = {float(f'{k[index]:.4g}')}"
    box = cells.locator("i").nth(5).bounding_box()
    assert box["y"] == size["y"] and box["x"] > cells.locator("i").nth(2).bounding_box()["x"] + box["width"]
    cells.focus()
    page.keyboard.press("ArrowLeft")
    assert output.inner_text().startswith("k[1, 0, 0, 1] = ")
    assert page.locator("#attention .count").inner_text().startswith("step 1 of"), "the arrow moved the stepper too"


def test_the_stepper_goes_to_the_end_and_back(open_page):
    """Every value of the whole model's x is beside its own gradient: the i-th x beside the i-th last dx."""
    page = open_page()
    count = page.locator("#gpt .count")
    n = int(re.fullmatch(r"step 1 of (\d+)", count.inner_text())[1])
    button = {go: page.locator(f'#gpt [data-go="{go}"]') for go in ("first", "previous", "next", "last")}
    assert button["previous"].is_disabled() and button["first"].is_disabled()
    sides, found = [], {"x": [], "dx": []}
    for i in range(2, n + 1):
        button["next"].click()
        assert count.inner_text() == f"step {i} of {n}"
        sides.append(page.locator("#gpt .now[aria-current=step].here").get_attribute("data-line")[0])
        names = [page.locator(f"#gpt .card.{card} h4").all_inner_texts() for card in ("here", "there")]
        if names in ([["x"], ["dx"]], [["dx"], ["x"]]):
            facts = [page.locator(f"#gpt .card.{card} .facts").inner_text() for card in ("here", "there")]
            found[names[0][0]].append(facts)
    assert sides == sorted(sides, reverse=True) and button["next"].is_disabled() and button["last"].is_disabled()
    assert len(found["x"]) == 6         # embedding, LayerNorm, dropout, two blocks, LayerNorm
    assert [facts[::-1] for facts in reversed(found["dx"])] == found["x"]
    page.locator("#gpt h2").click()
    for key, step in (("ArrowLeft", n - 1), ("ArrowRight", n)):
        page.keyboard.press(key)
        assert count.inner_text() == f"step {step} of {n}"
    for go, step in (("first", 1), ("last", n), ("previous", n - 1)):
        button[go].click()
        assert count.inner_text() == f"step {step} of {n}"


def test_planted_markup_is_inert_and_attention_heads_are_chosen(open_page):
    page = open_page()
    assert page.locator("#model-tokens .token .text").first.inner_text() == PLANTED
    assert page.locator("img, #model b").count() == 0 and page.locator("script").count() == 2
    page.hover("#model-tokens .token >> nth=1")
    readout = page.locator("#model-readout").inner_text()
    assert PLANTED in readout and "position 0" in readout
    page.mouse.move(0, 0)
    page.locator("#model-pulls .cells").focus()
    page.keyboard.press("ArrowRight")
    assert PLANTED in page.locator("#model-pulls output").inner_text()
    assert page.locator("#model-heads button").count() == 8
    page.click("#model-heads button >> nth=6")
    assert page.locator("#model-head").inner_text() == "Block 1, head 2"
    page.locator("#model-attention .cells").focus()
    page.keyboard.press("ArrowRight")
    shown = page.locator("#model-attention output").inner_text()
    assert "looks at" in shown and shown.endswith("1.00")       # the first has only itself


def test_the_theme_follows_the_system_and_the_button(open_page):
    def paper(page):
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light, dark = open_page(scheme="light"), open_page(scheme="dark")
    colours = paper(light), paper(dark)
    assert colours[0] != colours[1]
    for colour in reversed(colours):
        light.click("#theme")
        assert paper(light) == colour
