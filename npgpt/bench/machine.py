"""What the figures of a measurement depend on: the processor, its memory, and the versions of the libraries."""

import datetime
import importlib.metadata
import os
import platform
import re
from pathlib import Path

import threadpoolctl


def describe_machine():
    """A dict of the machine and its software, without names of the host or of people.

    OpenBLAS chooses its kernels when it is loaded: the answer holds for the process that asks. None where unknown.
    """
    blas = next((info for info in threadpoolctl.threadpool_info() if info["user_api"] == "blas"), {})
    return {
        "cpu": cpu_name(),
        "memory": memory(),
        "os": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "torch", "transformers")},
        "blas": blas.get("internal_api"),
        "blas_version": blas.get("version"),
        "blas_architecture": blas.get("architecture"),
        "date": datetime.date.today().isoformat(),
    }


def cpu_name():
    """The processor's name, as Linux gives it; elsewhere what Python knows."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def memory():
    """Bytes of memory of the machine, or None where the system does not say (Windows)."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def version(package):
    """The installed version of a package, or None; it is not imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def peak_memory(pid="self"):
    """The most bytes that a process has held in memory so far, or None where the system does not say."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) * 1024 if found else None
    except OSError:
        return own_peak_memory() if pid == "self" else None


def own_peak_memory():
    """`peak_memory` of this process on systems without /proc."""
    try:
        import resource
    except ImportError:         # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)
