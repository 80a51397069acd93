"""The CUDA kernels on the CPU: compiled by g++ with `emulator.h`, called with NumPy arrays.

    kernels = compile_kernels()
    kernels.launch("gelu_forward", grid, block, y, x, x.size, 0)
"""

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from npgpt.engine.cuda.source import FILES, defines, source

HERE = Path(__file__).parent

# Fused multiply-add only where the kernels write it. The checks call back into checks.h.
FLAGS = ("-std=c++17", "-O2", "-g1", "-gdwarf-4", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing",
         "-ffp-contract=off")
CHECKS = ("-fsanitize=null,alignment,bounds,thread", "--param=tsan-instrument-func-entry-exit=0")

KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+(?:__launch_bounds__\s*\([^()]*\)\s*)?void\s+'
                    r'(?:__launch_bounds__\s*\([^()]*\)\s*)?(\w+)\s*\(([^()]*)\)\s*{')
PARAMETER = re.compile(r"^(const )?([\w ]+?)(\*?) ?(\w+)$")

GUARD_BYTES = 4096      # on both sides of each array, as emulator.h has it
GUARD = 0xFF

ORDERS = {"forward": 0, "reverse": 1}       # any number else: the seed of a shuffled order


def compile_kernels(bfloat16=False, double=True, head_size=64, tf32=0):
    """All kernels of the package. `double`: with float64 for float; not with bfloat16 or tf32, which are float32."""
    precision = "bfloat16" if bfloat16 else "tf32" if tf32 else "float32"
    return _compile_package(precision, bool(double) and precision == "float32", head_size)


@functools.cache
def _compile_package(precision, double, head_size):
    text = '#line 1 "ptx_emulated.h"\n' + (HERE / "ptx_emulated.h").read_text() + source(FILES[1:])     # for ptx.cu
    return compile_text(text, precision, head_size, double)


def compile_text(text, precision="float32", head_size=64, double=True):
    """The kernels of this CUDA text, as an object to launch them with."""
    gpp = shutil.which("g++")
    if gpp is None or sys.platform != "linux":
        pytest.skip("no g++ on Linux: the CUDA kernels cannot be run on the CPU")
    options = (*defines(precision, head_size), f"-DDOUBLE={int(double)}")
    parameters = kernel_parameters(text)
    program = "\n".join(['#include "emulator.h"', "namespace {", '#line 1 "kernels.cu"',
                         text, "}",
                         *(_wrapper(name, parameters[name]) for name in parameters)])
    return Kernels(_library(gpp, program, options), parameters, double, precision == "bfloat16")


