"""The live study page in headless Chromium, against a server that answers with prepared JSON."""

import json
import re

import numpy as np
import pytest

from npgpt.cli.study import fresh_model
from npgpt.study.gradcheck.lessons import basics_and_lessons
from npgpt.study.page.page import studied_layer, study_page
from npgpt.study.page.steps import summary
from npgpt.study.page.whole_model import study_model
from tests.study.page.test_page_in_chromium import CHROMIUM, classes, line, playwright, pytestmark  # noqa: F401

LESSONS, expect = basics_and_lessons(), playwright.expect
ADDRESS = "http://study.test/?token=secret"
PLANTED = "<img src=x onerror=alert(1)>"
DX = "    dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)"


@pytest.fixture(scope="module")
def html():
    model = study_model(*fresh_model("To be"), "To be", "a model")
    lessons = [LESSONS[name] for name in ("chain", "linear", "layernorm")]
    return study_page(lessons, model, live={"token": "secret", "exercises": "exercises"})


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as api:
        with api.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]) as started:
            yield started


class Server:
    """Answers each path with what `answers` has for it, a function of the body; `asked` are the requests."""

    def __init__(self):
        self.answers = {"/progress": lambda body: {"solved": []}, "/train": train, "/text": lambda body: TEXT}
        self.asked = []

    def handle(self, route, html):
        request, path = route.request, re.sub(r"http://study.test(/[^?]*).*", r"\1", route.request.url)
        if path == "/" and request.method == "GET":
            route.fulfill(content_type="text/html", body=html)
        elif request.headers.get("x-npgpt-token") != "secret" or request.headers["content-type"] != "application/json":
            route.fulfill(status=403, json={"error": "no token"})
        else:
            body = json.loads(request.post_data)
            self.asked.append((path, body))
            answer = self.answers[path](body)
            route.fulfill(status=400 if "error" in answer else 200, json=answer)

    def bodies(self, path):
        return [body for each, body in self.asked if each == path]


TEXT = {"tokens": ["H", PLANTED, "!"], "loss": 2.5, "losses": [2.0, 3.0], "pulls": [[0.5], [0.25, 1.0]],
        "maps": [[0, 0, "/wCAfw=="]], "left_out": [], "norms": [0.5, 0.25, 0.0], "next": [["a", 0.5], [PLANTED, 0.25]],
        "lens": [[["H", 0.5, 0.25], [PLANTED, 0.5, 0.5]]]}


def train(body):
    step = body["since"] + 5
    return {"step": step, "loss": [4.0 - 0.1 * i for i in range(body["since"], step)],
            "norms": {"wte": [0.5] * 5, "h.0": [0.25] * 5}}


def wrong_dx(body):
    """An answer to a wrong dx of LayerNorm."""
    true = np.arange(120.0).reshape(4, 5, 6) / 100
    array = {"name": "dx", "given": summary(true + 0.5), "true": summary(true), "difference": summary(0 * true + 0.5)}
    return {"verdict": "wrong", "text": f"Line 57: dx is wrong. {PLANTED}", "first": "b57", "seed": 7, "output": "",
            "solved": None, "arrays": {"b57": [array]}, "lines": [
                {"line": "b57", "name": "dx", "verdict": "WRONG", "evidence": "All entries are 0.5 too large.",
                 "diagnosis": None}]}


def right(body):
    level = body["level"]
    return {"verdict": "right", "text": "Every gradient is right.", "first": None, "seed": 7, "output": "printed",
            "solved": f"{body['layer']} level {level}" if level else None,
            "arrays": {f"b{number}": [] for number in body["edits"]},
            "lines": [{"line": f"b{number}", "name": "dx", "verdict": "ok", "evidence": None, "diagnosis": None}
                      for number in body["edits"]]}


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def open_page(browser, html, server):
    """open_page(width) -> the page of a server; at the end: no error, and no request to anywhere else."""
    complaints, requests = [], set()

    def open_(width=1440, **options):
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        page.set_default_timeout(5000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: requests.add(request.url))
        page.route("**/*", lambda route: server.handle(route, html))
        page.goto(ADDRESS)
        return page

    yield open_
    allowed = {ADDRESS, *(f"http://study.test/{path}" for path in ("check", "progress", "move", "text", "train"))}
    assert [each for each in complaints if "Failed to load resource" not in each] == []
    assert {url for url in requests if not url.startswith("data:")} <= allowed
    for context in browser.contexts:
        context.close()


