"""A screen of `npgpt learn`: a title, paragraphs, and the keys, wrapped to the width of the terminal."""

import os
import re
import shutil
import textwrap

CLEAR, BOLD, GREEN, REVERSE, PLAIN = "\x1b[2J\x1b[H", "\x1b[1m", "\x1b[32m", "\x1b[7m", "\x1b[0m"
UNBROKEN = "\xa0"       # a blank at which no line is broken
CODE = re.compile(r"\x1b\[\d+m")


def show(title, paragraphs, last):
    """Clear the terminal and print a screen. last: its last paragraph, or None."""
    width = shutil.get_terminal_size().columns
    title, *last = (style(BOLD, wrapped(text, width)) for text in (title, last) if text)
    print(style(CLEAR, "") + "\n\n".join([title, *(wrapped(each, width) for each in paragraphs), *last]), flush=True)


def wrapped(text, width):
    """Return a text in lines of at most `width` characters, if its words allow it; broken lines stay indented."""
    lines = text.expandtabs().split("\n")
    return "\n".join(line if len(CODE.sub("", line)) <= width else textwrap.fill(
        line, width, subsequent_indent=" " * (len(line) - len(line.lstrip())), break_long_words=False,
        break_on_hyphens=False) for line in lines).replace(UNBROKEN, " ")


def style(code, text):
    """Return a text in a style, or unchanged if the terminal or the user wants none."""
    if os.environ.get("TERM") == "dumb" or "NO_COLOR" in os.environ and code != CLEAR:
        return text
    return code + text + (PLAIN if text else "")
