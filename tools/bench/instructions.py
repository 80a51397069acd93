"""Instruction sets: hold every library to AVX2 on a CPU that has AVX-512, and ask each library what it uses."""

import os
import re
import subprocess
import sys
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import threadpoolctl
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

AVX2 = {
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": " ".join(name for name in __cpu_dispatch__ if re.match("AVX512|X86_V4", name)),
    "ATEN_CPU_CAPABILITY": "avx2",              # PyTorch's own kernels, and the vectors of torch.compile's code
    "TORCHINDUCTOR_CPP_MARCH": "x86-64-v3",     # all of torch.compile's code, cached apart
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "",                   # none but haswell's; by default those of the CPU
}
SAYS = {"torch": """
import torch
from torch._inductor.cpu_vec_isa import pick_vec_isa

torch.ones(64, 64) @ torch.ones(64, 64)     # MKL says what it uses
torch.ones(64, 64).to_mkldnn()              # and so does oneDNN
print("PyTorch:", torch.backends.cpu.get_cpu_capability())
print("torch.compile:", pick_vec_isa())
""", "mkl": "import numpy as np, npgpt.engine.matmul as mkl; mkl.matmul(np.ones((64, 64)), np.ones((64, 64)))",
        "numba": "import numba, llvmlite.binding as llvm; print(numba.config.CPU_NAME or llvm.get_host_cpu_name())"}
MKL = "MKL_VERBOSE oneMKL.* for Intel.*64 architecture (.+), Lnx"
PATTERNS = {"torch": {"PyTorch": "PyTorch: (.+)", "torch.compile": "torch.compile: (.+)",
                      "oneDNN": "onednn_verbose.*,isa:(.+)", "PyTorch's MKL": MKL},
            "mkl": {"npgpt's MKL": MKL}, "numba": {"Numba": "(.+)"}}


def environment(instructions):
    """Return the variables of a process whose libraries are held to "avx2", or with None choose for the CPU."""
    kept = {name: value for name, value in os.environ.items() if name not in AVX2 and name != "OPENBLAS_L2_SIZE"}
    return {**kept, **(AVX2 if instructions == "avx2" else {})}


def installed(package):
    """Return whether there is a module of this name, or a package without one, such as mkl."""
    return bool(find_spec(package) or any(distributions(name=package)))


def of_the_cpu():
    """Return the largest instruction set of this machine's CPU."""
    flags = Path("/proc/cpuinfo").read_text()
    return next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), "no AVX2")


def in_use():
    """Return {library: the instructions that it uses} in this process, or in one that has the same variables."""
    blas = [info.get("architecture") for info in threadpoolctl.threadpool_info() if info["user_api"] == "blas"]
    found = {"NumPy": " ".join(name for name in __cpu_dispatch__ if __cpu_features__[name]), "OpenBLAS": blas[0]}
    for package in filter(installed, SAYS):
        done = subprocess.run([sys.executable, "-c", SAYS[package]], capture_output=True, text=True,
                              env={**os.environ, "MKL_VERBOSE": "1", "ONEDNN_VERBOSE": "1"})
        matches = {library: re.search(pattern, done.stdout) for library, pattern in PATTERNS[package].items()}
        found |= {library: match[1] for library, match in matches.items() if match}
    return found