def edit(page, selector, text):
    page.dblclick(selector)
    page.fill(f"{selector} textarea", text)


def test_the_token_leaves_the_address_and_is_sent(open_page, server):
    page = open_page()
    page.wait_for_timeout(200)
    assert page.url == "http://study.test/" and server.bodies("/progress") == [{}]
    assert page.locator("#ended").is_hidden() and page.evaluate("sessionStorage['npgpt-token']") == "secret"


def test_a_line_is_edited_in_place(open_page, server):
    server.answers["/check"] = wrong_dx
    page = open_page()
    dx = line(page, "backward", "dx = ")
    edit(page, dx, "dx = rstd * dxhat")
    assert page.locator("#layernorm .verdict").inner_text() == "Checking …" and server.bodies("/check") == []
    page.wait_for_selector("#layernorm .verdict.wrong", timeout=3000)
    assert server.bodies("/check") == [{"layer": "layernorm", "edits": {"57": "    dx = rstd * dxhat"}, "level": 0}]
    assert page.locator("#layernorm .verdict").inner_text() == f"Line 57: dx is wrong. {PLANTED}"
    assert page.locator("#status").text_content().startswith("Line 57: dx is wrong.")
    assert "0.5 too large" in page.locator("#layernorm .evidence").inner_text()
    assert page.locator("#layernorm img").count() == 0
    cards = [page.locator(f"#layernorm .card.{kind}") for kind in ("here", "there", "difference")]
    assert [card.locator("i").count() for card in cards] == [120] * 3
    assert cards[2].locator(".facts").inner_text() == "at most 0.5"
    assert cards[0].locator("i").first.inner_text() == ".50" and cards[1].locator("i").nth(1).inner_text() == ".01"
    page.keyboard.press("Enter")
    assert page.locator("#layernorm textarea").count() == 0 and {"typed", "wrong"} <= classes(page, dx)
    assert page.locator(f"{dx} .own code").inner_text() == "dx = rstd * dxhat"
    # on the first screen it is the same line
    assert page.locator(".hero textarea").input_value() == "dx = rstd * dxhat"
    assert "dx is wrong" in page.locator(".hero .verdict").inner_text()


@pytest.mark.parametrize(("given", "says"), [
    (None, ["The line gives no such array.", "There is nothing to compare."]),
    (summary(np.ones(3)), ["what the line gives · 3", "The shapes differ."])])
def test_an_array_that_cannot_be_compared(open_page, server, given, says):
    def answer(body):
        found = wrong_dx(body)
        found["arrays"]["b57"][0] |= {"given": given, "difference": None}
        return found

    server.answers["/check"] = answer
    page = open_page()
    edit(page, line(page, "backward", "dx = "), "dx = None")
    page.keyboard.press("Enter")
    page.wait_for_selector("#layernorm .verdict.wrong")
    assert [page.locator(f"#layernorm .card.{kind} .facts").inner_text() for kind in ("here", "difference")] == says
    assert page.locator("#layernorm .card.there i").count() == 120


def test_enter_checks_at_once_and_several_lines_are_kept(open_page, server):
    server.answers["/check"] = wrong_dx
    page = open_page()
    page.evaluate("window.timers = []; window.setTimeout = (action) => timers.push(action)")     # none ends by itself
    page.focus(line(page, "backward", "dx = "))
    page.keyboard.press("e")
    page.keyboard.press("Control+A")
    page.keyboard.type("a = 1")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("dx = a")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#layernorm .count").inner_text().startswith("step 16"), "the arrow moved the stepper"
    page.keyboard.press("Enter")
    page.wait_for_selector("#layernorm .verdict.wrong")
    assert server.bodies("/check")[0]["edits"] == {"57": "    a = 1\n    dx = a"}
    page.evaluate("timers.at(-1)()")                # what was to be checked later is checked already
    page.wait_for_timeout(200)
    assert len(server.bodies("/check")) == 1


