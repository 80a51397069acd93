"""Writing files so that a kill or a full disk at any moment leaves what was there before."""

import contextlib
import os
import secrets
from pathlib import Path


@contextlib.contextmanager
def atomic_writer(path):
    """Open a binary file that replaces `path` when the block ends well, and vanishes when it does not.

    The bytes go to a temporary name in the same folder, are synced to the disk, and are then renamed over `path`:
    a reader sees the whole old file or the whole new one. Raises OSError as open, write, fsync and replace do.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def write_atomically(path, data):
    """Replace the file `path` by the bytes `data`, whole or not at all."""
    with atomic_writer(path) as file:
        file.write(data)


def sync_folder(folder):
    """Make a rename inside `folder` last through a power cut, where the system can sync folders (Windows cannot)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
