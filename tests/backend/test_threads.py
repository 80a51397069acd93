"""Parts cover everything once, and run at the same time."""

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
