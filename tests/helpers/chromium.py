"""Use a page in headless Chromium, and see what it shows."""

import re
import time

import pytest

expect = pytest.importorskip("playwright.sync_api", reason="drives the browser").expect
TEXTS = {"has": "to_contain_text", "lacks": "not_to_contain_text", "is": "to_have_text"}


def located(page, where):
    """The locator of a selector. "@linear f rows = " is the line of linear's forward that begins so."""
    if not where.startswith("@"):
        return page.locator(where)
    line, *inside = where.split(" >> ")
    layer, side, begin = line[1:].split(" ", 2)
    code = page.locator("code", has_text=re.compile(rf"^\s*{re.escape(begin)}"))
    unit = page.locator(f"#{layer} .rows [data-line^={side}]", has=code).first
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
        elif verb == "choose":
            located(page, where).select_option(label=value[0])
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
