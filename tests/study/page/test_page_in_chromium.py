"""The study page in headless Chromium: the file without a network, the live page with a server of prepared answers."""

import re

import pytest

from npgpt.study.gradcheck.source import read_source
from tests.helpers.chromium import expect, located, play
from tests.study.page.conftest import LESSONS, PHONE, PLANTED

pytestmark = pytest.mark.slow

START = "npgpt study --open"
K = LESSONS["attention"].inputs["k"]
DX = read_source(LESSONS["layernorm"].backward).statements[-2].first
DX_LINE = f"b{DX}"
DWEIGHT = next(each.first for each in read_source(LESSONS["linear"].backward).statements
               if each.text.startswith("dweight"))
SUM = "dweight[1,0] = (-0.50)(-1.09) + 1.20·0.20 = 0.78"
LINEAR = "layers.find(({name}) => name === 'linear')"
WORKED = f"{LINEAR}.data.worked = {{b{DWEIGHT}: ['{SUM}']}}"
PLACES = """[...document.querySelectorAll("#%s .item:nth-of-type(%d) .cells")].slice(1).map((cells) =>
    [...cells.querySelectorAll(".on")].map((cell) => cell.place))"""
FITS = ("js", "document.scrollingElement.scrollWidth <= innerWidth", True)
TO_MODEL = "document.getElementById('model').scrollIntoView()"


def edit(line, text, *more):
    return [("dblclick", line), ("fill", f"{line} >> textarea", text), *more]


def predict(layer, level):
    return [("click", f"#{layer} .menu:has(.level) summary"), ("click", f"#{layer} .level[data-level='{level}']")]


