"""The study page in Chromium: the file without a network, and the live page with a server of
prepared answers.
"""

import collections
import functools
import threading
from pathlib import Path

import pytest

from npgpt import load
from npgpt.study.gradcheck.measure import truth
from npgpt.study.lessons.table import chosen_lessons, lesson_named
from npgpt.study.page.edits import view_name, views_of
from npgpt.study.page.live import Live
from npgpt.study.page.page import studied_layer, study_page
from npgpt.study.page.server import Server
from npgpt.study.page.steps import summary
from npgpt.study.page.whole_model import study_model

CHROMIUM = Path("/usr/bin/chromium")
LESSONS = {each.name: each for each in chosen_lessons("all")}
VIEWS = {view_name(view): view for each in LESSONS.values() for view in views_of(each)}
SLOW = pytest.mark.slow


def for_each(names):
    """Parametrize a test with layers, of which the largest are slow ones."""
    large = "gpt", "attention_long_way"
    marks = [pytest.param(name, marks=[SLOW] * (name in large)) for name in names]
    return pytest.mark.parametrize("name", marks)


@functools.cache
def studied(name):
    """What the page has of a layer: of one of VIEWS, or of one's own."""
    for module in ("jinja2", "pygments", "latex2mathml", "scipy"):
        pytest.importorskip(module, reason="makes the study page")
    return studied_layer(VIEWS.get(name) or lesson_named(name))


PLANTED = "<script>alert(1)</script><img src=x onerror=alert(2)>"
PHONE, DESK = 390, 1440
OWN = """
import numpy as np
calls = []
def N_forward(x, shape):
    C = x * shape
    for i in range(2):
        C = (C
             + i * x)
    N = np.where(C > 0, C, 0.1 * C)
    np.multiply(N, 1.0, out=N)
    state = {}
    state["n"] = state.get("n", 0) + 1
    N = N * state["n"]
    calls.append(1)
    return (N ** 2).sum(axis=-1), (x, shape, C, N)
def N_backward(dy, cache):
    x, shape, C, N = cache
    dN = dy[..., None] * 2.0 * N
    dC = dN * np.where(C > 0, 1.0, 0.1)
    dx = np.zeros_like(x)
    for i in range(2):
        dx += i * dC
    dx += dC * shape
    return dx, (dC * x).sum(axis=0)
def data_forward(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    p = e / np.sum(e, axis=-1, keepdims=True)
    return p, p
def data_backward(dp, p):
    dx = p * (dp - np.sum(dp * p, axis=-1, keepdims=True))
    return dx
def walk_forward(x, w):
    y = np.einsum("bi,ij->bj", x, w)
    h = np.maximum(y, 0)
    return h, (x, w, y)
def walk_backward(dh, cache):
    x, w, y = cache
    dy = np.where(y > 0, dh, 0.0)
    dx = dy @ w.T
    dw = np.dot(x.T, dy)
    return dx, dw
def softsign_forward(x):
    y = np.log1p(np.exp(x)) + x / (1 + abs(x))
    return y, x
def softsign_backward(dy, x):
    return dy * (1 / (1 + np.exp(-x)) + 1 / (1 + np.abs(x)) ** 2)
class Scale:
    def __init__(self):
        self.weight = np.arange(1.0, 4.0)
    def forward(self, x):
        self.x = x
        y = self.x * self.weight
        return y
    def backward(self, dy):
        self.dweight = (dy * self.x).sum(axis=0)
        dx = dy * self.weight
        return dx
"""


@pytest.fixture(scope="package")
def browser():
    for module in ("jinja2", "pygments", "latex2mathml", "scipy"):
        pytest.importorskip(module, reason="makes the study page")
    playwright = pytest.importorskip("playwright.sync_api", reason="drives the browser")
    if not CHROMIUM.exists():
        pytest.skip("needs Debian's chromium: apt-get install chromium")
    with playwright.sync_playwright() as api:
        with api.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        ) as started:
            yield started


@pytest.fixture(scope="package")
def files(tmp_path_factory):
    """The page of all layers, that of a model only, both with planted markup; and the live page of
    three layers.
    """
    folder = tmp_path_factory.mktemp("page")
    model, tokenizer = load("tiny")
    study = study_model(model, tokenizer, PLANTED, "<b>a model</b>")
    study["tokens"][0] = PLANTED  # a tokenizer with such a token
    study["lens"][1][0] = (PLANTED, 0.5, 0.5)
    three = [LESSONS[name] for name in ("chain", "linear", "layernorm")]
    short = study_model(model, tokenizer, "To be", "a model")
    pages = {
        "study": study_page(list(LESSONS.values()), study),
        "look": study_page([], study),
        "own": study_page(own_layers(folder), study),
        "live": study_page(three, short, {"token": "secret"}),
    }
    for name, page in pages.items():
        (folder / f"{name}.html").write_bytes(page)
    return folder


def own_layers(folder):
    """Layers whose names the page has, too."""
    path = folder / "made_of.py"
    path.write_text(OWN)
    return [
        lesson_named(f"{path}:{key}")
        for key in ("data --input x=4,4", "walk --input x=4,3 --input w=3,2", "Scale --input x=4,3")
    ]


def judged(body):
    """An answer to /check: a line with a 1 is right, any other is wrong."""
    lines, true = list(body["edits"]), truth(LESSONS["layernorm"]).inputs["x"]
    wrong = "1" not in str(body["edits"].values())
    given = true[0] if "shape" in str(body) else true + 0.5
    checked = {"name": "dx", "verdict": "WRONG" if wrong else "ok"}
    checked["said"] = ["All entries are 0.5 too large."] * wrong
    return {
        "verdict": "wrong" if wrong else "right",
        "text": f"dx is wrong. {PLANTED}" if wrong else "Every gradient is right.",
        "first": lines[0] if wrong else None,
        "output": "printed",
        "arrays": {lines[0]: [{"name": "dx", "given": summary(given)}]},
        "lines": [checked | {"line": line} for line in lines],
    }


@pytest.fixture
def server(files):
    """The server with the page of three layers; /check gives prepared answers, because a judge
    takes seconds.
    """
    live, asked = Live(LESSONS.values(), *load("tiny"), "a model"), collections.defaultdict(list)

    def noting(path, action):
        return lambda body: asked[path].append(body) or action(body)

    actions = live.actions | {"/check": judged}
    server = Server({path: noting(path, action) for path, action in actions.items()})
    server.asked, server.token = asked, "secret"  # asked: path -> the requests
    page = (files / "live.html").read_bytes()
    threading.Thread(target=server.serve, args=[page], daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture
def visit(browser, files, server):
    """visit(file, width, **options) -> its page; at the end: no error, no dialog, no request to
    anywhere else.
    """
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
    own = [f"{here}{path}" for path in ("/?token=secret", *server.actions)]
    allowed = "data:", files.as_uri(), *own
    assert [url for url in requests if not url.startswith(allowed)] == []
    for context in browser.contexts:
        context.close()
