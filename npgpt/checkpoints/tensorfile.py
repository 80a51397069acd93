"""safetensors files: named arrays behind a small JSON header, read directly into the model's arrays.

The safetensors library checks the header (its size, its JSON, that the tensors are contiguous and fill the file). The
values are then read in chunks into the destination, so a model of 6 GB needs no more than 6 GB of memory.
"""

import json
import math
import struct
from typing import BinaryIO

import numpy as np
import safetensors

from npgpt.arrays import library_of, on_device_of, to_host
from npgpt.checks import as_floats
from npgpt.errors import UserError
from npgpt.files import AnyPath, open_regular

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}      # bfloat16: the upper half of a float32's bits
NAMES = {"float16": "F16", "float32": "F32", "float64": "F64"}
TRANSPOSED = (
    "; this is the layout of nn.Linear: transpose the weights of c_attn, c_fc and c_proj, also of "
    "attn.c_proj, which is square, so that its shape does not show it"
)
CHUNK = 1 << 20         # values converted at a time


class TensorFile:
    """A safetensors file. `shapes` maps names to tuples; `read_into` copies one tensor.

    Raises UserError if the file cannot be read or is damaged.
    """

    def __init__(self, path: AnyPath):
        self.path = path
        try:
            # The library maps the file and checks its header.
            with open_regular(path) as file, safetensors.safe_open(path, framework="numpy"):
                (length,) = struct.unpack("<Q", file.read(8))
                self._header = json.loads(file.read(length))
        except (OSError, safetensors.SafetensorError) as error:
            raise UserError(f"{path} is not a safetensors file that can be read ({error}): it may be cut off, "
                            "copy or download it again") from None
        self._header.pop("__metadata__", None)
        self._start = 8 + length
        self.shapes = {name: tuple(entry["shape"]) for name, entry in self._header.items()}

    def dtype(self, name: str) -> str:
        """The stored type of a tensor, "F32", "BF16", …"""
        return self._header[name]["dtype"]

    def read_into(self, name: str, array) -> None:
        """Copy a tensor, stored as one of DTYPES, into a C-contiguous array of its shape, converted to its dtype.

        Raises UserError if the file ends early, or a number becomes infinite.
        """
        rest = array.reshape(-1)
        what = f"{self.path}: {name}"
        for values in self.chunks(name):
            with on_device_of(rest):
                rest[:len(values)] = as_floats(what, values, rest.dtype, library_of(rest))
            rest = rest[len(values):]

    def chunks(self, name):
        """Yield the values of a tensor, stored as one of DTYPES, in 1-D arrays of at most CHUNK.

        Raises UserError if the file ends early.
        """
        dtype = self.dtype(name)
        left = math.prod(self.shapes[name])
        with open_regular(self.path) as file:
            file.seek(self._start + self._header[name]["data_offsets"][0])
            while left:
                values = np.fromfile(file, DTYPES[dtype], min(left, CHUNK))
                if values.size < min(left, CHUNK):
                    raise UserError(f"{self.path} ends within {name}: copy or download it again")
                left -= values.size
                yield (values.astype("<u4") << 16).view("<f4") if dtype == "BF16" else values


def same_values(a, b):
    """Return whether two tensors, each a (`TensorFile`, name), have equal shapes and numbers.

    Their types may differ.
    """
    shapes = [file.shapes[name] for file, name in (a, b)]
    if shapes[0] != shapes[1] or not all(file.dtype(name) in DTYPES for file, name in (a, b)):
        return False
    return all(map(np.array_equal, *(file.chunks(name) for file, name in (a, b))))


def is_zero(file, name):
    """Return whether a tensor of a `TensorFile` has only zeros."""
    return file.dtype(name) in DTYPES and not any(map(np.any, file.chunks(name)))


def check_tensors(shapes, stored, path):
    """Raise UserError, naming the tensors that are missing, extra, or of the wrong shape or type.

    shapes: name -> the right shape. stored: name -> (a `TensorFile`, the name there).
    """
    complaints = [f"{name} is extra" for name in stored if name not in shapes]
    transposed = False
    for name, shape in shapes.items():
        file, stored_name = stored.get(name, (None, name))
        if file is None:
            complaints.append(f"{name} is missing")
        elif (found := file.shapes[stored_name]) != shape:
            complaints.append(f"{name} has the shape {found} instead of {shape}")
            transposed |= name.endswith("c_attn.weight") and found == shape[::-1]
        elif file.dtype(stored_name) not in DTYPES:
            complaints.append(f"{name} is stored as {file.dtype(stored_name)}, not as floats of 16 to 64 bits")
    if complaints:
        shown = ", ".join(complaints[:5]) + TRANSPOSED * transposed
        raise UserError(f"{path} does not fit the model's config: {shown}")


def write_tensors(file: BinaryIO, tensors: dict) -> None:
    """Write a mapping of names to C-contiguous float arrays to an open binary file, in safetensors format.

    Arrays on a GPU are copied one at a time.
    """
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}    # transformers requires this entry
    end = 0
    for name, array in tensors.items():
        begin = end
        end += array.nbytes
        header[name] = {"dtype": NAMES[str(array.dtype)], "shape": list(array.shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)                       # the numbers begin at a multiple of 8 bytes
    file.write(struct.pack("<Q", len(encoded)) + encoded)
    for array in tensors.values():
        file.write(memoryview(to_host(array).reshape(-1)).cast("B"))
