"""The study page in headless Chromium, without a network."""

import re
from pathlib import Path

import pytest

from npgpt.cli.study import fresh_model
from npgpt.study.gradcheck.lessons import basics_and_lessons, lessons
from npgpt.study.page.page import study_page
from npgpt.study.page.whole_model import study_model

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
    path.write_text(study_page(list(basics_and_lessons().values()), model))
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


def line(page, side, begin, layer="layernorm"):
    """The selector of a layer's line that begins so."""
    (found,) = [unit for unit in page.locator(f"#{layer} .{side}:not([hidden]) .unit.active").all()
                if unit.locator("code").first.text_content().strip().startswith(begin)]
    return f'#{layer} .{side}:not([hidden]) [data-line="{found.get_attribute("data-line")}"]'


def are_seen(page, selector):
    """For each element whether its first line of text is in its pane, below the bar, and above the panel."""
    return page.evaluate("""(selector) => [...document.querySelectorAll(selector)].map((element) => {
        const {top, height} = element.getBoundingClientRect(), pane = element.closest(".code");
        const box = pane.getBoundingClientRect(), header = pane.querySelector(".side").offsetHeight;
        const panel = element.closest(".study").querySelector(".panel").getBoundingClientRect();
        const highest = Math.max(box.top + header, document.querySelector(".bar").offsetHeight);
        return top >= highest && top + Math.min(height, 18) <= Math.min(box.bottom, panel.top, innerHeight);
    })""", selector)


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
    for name in basics_and_lessons():
        assert page.locator(f"#{name} .cells i").first.bounding_box()["width"] >= 3
        assert page.locator(f"#{name} math").count()
    assert page.evaluate("""[...document.links].every(({hash}) => {
        const [id, line] = hash.slice(1).split(":");
        return document.getElementById(id).querySelector(line ? `[data-line="${line}"]` : "*");
    })""")
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
    for i, index in ((-1, (3, 1, 6, 2)), (14 * 3 + 2, (1, 0, 0, 2))):       # a block of 14 x 3 after another
        cells.locator("i").nth(i).hover()
        assert output.inner_text() == f"k[{', '.join(map(str, index))}] = {float(f'{k[index]:.4g}')}"
    box = cells.locator("i").nth(14 * 3 + 2).bounding_box()
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


def test_a_page_without_lessons_shows_the_lens(browser, tmp_path):
    """Each row is what one more block predicts; the likeliest token is underlined where it is the right one."""
    study, complaints = study_model(*fresh_model(PLANTED), PLANTED, "a model"), []
    study.lens[1][0] = (PLANTED, 0.5, 0.5)
    (tmp_path / "look.html").write_text(study_page([], study))
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((tmp_path / "look.html").as_uri())
    rows = [row.inner_text().split("\t") for row in page.locator("#model-lens tr").all()]
    assert [row[0] for row in rows] == ["", "embedding", "block 0", "block 1"] and rows[0][1:] == study.tokens[:-1]
    assert rows[1][1:] == [text for text, _, _ in study.lens[0]] and rows[2][1] == PLANTED
    cell = page.locator("#model-lens tr").nth(2).locator("td").first
    assert cell.get_attribute("class") == "right" and "50 %, the right" in cell.get_attribute("title")
    right = [cell for row in study.lens for cell in row if cell[1] == cell[2]]
    assert page.locator("#model-lens .right").count() == len(right)
    assert page.locator(".layer, .hero, #map, img").count() == 0 and page.locator("#model-heads button").count() == 8
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth") and complaints == []


