"""Use a page in headless Chromium, and see what it shows."""

import json
import re
import time

import pytest

expect = pytest.importorskip("playwright.sync_api", reason="drives the browser").expect


def located(page, where):
    """The locator of a selector. "@linear f rows = " is the line of linear's forward that begins
    so.
    """
    if not where.startswith("@"):
        return page.locator(where)
    line, *inside = where.split(" >> ")
    layer, side, begin = line[1:].split(" ", 2)
    code = page.locator("code", has_text=re.compile(rf"^\s*{re.escape(begin)}"))
    unit = page.locator(f"#{layer} .rows [data-line^={side}]", has=code).first
    return unit.locator(*inside) if inside else unit


def await_value(page, verb, where, value, server):
    """Wait until a script, or the last request to a path, gives a value."""
    end = time.monotonic() + 15.0
    while True:
        found = [page.evaluate(where)] if verb == "js" else server.asked[where][-1:]
        if found == [value] or time.monotonic() > end:
            break
        page.wait_for_timeout(50)
    assert found == [value], where


def play(page, rows, server=None):
    """Do and see what each row says: "verb | where | value | …". What is seen may take a while."""
    for row in rows.strip().split("\n"):
        verb, where, *values = row.strip().split(" | ")
        if verb == "keys":
            for key in where.split():
                page.keyboard.press(key)
        elif verb == "type":
            page.keyboard.type(where)
        elif verb == "do":
            page.evaluate(where)
        elif verb in ("js", "asked"):
            await_value(page, verb, where, json.loads(values[0]), server)
        else:
            use_element(located(page, where), verb, values)


def use_element(element, verb, values):
    match verb:
        case "click" | "hover" | "focus":
            getattr(element, verb)()
        case "fill":
            element.fill(*values or [""])
        case "choose":
            element.select_option(label=values[0])
        case "class":
            expect(element).to_have_class(re.compile(rf"\b{values[0]}\b"))
        case "count":
            expect(element).to_have_count(int(values[0]))
        case "has":
            for each in values:
                expect(element).to_contain_text(each, use_inner_text=True)
        case "is":
            expect(element).to_have_text(values, use_inner_text=True)
        case _:  # visible, hidden, disabled
            getattr(expect(element), f"to_be_{verb}")()