SCENES = {
    "a row has a line and what undoes it": (
        {},
        [
            ("has", "#layernorm .row >> nth=6", "y = xhat * weight", "dxhat = dy * weight"),
            ("has", "#layernorm .row >> nth=1", f"undone together in line {DX}: show"),
            ("click", "@layernorm f y = xhat"),
            ("is", "#layernorm .row >> nth=6 >> .thumbs", ["y", "dy"]),
            (
                "has",
                "#layernorm .panel",
                "dxhat is verified: relative error",
                "dweight is verified",
                "4 × 5 × 6",
            ),
            ("is", "#layernorm .item >> nth=2 >> figcaption", ["dxhat", "dy", "weight"]),
            ("click", "@layernorm f y = xhat"),
            ("count", "#layernorm .panel", 0),
        ],
    ),
    "the theme, keyboard and tap": (
        {"width": PHONE, "color_scheme": "dark"},
        [
            ("js", "getComputedStyle(document.body).backgroundColor", "rgb(20, 22, 26)"),
            ("click", "#theme"),
            ("js", "getComputedStyle(document.body).backgroundColor", "rgb(253, 252, 250)"),
            ("click", "@layernorm f centred = "),
            ("has", "#layernorm .row.open", "centred", "undone together"),
            ("focus", "#layernorm .row.open .toggle"),
            ("keys", "ArrowDown ArrowDown Enter"),
            ("count", "#layernorm .row.open", 2),
            ("has", "#layernorm .row.open >> nth=1", "rstd = "),
            FITS,
        ],
    ),
    "a derivation has the steps before it": (
        {},
        [
            ("click", "@layernorm f xhat = "),
            ("is", "#layernorm .panel h3 code", ["drstd", "dvar", "dcentred", "dmean", "dx"]),
            ("has", "#layernorm .panel", "The cache holds no centred"),
            ("click", "#layernorm .skipped a:text-is('show the steps') >> nth=1"),
            ("has", "#layernorm_long_way .row.open", "centred = x - mean", "dmean = "),
            ("is", "#layernorm_long_way .panel h3 code", ["dmean", "dx"]),
            ("js", "document.activeElement.ariaLabel", "LayerNorm, step by step, line 15"),
            ("focus", "#attention .skipped a >> nth=0"),
            ("keys", "Enter"),
            ("is", "#attention .panel h3 code", ["dtotal", "dexps", "dlargest", "dmasked"]),
            ("click", "@attention b dmasked = "),
            ("count", "#attention .panel", 0),
            ("click", "#attention .skipped a >> nth=0"),  # to the address that it already has
            ("count", "#attention .panel", 1),
        ],
    ),
    "a line in numbers": (
        {},
        [
            ("do", WORKED),
            ("click", "@linear f y_rows = rows"),
            ("is", "#linear .panel .worked", [SUM]),
            *predict("linear", 3),
            ("hidden", "#linear .worked"),
            ("click", "#linear .hint summary:text-is('A worked example')"),
            ("visible", "#linear .worked"),
        ],
    ),
    "the value under the pointer is read out, matrix by matrix": (
        {},
        [  # of (B, H, T, D)
            ("click", "@attention f def attention_forward"),
            ("has", "#attention .slices", "[0, 0] of 4 × 2"),
            ("hover", "#attention .panel .heat >> nth=1 >> i >> nth=2"),
            (
                "is",
                "#attention .panel .heat >> nth=1 >> output",
                f"k[0, 0, 0, 2] = {float(f'{K[0, 0, 0, 2]:.4g}')}",
            ),
            *[("click", "#attention .slices button >> nth=1")] * 3,
            ("has", "#attention .slices", "[1, 1] of 4 × 2"),
            ("focus", "#attention .panel .heat >> nth=1 >> .cells"),
            ("keys", "ArrowRight ArrowRight"),
            (
                "is",
                "#attention .panel .heat >> nth=1 >> output",
                f"k[1, 1, 0, 1] = {float(f'{K[1, 1, 0, 1]:.4g}')}",
            ),
            ("has", "#attention .panel", "scale\n0.577", "dropout_mask"),
        ],
    ),
    "planted markup is text, heads are chosen": (
        {},
        [
            ("do", TO_MODEL),
            ("is", "#model-tokens .token .text >> nth=0", PLANTED),
            ("count", "img, #model b", 0),
            ("count", "script", 2),
            ("hover", "#model-tokens .token >> nth=1"),
            ("has", "#model-readout", PLANTED, "position 0"),
            ("focus", "#model-pulls .cells"),
            ("keys", "ArrowRight"),
            ("has", "#model-pulls output", PLANTED),
            ("count", "#model-heads button", 12),
            ("click", "#model-heads button >> nth=6"),
            ("is", "#model-head", "Block 1, head 2"),
            ("focus", "#model-attention .cells"),
            ("keys", "ArrowRight"),
            ("is", "#model-attention output", re.compile("1.00$")),
        ],
    ),  # the first has only itself
    "a page without lessons has the lens": (
        {"name": "look", "width": PHONE},
        [
            (
                "is",
                "#model-lens tr th:first-child",
                ["embedding", *map("block {}".format, range(3))],
            ),
            ("is", "#model-lens tr:nth-child(3) td:nth-child(2)", PLANTED),
            ("class", "#model-lens tr:nth-child(3) td:nth-child(2)", "right"),
            ("count", ".layer, .first, #map, img", 0),
            FITS,
        ],
    ),
    "predict, then reveal": (
        {},
        [
            *predict("twice", 2),
            ("has", "#twice .rows", "What is du here?"),
            *predict("twice", 2),
            ("count", "#twice .hidden", 0),
            *predict("linear", 3),
            ("count", "#linear .unit.hidden", 6),
            ("has", "#linear .rows", "What is dweight here? (n_in, n_out)"),
            ("lacks", "#linear .rows", "rows.T", "dW_ij"),
            ("click", "@linear f y_rows = rows"),
            ("count", "#linear .panel math", 0),
            ("is", "#linear .item >> nth=1 >> figcaption", ["dweight"]),
            ("click", "#linear .hint summary >> nth=0"),
            ("has", "#linear .hint p >> nth=0", "matmul of the other factor"),
            ("click", "#linear .show >> nth=0"),
            ("has", "@linear b dweight = ", "rows.T @ dy_rows"),
            ("has", "#linear .panel", "dweight is verified"),
            ("click", "#linear .reveal-all"),
            ("count", "#linear .unit.hidden", 0),
        ],
    ),
    "predict by choice": (
        {},
        [
            *predict("linear", 3),
            ("click", "@linear f y_rows = rows"),
            ("count", "#linear .choice >> nth=0 >> button", 3),
            (
                "click",
                "#linear .choice >> nth=0 >> button:not(:text-is('dweight = rows.T @ dy_rows')) >> nth=0",
            ),
            ("has", "#linear .choice >> nth=0 >> .wrong", "✗ WRONG"),
            ("visible", "#linear .verdict.wrong"),
            ("click", "#linear .choice button:text-is('dweight = rows.T @ dy_rows')"),
            ("has", "@linear b dweight = ", "rows.T @ dy_rows"),
            ("has", "#linear .panel", "dweight is verified"),
            ("is", "#linear .verdict.right", "✓ right"),
            ("count", "#linear .unit.hidden", 5),
        ],
    ),
    "a planted mistake is judged without a server": (
        {},
        [
            ("click", "@linear f y_rows = rows"),
            ("click", "#linear .break >> nth=0"),
            ("has", "#linear .verdict.wrong", "✗ WRONG"),
            ("class", "#linear .unit.typed", "wrong"),
            (
                "is",
                "#linear .trio figcaption",
                ["dweight of this line", "the true dweight", "difference"],
            ),
            ("count", "#linear .trio .most", 1),
            ("click", "#linear .repair"),
            ("count", "#linear .typed", 0),
            ("count", "#linear .trio", 0),
        ],
    ),
    "an entry lights up the vectors whose product it is": (
        {},
        [
            ("click", "@attention f mix = "),
            (
                "hover",
                "#attention .item >> nth=2 >> .heat >> nth=0 >> i >> nth=5",
            ),  # dv[0, 0, 1, 2]
            (
                "js",
                PLACES % ("attention", 3),
                [[[1, t] for t in range(5)], [[t, 2] for t in range(5)]],
            ),
            ("hover", "#attention h2"),
            ("count", "#attention .on", 0),
        ],
    ),
    "a file says how to start what it cannot do": (
        {},
        [
            ("click", "#gpt .menu >> nth=1 >> summary"),
            ("is", "#gpt .command", ["npgpt exercise gpt", START]),
            ("disabled", "#model-text"),
            ("dblclick", "@layernorm f y = xhat"),
            ("count", "#layernorm textarea", 0),
        ],
    ),
    "the token leaves the address": (
        {"name": "live"},
        [
            ("js", "location.href.slice(location.origin.length)", "/"),
            ("js", "sessionStorage['npgpt-token']", "secret"),
            ("hidden", "#ended"),
        ],
    ),
    "a line is edited in place": (
        {"name": "live"},
        [
            *edit(
                "@layernorm b dx = ",
                "dx = rstd * dxhat",
                ("is", "#layernorm .verdict", "Checking …"),
            ),
            ("has", "#layernorm .verdict.wrong", f"✗ WRONG dx is wrong. {PLANTED}"),
            ("count", "#layernorm img", 0),
            ("asked", "/check", {"layer": "layernorm", "edits": {DX_LINE: "dx = rstd * dxhat"}}),
            ("has", "#layernorm .evidence >> nth=0", "0.5 too large"),
            ("has", "#layernorm .trio figure >> nth=2", "at most 0.5"),
            ("keys", "Enter"),
            ("count", "#layernorm textarea", 0),
            ("class", "@layernorm b dx = ", "wrong"),
            ("is", "@layernorm b dx =  >> .own code", "dx = rstd * dxhat"),
            *edit("@layernorm b dx = ", "dx = shape", ("keys", "Enter")),
            ("has", "#layernorm .trio figure >> nth=2", "The shapes differ: 5 × 6, not 4 × 5 × 6."),
        ],
    ),
    "the keyboard edits, discards and repairs": (
        {"name": "live"},
        [
            ("focus", f"#layernorm .row:has([data-line=b{DX}]) .toggle"),
            ("keys", "e Control+A"),
            ("type", "a = 2"),
            ("keys", "Shift+Enter"),
            ("type", "mean_dxhat = a"),
            ("keys", "Enter"),
            ("visible", "#layernorm .verdict.wrong"),
            ("asked", "/check", {"layer": "layernorm", "edits": {
                f"b{DX - 2}": "a = 2\nmean_dxhat = a"}}),
            ("click", "#layernorm .repair"),
            ("count", "#layernorm .typed", 0),
            ("dblclick", "@layernorm b dx = "),
            ("type", "xx"),
            ("keys", "Escape"),
            ("count", "#layernorm .typed", 0),
            ("count", "#layernorm textarea", 0),
        ],
    ),
    "a hidden line is typed": (
        {"name": "live"},
        [
            *predict("linear", 2),
            ("count", "#linear .hidden", 3),
            ("dblclick", "#linear .unit.hidden >> nth=0"),
            ("keys", "End"),
            ("type", "1"),
            ("keys", "Enter"),
            ("visible", "#linear .verdict.right"),
            ("count", "#linear .hidden", 2),
            ("is", "#linear pre >> nth=0", "printed"),
        ],
    ),
    "your text": (
        {"name": "live"},
        [
            ("do", TO_MODEL),
            ("fill", "#model-text", "Hi!"),
            ("asked", "/text", {"text": "Hi!"}),
            ("is", "#model-tokens .text", ["H", "i", "!"]),
            ("count", "#model-attention .cells i", 4),
            ("fill", "#model-text", "é"),
            ("is", "#model-tokens .text", ["\\xc3", "\\xa9"]),
            ("fill", "#model-text", "a"),
            ("has", "#model-error", "1 tokens"),
            ("count", "#model-tokens .token", 2),
        ],
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_a_scene(visit, server, name):
    options, steps = SCENES[name]
    play(visit(**options), steps, server)


def test_the_address_of_a_line(visit):
    """It opens the row, which is in view with its partner."""
    page = visit()
    address = located(page, "@block b dx_mid = ").get_attribute("data-line")
    here = f"#block .row.open [data-line={address}]"
    play(page, [("do", f"location.hash = 'block:b{int(address[1:]) + 1}'"), ("count", here, 1)])    # a comment below it
    for each in (here, "#block .row.open .forward [data-line]"):
        expect(page.locator(each)).to_be_in_viewport()


def test_the_turns_of_a_loop_and_the_gradients_beside_them(visit):
    """Each x is beside its own gradient: the i-th x beside the i-th last dx."""
    page = visit()
    page.locator("#gpt").scroll_into_view_if_needed()
    play(page, [("click", "@gpt f x, block = "), ("has", "#gpt .panel", "turn of the loop")])
    found = page.evaluate("""() => {
        const layer = layers.find(({name}) => name === "gpt");
        const made = (name) => layer.data.steps.filter((step) => layer.array(step, name));
        return [made("x").map((step) => layer.gradient(step, "x").values),
            made("dx").map((step) => layer.array(step, "dx").values)];
    }""")
    assert len(found[0]) == 5 and found[0] == found[1][::-1]
    first = page.locator("#gpt .panel .heat >> nth=0 >> i >> nth=0").inner_text()
    play(page, [("click", "#gpt .panel .tabs button:text-is('2') >> nth=0")])
    assert page.locator("#gpt .panel .heat >> nth=0 >> i >> nth=0").inner_text() != first


def test_nothing_is_wider_than_a_phone_and_every_link_has_an_end(visit):
    page = visit(width=PHONE)
    play(page, [*predict("head", 3), ("click", "@head f logit_rows = rows"), ("click", "@layernorm b dx = "),
                ("click", "@attention f mix = "), ("click", "#attention .break >> nth=0"),
                ("do", "dispatchEvent(new Event('beforeprint'))"), FITS])           # it opens all details
    assert page.evaluate("""[...document.links].every(({hash}) => {
        const [id, line] = hash.slice(1).split(":");
        return document.getElementById(id).querySelector(line ? `[data-line="${line}"]` : "*");
    })""")


def test_the_file_that_opens_the_page_a_reload_and_the_end_of_the_server(browser, server):
    """No address that the browser visits holds the token."""
    urls = []
    with server.opener() as url, browser.new_page() as page:
        page.on("request", lambda request: urls.append(request.url))
        page.goto(url)
        for _ in range(3):
            play(page, [*edit("@layernorm b dx = ", "dx = 2", ("visible", "#layernorm .verdict.wrong"))])
            page.reload()
        page.route("**/*", lambda route: route.abort())
        play(page, [*edit("@layernorm b dx = ", "dx = 2", ("has", "#ended", f"run {START} again")),
                    ("has", "#layernorm .verdict.error", f"run {START} again")])
    assert urls[0] == url and "secret" not in str(urls)
