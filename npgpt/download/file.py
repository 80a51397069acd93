"""Download one small file, and limit the time of a call."""

import concurrent.futures
import threading

CONNECT_SECONDS = 8  # until the server has answered, including DNS, proxy and redirects
STALL_SECONDS = 20  # between two packets


def download(url: str, size: int) -> bytes:
    """Return the first `size` bytes of the file at `url`. Raises OSError."""
    import http.client  # both are slow to import, and seldom needed
    import urllib.request

    try:
        # urlopen's own timeout covers neither the DNS look-up nor the sum of several attempts.
        with call_within(
            CONNECT_SECONDS, urllib.request.urlopen, url, timeout=STALL_SECONDS
        ) as response:
            return response.read(size)
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error


def call_within(seconds, function, *args, **kwargs):
    """Call a function that may hang, as a DNS look-up without a network does. Raises TimeoutError
    after `seconds`.
    """
    future = concurrent.futures.Future()

    def work():
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(
        target=work, daemon=True
    ).start()  # a daemon does not keep the program from ending
    try:
        return future.result(seconds)
    except TimeoutError as error:  # also of the function
        raise TimeoutError(str(error) or f"no answer within {seconds} seconds") from None