def test_undo_and_reset(open_page, server):
    server.answers["/check"] = wrong_dx
    page = open_page()
    dx, dxhat = line(page, "backward", "dx = "), line(page, "backward", "dxhat = ")
    for selector, text in ((dx, "dx = 1"), (dx, "dx = 2"), (dxhat, "dxhat = 3")):
        edit(page, selector, text)
        page.keyboard.press("Enter")
        expect(page.locator("#layernorm .verdict.pending")).to_have_count(0)
    own = page.locator("#layernorm .typed .own code")
    assert own.all_inner_texts() == ["dxhat = 3", "dx = 2"]
    page.click("#layernorm [data-do=undo]")
    assert own.all_inner_texts() == ["dx = 2"]
    page.click("#layernorm [data-do=undo]")
    assert own.all_inner_texts() == ["dx = 1"]
    page.click("#layernorm [data-do=undo]")
    assert own.count() == 0 and page.locator("#layernorm [data-do=undo]").is_disabled()
    edit(page, dx, "dx = 1")
    edit(page, dxhat, "dxhat = 3")
    page.keyboard.press("Enter")
    assert page.locator("#layernorm [data-do=reset]").inner_text() == "Reset line 53"
    page.click("#layernorm [data-do=reset]")
    assert own.all_inner_texts() == ["dx = 1"]
    page.click(line(page, "forward", "mean = "))
    assert page.locator("#layernorm [data-do=reset]").inner_text() == "Reset all"
    page.click("#layernorm [data-do=reset]")
    assert own.count() == 0 and page.locator(dx).inner_text().strip().endswith("# (..., C)")
    page.dblclick(dx)
    page.keyboard.type("xx")
    page.keyboard.press("Escape")
    assert own.count() == 0 and page.locator("#layernorm textarea").count() == 0


def test_a_level_is_solved_by_typing_its_lines(open_page, server):
    server.answers["/check"] = lambda body: right(body) if body["level"] == 2 and len(body["edits"]) == 3 else (
        right(body) | {"verdict": "unfinished", "text": "Two lines are left.", "solved": None})
    page = open_page()
    page.click("#linear .backward:not([hidden]) .level >> text=2")
    assert page.locator("#linear .hidden").count() == 3
    for name, text in (("dbias", "dy_rows.sum(axis=0)"), ("dweight", "rows.T @ dy_rows"),
                       ("drows", "dy_rows @ weight.T")):
        page.click(f"#linear .hidden:has-text('What is {name} here?')")
        assert page.locator("#linear textarea").input_value() == f"{name} = "
        page.keyboard.press("End")
        page.keyboard.type(text)
        page.keyboard.press("Enter")
        page.wait_for_selector("#linear .verdict.right, #linear .verdict.unfinished")
    page.wait_for_selector("#linear .verdict.right")
    assert server.bodies("/check")[-1] == {"layer": "linear", "level": 2, "edits": {
        "37": "    dbias = dy_rows.sum(axis=0)", "39": "    dweight = rows.T @ dy_rows",
        "40": "    drows = dy_rows @ weight.T"}}
    assert page.locator("#linear p.solved").inner_text() == "✓ Solved: linear level 2"
    assert page.locator("#linear .badge.solved").inner_text() == "✓ solved: level 2"
    assert page.locator("#linear .level.done").inner_text() == "2" and page.locator("#linear .hidden").count() == 0
    assert page.locator("#linear pre").inner_text() == "printed"


