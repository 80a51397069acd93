"""The source of the CUDA kernels: one file a subject, joined to one text for the compiler.

Kernels depend on three macros: BFLOAT16 (activations and operands of matrix products have 16 bits), TF32 (with
activations in float32: matrix products inside kernels round their operands to tf32) and HEAD_SIZE.
"""

from pathlib import Path

FILES = ("ptx.cu", "common.cu", "philox.cu", "embedding.cu", "layernorm.cu", "gelu.cu", "tiles.cu", "attention.cu",
         "classifier.cu", "sums.cu", "adamw.cu")

PRECISIONS = {"float32": ("-DBFLOAT16=0", "-DTF32=0"),
              "tf32": ("-DBFLOAT16=0", "-DTF32=1"),
              "bfloat16": ("-DBFLOAT16=1", "-DTF32=0")}


def source(files=FILES):
    """The text of these files, one after the other; the compiler's messages name file and line."""
    paths = [Path(__file__).with_name(name) for name in files]
    return "".join(f'#line 1 "{path.name}"\n{path.read_text()}\n' for path in paths)


def defines(precision, head_size):
    """The compiler's options for "float32", "tf32" or "bfloat16", and attention heads of this many channels."""
    return (*PRECISIONS[precision], f"-DHEAD_SIZE={head_size}")
