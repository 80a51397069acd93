"""Ctrl-C in the command `npgpt`: at most one line and exit code 130, at every moment, and never a traceback.

npgpt/__init__.py imports this module first. The imports after it take up to a second, in which Python would answer with
a traceback of whatever is being imported. Other programs keep their own handlers, and a signal that is ignored, as in a
background job of a script, stays ignored.
"""

import contextlib
import os
import signal
import sys

from npgpt.launcher import SIZES, first, number_in

EXIT_CODE = 130         # what shells report for Ctrl-C
SAYS_SO, RAISES, SILENT = range(3)
_answer = SAYS_SO       # until the command runs; while it runs; afterwards


@contextlib.contextmanager
def interruptible():
    """Within it, Ctrl-C raises KeyboardInterrupt, as Python does, for main to say so."""
    global _answer
    _answer = RAISES
    try:
        yield
    finally:
        _answer = SILENT


def _on_ctrl_c(number, frame):
    if _answer == RAISES:
        raise KeyboardInterrupt
    _end()


def _on_unraisable(unraisable):
    """End where KeyboardInterrupt came in a `__del__` or the like, in which Python prints it and goes on."""
    if unraisable.exc_type is KeyboardInterrupt:
        _end()
    sys.__unraisablehook__(unraisable)


def _end():
    """End the process at once. Of all ranks the first says so, unless the command has ended."""
    global _answer
    says_so, _answer = _answer != SILENT and first(), SILENT
    try:
        if says_so:
            os.write(2, b"interrupted\n")
    finally:
        if number_in(SIZES, 1) > 1:     # mpiexec ends the other ranks if a signal ended one, not for its exit code
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        os._exit(EXIT_CODE)


def _is_command():
    """Whether this process is the command `npgpt`, or `python -m npgpt.cli`."""
    name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    return name == "npgpt" or name == "-m" and "npgpt.cli" in sys.orig_argv     # "-m" while Python looks for the module


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _on_ctrl_c)
    sys.unraisablehook = _on_unraisable