def test_the_theme_follows_the_system_and_the_button(open_page):
    def paper(page):
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light, dark = open_page(scheme="light"), open_page(scheme="dark")
    colours = paper(light), paper(dark)
    assert colours[0] != colours[1]
    for colour in reversed(colours):
        light.click("#theme")
        assert paper(light) == colour


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("layer", ["attention", "gpt"])
def test_the_stepper_keeps_the_line_and_its_partner_in_view(open_page, layer, width):
    page = open_page(width)
    page.locator(f"#{layer}").scroll_into_view_if_needed()
    count = int(page.locator(f"#{layer} .count").inner_text().split()[-1])
    for i in range(2, count + 1):
        page.click(f"#{layer} [data-go=next]")
        assert page.locator(f"#{layer} .unit.here").count() == 1 and page.locator(f"#{layer} .unit.lit").count() <= 3
        assert are_seen(page, f"#{layer} .unit.here") == [True], f"step {i}"
        assert any(are_seen(page, f"#{layer} .unit.lit") or [True]), f"step {i}"
    while not page.locator(f"#{layer} [data-go=previous]").is_disabled():
        page.keyboard.press("ArrowLeft")
        assert are_seen(page, f"#{layer} .unit.here") == [True] and any(are_seen(page, f"#{layer} .unit.lit") or [True])


@pytest.mark.parametrize("width", [390, 1440])
def test_arrows_lead_from_each_use_to_its_share(open_page, width):
    """Where the panes are not side by side, both ends light up instead."""
    page = open_page(width)
    for layer, begin, uses, shares in [
            ("gelu_tanh", "dx = ", ["inner = ", "y = "], ["dx_inside = ", "dx_outside = "]),
            ("block", "dx_mid = ", ["norm_2, ", "x_out = "], ["dx_mid_normed, ", "dx_mid = "])]:
        page.click(line(page, "backward", begin, layer))
        paths = page.locator(f"#{layer} .arrows path")
        assert paths.count() == (2 if width == 1440 else 0)
        ends = [line(page, side, each, layer) for side, lines in (("forward", uses), ("backward", shares))
                for each in lines]
        assert all(classes(page, each) & {"use", "lit", "here"} for each in ends)
        assert page.locator(f"#{layer} .word").count() == 4
        if width == 1440:
            for i in range(2):
                found = page.evaluate("""([layer, i]) => {
                    const path = document.querySelectorAll(`#${layer} .arrows path`)[i];
                    const box = document.querySelector(`#${layer} .panes`).getBoundingClientRect();
                    const [x, y] = path.getAttribute("d").slice(1).split(/[ C]/).map(Number);
                    const [toX, toY] = path.getAttribute("d").split("m")[0].split(" ").slice(-2).map(Number);
                    return [x + box.left, y + box.top, toX + box.left, toY + box.top];
                }""", [layer, i])
                for (x, y), end in zip((found[:2], found[2:]), (ends[i], ends[2 + i]), strict=True):
                    unit = page.locator(end).bounding_box()
                    assert unit["y"] <= y <= unit["y"] + unit["height"]
                    assert min(abs(x - unit["x"]), abs(x - unit["x"] - unit["width"])) < 4
    page.hover("#block h2")
    page.click(line(page, "forward", "x_out = ", "block"))
    assert page.locator("#block .arrows path").count() == 0, "nothing in the block uses its result"


