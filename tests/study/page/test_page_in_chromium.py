"""The study page in headless Chromium: the file without a network, the live page with a server of prepared answers."""

import collections
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from npgpt.cli.study import PRINTABLE, fresh_model
from npgpt.study.exercises.progress import Progress
from npgpt.study.gradcheck.source import read_source
from npgpt.study.lessons.table import chosen_lessons
from npgpt.study.page.live import Live
from npgpt.study.page.page import study_page
from npgpt.study.page.server import Server
from npgpt.study.page.steps import summary
from npgpt.study.page.whole_model import study_model

for module in ("jinja2", "pygments", "latex2mathml", "scipy"):
    pytest.importorskip(module, reason="makes the study page")
playwright = pytest.importorskip("playwright.sync_api", reason="drives the browser")

CHROMIUM, expect = Path("/usr/bin/chromium"), playwright.expect
pytestmark = [pytest.mark.slow, pytest.mark.skipif(
    not CHROMIUM.exists(), reason="needs Debian's chromium: apt-get install chromium")]

LESSONS = {each.name: each for each in chosen_lessons("all")}
PLANTED = "<script>alert(1)</script><img src=x onerror=alert(2)>"
START = "npgpt study --open"
PHONE, DESK = 390, 1440
TEXTS = {"has": "to_contain_text", "lacks": "not_to_contain_text", "is": "to_have_text"}
K = LESSONS["attention"].inputs["k"]
DX = "dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)"
DX_LINE = f"b{read_source(LESSONS['layernorm'].backward).statements[-2].first}"
PLACES = """[...document.querySelectorAll("#%s .factors .cells")].map((cells) =>
    [...cells.querySelectorAll(".on")].map((cell) => cell.place))"""
FITS = ("js", "document.scrollingElement.scrollWidth <= innerWidth", True)
SCROLL = "document.querySelector('#training').scrollIntoView()"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as api:
        with api.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]) as started:
            yield started


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The page of all layers, that of a model only, both with planted markup; and the live page of three layers."""
    folder, study = tmp_path_factory.mktemp("page"), study_model(*fresh_model(PLANTED), PLANTED, "<b>a model</b>")
    study.tokens[0] = PLANTED           # a tokenizer with such a token
    study.lens[1][0] = (PLANTED, 0.5, 0.5)
    live = {"token": "secret", "exercises": "exercises"}
    for name, page in {"study": study_page(list(LESSONS.values()), study), "look": study_page([], study),
                       "live": study_page([LESSONS[name] for name in ("chain", "linear", "layernorm")],
                                          study_model(*fresh_model("To be"), "To be", "a model"), live)}.items():
        (folder / f"{name}.html").write_bytes(page)
    return folder


def judged(body):
    """An answer to /check: a line with a 1 is right, any other is wrong; a level with lines left is unfinished."""
    lines, level = list(body["edits"]), body["level"]
    left = level == 2 and len(lines + body["shown"]) < 3
    wrong = not left and "1" not in str(body["edits"].values()) and not level
    true = np.arange(120.0).reshape(4, 5, 6) / 100
    given = true[0] if "shape" in str(body) else None if "None" in str(body) else true + 0.5
    array = {"name": "dx", "given": given if given is None else summary(given), "true": summary(true),
             "difference": summary(0 * true + 0.5) if given is not None and given.shape == true.shape else None}
    return {"verdict": "unfinished" if left else "wrong" if wrong else "right", "seed": 7,
            "text": "A line is left." if left else f"dx is wrong. {PLANTED}" if wrong else "Every gradient is right.",
            "first": lines[0] if wrong else None, "output": "printed", "arrays": {lines[0]: [array]},
            "solved": f"{body['layer']} level {level}" if level and not left and not body["shown"] else None,
            "lines": [{"line": line, "name": "dx", "verdict": "WRONG" if wrong else "ok",
                       "said": ["All entries are 0.5 too large."] if wrong else []} for line in lines]}


@pytest.fixture
def server(tmp_path, files):
    """The server with the page of three layers; /check gives prepared answers, because a judge takes seconds."""
    for level in (1, 3):
        Progress(tmp_path).tried(f"linear level {level}", True)
    actions, asked = Live(tmp_path, *fresh_model("To be", PRINTABLE), "a model").actions, collections.defaultdict(list)
    server = Server({path: lambda body, path=path, action=action: asked[path].append(body) or action(body)
                     for path, action in {**actions, "/check": judged}.items()})
    server.asked, server.token, server.timeout = asked, "secret", 0.05      # asked: path -> the requests
    threading.Thread(target=server.run, args=[(files / "live.html").read_bytes()], daemon=True).start()
    yield server
    server.idle = 0.0


@pytest.fixture
def visit(browser, files, server):
    """visit(file, width, **options) -> its page; at the end: no error, no dialog, no request to anywhere else."""
    complaints, requests, here = [], set(), f"http://{server.hosts[0]}"

    def visit_(name="study", width=DESK, **options):
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        page.set_default_timeout(15_000)
        for event in ("console", "pageerror", "dialog"):
            page.on(event, lambda each: complaints.append(str(each)))
        page.on("request", lambda request: requests.add(request.url))
        page.goto(f"{here}/?token=secret" if name == "live" else (files / f"{name}.html").as_uri())
        return page

    yield visit_
    assert [each for each in complaints if "Failed to load resource" not in each] == []
    allowed = "data:", files.as_uri(), *(f"{here}{path}" for path in ("/?token=secret", *server.actions))
    assert [url for url in requests if not url.startswith(allowed)] == []
    for context in browser.contexts:
        context.close()


def located(page, where):
    """The locator of a selector. "@linear f rows = " is the line of linear's forward that begins so."""
    if not where.startswith("@"):
        return page.locator(where)
    line, *inside = where.split(" >> ")
    layer, side, begin = line[1:].split(" ", 2)
    code = page.locator("code", has_text=re.compile(rf"^\s*{re.escape(begin)}"))
    pane = {"f": ".forward", "b": ".backward:not([hidden])"}[side]
    unit = page.locator(f"#{layer} {pane} [data-line]", has=code).first
    return unit.locator(*inside) if inside else unit


