"""The study page in Chromium: the file without a network, and the live page with a server of prepared answers."""

import collections
import threading
from pathlib import Path

import pytest

from npgpt import load
from npgpt.study.gradcheck.measure import truth
from npgpt.study.lessons.table import chosen_lessons, lesson_named
from npgpt.study.page.live import Live
from npgpt.study.page.page import study_page
from npgpt.study.page.server import Server
from npgpt.study.page.steps import summary
from npgpt.study.page.whole_model import study_model
from tests.study.page.test_origins import OWN

CHROMIUM = Path("/usr/bin/chromium")
LESSONS = {each.name: each for each in chosen_lessons("all")}
PLANTED = "<script>alert(1)</script><img src=x onerror=alert(2)>"
PHONE, DESK = 390, 1440


@pytest.fixture(scope="package")
def browser():
    for module in ("jinja2", "pygments", "latex2mathml", "scipy"):
        pytest.importorskip(module, reason="makes the study page")
    playwright = pytest.importorskip("playwright.sync_api", reason="drives the browser")
    if not CHROMIUM.exists():
        pytest.skip("needs Debian's chromium: apt-get install chromium")
    with playwright.sync_playwright() as api:
        with api.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]) as started:
            yield started


@pytest.fixture(scope="package")
def files(tmp_path_factory):
    """The page of all layers, that of a model only, both with planted markup; and the live page of three layers."""
    folder, study = tmp_path_factory.mktemp("page"), study_model(*load("tiny"), PLANTED, "<b>a model</b>")
    study["tokens"][0] = PLANTED           # a tokenizer with such a token
    study["lens"][1][0] = (PLANTED, 0.5, 0.5)
    live = {"token": "secret"}
    for name, page in {"study": study_page(list(LESSONS.values()), study), "look": study_page([], study),
                       "own": study_page(own_layers(folder), study),
                       "live": study_page([LESSONS[name] for name in ("chain", "linear", "layernorm")],
                                          study_model(*load("tiny"), "To be", "a model"), live)}.items():
        (folder / f"{name}.html").write_bytes(page)
    return folder


def own_layers(folder):
    """Layers whose names the page has, too."""
    path = folder / "made_of.py"
    path.write_text(OWN)
    return [lesson_named(f"{path}:{key}") for key in (
        "data --input x=4,4", "walk --input x=4,3 --input w=3,2", "Scale --input x=4,3")]


def judged(body):
    """An answer to /check: a line with a 1 is right, any other is wrong."""
    lines, true = list(body["edits"]), truth(LESSONS["layernorm"]).inputs["x"]
    wrong = "1" not in str(body["edits"].values())
    given = true[0] if "shape" in str(body) else true + 0.5
    return {
        "verdict": "wrong" if wrong else "right",
        "text": f"dx is wrong. {PLANTED}" if wrong else "Every gradient is right.",
        "first": lines[0] if wrong else None,
        "output": "printed",
        "arrays": {
            lines[0]: [] if "None" in str(body) else [{"name": "dx", "given": summary(given)}]
        },
        "lines": [
            {
                "line": line,
                "name": "dx",
                "verdict": "WRONG" if wrong else "ok",
                "said": ["All entries are 0.5 too large."] if wrong else [],
            }
            for line in lines
        ],
    }


@pytest.fixture
def server(files):
    """The server with the page of three layers; /check gives prepared answers, because a judge takes seconds."""
    actions, asked = (
        Live(LESSONS.values(), *load("tiny"), "a model").actions,
        collections.defaultdict(list),
    )
    server = Server({path: lambda body, path=path, action=action: asked[path].append(body) or action(body)
                     for path, action in {**actions, "/check": judged}.items()})
    server.asked, server.token = asked, "secret"        # asked: path -> the requests
    threading.Thread(target=server.run, args=[(files / "live.html").read_bytes()], daemon=True).start()
    yield server
    server.shutdown()


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
