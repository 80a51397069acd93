"""Keep the memory of large temporaries, instead of requesting it from the system again each time."""

import ctypes
import functools
import platform

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3      # mallopt's names, from glibc's malloc.h


@functools.cache
def keep_freed_memory():
    """Tell glibc to keep freed memory for the next step. Done once; without glibc nothing happens.

    By default glibc maps every array above 100 KB or so from the system and unmaps it when it is freed, and the system
    clears each page when it is first touched. A training step makes hundreds of such temporaries, of the same sizes in
    every step: this took a third of its time. The process keeps its highest memory use until it ends.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)     # smaller arrays come from the heap
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)   # which does not shrink,
        libc.mallopt(M_TOP_PAD, 64 << 20)           # and grows 64 MB at a time
