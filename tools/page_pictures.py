"""Make the README's picture of the study page by Chromium: page.webp, in which it is used for 14
seconds.

    python tools/page_pictures.py
"""

import io
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from npgpt.cli.main import main as npgpt

ROOT = Path(__file__).resolve().parents[1]
ANIMATION = ROOT / "npgpt/study/page/page.webp"
NUMBER, ANSWER = ".first [data-of={}] i >> nth={}", ".first label:has(input) >> nth={}"
ROW = "#gelu_tanh .rows .row:has-text('dinner = ')"
# What to do, with which element, and for how many seconds to show it.
STEPS = [
    ("click", "#play", 3.2),
    ("click", NUMBER.format("dweight", 3), 1.2),
    ("click", NUMBER.format("dx", 1), 1.2),
    ("drag", NUMBER.format("weight", 2), 1.0),
    ("click", ANSWER.format(2), 1.0),
    ("click", ANSWER.format(1), 0.5),
    ("scroll", ROW, 0.4),
    ("click", f"{ROW} >> .toggle", 1.0),
    ("click", f"{ROW} >> .item.backward i >> nth=8", 1.2),
    ("click", f"{ROW} >> text=Break it", 1.5),
    ("click", f"{ROW} >> text=Repair", 0.8),
    ("scroll", "#top", 0.5),
]
WIDTH, HEIGHT = 1320, 820  # pixels
FRAME, RISE = 100, 60  # milliseconds; pixels that a number is dragged


def frames(page):
    """Yield the picture after each `FRAME`. The page's clock stands still meanwhile, however long
    the picture takes.
    """
    page.clock.pause_at(time.time() + 1)
    for verb, target, seconds in STEPS:
        element, count = page.locator(target).first, round(1000 * seconds / FRAME)
        if verb == "scroll":
            top = "(each) => scrollTo(0, each.getBoundingClientRect().top + scrollY - 60)"
            element.evaluate(top)
        elif verb == "click":
            element.click()
        elif verb == "drag":
            element.hover()
            page.mouse.down()
            box = element.bounding_box()
        for n in range(1, count + 1):
            page.clock.run_for(FRAME)
            if verb == "drag":
                page.mouse.move(
                    box["x"] + box["width"] / 2, box["y"] + box["height"] / 2 - RISE * n / count
                )
            yield picture(page)
        page.mouse.up()


def picture(page):
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def main():
    with (
        tempfile.TemporaryDirectory() as folder,
        sync_playwright() as api,
        api.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"]) as browser,
    ):
        npgpt(["study", "--out", f"{folder}/study.html"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.clock.install()
        page.goto(Path(folder, "study.html").as_uri())
        first, *others = frames(page)
        first.save(
            ANIMATION,
            save_all=True,
            append_images=others,
            duration=FRAME,
            loop=0,
            quality=75,
            method=4,
        )
    print(f"{ANIMATION.relative_to(ROOT)}: {ANIMATION.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