def test_the_highest_level_sends_what_nobody_is_asked_for(open_page, server):
    server.answers["/check"] = right
    page = open_page()
    page.click("#linear .backward:not([hidden]) .level >> text=3")
    assert page.locator("#linear .hidden").count() == 6
    page.click("#linear .hidden:has-text('What is dx here?')")
    page.keyboard.type("1")
    page.keyboard.press("Enter")
    page.wait_for_selector("#linear .verdict.right")
    assert server.bodies("/check") == [{"layer": "linear", "level": 3, "edits": {
        "32": "    x, weight, has_bias = cache", "42": "    dx = 1", "43": "    return dx, dweight, dbias"}}]


def test_a_line_that_was_shown_does_not_count(open_page, server):
    """The level is sent as an edit of the package's backward, in which the lines that are left are blank."""
    server.answers["/check"] = lambda body: right(body) | {"verdict": "unfinished", "text": "A line is left."}
    page = open_page()
    page.click("#linear .backward:not([hidden]) .level >> text=2")
    page.click("#linear .hidden:has-text('What is dweight here?')")
    page.click("#linear [data-do=reveal]")
    assert "rows.T @ dy_rows" in page.locator(line(page, "backward", "dweight = ", "linear")).inner_text()
    page.click("#linear .hidden:has-text('What is dbias here?')")
    page.keyboard.type("1")
    page.keyboard.press("Enter")
    page.wait_for_selector("#linear .verdict.unfinished")
    assert server.bodies("/check") == [{"layer": "linear", "level": 0, "edits": {
        "37": "    dbias = 1", "40": "    drows = ..."}}]
    server.answers["/check"] = right
    page.click("#linear .hidden:has-text('What is drows here?')")
    page.keyboard.type("1")
    page.keyboard.press("Enter")
    page.wait_for_selector("#linear .verdict.right")
    assert "not counted as solved" in page.locator("#linear .why").inner_text()


def test_what_was_solved_earlier_is_marked(open_page, server):
    server.answers["/progress"] = lambda body: {"solved": ["linear level 1", "linear level 3", "gpt level 1"]}
    page = open_page()
    page.wait_for_selector("#linear .badge.solved")
    assert page.locator("#linear .badge.solved").inner_text() == "✓ solved: level 1, 3"
    assert page.locator("#layernorm .badge.solved").is_hidden()


def test_the_first_screen_is_changed_and_mended(open_page, server):
    server.answers["/check"] = wrong_dx
    page = open_page()
    assert "dx is verified" in page.locator(".hero .verdict.right").inner_text()
    assert page.locator(".hero .card >> nth=2").locator("i").all_inner_texts() == ["0"] * 120
    page.click(".hero [data-hero=break]")
    page.wait_for_selector(".hero .verdict.wrong")
    assert server.bodies("/check")[0]["edits"] == {"57": "    dx = rstd * (dxhat - xhat * mean_dxhat_xhat)"}
    assert page.locator(".hero .card >> nth=2").locator("i").first.inner_text() == ".50"
    page.click(".hero [data-hero=reset]")
    assert page.locator(".hero .verdict.right").is_visible()
    assert page.locator(".hero textarea").input_value() == DX.strip()
    page.click(".hero [data-hero=undo]")
    page.wait_for_selector(".hero .verdict.wrong")
    page.focus(".hero textarea")
    page.keyboard.press("End")
    with page.expect_response(lambda answer: "+ 1" in (answer.request.post_data or "")):
        page.keyboard.type(" + 1")
    assert server.bodies("/check")[-1]["edits"] == {"57": "    dx = rstd * (dxhat - xhat * mean_dxhat_xhat) + 1"}


def move(body):
    """An answer to /move: the lesson's arrays with the number in place, and the parabola loss = value ** 2."""
    lesson, value = LESSONS[body["layer"]], body["value"]
    inputs = {name: array.copy() for name, array in lesson.inputs.items()}
    inputs[body["name"]][tuple(body["index"])] = value
    moved = type(lesson)(**{**vars(lesson), "inputs": inputs})
    ways = [{"steps": way.data["steps"], "arrays": way.data["arrays"]} for way in studied_layer(moved).ways]
    at = np.linspace(value - 2, value + 2, 41)
    return {"ways": ways, "loss": value ** 2, "slope": 2 * value, "curve": np.stack([at, at ** 2], 1).tolist()}