def kernel_parameters(text):
    """{name: its parameters, (const, type, pointer, name) each} for the kernels of this CUDA text."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    return {name: tuple(_parameter(name, part) for part in inside.split(",") if part.strip())
            for name, inside in KERNEL.findall(code)}


class Kernels:
    """Compiled kernels. `names` are theirs; every launch takes another order of threads unless it is told one."""

    def __init__(self, path, parameters, double, bfloat16):
        self.names = tuple(parameters)
        self._library = ctypes.PyDLL(str(path))     # keeps Python's lock: the emulator runs one kernel at a time
        self._parameters = parameters
        floating = np.dtype(np.float64 if double else np.float32)
        bits = np.dtype(np.uint16)
        self._dtypes = {"float": floating, "real": bits if bfloat16 else floating, "bfloat16": bits,
                        "unsigned short": bits, "int": np.dtype(np.int32), "long long": np.dtype(np.int64),
                        "unsigned": np.dtype(np.uint32), "unsigned int": np.dtype(np.uint32),
                        "unsigned long long": np.dtype(np.uint64)}
        self._launches = 0

    def launch(self, name, grid, block, *arguments, order=None):
        """Run a kernel. A pointer takes an array or None, and what the kernel writes is in the array afterwards.

        order: "forward", "reverse" or a number: the order in which blocks, warps and lanes get their turn; without it
        a shuffled order that changes with each launch.
        """
        if name not in self._parameters:
            raise ValueError(f"no kernel {name}: there are {', '.join(self.names)}")
        parameters = self._parameters[name]
        if len(arguments) != len(parameters):
            raise TypeError(f"{name} takes {len(parameters)} arguments, not {len(arguments)}: "
                            + ", ".join(parameter for *_, parameter in parameters))
        grid, block = (_three(size) for size in (grid, block))
        threads = block[0] * block[1] * block[2]
        if threads % 32 or not 0 < threads <= 1024:
            raise ValueError(f"{name}: a block of {threads} threads, not a multiple of 32 up to 1024")
        if min(grid) < 1 or grid[0] >= 1 << 31 or max(grid[1:]) > 65535:
            raise ValueError(f"{name}: a GPU has no grid of {grid} blocks")

        values = [self._value(name, *parameter, argument)
                  for parameter, argument in zip(parameters, arguments, strict=True)]
        arrays = [(parameter[-1], value) for parameter, value in zip(parameters, values, strict=True)
                  if isinstance(value, np.ndarray) and value.ndim]
        memory = _Memory(arrays)
        raw = [np.array(memory.address(value), np.uint64) if parameter[2] else value
               for parameter, value in zip(parameters, values, strict=True)]
        pointers = (ctypes.c_void_p * max(1, len(raw)))(*(value.ctypes.data for value in raw))
        for names, first, nbytes, itemsize in memory.pieces():
            self._library.add_array(names.encode(), ctypes.c_void_p(first), ctypes.c_size_t(nbytes),
                                    ctypes.c_size_t(itemsize))

        self._launches += 1
        order = self._launches if order is None else order
        run = getattr(self._library, f"run_{name}")
        run.restype = ctypes.c_char_p
        message = run(pointers, (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block),
                      ctypes.c_int(ORDERS.get(order, 2)), ctypes.c_uint(ORDERS.get(order, order)))
        if message:
            raise RuntimeError(f"{name}: {self._with_line(message.decode())}")
        for (const, *_), value in zip(parameters, values, strict=True):
            if value is not None and value.ndim and not const:
                memory.copy_back(value)

    def _with_line(self, message):
        """The message with a place in the library replaced by its place in the source."""
        address = re.search(r"\[\+([0-9a-f]+)\]", message)
        if not address or not shutil.which("addr2line"):
            return message
        found = subprocess.run(["addr2line", "-e", self._library._name, address[1]], capture_output=True, text=True)
        return message.replace(address[0], Path(found.stdout.split(" (")[0].strip()).name)

    def _value(self, name, const, kind, pointer, parameter, argument):
        """An array for a pointer, an array without axes for a number, None for a null pointer."""
        dtype = self._dtypes[kind]
        what = f"{name}: {parameter} takes "
        if pointer:
            if argument is None:
                return None
            if not isinstance(argument, np.ndarray) or argument.dtype != dtype:
                raise TypeError(f"{what}an array of {dtype} or None, not {getattr(argument, 'dtype', argument)}")
            if not argument.flags.c_contiguous:
                raise ValueError(f"{what}an array that is C-contiguous")
            if not const and not argument.flags.writeable:
                raise ValueError(f"{what}an array that can be written to")
            return argument.reshape(-1)         # of the same memory
        if isinstance(argument, np.ndarray | None) or (dtype.kind != "f" and argument != int(argument)):
            raise TypeError(f"{what}{dtype}, not {argument!r}")
        return np.array(argument, dtype)        # OverflowError if it does not fit


class _Memory:
    """Copies of arrays with guard bytes on both sides. Arrays that overlap share a copy, as they share memory."""

    def __init__(self, named_arrays):
        self._pieces = []
        for name, array in sorted(named_arrays, key=lambda item: item[1].ctypes.data):
            first, end = array.ctypes.data, array.ctypes.data + array.nbytes
            last = self._pieces[-1] if self._pieces else None
            if last and first < last.end:
                last.end, last.names = max(last.end, end), f"{last.names}, {name}"
                last.itemsize = min(last.itemsize, array.itemsize)
            else:
                self._pieces.append(SimpleNamespace(names=name, first=first, end=end, itemsize=array.itemsize))
        for piece in self._pieces:
            nbytes = piece.end - piece.first
            piece.buffer = np.full(nbytes + 2 * GUARD_BYTES + 256, GUARD, np.uint8)
            # A GPU's arrays start at multiples of 256 bytes; what is aligned to less than 16 bytes here stays so.
            piece.start = -(piece.buffer.ctypes.data + GUARD_BYTES) % 256 + GUARD_BYTES + piece.first % 16
            ctypes.memmove(piece.buffer.ctypes.data + piece.start, piece.first, nbytes)

    def pieces(self):
        """The names of the arrays in a copy, its address, size and the size of an element, for each of the copies."""
        return [(piece.names, piece.buffer.ctypes.data + piece.start, piece.end - piece.first, piece.itemsize)
                for piece in self._pieces]

    def address(self, array):
        """Where this array's copy is; 0, a null pointer, for None."""
        if array is None:
            return 0
        first = array.ctypes.data
        piece = next(piece for piece in self._pieces if piece.first <= first and first + array.nbytes <= piece.end)
        return piece.buffer.ctypes.data + piece.start + first - piece.first

    def copy_back(self, array):
        ctypes.memmove(array.ctypes.data, self.address(array), array.nbytes)


