"""What npgpt raises when its user, and not its code, has to change something."""


class UserError(ValueError):
    """One sentence that says what is wrong and what to do. The commands print it alone and exit with code 2."""


def one_line(text, most=1000):
    """A text as one printable line: spaces for line breaks, no control characters, at most `most` characters.

    What is too long is cut in the middle: the beginning says what it is about, the end what to do.
    """
    text = str(text)
    if len(text) > 4 * most:
        text = f"{text[:2 * most]} … {text[-2 * most:]}"
    text = " ".join(text.split())
    text = "".join(character if character.isprintable() else "\ufffd" for character in text)
    return text if len(text) <= most else f"{text[:most // 2]} … {text[len(text) - most // 2 + 3:]}"
