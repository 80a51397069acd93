"""Working on several parts at the same time: NumPy lets go of Python's lock in its loops and in BLAS."""

import functools
import os
from concurrent.futures import ThreadPoolExecutor


def in_threads(function, *arguments):
    """[function(*a) for a in zip(*arguments)], a thread for each; the first exception, if any, is raised here."""
    if len(arguments[0]) == 1:
        return list(map(function, *arguments))
    return list(_pool(len(arguments[0])).map(function, *arguments))


def even_parts(n, threads):
    """Slices that divide n things as evenly as can be, one a thread, none of them empty."""
    parts = max(1, min(threads, n))
    return [slice(n * i // parts, n * (i + 1) // parts) for i in range(parts)]


def available_cores():
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _pool(threads):
    return ThreadPoolExecutor(threads, thread_name_prefix="npgpt")


if hasattr(os, "register_at_fork"):     # a forked process inherits the pools, but not their threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
