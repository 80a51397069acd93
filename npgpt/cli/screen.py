"""A screen of `npgpt learn`: a title, paragraphs and keys, wrapped to the terminal's width."""

import os
import re
import shutil
import textwrap

CLEAR, BOLD, GREEN, REVERSE, PLAIN = "\x1b[2J\x1b[H", "\x1b[1m", "\x1b[32m", "\x1b[7m", "\x1b[0m"
MOST = 20  # lines of a page
AROUND = 9  # lines of a screen around a page: the title, the page's number, the keys
UNBROKEN = "\xa0"  # a blank at which no line is broken
CODE = re.compile(r"\x1b\[\d+m")


def show(title, paragraphs, last):
    """Clear the terminal and print a screen, without the first paragraphs if it is too long.

    last: its last paragraph, or None.
    """
    width, height = shutil.get_terminal_size()
    title, *last = (style(BOLD, wrapped(text, width)) for text in (title, last) if text)
    body = [wrapped(each, width) for each in paragraphs]
    while len(body) > 1 and len("\n\n".join([title, *body, *last]).split("\n")) >= height:
        body.pop(0)  # the oldest
    print(style(CLEAR, "") + "\n\n".join([title, *body, *last]), flush=True)


def pages(paragraphs):
    """Return the paragraphs in pages, lists of them, that fit the terminal with what is around.

    A page has at most 20 lines. A formula stays with the words before it, and a heading with what
    follows.
    """
    size = shutil.get_terminal_size()
    most = max(min(MOST, size.lines - AROUND), 1)
    parts = []
    for text in paragraphs:
        if parts and (text.startswith("    ") or re.fullmatch("The gradient of .*:", parts[-1])):
            parts[-1] += f"\n\n{text}"
        else:
            parts.append(text)
    found, height = [[]], 0
    for text in parts:
        lines = 1 + wrapped(text, size.columns).count("\n") + 1  # and an empty line
        if found[-1] and height + lines > most + 1:
            found.append([])
            height = 0
        found[-1].append(text)
        height += lines
    return found


def wrapped(text, width):
    """Return a text in lines of at most `width` characters; broken lines stay indented.

    Longer words are not broken.
    """
    lines = []
    for line in text.expandtabs().split("\n"):
        if len(CODE.sub("", line)) > width:
            indent = " " * (len(line) - len(line.lstrip()))
            wrapper = textwrap.TextWrapper(width, "", indent, break_long_words=False)
            wrapper.break_on_hyphens = False
            line = wrapper.fill(line)
        lines.append(line)
    return "\n".join(lines).replace(UNBROKEN, " ")


def style(code, text):
    """Return a text in a style, or unchanged if the terminal or the user wants none."""
    if os.environ.get("TERM") == "dumb" or "NO_COLOR" in os.environ and code != CLEAR:
        return text
    return code + text + (PLAIN if text else "")
