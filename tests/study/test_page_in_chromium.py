"""The study page as a reader has it: in headless Chromium, with nothing to reach over a network."""

import re
from pathlib import Path

import pytest

from npgpt.cli.study import fresh_model
from npgpt.study.lessons import lessons

for module in ("jinja2", "pygments", "latex2mathml", "scipy"):
    pytest.importorskip(module, reason="makes the study page")
playwright = pytest.importorskip("playwright.sync_api", reason="drives the browser")

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Debian's chromium: apt-get install chromium")

PLANTED = "<script>alert(1)</script><img src=x onerror=alert(2)>"
WIDTHS = (390, 1440)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The page of all layers, on a prompt with planted markup."""
    from npgpt.study.page import study_page
    from npgpt.study.whole_model import study_model
    model = study_model(*fresh_model(PLANTED), PLANTED, "<b>a model</b>")
    model.tokens[0] = PLANTED           # a tokenizer with such a token
    path = tmp_path_factory.mktemp("page") / "study.html"
    path.write_text(study_page(list(lessons().values()), model))
    return path


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as chromium:
        started = chromium.chromium.launch(executable_path=str(CHROMIUM), args=[
            "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--no-first-run"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser, file):
    """open_page(width, scheme) -> the page; at the end: no request but the file, no error, no dialog."""
    contexts, complaints, requests = [], [], []

    def open_(width=1440, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
    assert {url for url in requests if not url.startswith("data:")} == {file.as_uri()}


def classes(page, selector):
    return set(page.locator(selector).get_attribute("class").split())


def units(page, side):
    """line's text -> its data-line, of LayerNorm's forward or backward."""
    found = page.locator(f"#layernorm .{side} .unit.active")
    return {found.nth(i).inner_text().split("\n")[1].strip(): found.nth(i).get_attribute("data-line")
            for i in range(found.count())}


def line(page, side, begin):
    """The selector of LayerNorm's line that begins so."""
    (found,) = [data for text, data in units(page, side).items() if text.startswith(begin)]
    return f'#layernorm [data-line="{found}"]'


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overflows_and_every_layer_is_there(open_page, width, scheme):
    page = open_page(width, scheme)
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert page.locator("section.layer").evaluate_all("all => all.map(each => each.id)") == list(lessons())
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    for name in lessons():
        assert page.locator(f"#{name} .heat canvas").first.evaluate("each => each.width") > 0
        assert page.locator(f"#{name} math").count()


def test_the_two_passes_stand_side_by_side_or_stacked(open_page):
    for width, beside in ((1440, True), (390, False)):
        page = open_page(width)
        forward, backward = (page.locator(f"#linear .{side}.code").bounding_box() for side in ("forward", "backward"))
        assert (backward["x"] > forward["x"] + forward["width"]) == beside
        assert (backward["y"] > forward["y"] + forward["height"]) != beside


def test_the_partner_lights_up_under_the_pointer(open_page):
    page = open_page()
    forward, backward = line(page, "forward", "xhat = "), line(page, "backward", "dxhat = ")
    assert not classes(page, backward) & {"lit", "here"}
    page.hover(forward)
    assert "here" in classes(page, forward) and "lit" in classes(page, backward)
    assert page.locator("#layernorm .lit").count() == 1
    assert page.locator("#layernorm .card.here h4").inner_text() == "xhat"
    assert page.locator("#layernorm .card.there h4").inner_text() == "dxhat"
    assert "2 × 3 × 6" in page.locator("#layernorm .card.here .facts").inner_text()
    assert "dxhat is certified" in page.locator("#layernorm .certificate").inner_text()
    assert page.locator("#layernorm .why math").count()
    page.hover(backward)
    assert "here" in classes(page, backward) and "lit" in classes(page, forward)
    page.hover("#layernorm h2")
    assert not classes(page, forward) & {"lit", "here"}


def test_the_keyboard_is_enough(open_page):
    page = open_page()
    forward, backward = line(page, "forward", "xhat = "), line(page, "backward", "dxhat = ")
    page.locator("#layernorm .forward .doc summary").focus()
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.dataset.line") == list(units(page, "forward").values())[0]
    for _ in range(5):
        page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.line") in forward
    assert "here" in classes(page, forward) and "lit" in classes(page, backward)
    page.keyboard.press("Enter")
    page.evaluate("document.activeElement.blur()")
    assert "lit" in classes(page, backward), "Enter did not make it stay"


def test_a_tap_shows_a_line(open_page):
    page = open_page(390)
    forward, backward = line(page, "forward", "centred = "), line(page, "backward", "dx = ")
    page.click(forward)
    assert "lit" in classes(page, backward)
    assert "dcentred is skipped" in page.locator("#layernorm .certificate").inner_text()


def test_the_value_under_the_pointer_is_read_out(open_page):
    page = open_page()
    page.hover(line(page, "forward", "def layernorm_forward"))
    page.click("#layernorm .tabs button >> text=weight")
    canvas = page.locator("#layernorm .card.here canvas")
    size = canvas.bounding_box()
    canvas.hover(position={"x": size["width"] - 4, "y": size["height"] / 2})
    weight = lessons()["layernorm"].inputs["weight"]
    assert page.locator("#layernorm .card.here output").inner_text() == f"weight[5] = {float(f'{weight[5]:.4g}')}"
    canvas.focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#layernorm .card.here output").inner_text().startswith("weight[4] = ")
    assert page.locator("#layernorm .count").inner_text().startswith("step 1 of"), "the arrow moved the stepper too"


