"""Download one file of known digest: it arrives whole and correct, or not at all."""

import hashlib
import http.client
import urllib.request
from pathlib import Path

from tqdm import tqdm

from npgpt.download.deadline import call_within
from npgpt.errors import UserError
from npgpt.files import atomic_writer, make_folder

CONNECT_SECONDS = 8     # until the server has answered, including DNS, proxy and redirects
STALL_SECONDS = 20      # between two chunks of the file
CHUNK_BYTES = 1 << 16


def download(url, sha256, path, progress=True):
    """Store the file at `url` as `path` if its SHA-256 is `sha256`, in hexadecimal digits.

    `progress` shows a bar on a terminal. The proxies of the environment are used. Raises UserError, and leaves no file,
    if the server does not answer or reports an error, the file stalls, is cut off or has another digest, or cannot be
    written.
    """
    path = Path(path)
    digest = hashlib.sha256()
    try:
        # urlopen's own timeout covers neither the DNS look-up nor the sum of several attempts.
        with call_within(CONNECT_SECONDS, urllib.request.urlopen, url, timeout=STALL_SECONDS) as response:
            size = response.length      # from Content-Length, or None
            make_folder(path.parent)
            with atomic_writer(path) as file, tqdm(total=size, unit="B", unit_scale=True, desc="download",
                                                   disable=None if progress else True) as bar:
                while chunk := response.read(CHUNK_BYTES):
                    file.write(chunk)
                    digest.update(chunk)
                    bar.update(len(chunk))
                if digest.hexdigest() != sha256:
                    raise UserError(f"{url} arrived with the SHA-256 {digest.hexdigest()[:12]}… instead of "
                                    f"{sha256[:12]}… ({file.tell()} of {size} bytes): try again, perhaps on another "
                                    "network")
    except (OSError, http.client.HTTPException) as error:
        raise UserError(f"{url} could not be downloaded ({error}): check the network and the folder, or put the file "
                        f"at {path}") from error