def play(page, steps, server=None):
    """Do and see what `steps` say, (verb, where, value …). What is seen may take a while."""
    for verb, where, *value in steps:
        if verb == "keys":
            for key in where.split():
                page.keyboard.press(key)
        elif verb == "type":
            page.keyboard.type(where)
        elif verb == "do":
            page.evaluate(where)
        elif verb in ("js", "asked"):
            end = time.monotonic() + 15.0
            while (found := [page.evaluate(where)] if verb == "js" else server.asked[where][-1:]) != value \
                    and time.monotonic() < end:
                page.wait_for_timeout(50)
            assert found == value, where
        elif verb in ("click", "dblclick", "hover", "focus", "fill"):
            getattr(located(page, where), verb)(*value)
        elif verb == "class":
            expect(located(page, where)).to_have_class(re.compile(rf"\b{value[0]}\b"))
        elif verb in TEXTS:
            for each in value:
                getattr(expect(located(page, where)), TEXTS[verb])(each, use_inner_text=True)
        else:
            getattr(expect(located(page, where)), f"to_{'have' if value else 'be'}_{verb}")(*value)


def edit(line, text, *more):
    return [("dblclick", line), ("fill", f"{line} >> textarea", text), *more]


def answer(name, value):
    """Type a hidden line of linear, whose beginning is there."""
    return [("click", f"#linear .hidden:has-text('What is {name} here?')"), ("value", "#linear textarea", f"{name} = "),
            ("type", value), ("keys", "Enter")]


