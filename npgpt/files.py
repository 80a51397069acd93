"""Read untrusted files safely, and replace files atomically: a kill or a full disk leaves the old content."""

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

MOST_BYTES = 1 << 20        # in a JSON or TOML file
DEEPEST = 100               # the deepest nesting of JSON, TOML and new folders
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
REMEDIES = {**dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free disk space"), errno.EIO: "check the disk",
            **dict.fromkeys((errno.EACCES, errno.EPERM), "allow writing there"), errno.EROFS: "make the disk writable"}


def open_regular(path):
    """Open a regular file to read bytes. It never blocks on a pipe and never reads from an endless device.

    Raises: UserError for a device, a pipe or a folder; OSError as `open` does.
    """
    if "\0" in os.fspath(path):
        raise UserError(f"{path!r} is not a valid file name")
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} is not a regular file")
    return open(descriptor, "rb")


def read_bytes(path, most=MOST_BYTES):
    """Return the bytes of a regular file.

    Raises: UserError if there are more than `most`; otherwise as `open_regular`.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise UserError(f"{path} has more than {most:,} bytes")
        return file.read()


def read_json(path, most=MOST_BYTES):
    """Return the value in a JSON file. NaN and infinity are refused, although Python's json accepts them.

    Raises: UserError if the file is not JSON or is nested deeper than DEEPEST; otherwise as `read_bytes`.
    """
    return parsed(path, "JSON", parse_json, read_bytes(path, most))


def read_toml(path, most=MOST_BYTES):
    """Return the dict in a TOML file.

    Raises: as `read_json`.
    """
    return parsed(path, "TOML", lambda data: tomllib.loads(data.decode("utf-8")), read_bytes(path, most))


def parse_json(data):
    """Return the value of a JSON text, bytes or str.

    Raises: ValueError; RecursionError.
    """
    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    return json.loads(data, parse_constant=refuse)


def parsed(path, kind, parse, data):
    """Return parse(data).

    Raises: UserError, naming the file, if parsing fails or the value is nested deeper than DEEPEST.
    """
    try:
        value = parse(data)
    except RecursionError:
        raise UserError(f"{path} is nested too deeply") from None
    except ValueError as error:         # also UnicodeDecodeError, and an integer of thousands of digits
        raise UserError(f"{path} is not {kind} ({error})") from None
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level if isinstance(outer, dict | list)
                 for inner in (outer.values() if isinstance(outer, dict) else outer)]
        if not level:
            return value
    raise UserError(f"{path} is nested too deeply")


@contextlib.contextmanager
def atomic_writer(path, follow=False):
    """Open a binary file that replaces `path` when the block succeeds, and is deleted if the block fails.

    The bytes are written to a temporary file in the same folder, synced to the disk, and then renamed to `path`:
    a reader sees the complete old file or the complete new one. A link, a device or a pipe is replaced, because a
    folder from somebody else must not lead out of itself. follow: the user named this very path. Then the target of a
    link is replaced, and a device or a pipe is opened.

    Raises: OSError as `open`, `write`, `fsync` and `replace` do, and for a folder.
    """
    path = Path(path)
    if is_folder(path) or follow and path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a folder is there, move it away", str(path))
    if follow and path.exists() and not path.is_file():
        with open(path, "wb") as file:
            yield file
        return
    if follow:
        path = Path(os.path.realpath(path))
    temporary = temporary_beside(path)
    try:
        with naming(path, temporary):
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def write_atomically(path, data, follow=False):
    """Replace the content of the file `path` by the bytes `data`, completely or not at all. As `atomic_writer`."""
    with atomic_writer(path, follow) as file:
        file.write(data)


def append(path, data):
    """Append bytes to a regular file, which is made if need be. It never follows a link and never blocks on a pipe.

    Raises: UserError as `check_regular`; OSError as `open` and `write` do.
    """
    def opener(path, flags):
        return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)

    check_regular(path)
    with open(path, "ab", opener=opener) as file:
        file.write(data)


def check_regular(path):
    """Raise UserError if anything but a regular file is at `path`, such as a link."""
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise UserError(f"{path} is not a regular file: move it away")


def is_folder(path):
    """Return whether a folder is at `path`, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def remedy(error, folder):
    """Return what to do about an OSError of writing into a folder."""
    if not os.path.isdir(folder):
        return f"{folder} was deleted or moved, so begin again or put it back"
    return REMEDIES.get(error.errno, "correct that")


@contextlib.contextmanager
def new_folder(path, holding):
    """Yield a temporary folder that is renamed to `path` when the block succeeds, and is deleted if it fails.

    So `path` is complete or absent, and a command that was killed can be repeated. It can also be repeated after it
    has succeeded: if `path` has the same files with the same bytes, nothing changes. holding: the name of one of
    these files; a folder without it is never compared.

    Raises: UserError if `path` is something else; OSError as `mkdir`, `fsync` and `rename` do.
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
        if there and not same_files(temporary, path):
            raise occupied
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def same_files(folder, other):
    """Return whether two folders have the same files with the same bytes, and nothing else."""
    names = sorted(os.listdir(folder))
    return names == sorted(os.listdir(other)) and filecmp.cmpfiles(folder, other, names, shallow=False)[0] == names


def make_folder(path):
    """Make a folder and its missing parents.

    Raises: UserError if more than DEEPEST are missing, because tools that delete folders recursively would fail on
    them; OSError as `mkdir` does.
    """
    path = Path(path)
    missing = [folder for folder in (path, *path.parents) if not os.path.isdir(folder)]
    if len(missing) > DEEPEST:
        raise UserError(f"{path} is nested too deeply")
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)


def temporary_beside(path):
    """Return an unused hidden path in the folder of `path`, and delete those that killed processes left."""
    prefix = f".npgpt-{zlib.crc32(os.fsencode(path.name)):08x}-"
    for entry in path.parent.glob(f"{prefix}*"):
        left = re.fullmatch(rf"\{prefix}(\d{{1,7}})-[0-9a-f]{{8}}", entry.name)
        if left and not is_running(int(left[1])):
            shutil.rmtree(entry) if is_folder(entry) else entry.unlink()
    return path.with_name(f"{prefix}{os.getpid()}-{secrets.token_hex(4)}")


def is_running(pid):
    """Return whether another process with this id may be running; always True on Windows, which cannot tell."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()       # a file with this process's id is from an earlier process


@contextlib.contextmanager
def naming(path, temporary):
    """Make errors of the disk within the block name `path` instead of the temporary file or no file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            error.filename = str(error.filename).replace(str(temporary), str(path))
        elif error.errno in DISK_ERRORS:
            error.filename = str(path)
        raise


def sync_file(path):
    """Flush a file to the disk, so that it survives a power cut."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder):
    """Flush a rename inside `folder` to the disk. Windows cannot sync folders: nothing happens there."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
