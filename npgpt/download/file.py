"""Download one small file of known digest, and limit the time of a call."""

import concurrent.futures
import hashlib
import http.client
import threading
import urllib.request

from npgpt.errors import UserError
from npgpt.files import make_folder, write_atomically

CONNECT_SECONDS = 8     # until the server has answered, including DNS, proxy and redirects
STALL_SECONDS = 20      # between two packets


def download(url, size, sha256, path):
    """Store the file at `url` as `path`, if it has `size` bytes and this SHA-256 (hexadecimal). Raises UserError."""
    try:
        # urlopen's own timeout covers neither the DNS look-up nor the sum of several attempts.
        with call_within(CONNECT_SECONDS, urllib.request.urlopen, url, timeout=STALL_SECONDS) as response:
            data = response.read(size + 1)
        digest = hashlib.sha256(data).hexdigest()
        if digest != sha256:
            raise UserError(f"{url} arrived with the SHA-256 {digest[:12]}… instead of {sha256[:12]}… ({len(data)} of "
                            f"{size} bytes): try again, perhaps on another network")
        make_folder(path.parent)
        write_atomically(path, data)
    except (OSError, http.client.HTTPException) as error:
        raise UserError(f"{url} could not be downloaded ({error}): check the network and the folder, or put the file "
                        f"at {path}") from error


def call_within(seconds, function, *args, **kwargs):
    """Return `function(*args, **kwargs)`, which may hang, as a DNS look-up without a network does.

    Raises TimeoutError after `seconds`, and whatever the function raises.
    """
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
