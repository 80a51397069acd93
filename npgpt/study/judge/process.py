"""Run a command with limits on time and output, and kill everything that it leaves behind.

A supervisor runs between this process and the command: this file, run as a script. It kills all processes of the
command when the command ends, when its time is up, and when this process ends. On Linux it is the subreaper of its
descendants: the kernel makes it the parent of every orphan, so neither a new session nor a double fork escapes.
Elsewhere only the process group is killed (on Windows only the command). The supervisor imports only the standard
library, to start quickly.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

GRACE = 5.0                     # seconds that the supervisor has to kill everything before it is killed itself
PR_SET_CHILD_SUBREAPER = 36     # of Linux's <sys/prctl.h>


def run(command, environment, seconds, most):
    """Run a command for at most `seconds`. Returns how it ended, and the bytes of its standard output and error.

    How it ended is "exit code 3" or "signal 9", or None if its time was up. most: how many bytes to keep of each of
    the two outputs; the rest is read and dropped.
    """
    child = subprocess.Popen([sys.executable, "-I", "-S", __file__, *command], env=environment, bufsize=0,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             start_new_session=True)
    written = bytearray(), bytearray()
    readers = [threading.Thread(target=read, args=arguments, daemon=True)
               for arguments in zip((child.stdout, child.stderr), written, most, strict=True)]
    try:
        for reader in readers:
            reader.start()
        in_time = ended(readers, seconds)       # the supervisor holds both pipes open until everything has ended
    finally:
        child.stdin.close()                     # this tells the supervisor to kill everything
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):      # macOS: PermissionError for a zombie
                os.killpg(child.pid, signal.SIGKILL)
        ended(readers, 1.0)
    code = abs(child.returncode)
    by_signal = child.returncode < 0 or code - 128 in signal.valid_signals()
    how = f"signal {code % 128}" if by_signal else f"exit code {code}"
    return how if in_time else None, *map(bytes, written)


def read(pipe, kept, most):
    """Read a pipe to its end; the first `most` bytes are kept."""
    with pipe:
        while chunk := pipe.read(1 << 16):
            kept += chunk[:most - len(kept)]


def ended(threads, seconds):
    """Wait for threads for at most `seconds`. Returns whether all have ended."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def supervise(command):
    """Be the supervisor: run the command until it or standard input ends, then kill what it left behind."""
    with contextlib.suppress(ImportError, OSError, TypeError, AttributeError):      # only Linux has it
        import ctypes
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def end_in_time():
        os.read(0, 1)
        child.kill()

    threading.Thread(target=end_in_time, daemon=True).start()
    code = child.wait()
    if sys.platform == "linux":
        end_children()
    os._exit(code if code >= 0 else 128 - code)


def end_children():
    """Kill all descendants of this process. Orphans become its children, because it is the subreaper."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:                            # there are some, and none has ended
            for child in children():
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.001)


def children():
    """The process ids of this process's children."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):      # it has ended meanwhile
            state_and_parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(state_and_parent[1]) == os.getpid():
                yield int(folder.name)


if __name__ == "__main__":
    supervise(sys.argv[1:])
