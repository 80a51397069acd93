"""Read untrusted files safely, and replace files atomically: a kill or a full disk leaves the old
content.
"""

import ast
import contextlib
import hashlib
import io
import json
import linecache
import os
import shutil
import stat
import sys
import tomllib
import zlib
from pathlib import Path
from types import ModuleType

from npgpt.errors import UserError, describe, raised_at

MOST_BYTES = 1 << 20  # in a JSON or TOML file
AnyPath = str | os.PathLike


def open_regular(path, flags=0):
    """Open a regular file to read bytes. Raises UserError for anything else, such as a pipe, and
    OSError.
    """
    if "\0" in os.fspath(path):
        raise UserError(f"{path!r} is not a valid file name")
    flags |= os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} is not a regular file")
    return open(descriptor, "rb")


def read_bytes(path, most=MOST_BYTES):
    """Return the bytes of a regular file. Raises UserError if there are more than `most`, and as
    `open_regular`.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise UserError(f"{path} has more than {most:,} bytes")
        return file.read()


def digest(path):
    """Return the SHA-256 of a regular file, hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path, most=MOST_BYTES):
    """Return the value in a JSON file. Raises UserError if it is not JSON or nested too deeply, and
    as `read_bytes`.
    """
    data = read_bytes(path, most)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error})") from None


def read_toml(path):
    """Return the dict in a TOML file. Raises as `read_json`."""
    data = read_bytes(path)
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not TOML ({error})") from None


def read_python(path):
    """Return the text and the syntax tree of a file. Raises UserError, with the line, if it is not
    Python.
    """
    data = read_bytes(path)
    line = None
    try:
        text = data.decode("utf-8-sig")
        return text, ast.parse(text)
    except SyntaxError as error:
        line, reason = error.lineno, error.msg
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        reason = f"not UTF-8 text ({error.reason})"
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; deep brackets
        reason = f"it cannot be parsed ({error!r})"
    where = f"{path}, line {line}" if line else path
    raise UserError(f"{where}: {reason}")


def run_python(path, package=None):
    """Run a Python file, as a module of a package if its name is given. Return its syntax tree and
    its names.

    Raises UserError, with the line, if it cannot be run.
    """
    text, tree = read_python(path)
    keep_lines(path, text)
    names = {"__name__": Path(path).stem, "__file__": str(path)}
    if package is not None:
        module = ModuleType(".".join([*package.split("."), Path(path).stem]).strip("."))
        names = vars(module)
        names |= {"__file__": str(path), "__package__": package}
        sys.modules.setdefault(module.__name__, module)  # what the file imports may import it
    try:
        exec(compile(text, str(path), "exec"), names)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit
        line = f", line {line}" if (line := raised_at(error, path)) else ""
        raise UserError(f"{path}{line}: {describe(error)}") from None
    return tree, names


def keep_lines(path, text):
    """Let `linecache`, and so `inspect`, have the text that runs, also when the file changes."""
    lines = io.StringIO(text + "\n" * (text[-1:] not in ("", "\n", "\r")), newline=None).readlines()
    # None: it is not compared with the file
    linecache.cache[str(path)] = len(text), None, lines, str(path)


@contextlib.contextmanager
def atomic_writer(path, follow=False):
    """Open a binary file that replaces `path` if the block succeeds, and is deleted if it fails.

    It is written under a temporary name in the same folder, synced, and renamed. A link, a device
    or a pipe at `path` is replaced, so that a stranger's folder cannot redirect writes. follow: the
    user named this very path, so write to the target of a link, or into a device or a pipe. Raises
    OSError, also if `path` is a folder.
    """
    if follow and os.path.exists(path) and not os.path.isfile(path):
        with naming(path), open(path, "wb") as file:
            yield file
        return
    path = Path(os.path.realpath(path) if follow else path)
    with temporary_beside(path) as temporary:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)


@contextlib.contextmanager
def naming(path):
    """Let errors of the disk within the block name `path`: those of a write name nothing."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write_atomically(path, data, follow=False):
    """Replace the content of the file `path` by the bytes `data`, completely or not at all. As
    `atomic_writer`.
    """
    with atomic_writer(path, follow) as file:
        file.write(data)


def write_json(path, value, indent=None):
    """Replace the content of the file `path` by a value as JSON. As `write_atomically`."""
    write_atomically(path, (json.dumps(value, indent=indent) + "\n").encode())


def check_regular(path):
    """Raise UserError if anything but a regular file is at `path`, such as a link."""
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise UserError(f"{path} is not a regular file: move it away")


def lock(file):
    """Lock an open, empty file until it is closed. Raises OSError if it is locked already."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def cache_folder():
    """Return the folder npgpt in the user's cache, which is made; None without a home.

    The cache is XDG_CACHE_HOME, else that of the system. Only the user may write to what is made.
    """
    usual = {"win32": os.environ.get("LOCALAPPDATA", ""), "darwin": "~/Library/Caches"}
    home = os.path.expanduser(usual.get(sys.platform, "~/.cache"))
    for cache in (os.environ.get("XDG_CACHE_HOME", ""), home):
        folder = Path(cache, "npgpt")
        if folder.is_absolute():
            with contextlib.suppress(OSError):  # a later write reports it
                folder.mkdir(0o700, parents=True, exist_ok=True)
            return folder
    return None


def tool(name):
    """Return the path of a file that a message names, such as tools/examples/swish.py.

    In the current folder, as in a checkout; else in the installed package; else beside it.
    """
    package = Path(__file__).parent
    for path in (Path(name), package / name):
        if path.exists():
            return str(path)
    return str(package.parent / name)


def is_folder(path):
    """Return whether a folder is at `path`, not a link to one."""
    return path.is_dir() and not path.is_symlink()


@contextlib.contextmanager
def new_folder(path):
    """Yield a temporary folder that is renamed to `path` if the block succeeds, and is deleted if
    it fails.

    Raises UserError if anything but an empty folder is at `path`, before the block runs; OSError.
    """
    path = Path(os.path.realpath(path))
    if path.is_symlink() or path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} already exists: choose another folder, or delete it")
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_beside(path) as temporary:
        temporary.mkdir()
        yield temporary
        if path.is_dir():
            path.rmdir()  # it is empty; Windows cannot rename onto it
        publish(temporary, path)


@contextlib.contextmanager
def temporary_beside(path):
    """Yield a hidden path beside `path` where nothing is; delete it after the block.

    A killed process leaves it behind, and the next one that writes `path` deletes it first.
    Errors of the disk within the block name `path`.
    """
    temporary = path.with_name(f".npgpt-{zlib.crc32(os.fsencode(path.name)):08x}")
    delete(temporary)
    try:
        yield temporary
    except OSError as error:
        error.filename = str(error.filename or path).replace(str(temporary), str(path))
        raise
    finally:
        delete(temporary)


def delete(path):
    """Delete a file, a link or a folder, if there is one."""
    if is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def publish(folder, path):
    """Flush the files in a new folder to the disk and rename it to `path`, so that both survive a
    power cut.
    """
    for each in folder.iterdir():
        with open(each, "rb+") as file:
            os.fsync(file.fileno())
    sync_folder(folder)
    os.rename(folder, path)
    sync_folder(path.parent)


def sync_folder(folder):
    """Flush a rename inside `folder` to the disk. Windows cannot sync folders: nothing happens
    there.
    """
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