def test_predict_then_reveal(open_page):
    page = open_page()
    dweight = line(page, "backward", "dweight = ", "linear")
    weight_used = line(page, "forward", "y_rows = rows @ weight", "linear")
    predict = {level: page.locator(f"#linear .level[data-level='{level}']") for level in (1, 2, 3)}
    page.click("#twice .level[data-level='2']")
    assert "What is du here?" in page.locator("#twice .code.backward").inner_text()
    text = page.locator("#twice .code.backward").inner_text()
    assert "the derivative of exp" not in text, "a comment tells the answer"
    for level, count in ((1, 1), (2, 3), (3, 6)):
        predict[level].click()
        assert page.locator("#linear .unit.hidden").count() == count
        assert [each.get_attribute("aria-pressed") for each in predict.values()].index("true") == level - 1
    assert page.locator("#linear .predict").inner_text() == "Reveal all 6"
    text = page.locator("#linear .code.backward").inner_text()
    assert "What is dweight here? (n_in, n_out)" in text and "# y_rows = rows @ weight" in text
    assert "rows.T" not in text and "dW_ij" not in text and "x, weight, has_bias = cache" in text
    for active in (dweight, line(page, "forward", "def linear_forward", "linear")):     # a line, and its partner
        page.click(active) if active != dweight else page.hover(active)
        if active != dweight:
            page.click("#linear .tabs button >> text=weight")
        panel = page.locator("#linear .panel").inner_text()
        assert "dweight" in panel and "6 × 8 · hidden until you reveal its line" in panel
        assert "rows.T" not in panel and "@" not in panel and "What is dweight here?" in panel
        assert page.locator("#linear .why math").count() == 0
        assert not page.locator("#linear .hint p").is_visible()
    page.click("#linear .hint summary")
    assert "matmul of the other factor" in page.locator("#linear .hint p").inner_text()
    page.click(line(page, "backward", "x, weight, has_bias = cache", "linear"))         # its x belongs to dx's section
    assert "What is dx here?" in page.locator("#linear .why").inner_text()
    # with the keyboard, from the first line of the pane
    page.locator("#linear .code.backward .unit.active").first.focus()
    for _ in range(5):
        page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.innerText").endswith("What is dweight here? (n_in, n_out)")
    page.keyboard.press("Enter")
    assert "rows.T @ dy_rows" in page.locator(dweight).inner_text()
    assert "dweight is verified" in page.locator("#linear .why").inner_text()
    assert page.locator("#linear .unit.hidden").count() == 5 and page.locator("#head .unit.hidden").count() == 0
    page.click(line(page, "forward", "rows = ", "linear"))
    page.click("#linear .reveal")
    assert page.evaluate("document.activeElement.innerText").strip().startswith("40")
    page.click(weight_used)
    page.click("#linear .predict")
    assert page.locator("#linear .unit.hidden").count() == 0 and page.locator("#linear .predict").is_hidden()


def test_an_entry_lights_the_vectors_whose_product_it_is(open_page):
    page = open_page()
    page.click(line(page, "backward", "dweight = ", "linear"))
    card = "#linear .card"
    assert page.locator(f"{card}.factors h4").all_inner_texts() == ["= rows.T", "@ dy_rows"]
    page.locator(f"{card}.here .cells i").nth(2 * 8 + 5).hover()                        # dweight[2, 5]
    assert page.locator(f"{card}.here output").inner_text().startswith("dweight[2, 5] = ")
    places = page.evaluate("""[...document.querySelectorAll("#linear .factors .cells")].map((cells) =>
        [...cells.querySelectorAll(".on")].map((cell) => cell.place))""")
    assert places == [[[n, 2] for n in range(20)], [[n, 5] for n in range(20)]]
    assert page.locator(f"{card}.there .on").count() == 1
    page.hover("#linear h2")
    assert page.locator("#linear .on").count() == 0
    page.click(line(page, "backward", "dk = ", "attention"))
    page.locator("#attention .card.here .cells i").nth(5).hover()                       # dk[0, 0, 1, 2]
    places = page.evaluate("""[...document.querySelectorAll("#attention .factors .cells")].map((cells) =>
        [...cells.querySelectorAll(".on")].map((cell) => cell.place))""")
    assert places == [[[n, 1] for n in range(5)], [[n, 2] for n in range(5)]]


def test_layernorm_the_long_way(open_page):
    page = open_page()
    page.click(line(page, "forward", "centred = "))
    assert "dcentred is skipped" in page.locator("#layernorm .finding").inner_text()
    page.click("#layernorm .backward:not([hidden]) [data-choose='1']")
    for name in ("drstd", "dvar", "dcentred", "dmean"):
        page.click(line(page, "backward", f"{name} = "))
        assert page.locator("#layernorm .card.here h4").inner_text() == name
        assert page.locator("#layernorm .card.there h4").inner_text() == name[1:]
        assert f"{name} is verified" in page.locator("#layernorm .finding").inner_text()
        assert page.locator("#layernorm .card.here .cells i").count() >= 20
    page.click(line(page, "backward", "dx = "))
    assert page.locator("#layernorm .arrows path").count() == 2
    assert page.locator("#layernorm .backward:not([hidden]) .word").all_inner_texts() == ["dcentred", "dmean"]
    page.click("#layernorm .backward:not([hidden]) [data-choose='0']")
    assert "dx = rstd" in page.locator("#layernorm .code:not([hidden]) .unit.here").inner_text()
    assert page.evaluate("document.activeElement.textContent") == "shortcut"


