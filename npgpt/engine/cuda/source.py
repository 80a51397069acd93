"""The source of the CUDA kernels: one file a subject, joined to one text for the compiler.

Kernels depend on three macros: BFLOAT16 (activations and operands of matmuls are bfloat16), TF32 (activations are
float32, and matmuls inside kernels round their operands to tf32) and HEAD_SIZE.
"""

from pathlib import Path

FILES = ("ptx.cu", "common.cu", "philox.cu", "embedding.cu", "layernorm.cu", "gelu.cu", "tiles.cu", "attention.cu",
         "classifier.cu", "sums.cu", "adamw.cu")

PRECISIONS = {"float32": ("-DBFLOAT16=0", "-DTF32=0"),
              "tf32": ("-DBFLOAT16=0", "-DTF32=1"),
              "bfloat16": ("-DBFLOAT16=1", "-DTF32=0")}


def source(files=FILES):
    """Join the text of these files; the compiler's messages name file and line."""
    paths = [Path(__file__).with_name(name) for name in files]
    return "".join(f'#line 1 "{path.name}"\n{path.read_text()}\n' for path in paths)


def defines(precision, head_size):
    """Return the compiler's options for "float32", "tf32" or "bfloat16", and a head size."""
    return (*PRECISIONS[precision], f"-DHEAD_SIZE={head_size}")