SCENES = {
    "the partner lights up under the pointer": ({}, [
        ("hover", "@layernorm f xhat = "), ("class", "@layernorm f xhat = ", "here"),
        ("class", "@layernorm b dxhat = ", "lit"), ("count", "#layernorm .lit", 1),
        ("is", "#layernorm .card.here h4", "xhat"), ("is", "#layernorm .card.there h4", "dxhat"),
        ("has", "#layernorm .card.here .facts", "4 × 5 × 6"), ("has", "#layernorm .finding", "dxhat is verified"),
        ("hover", "@layernorm b dxhat = "), ("class", "@layernorm b dxhat = ", "here"),
        ("class", "@layernorm f xhat = ", "lit"), ("hover", "#layernorm h2"),
        ("count", "#layernorm .backward .here", 0)]),
    "the theme, keyboard and tap": ({"width": PHONE, "color_scheme": "dark"}, [
        ("js", "getComputedStyle(document.body).backgroundColor", "rgb(20, 22, 26)"), ("click", "#theme"),
        ("js", "getComputedStyle(document.body).backgroundColor", "rgb(253, 252, 250)"),
        ("click", "@layernorm f centred = "), ("class", "@layernorm b dx = ", "lit"),
        ("has", "#layernorm .finding", "dcentred is skipped"), ("keys", "ArrowDown ArrowDown ArrowDown"),
        ("class", "@layernorm f xhat = ", "here"), ("keys", "Enter"), ("do", "document.activeElement.blur()"),
        ("class", "@layernorm b dxhat = ", "lit"), ("count", "#layernorm .arrows path", 0)]),
    "the value under the pointer is read out": ({}, [         # of (B, H, T, D): 14 x 3 side by side
        ("click", "#attention .tabs button >> nth=1"), ("hover", "#attention .card.here .cells i >> nth=44"),
        ("is", "#attention .card.here output", f"k[1, 0, 0, 2] = {float(f'{K[1, 0, 0, 2]:.4g}')}"),
        ("focus", "#attention .card.here .cells"), ("keys", "ArrowLeft"),
        ("has", "#attention .card.here output", "k[1, 0, 0, 1] = "), ("has", "#attention .count", "step 1 of")]),
    "planted markup is text, heads are chosen": ({}, [
        ("is", "#model-tokens .token .text >> nth=0", PLANTED), ("count", "img, #model b", 0), ("count", "script", 2),
        ("hover", "#model-tokens .token >> nth=1"), ("has", "#model-readout", PLANTED, "position 0"),
        ("focus", "#model-pulls .cells"), ("keys", "ArrowRight"), ("has", "#model-pulls output", PLANTED),
        ("count", "#model-heads button", 8), ("click", "#model-heads button >> nth=6"),
        ("is", "#model-head", "Block 1, head 2"), ("focus", "#model-attention .cells"), ("keys", "ArrowRight"),
        ("is", "#model-attention output", re.compile("1.00$"))]),        # the first has only itself
    "a page without lessons has the lens": ({"name": "look", "width": PHONE}, [
        ("is", "#model-lens tr th:first-child", ["", "embedding", "block 0", "block 1"]),
        ("is", "#model-lens tr:nth-child(3) td:nth-child(2)", PLANTED),
        ("class", "#model-lens tr:nth-child(3) td:nth-child(2)", "right"),
        ("count", ".layer, .hero, #map, img", 0), FITS]),
    "arrows lead from each use to its share": ({}, [
        ("click", "@gelu_tanh b dx = "), ("count", "#gelu_tanh .arrows path", 2), ("count", "#gelu_tanh .word", 4),
        ("click", "@block b dx_mid = "), ("count", "#block .arrows path", 2), ("class", "@block f norm_2, ", "use|lit"),
        ("class", "@block f x_out = ", "use|lit"), ("hover", "#block h2"), ("click", "@block f x_out = "),
        ("count", "#block .arrows path", 0)]),          # nothing in the block uses its result
    "predict, then reveal": ({}, [
        ("click", "#twice .level[data-level='2']"), ("has", "#twice .code.backward", "What is du here?"),
        ("lacks", "#twice .code.backward", "the derivative of exp"), ("click", "#twice .level[data-level='2']"),
        ("count", "#twice .hidden", 0), ("click", "#linear .level[data-level='1']"),
        ("click", "#linear .level[data-level='3']"), ("count", "#linear .unit.hidden", 6),
        ("is", "#linear .predict", "Reveal all 6"), ("count", "#linear .level[aria-pressed=true]", 1),
        ("has", "#linear .code.backward", "What is dweight here? (n_in, n_out)", "# y_rows = rows @ weight"),
        ("lacks", "#linear .code.backward", "rows.T", "dW_ij"),
        ("click", "@linear f def linear_forward"), ("click", "#linear .tabs button >> text=weight"),
        ("has", "#linear .panel", "6 × 8 · hidden until you reveal its line", "What is dweight here?"),
        ("lacks", "#linear .panel", "rows.T", "@"), ("count", "#linear .why math", 0), ("hidden", "#linear .hint p"),
        ("click", "#linear .hint summary"), ("has", "#linear .hint p", "matmul of the other factor"),
        ("click", "@linear b x, weight, has_bias = cache"), ("has", "#linear .why", "What is dx here?"),
        ("focus", "@linear b dweight = "), ("keys", "Enter"), ("has", "@linear b dweight = ", "rows.T @ dy_rows"),
        ("has", "#linear .why", "dweight is verified"), ("count", "#linear .unit.hidden", 5),
        ("click", "@linear f rows = "), ("click", "#linear .reveal"), ("count", "#linear .unit.hidden", 4),
        ("click", "#linear .predict"), ("count", "#linear .unit.hidden", 0), ("hidden", "#linear .predict")]),
    "an entry lights up the vectors whose product it is": ({}, [
        ("click", "@linear b dweight = "), ("is", "#linear .card.factors h4", ["= rows.T", "@ dy_rows"]),
        ("hover", "#linear .card.here .cells i >> nth=21"), ("has", "#linear .card.here output", "dweight[2, 5] = "),
        ("js", PLACES % "linear", [[[n, 2] for n in range(20)], [[n, 5] for n in range(20)]]),
        ("count", "#linear .card.there .on", 1), ("hover", "#linear h2"), ("count", "#linear .on", 0),
        ("click", "@attention b dk = "), ("hover", "#attention .card.here .cells i >> nth=5"),         # dk[0, 0, 1, 2]
        ("js", PLACES % "attention", [[[n, 1] for n in range(5)], [[n, 2] for n in range(5)]])]),
    "the long way": ({}, [
        ("click", "@layernorm f centred = "), ("click", "#layernorm .backward:not([hidden]) [data-choose='1']"),
        ("click", "@layernorm b drstd = "), ("is", "#layernorm .card.here h4", "drstd"),
        ("is", "#layernorm .card.there h4", "rstd"), ("has", "#layernorm .finding", "drstd is verified"),
        ("click", "@layernorm b dx = "), ("is", "#layernorm .backward:not([hidden]) .word", ["dcentred", "dmean"]),
        ("click", "#layernorm .backward:not([hidden]) [data-choose='0']"),
        ("has", "#layernorm .code:not([hidden]) .unit.here", "dx = rstd")]),
    "a file says how to start what it cannot do": ({"permissions": ["clipboard-read", "clipboard-write"]}, [
        ("is", "#gpt .command", ["npgpt exercise gpt", "npgpt learn", START]), ("click", "#gpt .copy >> nth=0"),
        ("visible", "#gpt .copy.done"), ("js", "navigator.clipboard.readText()", "npgpt exercise gpt"),
        ("has", ".hero", START, "dx is verified"), ("count", ".hero button[data-hero]:disabled", 3),
        ("value", ".hero textarea", DX), ("js", "document.querySelector('.hero textarea').readOnly", True),
        ("has", "#training", START), ("has", "#layernorm .exercise", START), ("disabled", "#model-text"),
        ("dblclick", "@layernorm b dx = "), ("has", "#layernorm .why .start", f"run {START}"),
        ("count", "#layernorm textarea", 0), ("click", "#layernorm .card.there .cells i >> nth=7"),         # x
        ("has", "#layernorm .mover", START, "x[0, 1, 1]"), ("disabled", "#layernorm .mover input")]),
    "the token leaves the address, solved levels are marked": ({"name": "live"}, [
        ("js", "location.href.slice(location.origin.length)", "/"), ("js", "sessionStorage['npgpt-token']", "secret"),
        ("asked", "/progress", {}), ("is", "#linear .badge.solved", "✓ solved: level 1, 3"),
        ("hidden", "#layernorm .badge.solved"), ("hidden", "#ended")]),
    "a line is edited in place": ({"name": "live"}, [
        *edit("@layernorm b dx = ", "dx = rstd * dxhat", ("is", "#layernorm .verdict", "Checking …")),
        ("is", "#layernorm .verdict.wrong", f"dx is wrong. {PLANTED}"), ("count", "#layernorm img", 0),
        ("asked", "/check", {"layer": "layernorm", "level": 0, "edits": {DX_LINE: "dx = rstd * dxhat"}, "shown": []}),
        ("has", "#layernorm .evidence >> nth=0", "0.5 too large"), ("has", "#status", "dx is wrong"),
        ("count", "#layernorm .card i", 360), ("is", "#layernorm .card.difference .facts", "at most 0.5"),
        ("is", "#layernorm .card.here i >> nth=0", ".50"), ("keys", "Enter"), ("count", "#layernorm textarea", 0),
        ("class", "@layernorm b dx = ", "typed"), ("class", "@layernorm b dx = ", "wrong"),
        ("is", "@layernorm b dx =  >> .own code", "dx = rstd * dxhat"),
        ("value", ".hero textarea", "dx = rstd * dxhat"), ("has", ".hero .verdict", "dx is wrong"),
        *edit("@layernorm b dx = ", "dx = None", ("keys", "Enter")),
        ("is", "#layernorm .card.here .facts", "This line computes no such array."),
        ("is", "#layernorm .card.difference .facts", "Nothing to compare."),
        *edit("@layernorm b dx = ", "dx = shape", ("keys", "Enter")),
        ("is", "#layernorm .card.difference .facts", "The shapes differ.")]),
    "Enter checks at once": ({"name": "live"}, [
        ("do", "window.setTimeout = () => {}"), ("focus", "@layernorm b dx = "), ("keys", "e Control+A"),
        ("type", "a = 2"), ("keys", "Shift+Enter"), ("type", "dx = a"), ("keys", "ArrowLeft"),
        ("has", "#layernorm .count", "step 16"), ("keys", "Enter"), ("visible", "#layernorm .verdict.wrong"),
        ("asked", "/check", {"layer": "layernorm", "level": 0, "edits": {DX_LINE: "a = 2\ndx = a"}, "shown": []})]),
    "undo and reset": ({"name": "live"}, [
        *edit("@layernorm b dx = ", "dx = 2", ("keys", "Enter"), ("count", "#layernorm .verdict.pending", 0)),
        *edit("@layernorm b dxhat = ", "dxhat = 3", ("keys", "Enter"), ("count", "#layernorm .verdict.pending", 0)),
        ("is", "#layernorm .typed .own code", ["dxhat = 3", "dx = 2"]), ("click", "#layernorm [data-do=undo]"),
        ("is", "#layernorm .typed .own code", ["dx = 2"]), ("click", "#layernorm [data-do=undo]"),
        ("count", "#layernorm .typed", 0), ("disabled", "#layernorm [data-do=undo]"),
        *edit("@layernorm b dxhat = ", "dxhat = 3", ("keys", "Enter")),
        ("is", "#layernorm [data-do=reset]", "Reset line 53"), ("click", "#layernorm [data-do=reset]"),
        ("count", "#layernorm .typed", 0), ("dblclick", "@layernorm b dx = "), ("type", "xx"), ("keys", "Escape"),
        ("count", "#layernorm .typed", 0), ("count", "#layernorm textarea", 0)]),
    "a level is solved by typing its lines": ({"name": "live"}, [
        ("click", "#linear .level[data-level='2']"), ("count", "#linear .hidden", 3),
        *answer("dbias", "1"), ("visible", "#linear .verdict.unfinished"), *answer("dweight", "2"),
        *answer("drows", "3"), ("visible", "#linear .verdict.right"), ("asked", "/check", {
            "layer": "linear", "level": 2, "edits": {"b37": "dbias = 1", "b39": "dweight = 2", "b40": "drows = 3"},
            "shown": []}),
        ("is", "#linear p.solved", "✓ Solved: linear level 2"),
        ("is", "#linear .badge.solved", "✓ solved: level 1, 2, 3"),
        ("count", "#linear .hidden", 0), ("is", "#linear pre", "printed")]),
    "a line that was shown does not count": ({"name": "live"}, [
        ("click", "#linear .level[data-level='2']"), ("click", "#linear .hidden:has-text('What is dweight here?')"),
        ("click", "#linear [data-do=reveal]"), ("has", "@linear b dweight = ", "rows.T @ dy_rows"),
        *answer("dbias", "1"),
        ("asked", "/check", {"layer": "linear", "level": 2, "edits": {"b37": "dbias = 1"}, "shown": ["b39"]}),
        *answer("drows", "1"), ("has", "#linear .why", "does not count as solved")]),
    "the first screen is broken and mended": ({"name": "live"}, [
        ("has", ".hero .verdict.right", "dx is verified"), ("is", ".hero .card >> nth=2 >> i >> nth=0", "0"),
        ("click", ".hero [data-hero=break]"), ("visible", ".hero .verdict.wrong"),
        ("asked", "/check", {"layer": "layernorm", "level": 0, "shown": [],
                            "edits": {DX_LINE: "dx = rstd * (dxhat - xhat * mean_dxhat_xhat)"}}),
        ("is", ".hero .card >> nth=2 >> i >> nth=0", ".50"), ("click", ".hero [data-hero=reset]"),
        ("visible", ".hero .verdict.right"), ("value", ".hero textarea", DX), ("click", ".hero [data-hero=undo]"),
        ("visible", ".hero .verdict.wrong"), ("focus", ".hero textarea"), ("keys", "End"), ("type", " + 1"),
        ("has", ".hero .verdict.right", "Every gradient is right.")]),
    "your text": ({"name": "live"}, [
        ("count", "#model-tokens .token", 5), ("count", "#model-bars li", 5),
        ("fill", "#model-text", "Hi!"), ("count", "#model-tokens .token", 3),
        ("asked", "/text", {"text": "Hi!"}), ("is", "#model-tokens .text", ["H", "i", "!"]),
        ("count", "#model-bars li", 10), ("count", "#model-attention .cells i", 4),
        ("fill", "#model-text", "€"), ("has", "#model-error", "character '€'"), ("count", "#model-tokens .token", 3)]),
    "the first screen fits on a phone": ({"name": "live", "width": PHONE}, [
        ("js", "document.querySelector('.hero .card i').getBoundingClientRect().y < 800", True),
        ("click", "@layernorm b dx = "), ("click", "#layernorm [data-do=edit]"), ("keys", "End"), ("type", " + 2"),
        ("keys", "Enter"), ("visible", "#layernorm .verdict.wrong"), FITS]),
    "reduced motion trains on demand": ({"name": "live", "reduced_motion": "reduce"}, [
        ("do", SCROLL), ("is", "#training .now", "no step yet"), ("click", "#training button"),
        ("has", "#training .now", "nats, initially 5.5"),
        ("is", "#training .norms code", ["wte", "wpe", "h.0", "h.1", "ln_f"])]),
}


