"""What npgpt raises when its user, and not its code, has to change something, and how foreign texts are shown."""


class UserError(ValueError):
    """One sentence that says what is wrong and what to do. The commands print it alone and exit with code 2.

    It may quote names and values out of files: whatever they hold, it stays one line of a bearable length.
    """

    def __init__(self, message):
        super().__init__(one_line(message))


def one_line(text, most=1000):
    """A foreign text as one line of at most `most` characters, of which none steers a terminal.

    What is too long is cut in the middle: the beginning says what it is about, the end what to do.
    """
    text = str(text)
    if len(text) > 16 * most:       # a text of megabytes is not worked on as a whole
        text = f"{text[:8 * most]} {text[-8 * most:]}"
    line = printable(" ".join(text.split()))
    return line if len(line) <= most else f"{line[:most - most // 2 - 3]}...{line[-(most // 2):]}"


def printable(text, kept=""):
    """A text with whatever cannot be printed written out as "\\x1b" and the like, except for characters in `kept`."""
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)
