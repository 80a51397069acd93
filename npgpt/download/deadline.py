"""A time limit for a call that may never return, such as a DNS look-up without a network."""

import concurrent.futures
import threading


def call_within(seconds, function, *args, **kwargs):
    """Return `function(*args, **kwargs)`. Raises TimeoutError after `seconds`, and whatever the function raises."""
    future = concurrent.futures.Future()

    def work():
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()      # a daemon does not keep the program from ending
    try:
        return future.result(seconds)
    except concurrent.futures.TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer within {seconds} seconds") from None