@pytest.mark.parametrize("name", SCENES)
def test_a_scene(visit, server, name):
    options, steps = SCENES[name]
    play(visit(**options), steps, server)


def are_seen(page, selector):
    """For each element whether its first line of text is in view, and no bar, header or panel covers it."""
    return page.evaluate("""(selector) => [...document.querySelectorAll(selector)].map((element) => {
        const {left, top} = element.getBoundingClientRect(), x = Math.max(left, 0) + 20;
        return [2, 16].every((y) => element.contains(document.elementFromPoint(x, top + y)));
    })""", selector)


def test_the_stepper_goes_through_the_whole_model(visit):
    """The line and its partner stay in view. Each x is beside its own gradient: the i-th x beside the i-th last dx."""
    page, found = visit(width=PHONE), {"x": [], "dx": []}
    page.locator("#gpt").scroll_into_view_if_needed()
    count = int(page.locator("#gpt .count").inner_text().split()[-1])
    for i in range(2, count + 1):
        page.click("#gpt [data-go=next]")
        assert page.locator("#gpt .count").inner_text() == f"step {i} of {count}"
        assert are_seen(page, "#gpt .unit.here") == [True] and any(are_seen(page, "#gpt .unit.lit") or [True]), i
        assert page.locator("#gpt [aria-current=step].here").count() == 1
        match [page.locator(f"#gpt .card.{card} :is(h4, .facts)").all_inner_texts() for card in ("here", "there")]:
            case [["x" | "dx" as name, here], ["x" | "dx", there]]:
                found[name].append([here, there])
    assert page.locator("#gpt [data-go=next]").is_disabled()
    assert len(found["x"]) == 6         # embedding, LayerNorm, dropout, two blocks, LayerNorm
    assert [facts[::-1] for facts in reversed(found["dx"])] == found["x"]
    page.locator("#gpt h2").click()
    play(page, [("keys", "ArrowLeft"), ("is", "#gpt .count", f"step {count - 1} of {count}")])


