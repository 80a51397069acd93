"""Waiting for a call that may never return, such as a name look-up on a machine without a network."""

import concurrent.futures
import threading


def call_within(seconds, function, *args, **kwargs):
    """Return `function(*args, **kwargs)`, run in a thread of its own so that nobody waits longer than `seconds`.

    Raises what the function raises, and TimeoutError when it has not returned in time. A call that is given up runs
    on unseen: the thread is a daemon, so it does not keep the program alive.
    """
    future = concurrent.futures.Future()

    def work():
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {seconds} seconds")
    return future.result()
