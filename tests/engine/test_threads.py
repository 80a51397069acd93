"""Parts cover everything once, run at the same time if cores are free, and are all over when a call
ends.
"""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from npgpt.engine import threads
from npgpt.engine.threads import in_threads, sharing_cores, spread, using_cores


@pytest.mark.parametrize("failing", [[0, 1, 2], [1, 2]])
def test_the_first_exception_is_raised_when_all_parts_are_over(failing):
    over = []

    def part(i):
        time.sleep(0.02 * i)  # a caller that does not wait has come to its `except` by then
        over.append(i)
        if i in failing:
            raise ValueError(f"part {i}")

    with pytest.raises(ValueError, match=f"part {failing[0]}"):
        in_threads(part, [0, 1, 2])
    assert sorted(over) == [0, 1, 2]


def threads_of_a_spread(_=None):
    """Return the threads that a spread of many items uses: the calling one, and others if it has
    several cores.
    """
    return set(spread(lambda _: threading.current_thread(), range(12)))


def test_a_thread_has_one_core_unless_it_is_given_more():
    alone = {threading.current_thread()}
    assert threads_of_a_spread() == alone
    with pytest.raises(ValueError), using_cores(3):
        assert len(threads_of_a_spread()) > 1
        with using_cores(1):
            assert threads_of_a_spread() == alone
        # The parts of a call have one core each, or they would deadlock, waiting for each other's
        # threads.
        for used in [
            *spread(threads_of_a_spread, range(3)),
            *in_threads(threads_of_a_spread, range(3)),
        ]:
            assert len(used) == 1
        assert (
            len(ThreadPoolExecutor(1).submit(threads_of_a_spread).result()) == 1
        )  # nor has another thread more
        assert len(spread(threads_of_a_spread, [0])[0]) > 1  # a single item keeps them
        raise ValueError
    assert threads_of_a_spread() == alone


def test_blas_has_one_thread_if_ours_work_and_all_of_them_otherwise():
    def of_blas(_=None):
        return {
            library["num_threads"]
            for library in threads._controller().info()
            if library["user_api"] == "blas"
        }

    with sharing_cores(1, 2):
        assert of_blas() == {2} and len(threads_of_a_spread()) == 2
        assert spread(of_blas, range(4)) == [{1}] * 4 and spread(of_blas, range(1)) == [{2}]
        assert of_blas() == {2}
    with sharing_cores(3, 2):
        assert of_blas() == {1} and len(threads_of_a_spread()) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only Unix forks")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_makes_threads_of_its_own():
    together = threading.Barrier(
        2, timeout=10
    )  # so that the pool has both its threads, and both are idle
    in_threads(lambda _: together.wait(), [1, 2])
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)  # a child that waits for its parent's threads never ends
        os._exit(0 if in_threads(abs, [-1, -2]) == [1, 2] else 1)
    assert os.waitpid(child, 0)[1] == 0