def test_the_address_of_a_line(visit):
    page = visit()
    address = located(page, "@block b dx_mid = ").get_attribute("data-line")
    here = f"#block .unit.here[data-line={address}]"
    play(page, [("do", f"location.hash = 'block:b{int(address[1:]) + 1}'"), ("count", here, 1)])    # a comment below it
    assert are_seen(page, here) == [True]
    play(page, [("do", f"location.hash = 'block:{address}:predict'"), ("count", f"{here}.hidden", 1),
                ("do", "location.hash = 'layernorm'"), ("click", "@layernorm f xhat = "),
                ("js", "location.hash.slice(0, 12)", "#layernorm:f")])


@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "dark"), (DESK, "light")])
def test_nothing_overflows_and_text_is_readable(visit, width, scheme):
    """No element is wider than the page, no number than its cell; contrast of at least 4.5; every link has an end."""
    page = visit(width=width, color_scheme=scheme)
    forward, backward = (page.locator(f"#linear .{side}.code").bounding_box() for side in ("forward", "backward"))
    assert (backward["x"] > forward["x"] + forward["width"]) == (width == DESK)         # side by side, else stacked
    play(page, [("click", "#head .level[data-level='3']"), ("click", "@layernorm b dx = "),
                ("do", "dispatchEvent(new Event('beforeprint'))"), FITS])           # it opens all details
    assert page.evaluate("""[...document.links].every(({hash}) => {
        const [id, line] = hash.slice(1).split(":");
        return document.getElementById(id).querySelector(line ? `[data-line="${line}"]` : "*");
    })""")
    assert page.evaluate("""[...document.querySelectorAll(".numbers i")].every((cell) =>
        !cell.checkVisibility() || cell.scrollWidth <= cell.clientWidth)""")
    assert page.evaluate("""() => {
        const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
        const rgba = (fillStyle) => {
            canvas.clearRect(0, 0, 1, 1);
            Object.assign(canvas, {fillStyle}).fillRect(0, 0, 1, 1);
            return canvas.getImageData(0, 0, 1, 1).data;
        };
        const luminance = (colour) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
            const c = rgba(colour)[i] / 255;
            return sum + weight * (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        }, 0);
        const background = (element) => {
            const colour = getComputedStyle(element).backgroundColor;
            return rgba(colour)[3] ? colour : background(element.parentElement);
        };
        const contrast = (element) => {
            const [a, b] = [getComputedStyle(element).color, background(element)].map(luminance);
            return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        };
        return [...document.querySelectorAll("body *")].filter((element) => element.checkVisibility()
            && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
            && !element.closest("button:disabled, script, style") && contrast(element) < 4.5)
            .map((element) => [element.className, element.textContent.slice(0, 20)]);
    }""") == []
    page.emulate_media(media="print")
    assert not page.locator(".bar").is_visible() and not page.locator("#linear .stepper").is_visible()


