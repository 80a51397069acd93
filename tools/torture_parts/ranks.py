"""Training on ranks, of which one is killed: the job must end soon, say which rank has died, and leave no process."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")        # what launchers tell each rank


def mpiexec(n):
    """How a command begins that starts n ranks, a list; None if there is no mpiexec."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        return None
    version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
    others = ["--oversubscribe", *["--allow-run-as-root"] * (os.geteuid() == 0)] if "Open MPI" in version else []
    return [found, *others, "-n", str(n)]


def processes(mark):
    """Process -> its rank, of all that have the `mark` in their environment; the watchman's is "watchman", and that of
    a launcher None. A process that has ended and is waited for does not count.
    """
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = dict(line.partition("=")[::2] for line in (folder / "environ").read_text().split("\0"))
            command = (folder / "cmdline").read_text().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        if mark in environment and int(folder.name) != os.getpid():
            rank = next((int(environment[name]) for name in RANKS if name in environment), None)
            found[int(folder.name)] = "watchman" if any(map(re.compile("watch.py$").search, command)) else rank
    return found
