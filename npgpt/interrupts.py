"""Signals that let a training run save and stop."""

import contextlib
import signal
import threading


@contextlib.contextmanager
def calling_on_signals(function):
    """Within it, the first Ctrl-C, SIGTERM or SIGHUP calls function(its number).

    The next one does what it did before, but SIGHUP, which a closing terminal sends twice, does
    nothing more. A signal that is ignored, as in a background job, stays ignored.
    """
    hang_up = getattr(signal, "SIGHUP", None)  # Windows lacks it

    def handle(number, frame):
        function(number)
        if number != hang_up:
            signal.signal(number, previous[number])

    previous = {}
    if threading.current_thread() is threading.main_thread():  # Python allows handlers only there
        numbers = filter(None, (signal.SIGINT, signal.SIGTERM, hang_up))
        previous = {
            number: handler
            for number in numbers
            if (handler := signal.getsignal(number)) != signal.SIG_IGN
        }
    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