def test_a_number_is_changed(visit, server):
    """By dragging, by typing, and with the keyboard. The arrays move, and the tangent has the slope of the gradient."""
    page = visit("live")
    page.click("#chain .forward [data-line] >> nth=0")
    cell = page.locator("#chain .card.here .cells i").nth(8)                        # x[1, 2]
    cell.drag_to(cell, source_position={"x": 5, "y": 5}, target_position={"x": 5, "y": -45}, force=True)
    dragged, typed = (server.actions["/move"]({"layer": "chain", "name": "x", "index": [1, 2], "value": value})
                      for value in (round(LESSONS["chain"].inputs["x"][1, 2] + 0.5, 3), 1.5))
    play(page, [("has", "#chain .slope", f"slope is {dragged['slope']:.3g}"),
                ("class", "#chain .card.here .cells i >> nth=8", "chosen"), ("fill", "#chain .mover input", "1.5"),
                ("has", "#chain .slope", f"loss = sum(dy * y) = {typed['loss']:.3g}", f"slope is {typed['slope']:.3g}"),
                ("is", "#chain .card.here .cells i >> nth=8", "1.50")], server)
    x1, y1, x2, y2 = (float(page.locator("#chain .tangent").get_attribute(each)) for each in ("x1", "y1", "x2", "y2"))
    points = page.locator("#chain .mover .curve").get_attribute("points").split()
    (ax, ay), (bx, by) = (map(float, points[i].split(",")) for i in (19, 21))       # on either side of the value
    assert (y2 - y1) / (x2 - x1) == pytest.approx((by - ay) / (bx - ax), rel=0.05)
    play(page, [("click", "#chain .mover button"),
                ("hidden", "#chain .mover"), ("count", "#chain .chosen", 0), ("focus", "#chain .card.here .cells"),
                ("keys", "ArrowRight Enter ArrowUp"), ("has", "#chain .slope", "slope is")])
    assert server.asked["/move"][-1]["index"] == [0, 0]


