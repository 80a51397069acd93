"""Jobs of several ranks, started by mpiexec: how they end, what they print, which processes are left.

Every process of a job inherits a mark in its environment, so none can hide. Linux only.
"""

import contextlib
import functools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LEFT = 5            # seconds until the last process of a job must have ended


@functools.cache
def mpiexec():
    """Return the beginning of a command that starts ranks, a list; None if there is no mpiexec."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        return None
    version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
    return [found, *(["--oversubscribe"] + ["--allow-run-as-root"] * (os.geteuid() == 0)) * ("Open MPI" in version)]


def why_no_jobs():
    """Return the reason why jobs cannot run here, or None."""
    if not Path("/proc/self/environ").exists():
        return "there is no /proc"
    if mpiexec() is None:
        return "there is no mpiexec"
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        return "mpi4py is missing"


class Job:
    """`python -c code` with these arguments, on n ranks, in a folder."""

    def __init__(self, n, code, arguments, folder):
        command, self.began = [*mpiexec(), "-n", n, sys.executable, "-c", code, *arguments], time.time()
        self.mark, self.out, self.err = f"NPGPT_JOB_{secrets.token_hex(8)}", folder / "stdout", folder / "stderr"
        environment = {**os.environ, self.mark: "", "PYTHONPATH": str(ROOT)}
        environment.pop("NPGPT_DATA_DIR", None)
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen([str(part) for part in command], cwd=folder, env=environment, stdout=out,
                                            stderr=err, stdin=subprocess.DEVNULL)

    def printed(self):
        """Return what it has printed so far: standard output and standard error."""
        return self.out.read_text(errors="replace"), self.err.read_text(errors="replace")

    def wait_for(self, text, seconds=30):
        """Wait until it has printed a text."""
        deadline = time.monotonic() + seconds
        while text not in self.printed()[0]:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"{text} does not come: {self.printed()}")
            time.sleep(0.01)

    def end(self, seconds=60):
        """Wait for the end; return the exit code, standard output and standard error.

        Raises TimeoutError if it takes longer, or if processes are left; then they are ended.
        """
        try:
            code = self.process.wait(seconds)
            deadline = time.monotonic() + LEFT
            while (left := processes(self.mark)) and time.monotonic() < deadline:
                time.sleep(0.02)
            if left:
                raise TimeoutError(f"left after its end: {len(left)} processes")
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"no end after {seconds} seconds: {self.printed()}") from None
        finally:
            self.clean()
        return code, *self.printed()

    def clean(self):
        """Kill the processes that are still running."""
        if self.process.poll() is None:
            self.process.kill()
        for process in processes(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()
        sweep(self.began)


def processes(mark):
    """Return the ids of all running processes with a mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{mark}=".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def sweep(since):
    """Delete the shared memory, some megabytes each, that MPICH left after killed jobs since a time."""
    left = {path for path in Path("/dev/shm").glob("mpich_shm_*") if path.stat().st_mtime > since and path.is_file()}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            text = maps.read_text(errors="replace")
            left -= {path for path in left if str(path) in text}
    for path in left:
        with contextlib.suppress(OSError):
            path.unlink()


def lines_of(err):
    """Return npgpt's lines of standard error; the others are the launcher's and MPI's."""
    return [line for line in err.splitlines() if line.startswith("npgpt: ")]