def test_a_number_is_changed(open_page, server):
    """By dragging, by typing, and with the keyboard; every array moves, and the line has the slope of the gradient."""
    server.answers["/move"] = move
    page = open_page()
    page.click(line(page, "forward", "def chain_forward", "chain"))
    cells = page.locator("#chain .card.here .cells i")
    before = page.locator("#chain .card.there .cells i").nth(8).inner_text()
    box = cells.nth(8).bounding_box()                                   # x[1, 2]
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + 5, box["y"] - 45, steps=5)
    page.mouse.up()
    value = LESSONS["chain"].inputs["x"][1, 2]
    slope = 2 * round(value + 0.5, 3)
    expect(page.locator("#chain .slope")).to_have_text(re.compile(f"slope is {slope:.3g}$"))
    assert server.bodies("/move")[-1] == {
        "layer": "chain", "name": "x", "index": [1, 2], "value": pytest.approx(value + 0.5, abs=2e-3)}
    assert "chosen" in cells.nth(8).get_attribute("class")
    assert page.locator("#chain .card.there .cells i").nth(8).inner_text() != before
    page.fill("#chain .mover input", "1.5")
    expect(page.locator("#chain .slope")).to_have_text(re.compile("slope is 3$"))
    assert "loss = sum(dy * y) = 2.25" in page.locator("#chain .slope").inner_text()
    x1, y1, x2, y2 = (float(page.locator("#chain .tangent").get_attribute(each)) for each in ("x1", "y1", "x2", "y2"))
    points = [tuple(map(float, each.split(","))) for each in
              page.locator("#chain .mover .curve").get_attribute("points").split()]
    (ax, ay), (bx, by) = points[19], points[21]                         # on either side of the value
    assert (y2 - y1) / (x2 - x1) == pytest.approx((by - ay) / (bx - ax), rel=0.05)
    page.click(line(page, "backward", "dx = ", "chain"))
    moved = page.locator("#chain .card.here .cells i").nth(8).inner_text()
    page.click("#chain .mover button")
    assert page.locator("#chain .mover").is_hidden() and page.locator("#chain .chosen").count() == 0
    assert page.locator("#chain .card.here .cells i").nth(8).inner_text() != moved
    page.click(line(page, "forward", "def chain_forward", "chain"))
    page.locator("#chain .card.here .cells").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#chain .slope")).to_have_text(re.compile("slope is"))
    assert server.bodies("/move")[-1]["index"] == [0, 0]
    page.click(line(page, "forward", "v = ", "chain"))
    assert page.locator("#chain .movable").count() == 0


def test_only_the_newest_move_waits(open_page, server):
    """While an answer is awaited, the moves between are dropped."""
    server.answers["/move"] = move
    page = open_page()
    page.click(line(page, "forward", "def chain_forward", "chain"))
    page.locator("#chain .card.here .cells i").first.click()
    page.evaluate("""() => {
        const field = document.querySelector("#chain .mover input");
        for (let i = 0; i < 50; i++) {
            field.value = i / 10;
            field.dispatchEvent(new Event("input"));
        }
    }""")
    expect(page.locator("#chain .slope")).to_have_text(re.compile("slope is 9.8$"))
    assert len(server.bodies("/move")) <= 4 and server.bodies("/move")[-1]["value"] == 4.9


