"""Threads that work on parts of an array in parallel: NumPy releases Python's lock in its loops and
in BLAS.
"""

import contextlib
import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import threadpoolctl


class _Cores(threading.local):
    free = 1  # how many cores the calling thread may use: one, unless `using_cores` gives it more


_cores = _Cores()


@contextlib.contextmanager
def using_cores(n):
    """Within it, `spread` in the calling thread uses n cores; threads that it starts have one core
    each.
    """
    before, _cores.free = _cores.free, n
    try:
        yield
    finally:
        _cores.free = before


def free_cores():
    return _cores.free


def spread(function, items):
    """Return [function(item) for item in items], computed on the cores that the calling thread may
    use.
    """
    if _cores.free == 1 or len(items) < 2:
        return list(map(function, items))
    parts = even_parts(len(items), _cores.free)
    with blas_threads(1):
        of_threads = in_threads(lambda part: list(map(function, items[part])), parts)
    return [result for results in of_threads for result in results]


@contextlib.contextmanager
def sharing_cores(n_parts, threads):
    """Within it, several parts have a single-threaded BLAS each; a single one has all cores, also
    for `spread`.
    """
    threads = threads if n_parts == 1 else 1
    with blas_threads(threads), using_cores(threads):
        yield


def blas_threads(n):
    """Let BLAS use n threads within the context: one while our own threads run, which would compete
    with BLAS's.
    """
    return _controller().limit(limits=n, user_api="blas")


def in_threads(function, *arguments):
    """Return [function(*a) for a in zip(*arguments)], a thread for each; the first exception, if
    any, is raised here.

    The calling thread takes the first part, so that one thread fewer has to wake up.
    """
    first, *rest = zip(*arguments, strict=True)
    if not rest:
        return [function(*first)]
    others = [_pool(len(rest)).submit(function, *part) for part in rest]
    try:
        with using_cores(1):
            results = [function(*first)]
    finally:
        wait(others)  # even after an error, because they still write to the caller's arrays
    return results + [other.result() for other in others]


def even_parts(n, threads):
    """Return slices that divide n items as evenly as possible, one per thread, none empty."""
    parts = max(1, min(threads, n))
    return [slice(n * i // parts, n * (i + 1) // parts) for i in range(parts)]


def available_cores():
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _controller():
    return threadpoolctl.ThreadpoolController()  # searches all loaded libraries: milliseconds


@functools.cache
def _pool(threads):
    return ThreadPoolExecutor(threads, thread_name_prefix="npgpt")


if hasattr(os, "register_at_fork"):  # a forked process inherits the pools, but not their threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
