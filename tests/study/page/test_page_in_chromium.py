"""The study page in headless Chromium: the file without a network, the live page with a server of
prepared answers.
"""

from string import Template

import pytest

from npgpt.study.gradcheck.source import read_source
from tests.helpers.chromium import expect, located, play
from tests.study.page.conftest import LESSONS, PHONE, PLANTED

pytestmark = pytest.mark.slow

K = LESSONS["attention"].inputs["k"]
DX = read_source(LESSONS["layernorm"].backward).statements[-2].first
# the row of dx, in one line, whose last line is edited
TO_DX = f"""do | location.hash = 'layernorm:b{DX}'
    count | #layernorm .panel | 1"""
LIT = """[...document.querySelectorAll(".array i.on")].map((each) => {
    const array = each.closest(".array");
    return array.dataset.of + [...array.querySelectorAll("i")].indexOf(each); })"""
WORDS = {
    "LONG": "#layernorm_long_way",
    "DX": DX,
    "TO_DX": TO_DX,
    "EDIT": f"""{TO_DX}
    click | #layernorm .panel .edit >> nth=-1
    fill | #layernorm textarea""",
    "FITS": "js | document.scrollingElement.scrollWidth <= innerWidth | true",
    "PLANTED": PLANTED,
    "START": "npgpt study --open",
    "ARRAY": ".array[data-of",
    "LIT": " ".join(LIT.split()),
    "K2": f"{K[0, 0, 0, 2]:.4g}",
    "K1": f"{K[1, 1, 0, 1]:.4g}",
}
# "# fact | file | width | colours", and what is done and seen; see `play`
SCENES = r"""
# the sum of a number that is clicked | study | 390
click | $ARRAY=dweight] i >> nth=2
class | $ARRAY=dweight] i >> nth=2 | chosen
has | .says | ✓ right
has | .first .why | dweight[1,0] | x[0,1]·dy[0,0] + x[1,1]·dy[1,0]
has | .first .why | (-0.5)·(-1.09) + 1.2·0.195 | 0.78
js | $LIT | ["x1", "x4", "dy0", "dy2"]
click | $ARRAY=dx] i >> nth=0
has | .first .why | dx[0,0] | dy[0,0]·weight[0,0] + dy[0,1]·weight[0,1]
has | .first .why | (-1.09)·(-0.50) + (-0.80)·(-0.80) | 1.19
click | $ARRAY=y] i >> nth=3
has | .first .why | x[1,0]·weight[0,1] + x[1,1]·weight[1,1] + x[1,2]·weight[2,1]
has | .first .why | y[1,1] | (-1.10)·(-0.80) + 1.20·0.30 + 0.80·0.90 | 1.96
click | $ARRAY=dy] i >> nth=0
has | .first .why | dy[0,0] | 2·(y[0,0] - 1) / 4 | 2·((-1.18) - 1) / 4 | -1.09
js | $LIT | ["y0"]
click | $ARRAY=weight] i >> nth=2
has | .first .why | weight[1,0] = 1.10
js | $LIT | []

# the backward is played
count | .arrays .gone | 0
click | #play
count | .arrays .gone | 6
count | .arrays .now[data-of=dloss] | 1
count | .arrays .gone | 4
count | .arrays .gone | 2
count | .arrays .gone | 0
count | .arrays .now | 0

# a row has a line and what undoes it
has | $LONG .row >> nth=6 | y = xhat * weight | dxhat = dy * weight
click | @layernorm_long_way f y = xhat
is | $LONG .row >> nth=6 >> .thumbs | y | dy
has | $LONG .panel | dxhat is verified: relative error | dweight is verified | 4 × 5 × 6
is | $LONG .item >> nth=2 >> figcaption | dxhat | dy | weight
click | @layernorm_long_way f y = xhat
count | $LONG .panel | 0

# step by step, or in one line
has | $LONG .badge | 10 gradients verified
has | $LONG .become | dx = rstd * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat)
hidden | #layernorm
click | $LONG .ways a:text-is('one line')
hidden | $LONG
is | #layernorm .ways [aria-current] | one line
has | #layernorm .badge | 6 gradients verified; 4 more inside dx
has | #layernorm .badge | step by step: 10 gradients verified
has | #layernorm .row >> nth=1 | undone together in line $DX: show
click | @layernorm f var =
is | #layernorm .panel h3 code | drstd | dvar | dcentred | dmean | dx
has | #layernorm .panel | var[0, | dx[0, | dx is verified
focus | #layernorm .ways a >> nth=0
keys | Enter
hidden | #layernorm
visible | $LONG
click | $LONG .become h3 a
has | #layernorm .row.open >> nth=1 | mean_dxhat

# colours, keyboard and tap | study | 390 | dark
js | getComputedStyle(document.body).backgroundColor | "rgb(20, 22, 26)"
click | @layernorm_long_way f mean =
has | $LONG .row.open | mean | undone together
focus | $LONG .row.open .toggle
keys | ArrowDown ArrowDown ArrowDown Enter
count | $LONG .row.open | 2
has | $LONG .row.open >> nth=1 | rstd =
$FITS

# a derivation has the steps before it
do | location.hash = 'layernorm'
click | @layernorm f xhat =
is | #layernorm .panel h3 code | drstd | dvar | dcentred | dmean | dx
has | #layernorm .panel | The cache holds no centred
click | #layernorm .skipped a:text-is('show the steps') >> nth=1
has | $LONG .row.open | centred = x - mean | dmean =
is | $LONG .panel h3 code | dmean | dx
js | document.activeElement.ariaLabel.replace(/\d+/, 'N') | "LayerNorm, line N"
do | location.hash = 'attention'
focus | #attention .skipped a >> nth=0
keys | Enter
is | #attention .panel h3 code | dtotal | dexps | dlargest | dmasked
click | @attention b dmasked =
count | #attention .panel | 0
click | #attention .skipped a >> nth=0
count | #attention .panel | 1

# the value under the pointer is read out, matrix by matrix
do | location.hash = 'attention'
click | @attention f def attention_forward
js | document.querySelector('#attention select').options.length | 8
hover | #attention .panel .heat >> nth=1 >> i >> nth=2
is | #attention .panel .heat >> nth=1 >> output | k[0,0,0,2] = $K2
choose | #attention .panel select >> nth=0 | [1, 1]
focus | #attention .panel .heat >> nth=1 >> .cells
keys | ArrowRight ArrowRight
is | #attention .panel .heat >> nth=1 >> output | k[1,1,0,1] = $K1
has | #attention .panel | scale | .58 | dropout_mask

# ones own layers, with names of the page | own
is | h1 | Every gradient of made_of.py, line by line
is | .layer h2 | data | walk | Scale
click | @walk f y =
has | #walk .why >> nth=0 | x[ | ]·w[
click | @Scale f y =
is | #Scale .item >> nth=1 >> figcaption | dweight | dy | x
count | .break, .first, .way | 0

# planted markup is text, heads are chosen
do | document.getElementById('model').scrollIntoView()
is | #model-tokens .token .text >> nth=0 | $PLANTED
count | img, #model b | 0
count | script | 2
hover | #model-tokens .token >> nth=1
has | #model-readout | “$PLANTED” (0)
js | document.getElementById('model-heads').options.length | 12
choose | #model-heads | block 1, head 2
is | #model-attention tr:nth-child(2) td:nth-child(2) | 1.00
js | document.querySelector('.lens td[title]').title.includes('<script>') | true

# a page without lessons has the lens | look | 390
is | #model-lens tr th:first-child | embedding | block 0 | block 1 | block 2
is | #model-lens tr:nth-child(3) td:nth-child(2) | $PLANTED
class | #model-lens tr:nth-child(3) td:nth-child(2) | right
count | .layer, .first, #map, img | 0
$FITS

# a planted mistake is judged without a server
click | @linear f y_rows = rows
click | #linear .break >> nth=0
has | #linear .verdict.wrong | ✗ WRONG
class | #linear .unit.typed | wrong
is | #linear .trio figcaption >> nth=0 | dweight of this line
is | #linear .trio figcaption >> nth=1 | the true dweight
has | #linear .trio figcaption >> nth=2 | difference, at most
count | #linear .trio .most | 1
click | #linear .repair
count | #linear .typed | 0
count | #linear .trio | 0

# the terms of a number that is clicked light up
do | location.hash = 'attention'
click | @attention f mix =
click | #attention .item >> nth=2 >> .heat >> nth=0 >> i >> nth=5
count | #attention .item >> nth=2 >> .on | 10
has | #attention .why >> nth=2 | dv[0,0,1,2] | kept[0,0,0,1]·dmix[0,0,0,2] +
click | #attention .item >> nth=2 >> .heat >> nth=1 >> i >> nth=5
has | #attention .why >> nth=2 | att[0,0,0,1]·dropout_mask[0,0,0,1]
count | #attention .item >> nth=2 >> .on | 0
focus | #attention .item >> nth=1 >> .cells >> nth=0
keys | ArrowDown ArrowRight
has | #attention .why >> nth=1 | dkept[0,0,0,1] | dmix[0,0,0,0]·v[0,0,1,0] +
click | #attention .item >> nth=1 >> .heat >> nth=1 >> i >> nth=0
has | #attention .why >> nth=1 | dmix[0,0,0,0] | an input
click | @linear f y_rows = y_rows + bias
count | #linear .item >> nth=0 >> .on | 2
click | @mlp f active, gelu =
click | #mlp .item >> nth=0 >> .heat >> nth=0 >> i >> nth=0
has | #mlp .why >> nth=0 | active[0,0,0] =  | computed by this line

# a token's gradient is the sum over its positions
click | @embedding f token =
click | #embedding .item >> nth=2 >> .heat >> nth=0 >> i >> nth=6
has | #embedding .why >> nth=2 | dwte[1,0]

# a file says how to start what it cannot do
is | .command | $START | $START
click | @linear f y_rows = rows
count | #linear .edit, input[type=text] | 0

# the token leaves the address | live
js | location.href.slice(location.origin.length) | "/"
js | sessionStorage['npgpt-token'] | "secret"
hidden | #ended

# a line is edited in place | live
$EDIT | dx = rstd * dxhat
is | #layernorm .verdict | Checking …
has | #layernorm .verdict.wrong | ✗ WRONG dx is wrong. $PLANTED
count | #layernorm img | 0
asked | /check | {"layer": "layernorm", "edits": {"b$DX": "dx = rstd * dxhat"}}
has | #layernorm .evidence >> nth=0 | 0.5 too large
has | #layernorm .trio figure >> nth=2 | at most 0.5
keys | Enter
count | #layernorm textarea | 0
class | @layernorm b dx =  | wrong
is | @layernorm b dx =  >> .own code | dx = rstd * dxhat
$EDIT | dx = shape
keys | Enter
has | #layernorm .trio | The shapes differ: 5 × 6, not 4 × 5 × 6.

# the keyboard edits, discards and repairs | live
$TO_DX
focus | #layernorm .panel .edit >> nth=-1
keys | Enter Control+A
type | a = 2
keys | Shift+Enter
type | dx = a
keys | Enter
visible | #layernorm .verdict.wrong
asked | /check | {"layer": "layernorm", "edits": {"b$DX": "a = 2\ndx = a"}}
click | #layernorm .repair
count | #layernorm .typed | 0
focus | #layernorm .panel .edit >> nth=-1
keys | Enter
type | xx
keys | Escape
count | #layernorm .typed | 0
count | #layernorm textarea | 0

# a line of the steps is right, and printed | live
click | @layernorm_long_way f var =
click | $LONG .edit
fill | $LONG textarea | dcentred = 1
keys | Enter
visible | $LONG .verdict.right
is | $LONG pre >> nth=0 | printed

# a walk
has | .stop | The loss of one token
disabled | #walk-back
click | #walk-next
has | .stop | Predicted minus true | dlogits = (probs - true) * dlosses
is | .stop .mark | ✓ right
is | .stop figcaption | dlogits | probs | true
keys | ArrowRight
has | #walk-at | 3 of 8
keys | ArrowLeft ArrowLeft ArrowLeft
has | #walk-at | 1 of 8
click | .way button >> nth=4
has | .stop | dx_mid = dx_out + dx_mid_normed | Used twice
js | document.querySelector('.branch').ariaLabel.startsWith('x_mid goes') | true
click | .stop .heat >> nth=0 >> i >> nth=2
count | .stop .on | 2
click | .stop .words a
has | #block .row.open | dx_mid = dx_out + dx_mid_normed

# a walk with one's own text | live
click | #walk-next
fill | #walk-text | Hi!
asked | /text | {"text": "Hi!"}
has | #walk-at | 1 of 8: after “Hi” came “!”
is | #model-tokens .text | H | i | !
js | document.querySelectorAll('#model-attention tr').length | 3
click | #walk-next
focus | #walk-text
keys | ArrowLeft
has | #walk-at | 2 of 8
fill | #walk-text | é
is | #model-tokens .text | \xc3 | \xa9
fill | #walk-text | a
has | #walk-error | 1 tokens
count | #model-tokens .token | 2
"""
SCENES = [scene.split("\n", 1) for scene in SCENES.strip("# \n").split("\n\n# ")]


