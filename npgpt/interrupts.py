"""Signals that let a training run save and stop."""

import contextlib
import signal
import threading


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