def test_the_partner_of_an_arguments_gradient_is_the_line_that_uses_it(open_page):
    page = open_page()
    for layer, begin, used in [
            ("linear", "dbias = ", "y_rows = y_rows + bias"), ("linear", "dweight = ", "y_rows = rows"),
            ("layernorm", "dbias = ", "y = y + bias"), ("head", "dweight = ", "logit_rows = rows")]:
        page.click(line(page, "backward", begin, layer))
        lit = page.locator(f"#{layer} .unit.lit").all()
        assert [each.locator("code").inner_text().strip().startswith(used) for each in lit] == [True]


@pytest.mark.parametrize("width", [390, 1440])
def test_the_address_of_a_line(open_page, file, width):
    page = open_page(width)
    address = page.locator(line(page, "backward", "dx_mid = ", "block")).get_attribute("data-line")
    assert page.locator(f'[id="block:{address}"]').count() == 0
    page.goto("about:blank")
    page.goto(f"{file.as_uri()}#block:{address}")
    here = f"#block .unit.here[data-line={address}]"
    assert page.locator(here).count() == 1 and are_seen(page, here) == [True]
    comment = int(address[1:]) + 1
    page.evaluate(f"location.hash = 'block:b{comment}'")                # a comment: the line above it
    assert page.locator(here).count() == 1 and page.locator("#block .unit.hidden").count() == 0
    page.evaluate(f"location.hash = 'block:{address}:predict'")
    assert page.locator(here + ".hidden").count() == 1
    page.evaluate("location.hash = 'layernorm'")
    page.wait_for_function("document.querySelector('#layernorm').getBoundingClientRect().top < 100")
    page.click(line(page, "forward", "xhat = "))
    assert page.evaluate("location.hash").startswith("#layernorm:f")


def test_the_map_axes_and_commands(open_page):
    page = open_page()
    stream = page.evaluate("""[...document.querySelectorAll(".map .stage.branch")].map((branch) => {
        const style = getComputedStyle(branch, "::before");
        return [style.display, style.content, parseFloat(style.width) > 0 && parseFloat(style.height) > 0];
    })""")
    assert stream == [["block", '""', True]] * 2
    plus = page.locator(".map .stage.repeat .plus").nth(1).bounding_box()
    leaves = page.locator(".map .exit").bounding_box()      # from the second sum to the arrow at the block's edge
    block, arrow = (page.locator(f".map {each}").bounding_box() for each in (".stage.repeat", ".stage.repeat + .box"))
    assert abs(leaves["x"] - plus["x"] - plus["width"]) < 2
    assert abs(leaves["y"] + leaves["height"] - plus["y"] - plus["height"] / 2) < 2
    assert abs(leaves["y"] - block["y"] - block["height"] / 2) < 2
    assert abs(leaves["y"] - arrow["y"] - arrow["height"] / 2) < 2
    assert page.locator("#model-pulls .axis strong").all_inner_texts() == ["loss of ↓", "gradient on →"]
    assert page.locator("#model-attention .axis strong").all_inner_texts() == ["query ↓", "key →"]
    text = page.evaluate("document.getElementById('model').textContent")
    assert 'npgpt study --prompt "…" --open' in text and "--checkpoint out" in text
    for name in basics_and_lessons():
        assert page.locator(f"#{name} .command").all_inner_texts() == [
            f"npgpt exercise {name}", "npgpt learn", "npgpt study --open"]
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#gpt .copy >> nth=0")
    page.wait_for_selector("#gpt .copy.done")
    assert page.evaluate("navigator.clipboard.readText()") == "npgpt exercise gpt"


