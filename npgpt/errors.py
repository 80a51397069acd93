"""UserError, remarks on standard error, and functions that make text from outside safe to print."""

import functools
import re
import sys
import traceback

quiet = False  # whether remarks and progress bars are left out; the command's -q sets it
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # category Cc, but not \t and \n


class UserError(ValueError):
    """An error that the user can correct. Its message says what is wrong and what to do.

    The commands print the message and exit with code 2. The message may quote names and values from
    files: it is always one line of printable characters and of limited length.
    """

    def __init__(self, message):
        super().__init__(one_line(message))


class NotFiniteError(UserError):
    """An infinite or NaN loss or gradient norm; the step that raised it changed nothing."""


class BackwardError(UserError):
    """A function of the learner failed during training."""


def one_line(text, most=1000):
    """Return a text as one line of at most `most` printable characters.

    A longer text is cut in the middle: the beginning says what is wrong, the end says what to do.
    """
    line = printable(" ".join(str(text).split()))
    return line if len(line) <= most else f"{line[: most - most // 2 - 3]}...{line[-(most // 2) :]}"


def printable(text, kept=""):
    """Replace unprintable characters by escapes such as "\\x1b", except those in `kept`."""
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text
    )


def without_controls(text):
    """Replace the control characters, which steer a terminal, by escapes such as "\\x1b"."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def raised_at(error, file):
    """Return the number of the line in a file that raised an exception, or None.

    Of several lines it is the innermost, but in an endless recursion the outermost.
    """
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    if isinstance(error, RecursionError):
        lines = lines[:1]
    return lines[-1] if lines else None


def describe(error):
    """Return the type of an exception and the first line of its text, as one short line."""
    name = type(error).__name__
    if isinstance(error, SystemExit):
        return f"{name}: the code ends the program"
    try:
        first, *_ = str(error).strip().splitlines() or [""]
    except Exception:  # an exception whose __str__ fails
        first = ""
    return one_line(f"{name}: {first}" if first else name, 200)


def remark(line, **options):
    """Print a line that -q leaves out; the options are those of `print`."""
    if not quiet:
        print(line, **options)


@functools.cache
def say_once(line, say=remark):
    """Print a line on standard error; the same line only once.

    say: `print` if -q must not leave it out.
    """
    say(f"npgpt: {one_line(line)}", file=sys.stderr)