def test_your_text(open_page, server):
    page = open_page()
    assert page.locator("#model-tokens .token").count() == 5 and page.locator("#model-next").is_hidden()
    page.fill("#model-text", "H!")
    expect(page.locator("#model-tokens .token")).to_have_count(3)
    assert {"text": "H!"} in server.bodies("/text")
    assert page.locator("#model-tokens .text").all_inner_texts() == ["H", PLANTED, "!"]
    assert page.locator("#model-bars code").all_inner_texts() == ["a", PLANTED]
    widths = [each.bounding_box()["width"] for each in page.locator("#model-bars .probability").all()]
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)
    parts = page.evaluate("""[...document.querySelectorAll("#model-tokens .norm")].map((each) =>
        getComputedStyle(each).getPropertyValue("--part"))""")
    assert [float(part) for part in parts] == [1.0, 0.5, 0.0]
    assert page.locator("#model-attention .cells i").count() == 4
    assert page.locator("#model-loss").inner_text() == "2.500"
    assert page.locator("#model img").count() == 0
    server.answers["/text"] = lambda body: {"error": f"no such character {PLANTED}"}
    page.fill("#model-text", "€")
    expect(page.locator("#model-error")).to_have_text(f"no such character {PLANTED}")
    assert page.locator("#model-tokens .token").count() == 3


def test_it_trains_while_it_is_seen(open_page, server):
    page = open_page()
    page.evaluate("document.querySelector('#training').scrollIntoView()")
    expect(page.locator("#training .now")).to_have_text(re.compile("^step [1-9]\\d+: "))    # two answers or more
    step, loss = re.fullmatch(r"step (\d+): loss (-?[\d.]+) nats, at first 4.000",
                              page.locator("#training .now").inner_text()).groups()
    assert float(loss) == pytest.approx(4.0 - 0.1 * (int(step) - 1))
    assert [body["since"] for body in server.bodies("/train")[:2]] == [0, 5]
    assert page.locator("#training .norms code").all_inner_texts() == ["wte", "h.0"]
    ys = [float(point.split(",")[1]) for point in
          page.locator("#training .loss-curve polyline").get_attribute("points").split()]
    assert ys == sorted(ys) and len(ys) >= 10, "a falling loss falls"
    page.click("#training button")
    page.wait_for_timeout(100)
    count = len(server.bodies("/train"))
    page.wait_for_timeout(1200)
    assert len(server.bodies("/train")) == count and page.locator("#training button").inner_text() == "Train"
    page.click("#training button")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.wait_for_timeout(300)
    count = len(server.bodies("/train"))
    page.wait_for_timeout(1200)
    assert len(server.bodies("/train")) == count, "nobody sees it"


def test_reduced_motion_does_not_train_by_itself(open_page, server):
    page = open_page(reduced_motion="reduce")
    page.evaluate("document.querySelector('#training').scrollIntoView()")
    page.wait_for_timeout(800)
    assert server.bodies("/train") == []
    page.click("#training button")
    expect(page.locator("#training .now")).to_have_text(re.compile("^step"))


def test_the_server_ends(open_page, server):
    page = open_page()
    page.wait_for_timeout(100)
    page.unroute_all()
    page.route("**/*", lambda route: route.abort())
    page.click(".hero [data-hero=break]")
    page.wait_for_selector("#ended:not([hidden])")
    assert page.locator("#ended").inner_text() == "The server has ended: run npgpt study --open again."
    assert "The server has ended" in page.locator(".hero .verdict.error").inner_text()


@pytest.mark.parametrize("width", [390, 1440])
def test_the_live_page_fits(open_page, server, width):
    server.answers["/check"] = wrong_dx
    page = open_page(width)
    box = page.locator(".hero textarea").bounding_box()
    assert box["y"] + box["height"] < 450 and page.locator(".hero .verdict").bounding_box()["y"] < 844
    assert page.locator(".hero .card i").first.bounding_box()["y"] < 800
    dx = line(page, "backward", "dx = ")
    page.click(dx)
    page.click("#layernorm [data-do=edit]")
    page.keyboard.press("End")
    page.keyboard.type(" + 1")
    page.keyboard.press("Enter")
    page.wait_for_selector("#layernorm .verdict.wrong")
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert page.locator("#layernorm .card.difference i").count() == 120
