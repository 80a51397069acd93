"""Fetching one file of known digest: it arrives whole and right, or not at all."""

import hashlib
import http.client
import urllib.request
from pathlib import Path

from tqdm import tqdm

from npgpt.deadline import call_within
from npgpt.errors import UserError
from npgpt.files import atomic_writer, make_folder

CONNECT_SECONDS = 8  # until the server has answered; name look-up, proxy and redirects included
STALL_SECONDS = 20  # between two pieces of the file
CHUNK_BYTES = 1 << 16


def download(url, sha256, path, progress=True):
    """Store the file behind `url` as `path`, if its SHA-256 is the hexadecimal string `sha256`.

    The bytes go to a temporary file and are renamed at the end; `progress` shows a bar on a terminal. The proxies of
    the environment are used. Raises UserError, and leaves no file behind, when the server does not answer within
    CONNECT_SECONDS or answers with an error, when the file stalls, is cut off or has another digest, and when it cannot
    be written.
    """
    path = Path(path)
    try:
        # urlopen's own timeout covers neither the name look-up nor the sum of several attempts, hence call_within.
        with call_within(CONNECT_SECONDS, urllib.request.urlopen, url, timeout=STALL_SECONDS) as response:
            make_folder(path.parent)
            with atomic_writer(path) as file:
                copy_checked(response, file, sha256, url, progress)
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"{url} could not be downloaded ({error}): check the network and the folder, or put the file at {path}"
        ) from error


def copy_checked(response, file, sha256, url, progress):
    """Copy an HTTP response to a binary file; raises UserError when it is cut off or its digest is not `sha256`."""
    total = response.length  # what Content-Length announced, or None
    digest = hashlib.sha256()
    with tqdm(total=total, unit="B", unit_scale=True, desc="download", disable=None if progress else True) as bar:
        while chunk := response.read(CHUNK_BYTES):
            file.write(chunk)
            digest.update(chunk)
            bar.update(len(chunk))
    if total is not None and file.tell() < total:
        raise UserError(f"{url} was cut off after {file.tell()} of {total} bytes: try again")
    if digest.hexdigest() != sha256:
        raise UserError(
            f"{url} arrived with the SHA-256 {digest.hexdigest()[:12]}… instead of {sha256[:12]}…: "
            "try again, perhaps on another network"
        )
