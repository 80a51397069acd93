"""Numba's compiler, and a cache of its machine code on disk."""

import hashlib
import os
import sys
from pathlib import Path

import numba
from numba.core import caching
from numba.core.compiler import CompileResult

from npgpt.errors import say_once
from npgpt.files import cache_folder, open_regular, write_atomically

COMPILER = [Path(__file__).with_name(name).read_bytes() for name in ("jit.py", "vectors.py")]
MOST_FILES = 500  # in the folder


def jit(function, source):
    """Compile a function for the types of each first call. source: its text. It runs without
    Python's lock.

    No array that it writes to may share memory with another one. Otherwise LLVM would check that at
    run time, and take a slower path with other bits, depending on where the arrays lie. Without
    fastmath each operation rounds as NumPy's: if a * b - c were fused, the softmax's largest score
    would not be 0 after its maximum was subtracted.
    """

    def customized(flags):
        flags.noalias = True
        return flags

    loop = numba.njit(function, nogil=True, error_model="numpy")
    loop._compiler._customize_flags = customized
    loop._cache = Cache(source)
    return loop


def is_private(status):
    """Return whether a file or folder is this user's alone to write to; Windows does not say."""
    return not hasattr(os, "getuid") or status.st_uid == os.getuid() and not status.st_mode & 0o022


class Cache(caching.NullCache):
    """One file for each loop and types of arguments: a digest, then what Numba stores. A damaged
    file is not used.

    Its name is a digest of all that the code depends on. The folder is npgpt/loops, in
    NUMBA_CACHE_DIR or the user's cache. Numba unpickles the files, which can run any code. So
    nothing is read that others may write to.
    """

    def __init__(self, source):
        self.source = source

    def path(self, types, context):
        numba_cache = os.environ.get("NUMBA_CACHE_DIR")
        cache = Path(numba_cache, "npgpt") if numba_cache else cache_folder()
        if not cache:
            raise FileNotFoundError("there is no home, and so no cache")
        key = (
            COMPILER,
            self.source,
            numba.__version__,
            sys.version,
            types,
            context.codegen().magic_tuple(),
        )
        for folder in (cache, cache / "loops"):
            folder.mkdir(0o700, parents=True, exist_ok=True)
            if not is_private(os.lstat(folder)):
                say_once(
                    f"{folder} is not private, so loops are compiled anew: make it yours "
                    "alone (chown, chmod go-w), or set NUMBA_CACHE_DIR to a folder of yours"
                )
                raise PermissionError
        return folder / hashlib.sha256(repr(key).encode()).hexdigest()

    def digest(self, path, data):
        return hashlib.sha256(path.name.encode() + data).digest()

    def load_overload(self, types, context):
        context.refresh()
        try:
            path = self.path(types, context)
            with open_regular(path, getattr(os, "O_NOFOLLOW", 0)) as file:
                private = is_private(os.fstat(file.fileno()))
                data = file.read()
            if private and self.digest(path, data[32:]) == data[:32]:
                return CompileResult._rebuild(context, *caching.pickle.loads(data[32:]))
        except Exception:  # missing, not readable, or not of this Numba: compile
            return None

    def save_overload(self, types, result):
        try:
            path, data = self.path(types, result.target_context), caching.dumps(result._reduce())
            write_atomically(path, self.digest(path, data) + data)
            path.chmod(0o600)
            for old in sorted(path.parent.iterdir(), key=os.path.getmtime)[:-MOST_FILES]:
                old.unlink()
        except OSError:  # not writable, full, or no home: each process compiles
            pass
