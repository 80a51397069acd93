"""What commands print: the encoding of it, and a reader of it that goes away."""

import errno
import json
import math
import os
import sys

READER_GONE = 128 + 13  # the exit code of a program that SIGPIPE ends


def set_encoding(name):
    """Let sys.stdout or sys.stderr write UTF-8 to a file or a pipe.

    A terminal that lacks a character shows a question mark. What is closed (`>&-`) takes all.
    """
    stream = getattr(sys, name)
    if stream is None:
        setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
    if not hasattr(stream, "reconfigure"):  # of a notebook
        return
    if not stream.isatty():
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    elif stream is sys.stdout:
        stream.reconfigure(errors="replace")


def print_json(**fields):
    """Print one line of JSON, in which an infinite number is null."""
    plain = {name: None if value == math.inf else value for name, value in fields.items()}
    print(json.dumps(plain))


def say(line):
    """Print a line on standard error, if anybody is there to read it."""
    try:
        print(line, file=sys.stderr)
    except OSError:
        sys.stderr = None  # Python would flush it at exit, and fail


def is_reader_gone(error):
    """Whether an OSError of printing says that a pipe or a terminal has been closed."""
    return error.errno in (errno.EPIPE, errno.EIO) and error.filename is None
