"""Read single keys from a terminal, without Enter and without echo.

`with single_keys() as read`: read(seconds) returns the next key in lower case, or None if none is
pressed in that time. An arrow key, a function key, Escape or Alt with a key is `OTHER`. At the end
of the input it returns "q". Ctrl-C raises KeyboardInterrupt.
"""

import contextlib
import os
import re
import select
import signal
import sys
import time

# instead of a key: the process continues after Ctrl-Z, and must draw the screen again
REDRAW = "redraw"
ENTER = "\n"
OTHER = "\x1b"  # any key that sends an escape sequence
ESCAPE = re.compile(r"\x1b(\[[0-?]*[@-~]|O.|.)?")  # what an arrow key, a function key or Alt sends


@contextlib.contextmanager
def unix_keys():
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    waiting = []

    def stop(*_):  # Ctrl-Z: the shell gets the terminal as it was
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        os.kill(os.getpid(), signal.SIGSTOP)
        tty.setcbreak(terminal, termios.TCSADRAIN)
        waiting.append(REDRAW)

    def read(seconds):
        if not waiting and select.select([terminal], [], [], seconds)[0]:
            typed = os.read(terminal, 256)
            if not typed:
                return "q"
            text = ESCAPE.sub(OTHER, typed.decode(errors="replace"))
            waiting.extend(text.lower().replace("\r", ENTER))
        return waiting.pop(0) if waiting else None

    ours = {signal.SIGTSTP: stop, signal.SIGTERM: lambda *_: sys.exit(128 + signal.SIGTERM)}
    handlers = {number: signal.signal(number, handler) for number, handler in ours.items()}
    try:
        tty.setcbreak(terminal, termios.TCSADRAIN)
        yield read
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def windows_keys():
    import msvcrt

    os.system("")  # this makes the console understand escape codes

    def read(seconds):
        deadline = time.monotonic() + seconds
        while not msvcrt.kbhit():
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)
        key = msvcrt.getwch()
        if key in ("\0", "\xe0"):  # an arrow or function key, in two parts
            msvcrt.getwch()
            return OTHER
        if key == "\x03":
            raise KeyboardInterrupt
        return key.lower().replace("\r", ENTER)

    yield read


single_keys = windows_keys if os.name == "nt" else unix_keys
