"""Detect that a file was saved, whether the editor writes into it or replaces it."""

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
    """The state of a file once it no longer changes: an editor may save in several steps."""
    last = state(path)
    while True:
        time.sleep(PAUSE)
        now = state(path)
        if now == last:
            return now
        last = now