@pytest.mark.parametrize("width", [390, 1440])
def test_numbers_stand_in_small_arrays_at_all_times(open_page, width):
    """In matrices of up to 8 x 8 whose cells are wide enough; rounded, and none is cut off."""
    page = open_page(width)
    page.click(line(page, "forward", "u = ", "chain"))
    u = basics_and_lessons()["chain"].inputs["a"] * basics_and_lessons()["chain"].inputs["x"]
    cells = page.locator("#chain .card.here .cells i")
    shown = [float(text) for text in cells.all_inner_texts()]
    assert len(shown) == u.size and all(abs(a - b) <= 0.0501 for a, b in zip(shown, u.ravel(), strict=True))
    assert page.evaluate("""[...document.querySelectorAll(".numbers i")].every((cell) =>
        !cell.checkVisibility() || cell.scrollWidth <= cell.clientWidth)""")
    page.click(line(page, "forward", "rows = ", "linear"))                  # 20 x 6
    assert set(page.locator("#linear .card.here .cells i").all_inner_texts()) == {""}
    page.click(line(page, "backward", "dweight = ", "linear"))              # 6 x 8
    texts = page.locator("#linear .card.here .cells i").all_inner_texts()
    assert (set(texts) == {""}) == (width == 390)


def test_the_shapes_are_those_of_the_example(open_page):
    page = open_page()
    shapes = page.locator(f"{line(page, 'forward', 'xhat = ')} .sizes")
    assert shapes.evaluate("(each) => getComputedStyle(each, '::after').content") == '"(4, 5, 6)"'
    assert shapes.get_attribute("title") == shapes.text_content() == "(..., C)"


@pytest.mark.parametrize("width", [390, 1440])
def test_a_file_says_how_to_start_what_it_cannot_do(open_page, width):
    page = open_page(width)
    hero = page.locator(".hero")
    assert "npgpt study --open" in hero.inner_text() and "dx is verified" in hero.inner_text()
    buttons = hero.locator("button[data-hero]").all()
    assert len(buttons) == 3 and all(each.is_disabled() and each.is_visible() for each in buttons)
    assert hero.locator("textarea").input_value() == "dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)"
    assert hero.locator("textarea").evaluate("each => each.readOnly")
    assert [each.locator("i").count() for each in hero.locator(".card").all()] == [120] * 3
    for place in ("#training", "#model", "#layernorm .exercise"):
        assert "npgpt study --open" in page.locator(place).inner_text()
    assert page.locator("#training button:not(.copy)").is_disabled() and page.locator("#model-text").is_disabled()
    page.dblclick(line(page, "backward", "dx = "))
    assert page.locator("#layernorm .why .start").inner_text() == (
        "This page is a file. To edit this line, run npgpt study --open.")
    assert page.locator("#layernorm textarea").count() == 0
    page.locator("#layernorm .card.there .cells i").nth(7).click()          # x
    assert "To change this number, run npgpt study --open" in page.locator("#layernorm .mover").inner_text()
    assert page.locator("#layernorm .mover input").is_disabled()
    page.locator("#layernorm .card.here .cells i").nth(7).click()           # dx, which follows from x
    assert "x[0, 1, 1]" in page.locator("#layernorm .mover").inner_text()


def test_help_is_behind_a_question_mark(open_page):
    page = open_page(390)
    assert not page.locator(".help > div").is_visible()
    page.click(".help summary")
    assert "double-click" in page.locator(".help > div").inner_text()
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_on_every_background(open_page, scheme):
    """Contrast of at least 4.5, also in lines that are lit and in questions."""
    page = open_page(scheme=scheme)
    page.click("#head .level[data-level='3']")
    page.click(line(page, "backward", "dx = "))
    low = page.evaluate("""() => {
        const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
        const rgba = (colour) => {
            canvas.clearRect(0, 0, 1, 1);
            canvas.fillStyle = colour;
            canvas.fillRect(0, 0, 1, 1);
            return canvas.getImageData(0, 0, 1, 1).data;
        };
        const luminance = (colour) => [...rgba(colour)].slice(0, 3).map((c) => c / 255)
            .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
            .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const background = (element) => {
            const colour = getComputedStyle(element).backgroundColor;
            return rgba(colour)[3] ? colour : background(element.parentElement);
        };
        const low = [];
        for (const element of document.querySelectorAll("body *")) {
            const text = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
            if (!text || !element.checkVisibility() || element.closest("button:disabled, script, style")) continue;
            const colours = [getComputedStyle(element).color, background(element)].map(luminance);
            const contrast = (Math.max(...colours) + 0.05) / (Math.min(...colours) + 0.05);
            if (contrast < 4.5) low.push([element.className, element.textContent.slice(0, 20), contrast]);
        }
        return low;
    }""")
    assert low == []
