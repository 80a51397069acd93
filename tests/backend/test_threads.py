"""Parts cover everything once, and run at the same time."""

import os
import signal
import threading

import pytest

from npgpt.backend.threads import even_parts, in_threads


@pytest.mark.parametrize(("threads", "n"), [(1, 5), (2, 5), (3, 7), (8, 3), (4, 4)])
def test_parts_cover_everything_once_and_evenly(threads, n):
    parts = even_parts(n, threads)
    assert [i for part in parts for i in range(n)[part]] == list(range(n))
    sizes = [part.stop - part.start for part in parts]
    assert len(parts) == min(threads, n) and max(sizes) - min(sizes) <= 1


def test_the_parts_run_at_the_same_time_and_come_back_in_order():
    together = threading.Barrier(3, timeout=10)     # breaks unless all three have come
    assert in_threads(lambda i, j: (together.wait(), i + j)[1], [1, 2, 3], [10, 20, 30]) == [11, 22, 33]


def test_one_part_needs_no_thread():
    assert in_threads(lambda i: threading.current_thread(), [0]) == [threading.main_thread()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only Unix forks")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_makes_threads_of_its_own():
    together = threading.Barrier(2, timeout=10)     # so that the pool has both its threads, and both are idle
    in_threads(lambda _: together.wait(), [1, 2])
    child = os.fork()
    if child == 0:
        signal.alarm(10)        # a child that waits for its parent's threads waits for ever
        os._exit(0 if in_threads(abs, [-1, -2]) == [1, 2] else 1)
    assert os.waitpid(child, 0)[1] == 0