def test_it_trains_while_it_is_seen(visit, server):
    page = visit("live")
    play(page, [("do", SCROLL), ("has", "#training .now", "nats, initially"), ("count", "#training polyline", 6)])
    page.wait_for_timeout(1000)
    assert server.asked["/train"][-1]["since"] > 0
    play(page, [("click", "#training button"), ("is", "#training button", "Train"),
                ("do", "scrollTo(0, document.body.scrollHeight)")])
    page.wait_for_timeout(300)
    count = len(server.asked["/train"])
    page.wait_for_timeout(1200)
    assert len(server.asked["/train"]) == count, "nobody sees it"


def test_the_file_that_opens_the_page_a_reload_and_the_end_of_the_server(browser, server):
    """No address that the browser visits holds the token."""
    urls = []
    with server.opener() as url, browser.new_page() as page:
        page.on("request", lambda request: urls.append(request.url))
        page.goto(url)
        for _ in range(3):
            play(page, [("click", ".hero [data-hero=break]"), ("visible", ".hero .verdict.wrong")])
            page.reload()
        page.route("**/*", lambda route: route.abort())
        play(page, [("click", ".hero [data-hero=break]"), ("has", "#ended", f"run {START} again"),
                    ("has", ".hero .verdict.error", f"run {START} again")])
    assert urls[0] == url and "secret" not in str(urls)