def say(rows):
    return Template(rows).substitute(WORDS)


@pytest.mark.parametrize(("head", "rows"), SCENES, ids=[head for head, _ in SCENES])
def test_a_scene(visit, server, head, rows):
    _, name, width, scheme, *_ = [*head.split(" | "), "", "", ""]
    page = visit(
        name or "study", int(width or 1440), color_scheme=scheme or "light", reduced_motion="reduce"
    )
    play(page, say(rows), server)


def test_the_address_of_a_line(visit):
    """It opens the row, which is in view with its partner."""
    page = visit()
    address = located(page, "@block b dx_mid = ").get_attribute("data-line")
    here = f"#block .row.open [data-line={address}]"
    below = int(address[1:]) + 1  # a comment
    play(page, f"do | location.hash = 'block:b{below}'\ncount | {here} | 1")
    for each in (here, "#block .row.open .forward [data-line]"):
        expect(page.locator(each)).to_be_in_viewport()


def test_the_turns_of_a_loop_and_the_gradients_beside_them(visit):
    """Each x is beside its own gradient: the i-th x beside the i-th last dx."""
    page = visit()
    page.locator("#gpt").scroll_into_view_if_needed()
    play(page, "click | @gpt f x, block = \nhas | #gpt .panel | turn of the loop")
    found = page.evaluate("""() => {
        const layer = layers.find(({name}) => name === "gpt");
        const made = (name) => layer.data.steps.filter((step) => madeBy(step, name, layer.data));
        return [made("x").map((step) => layer.gradient(step, "x").values),
            made("dx").map((step) => madeBy(step, "dx", layer.data).values)];
    }""")
    assert len(found[0]) == 5 and found[0] == found[1][::-1]
    number = page.locator("#gpt .panel .heat >> nth=0 >> i >> nth=0")
    first = number.inner_text()
    play(page, "choose | #gpt .panel .words select >> nth=0 | 2")
    assert number.inner_text() != first


@pytest.mark.parametrize("width", [320, PHONE])
def test_nothing_is_wider_than_a_phone_and_every_link_has_an_end(visit, width):
    page = visit(width=width)
    rows = """click | @layernorm_long_way b dx =
        click | @linear f y_rows =
        click | @attention_long_way f mix =
        click | #attention_long_way .break >> nth=0
        do | document.querySelectorAll('details').forEach((each) => each.open = 1)
        $FITS"""
    for stop in range(8):
        rows += f"\ndo | walk.go({stop})\n$FITS"
    play(page, say(rows))
    heights = "[...document.querySelectorAll('.equation')].map((each) => each.clientHeight)"
    assert max(page.evaluate(heights)) < 900
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
            play(
                page, say("count | $LONG | 1\n$EDIT | dx = 2\nvisible | #layernorm .verdict.wrong")
            )
            page.reload()
        page.route("**/*", lambda route: route.abort())
        rows = """$EDIT | dx = 2
            has | #ended | run $START again
            has | #layernorm .verdict.error | run $START again"""
        play(page, say(rows))
    assert urls[0] == url and "secret" not in str(urls)
