"""safetensors files: named arrays behind a JSON header, read directly into a model's arrays.

The safetensors library checks the header (its size, its JSON, that the tensors are contiguous and
fill the file). The values are then read in chunks into the destination, so a model of 6 GB needs no
more than 6 GB of memory.
"""

import json
import math
import re
import struct
from typing import BinaryIO, NamedTuple

import numpy as np
import safetensors

from npgpt.arrays import library_of, on_device_of, to_host
from npgpt.checks import as_floats
from npgpt.errors import UserError
from npgpt.files import AnyPath, open_regular

# bfloat16: the upper half of a float32's bits
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
NAMES = {"float16": "F16", "float32": "F32", "float64": "F64"}
TRANSPOSED = (
    "; this is the layout of nn.Linear: transpose the weights of c_attn, c_fc and c_proj, also of "
    "attn.c_proj, which is square, so that its shape does not show it"
)
# The causal mask, in old checkpoints.
MASK_BUFFER = re.compile(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)")
CHUNK = 1 << 20  # values converted at a time


class Tensor(NamedTuple):
    """A tensor in a safetensors file, stored as one of DTYPES."""

    path: AnyPath
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # of its bytes in the file

    def read_into(self, array):
        """Copy it into a C-contiguous array of its shape, converted to the array's dtype.

        Raises UserError if the file ends early, or a number becomes infinite.
        """
        rest = array.reshape(-1)
        what = f"{self.path}: {self.name}"
        for values in self.chunks():
            with on_device_of(rest):
                rest[: len(values)] = as_floats(what, values, rest.dtype, library_of(rest))
            rest = rest[len(values) :]

    def chunks(self):
        """Yield its values in 1-D arrays of at most CHUNK. Raises UserError if the file ends."""
        left = math.prod(self.shape)
        with open_regular(self.path) as file:
            file.seek(self.start)
            while left:
                values = np.fromfile(file, DTYPES[self.dtype], min(left, CHUNK))
                if values.size < min(left, CHUNK):
                    raise UserError(
                        f"{self.path} ends within {self.name}: copy or download it again"
                    )
                left -= values.size
                yield (values.astype("<u4") << 16).view("<f4") if self.dtype == "BF16" else values

    def is_zero(self):
        return not any(map(np.any, self.chunks()))

    def equals(self, other):
        """Return whether another one has the same shape and numbers. The dtypes may differ."""
        same = self.shape == other.shape
        return same and all(map(np.array_equal, self.chunks(), other.chunks()))


def open_tensors(path: AnyPath) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name, without causal masks.

    Raises UserError if it cannot be read, is damaged, or has other numbers than DTYPES.
    """
    try:
        # The library maps the file and checks its header.
        with open_regular(path) as file, safetensors.safe_open(path, framework="numpy"):
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(
            f"{path} is not a safetensors file that can be read ({error}): it may be cut off, "
            "copy or download it again"
        ) from None
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        if MASK_BUFFER.fullmatch(name):
            continue
        dtype, start = entry["dtype"], 8 + length + entry["data_offsets"][0]
        if dtype not in DTYPES:
            raise UserError(f"{path}: {name} is stored as {dtype}, not as floats of 16 to 64 bits")
        tensors[name] = Tensor(path, name, dtype, tuple(entry["shape"]), start)
    return tensors


def check_tensors(shapes, stored, path):
    """Raise UserError, naming the tensors that are missing, extra, or of the wrong shape.

    shapes: name -> the right shape. stored: name -> `Tensor`.
    """
    complaints = [f"{name} is extra" for name in stored if name not in shapes]
    hint = ""
    for name, shape in shapes.items():
        found = stored[name].shape if name in stored else None
        if found is None:
            complaints.append(f"{name} is missing")
        elif found != shape:
            complaints.append(f"{name} has the shape {found} instead of {shape}")
            if name.endswith("c_attn.weight") and found == shape[::-1]:
                hint = TRANSPOSED
    if complaints:
        raise UserError(
            f"{path} does not fit the model's config: {', '.join(complaints[:5])}{hint}"
        )


def write_tensors(file: BinaryIO, tensors: dict) -> None:
    """Write a mapping of names to C-contiguous float arrays to an open binary file, in safetensors
    format.

    Arrays on a GPU are copied one at a time.
    """
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}  # transformers requires this entry
    end = 0
    for name, array in tensors.items():
        begin = end
        end += array.nbytes
        header[name] = {
            "dtype": NAMES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the numbers begin at a multiple of 8 bytes
    file.write(struct.pack("<Q", len(encoded)) + encoded)
    for array in tensors.values():
        file.write(memoryview(to_host(array).reshape(-1)).cast("B"))