def test_the_values_of_four_axes_are_told_apart(open_page):
    """Of (B, H, T, D) the first axis stands side by side: the readout names the value that is under the pointer."""
    page = open_page()
    page.click("#attention .tabs button >> nth=1")
    canvas, output = (page.locator(f"#attention .card.here {tag}") for tag in ("canvas", "output"))
    size = canvas.bounding_box()
    for y, index in ((size["height"] - 4, (1, 1, 2, 2)), (4, (1, 0, 0, 2))):
        canvas.hover(position={"x": size["width"] - 4, "y": y})
        value = lessons()["attention"].inputs["k"][index]
        assert output.inner_text() == f"k[{', '.join(map(str, index))}] = {float(f'{value:.4g}')}"


def test_the_stepper_goes_to_the_end_and_back(open_page):
    page = open_page()
    count = page.locator("#layernorm .count")
    n = int(re.fullmatch(r"step 1 of (\d+)", count.inner_text())[1])
    button = {go: page.locator(f'#layernorm [data-go="{go}"]') for go in ("first", "previous", "next", "last")}
    assert button["previous"].is_disabled() and button["first"].is_disabled()
    seen = []
    for i in range(2, n + 1):
        button["next"].click()
        assert count.inner_text() == f"step {i} of {n}"
        seen.append(page.locator("#layernorm .now").get_attribute("data-line"))
        assert page.locator("#layernorm .now[aria-current=step].here").count() == 1
    assert [each[0] for each in seen] == sorted((each[0] for each in seen), reverse=True) and seen[-1][0] == "b"
    assert page.locator("#layernorm .card.here h4").inner_text() == "dx"
    assert button["next"].is_disabled() and button["last"].is_disabled()
    page.locator("#layernorm h2").click()
    page.keyboard.press("ArrowLeft")
    assert count.inner_text() == f"step {n - 1} of {n}"
    page.keyboard.press("ArrowRight")
    assert count.inner_text() == f"step {n} of {n}"
    for i in range(n - 1, 0, -1):
        button["previous"].click()
        assert count.inner_text() == f"step {i} of {n}"
    button["last"].click()
    assert count.inner_text() == f"step {n} of {n}"
    button["first"].click()
    assert count.inner_text() == f"step 1 of {n}"


def test_a_loop_runs_backwards(open_page):
    """Every value of the whole model's stream stands beside its own gradient: the i-th x beside the i-th last dx."""
    page = open_page()
    n = int(page.locator("#gpt .count").inner_text().split()[-1])
    forward, backward = [], []
    for _ in range(n - 1):
        page.locator('#gpt [data-go="next"]').click()
        names = [page.locator(f"#gpt .card.{card} h4").all_inner_texts() for card in ("here", "there")]
        if names in ([["x"], ["dx"]], [["dx"], ["x"]]):
            facts = [page.locator(f"#gpt .card.{card} .facts").inner_text() for card in ("here", "there")]
            (forward if names[0] == ["x"] else backward).append(facts)
    assert len(forward) == 5 and len(backward) == 5     # embedding, dropout, two blocks, LayerNorm
    assert [facts[::-1] for facts in reversed(backward)] == forward


def test_planted_markup_is_inert(open_page):
    page = open_page()
    assert page.locator("#model-tokens .token .text").first.inner_text() == PLANTED
    assert page.locator("img, #model b").count() == 0
    page.hover("#model-tokens .token >> nth=1")
    readout = page.locator("#model-readout")
    assert PLANTED in readout.inner_text() and "position 0" in readout.inner_text()
    page.locator("#model-pulls canvas").focus()
    page.keyboard.press("ArrowRight")
    assert PLANTED in page.locator("#model-pulls output").inner_text()
    assert page.locator("script").count() == 2


def test_attention_heads_are_chosen(open_page):
    page = open_page()
    assert page.locator("#model-heads button").count() == 8
    page.click("#model-heads button >> nth=6")
    assert page.locator("#model-attention figcaption").inner_text() == "Block 1, head 2"
    page.locator("#model-attention canvas").focus()
    page.keyboard.press("ArrowRight")
    assert "looks at" in page.locator("#model-attention output").inner_text()
    assert page.locator("#model-attention output").inner_text().endswith("1.00")     # the first has only itself


def test_the_theme_follows_the_system_and_the_button(open_page):
    def paper(page):
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light, dark = open_page(scheme="light"), open_page(scheme="dark")
    colours = paper(light), paper(dark)
    assert colours[0] != colours[1]
    light.click("#theme")
    assert paper(light) == colours[1]
    light.click("#theme")
    assert paper(light) == colours[0]


def test_on_paper_all_of_it_is_there(open_page):
    page = open_page()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("[...document.querySelectorAll('details')].every(each => each.open)")
    page.emulate_media(media="print")
    assert not page.locator(".bar").is_visible() and not page.locator("#linear .stepper").is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.panel')).position") == "static"


def test_every_link_leads_somewhere(open_page):
    page = open_page()
    assert page.evaluate("[...document.links].every(a => document.querySelector(a.getAttribute('href')))")
    assert page.evaluate("new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size"
                         " === document.querySelectorAll('[id]').length")
