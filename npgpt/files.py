"""Reading files that nobody vouches for, and writing so that a kill or a full disk leaves what was there before."""

import contextlib
import errno
import filecmp
import json
import os
import re
import secrets
import shutil
import stat
import tomllib
import zlib
from pathlib import Path

from npgpt.errors import UserError

MOST_BYTES = 1 << 20        # of a small file: a description, not data
DEEPEST = 100               # of lists and dicts inside one another, and of new folders
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def open_regular(path):
    """Open a regular file to read bytes. Raises UserError for a device, a pipe or a folder, OSError as open does.

    It never waits, as opening a pipe would, and never reads from something that has no end.
    """
    if "\0" in os.fspath(path):
        raise UserError(f"{path!r} cannot be the name of a file")
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} is not a regular file")
    return open(descriptor, "rb")


def read_bytes(path, most=MOST_BYTES):
    """Return the bytes of a regular file. Raises UserError where there are more than `most`, else as open_regular."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise UserError(f"{path} has more than {most:,} bytes")
        return file.read()


def read_json(path, most=MOST_BYTES):
    """Return what a JSON file holds. Raises UserError where it is not JSON, or deeper than DEEPEST; else as read_bytes.

    NaN and infinity, which Python's json would let in, are no JSON.
    """
    return parsed(path, "JSON", parse_json, read_bytes(path, most))


def read_toml(path, most=MOST_BYTES):
    """Return what a TOML file holds, a dict. Raises as read_json does."""
    return parsed(path, "TOML", lambda data: tomllib.loads(data.decode("utf-8")), read_bytes(path, most))


def parse_json(data):
    """Return what the bytes or the string of a JSON text hold. Raises ValueError and RecursionError."""
    def refuse(constant):
        raise ValueError(f"{constant} is no JSON")

    return json.loads(data, parse_constant=refuse)


def parsed(path, kind, parse, data):
    """Return parse(data), at most DEEPEST deep; UserError that names the file where that fails."""
    try:
        value = parse(data)
    except RecursionError:
        raise UserError(f"{path} is nested too deep") from None
    except ValueError as error:         # UnicodeDecodeError too, and an integer of thousands of digits
        raise UserError(f"{path} is not {kind} ({error})") from None
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level if isinstance(outer, dict | list)
                 for inner in (outer.values() if isinstance(outer, dict) else outer)]
        if not level:
            return value
    raise UserError(f"{path} is nested too deep")


@contextlib.contextmanager
def atomic_writer(path):
    """Open a binary file that replaces `path` when the block ends well, and vanishes when it does not.

    The bytes go to a temporary name in the same folder, are synced to the disk, and are then renamed over `path`:
    a reader sees the whole old file or the whole new one. A link stays, and the file that it leads to is replaced; a
    device or a pipe is written to as it is. Raises OSError as open, write, fsync and replace do.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        with open(path, "wb") as file:
            yield file
        return
    temporary = temporary_beside(path)
    try:
        with naming(path, temporary), open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def write_atomically(path, data):
    """Replace the file `path` by the bytes `data`, whole or not at all."""
    with atomic_writer(path) as file:
        file.write(data)


@contextlib.contextmanager
def new_folder(path, holding):
    """Give a folder to fill, which becomes `path` when the block ends well, and vanishes when it does not.

    So there is a whole folder or none, and a call that was killed can be made again, even where the kill came after
    its end: a folder of just these files is as good as new. holding: the name of one of them. Raises UserError where
    `path` is anything else, OSError as mkdir, fsync and rename do.
    """
    path = Path(os.path.realpath(path))
    there = os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir()))
    occupied = UserError(f"{path} is there already: choose another folder, or delete it")
    if there and not (path / holding).is_file():
        raise occupied
    make_folder(path.parent)
    temporary = temporary_beside(path)
    try:
        with naming(path, temporary):
            temporary.mkdir()
            yield temporary
            for file in temporary.iterdir():
                sync_file(file)
            sync_folder(temporary)
        if not there:
            os.rename(temporary, path)
            sync_folder(path.parent)
        elif not same_files(temporary, path):
            raise occupied
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def same_files(folder, other):
    """Whether two folders hold files of the same names and bytes, and nothing else."""
    names = sorted(os.listdir(folder))
    return names == sorted(os.listdir(other)) and filecmp.cmpfiles(folder, other, names, shallow=False)[0] == names


def make_folder(path):
    """Make a folder and those above it, where they are missing. Raises OSError as mkdir does.

    UserError where more than DEEPEST are: the tools that delete folders call themselves for each, and would give up.
    """
    path = Path(path)
    missing = [folder for folder in (path, *path.parents) if not os.path.isdir(folder)]
    if len(missing) > DEEPEST:
        raise UserError(f"{path} is nested too deep")
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)


def temporary_beside(path):
    """Return a new hidden path beside `path` for what will become `path`, and delete those that a kill left there."""
    prefix = f".npgpt-{zlib.crc32(os.fsencode(path.name)):08x}-"
    for entry in path.parent.glob(f"{prefix}*"):
        left = re.fullmatch(rf"\{prefix}(\d{{1,7}})-[0-9a-f]{{8}}", entry.name)
        if left and not is_running(int(left[1])):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return path.with_name(f"{prefix}{os.getpid()}-{secrets.token_hex(4)}")


def is_running(pid):
    """Whether another process of that number may still be at work; on Windows nobody can be asked."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()       # what has this process's number was left by one that is gone


@contextlib.contextmanager
def naming(path, temporary):
    """Within it an error of the disk names `path`, where the system names the temporary file, or, if full, none."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            error.filename = str(error.filename).replace(str(temporary), str(path))
        elif error.errno in DISK_ERRORS:
            error.filename = str(path)
        raise


def sync_file(path):
    """Make what was written to a file last through a power cut."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder):
    """Make a rename inside `folder` last through a power cut, where the system can sync folders (Windows cannot)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