def _three(size):
    return (*size, 1, 1)[:3] if isinstance(size, tuple) else (int(size), 1, 1)


def _parameter(name, text):
    match = PARAMETER.match(" ".join(text.replace("__restrict__", " ").replace("*", "* ").split()).replace(" *", "*"))
    if not match:
        raise ValueError(f"{name}: cannot read the parameter {text!r}")
    const, kind, pointer, parameter = match.groups()
    return bool(const), kind.strip(), bool(pointer), parameter


def _wrapper(name, parameters):
    """A function that takes a kernel's arguments as an array of pointers to them, as CUDA's own launch does."""
    arguments = ", ".join(f"*static_cast<{'const ' if const and pointer else ''}{kind}{'*' * pointer}*>(arguments[{i}])"
                          for i, (const, kind, pointer, _) in enumerate(parameters))
    return (f'extern "C" [[gnu::visibility("default")]] const char* run_{name}(void** arguments, '
            "const unsigned* grid, const unsigned* block, int order, unsigned seed) {\n"
            f"    return emulator::run([](void** arguments) {{ {name}({arguments}); }}, arguments, "
            "{grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, BFLOAT16 ? 2 : 4, order, seed);\n}")


def _library(gpp, text, options):
    """The shared library compiled of `text`, from a temporary folder if it is there since an earlier run."""
    own = [(HERE / name).read_text() for name in ("emulator.h", "emulator.cpp", "checks.h")]
    digest = hashlib.sha256(repr((own, text, options, FLAGS, CHECKS)).encode()).hexdigest()[:24]
    path = Path(tempfile.gettempdir()) / f"npgpt-emulator-{digest}.so"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory() as folder:
        kernels, compiled, library = (Path(folder) / name for name in ("kernels.cpp", "kernels.o", "library.so"))
        kernels.write_text(text)
        # Two steps: linking knows nothing of the checks, else g++ would add libraries of its own for them.
        for command in ([gpp, *FLAGS, *CHECKS, *options, f"-I{HERE}", "-c", kernels, "-o", compiled],
                        [gpp, *FLAGS, "-shared", HERE / "emulator.cpp", compiled, "-o", library]):
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode:
                raise RuntimeError(run.stderr)
        partial = path.with_suffix(f".{os.getpid()}")
        shutil.copyfile(library, partial)
        partial.rename(path)        # at once: another process never finds half a file
    return path
