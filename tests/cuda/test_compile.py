"""The kernels through NVIDIA's own compiler: for each kind of GPU, with no headers, and with no warning."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from npgpt.engine.cuda.source import PRECISIONS, defines, source
from tests.cuda.emulate import kernel_parameters
from tests.cuda.nvrtc import Nvrtc

pytestmark = pytest.mark.slow

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
HEAD_SIZES = (32, 64, 128)

# A compilation takes seconds: of three times three times three, the nine that have every pair.
CASES = [(architecture, precision, HEAD_SIZES[(i + j) % 3])
         for i, architecture in enumerate(ARCHITECTURES) for j, precision in enumerate(PRECISIONS)]


@pytest.fixture(scope="module")
def nvrtc():
    return Nvrtc()


def options(architecture, precision, head_size):
    """CuPy's for the kernels: `GPU` gives it the last ones, and it adds the others."""
    return (f"--gpu-architecture={architecture}", "-ftz=true", "--device-as-default-execution-space", "--std=c++17",
            *defines(precision, head_size))


@pytest.fixture(scope="module")
def compiled(nvrtc):
    """{case: cubin and log}: two at a time, since ctypes lets go of Python's lock."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CASES, pool.map(lambda case: nvrtc.compile(source(), options(*case)), CASES), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_every_kernel_becomes_machine_code(compiled, case):
    cubin, log = compiled[case]
    assert cubin.startswith(b"\x7fELF")
    missing = [name for name in kernel_parameters(source()) if f"\0.text.{name}\0".encode() not in cubin]
    assert not missing
    assert log.strip() == ""        # no warnings


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_a_gpu_is_slow_at(nvrtc, precision):
    """No arithmetic in double; activations of 16 bits go to memory in packs, all but the target's logit and dlogit."""
    ptx = nvrtc.compile(source(), options("sm_90", precision, 64), "PTX")[0].decode()
    assert ptx.count(".f32") > 1000 and not re.search(r"\.f64\b", ptx)
    for access in ("ld", "st"):
        narrow = re.findall(rf"{access}\.global\.\w*16\b", ptx)
        assert len(narrow) == (precision == "bfloat16"), narrow


def test_no_kernel_is_overlooked():
    """What the tests take for a kernel is what the compiler takes for one."""
    assert len(kernel_parameters(source())) == source().count("__global__") > 20


def test_the_compiler_complains(nvrtc):
    """Else the tests above would prove nothing."""
    case = options("sm_90", "float32", 64)
    _, log = nvrtc.compile('extern "C" __global__ void nothing() { int unused; }', case)
    assert '"unused" was declared but never referenced' in log
    with pytest.raises(RuntimeError, match='identifier "missing" is undefined'):
        nvrtc.compile('extern "C" __global__ void nothing(int* p) { *p = missing; }', case)
    with pytest.raises(RuntimeError, match="too much shared data"):
        nvrtc.compile('extern "C" __global__ void nothing(int* p) { __shared__ int all[12289]; '
                      'all[threadIdx.x] = *p; __syncthreads(); *p = all[0]; }', case)
