"""Ctrl-C in the command `npgpt`: at most one line and exit code 130, at any moment, and never a traceback.

npgpt/__init__.py imports this module first. The imports after it take up to a second, in which Python would answer with
a traceback of whatever is being imported. Other programs keep their own handlers, and a signal that is ignored, as in a
background job of a script, stays ignored.
"""

import contextlib
import os
import signal
import sys
import threading

from npgpt.launcher import SIZES, first, number_in

EXIT_CODE = 130         # what shells report for Ctrl-C


@contextlib.contextmanager
def interruptible():
    """Within it, Ctrl-C raises KeyboardInterrupt, for main to report; afterwards it ends the process in silence."""
    ours = signal.getsignal(signal.SIGINT) is _say_so_and_end
    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, _end)


@contextlib.contextmanager
def calling_on_signals(function):
    """Within it, the first Ctrl-C or SIGTERM calls a function, and the next one does what it did before.

    A signal that is ignored, as in a background job, stays ignored.
    """
    def handle(number, frame):
        function()
        signal.signal(number, previous[number])

    previous = {}
    if threading.current_thread() is threading.main_thread():       # Python allows handlers only there
        previous = {number: handler for number in (signal.SIGINT, signal.SIGTERM)
                    if (handler := signal.getsignal(number)) != signal.SIG_IGN}
    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _say_so_and_end(number, frame):
    """End the process before the command runs. Only rank 0 prints the line."""
    if first():
        os.write(2, b"interrupted\n")
    _end(number, frame)


def _end(number, frame):
    if number_in(SIZES, 1) > 1:     # mpiexec ends the other ranks if a signal ended one, not for its exit code
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    os._exit(EXIT_CODE)


_name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
_is_command = _name == "npgpt" or _name == "-m" and "npgpt" in sys.orig_argv    # "-m" while Python looks for the module
if _is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _say_so_and_end)
