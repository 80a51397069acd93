"""A screen of `npgpt learn`: a title, paragraphs, and the keys, in as many lines as the terminal has."""

import os
import re
import shutil
import textwrap

CLEAR, BOLD, GREEN, REVERSE, PLAIN = "\x1b[2J\x1b[H", "\x1b[1m", "\x1b[32m", "\x1b[7m", "\x1b[0m"
UNBROKEN = "\xa0"       # a blank at which no line is broken
CODE = re.compile(r"\x1b\[\d+m")


def show(title, paragraphs, last):
    """Clear the terminal and print a screen. last: its last paragraph, or None."""
    width, height = shutil.get_terminal_size()
    frame = [wrapped(text, width) for text in (title, last) if text]
    # A blank line follows each part, and the cursor is below.
    room = height - sum(text.count("\n") + 2 for text in frame) - 1
    body = fitted("\n\n".join(wrapped(each, width) for each in paragraphs).split("\n"), room)
    frame = [style(BOLD, text) for text in frame]
    print(style(CLEAR, "") + "\n\n".join([frame[0], "\n".join(body), *frame[1:]]), flush=True)


def wrapped(text, width):
    """Return a text in lines of at most `width` characters, if its words allow it; broken lines stay indented."""
    lines = text.expandtabs().split("\n")
    return "\n".join(line if len(CODE.sub("", line)) <= width else textwrap.fill(
        line, width, subsequent_indent=" " * (len(line) - len(line.lstrip())), break_long_words=False,
        break_on_hyphens=False) for line in lines).replace(UNBROKEN, " ")


def fitted(lines, room):
    """Return as many lines as there is room for.

    The right gradients of a verdict are left out first, then all but the first wrong one, then lines from the top.
    """
    verdicts = [i for i, line in enumerate(lines) if line.endswith((" ok", " WRONG", " ..."))]
    first = next((i for i in verdicts if lines[i].endswith(" WRONG")), None)
    order = sorted(set(verdicts) - {first}, key=lambda i: (not lines[i].endswith(" ok"), -i))
    order += [i for i in range(len(lines)) if i not in verdicts]
    out = order[:len(lines) - room + 1] if len(lines) > room else []
    note = [f"[{len(out)} lines are left out: the terminal is too small]"] if out else []
    return note + [line for i, line in enumerate(lines) if i not in out]


def style(code, text):
    """Return a text in a style, or unchanged if the terminal or the user wants none."""
    if os.environ.get("TERM") == "dumb" or "NO_COLOR" in os.environ and code != CLEAR:
        return text
    return code + text + (PLAIN if text else "")
