"""Seeing that a file was saved, by any editor: those that write into it, and those that put a new file in its place."""

import os
import time

PAUSE = 0.05        # seconds in which a file that an editor is writing changes again


def state(path):
    """What changes when a file is saved: its time, size and number; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def settled_state(path):
    """The state of a file that nobody is writing at the moment: an editor may save in several steps."""
    last = state(path)
    while True:
        time.sleep(PAUSE)
        now = state(path)
        if now == last:
            return now
        last = now
