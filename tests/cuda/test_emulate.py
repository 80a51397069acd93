"""The emulator itself: that kernels which are right run, and that each kind of mistake is found out."""

import numpy as np
import pytest

from npgpt.engine.cuda.source import source
from tests.cuda.emulate import HERE, compile_kernels, compile_text, kernel_parameters
from tests.engine.cuda.cublaslt import round_to_bfloat16, widen

pytestmark = pytest.mark.slow

SUMS = r"""
__device__ __forceinline__ float warp_sum(float x) {
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffff, x, i);
    return x;
}

// BARRIER is what the caller wants to be tested.
template <int LANES> __device__ float block_sum(float x) {
    __shared__ float sums[32];
    x = warp_sum(x);
    if (threadIdx.x % LANES == 0) sums[threadIdx.x / LANES] = x;
    BARRIER;
    return warp_sum(threadIdx.x % LANES < blockDim.x / LANES ? sums[threadIdx.x % LANES] : 0);
}

// A comment with a kernel: extern "C" __global__ void no(int* kernel) { }
extern "C" __global__ void __launch_bounds__(1024) row_sums(
        float* __restrict__ out, const float *a, long long n, /* , */ int add) {
    float sum = 0;
    for (long long i = threadIdx.x; i < n; i += blockDim.x) sum += expf(a[blockIdx.x * n + i]);
    sum = block_sum<32>(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = add ? out[blockIdx.x] + sum : sum;
}

"""

# The mistakes, a kernel each. They are called with an array of 64 numbers and an `int n`.
MISTAKES = r"""
#define WHICH threadIdx.x

extern "C" __global__ void barriers(float* a, int n) {
    if (WHICH % 32 < n) __syncthreads(); else __syncwarp();
}

extern "C" __global__ void warps(float* a, int n) {
    if (WHICH < n) __syncwarp(); else __shfl_xor_sync(0xffffffff, n, 1);
}

extern "C" __global__ void half_a_warp(float* a, int n) { __syncwarp(n); }

extern "C" __global__ void outside(float* a, int n) { if (WHICH == 0) a[n] = 1; }

extern "C" __global__ void outside_read(const float* a, float* b, int n) { b[WHICH] = a[WHICH + n]; }

extern "C" __global__ void wild(int* a, int n) { a[WHICH + (1ll << 40)] = n / (n - 1); }

extern "C" __global__ void division(int* a, int n) { a[WHICH] = 5 / n; }

extern "C" __global__ void index(float* a, int n) {
    __shared__ float all[64];
    all[WHICH] = 0;
    __syncthreads();
    a[WHICH] = all[WHICH + n];
}

struct alignas(16) Pack { float values[16 / sizeof(float)]; };
extern "C" __global__ void alignment(float* a, int n) { if (WHICH == 0) *reinterpret_cast<Pack*>(a + n) = {}; }

// Threads of one warp and of two, of one block and of two; a barrier between that is there and not.
extern "C" __global__ void lanes(float* a, int n) {
    __shared__ float all[64];
    all[WHICH] = WHICH;
    if (n) __syncwarp();
    a[WHICH] = all[WHICH ^ 1];
}

extern "C" __global__ void lanes_write(float* a, int n) {
    __shared__ float all[64];
    all[WHICH] = WHICH;
    __syncwarp();
    float x = all[WHICH ^ 1];
    if (n) __syncwarp();
    all[WHICH] = x;
}

extern "C" __global__ void warps_race(float* a, int n) {
    __shared__ float all[64];
    all[WHICH] = WHICH;
    if (n) __syncthreads(); else __syncwarp();
    a[WHICH] = all[WHICH ^ 32];
}

extern "C" __global__ void blocks(float* a, int n) { a[n ? blockIdx.x * blockDim.x + WHICH : WHICH] = 1; }

extern "C" __global__ void blocks_read(float* a, int n) { a[blockIdx.x] = a[n ? blockIdx.x : 1 - blockIdx.x]; }

extern "C" __global__ void unwritten(float* a, int n) {
    __shared__ float all[64];
    if (WHICH != n) all[WHICH] = 0;
    a[WHICH] = all[WHICH];
}

// A shuffle from a lane that has come to its end.
extern "C" __global__ void gone(float* a, int n) {
    if (WHICH % 32 == 31) return;
    a[WHICH] = __shfl_sync(0xffffffff, float(1), n);
}
"""


def sums(barrier="__syncthreads()", **options):
    return compile_text(SUMS.replace("BARRIER", barrier), **options)


@pytest.fixture(scope="module")
def mistakes():
    return compile_text(MISTAKES)


@pytest.mark.parametrize("order", ["forward", "reverse", 3, None])
@pytest.mark.parametrize("threads", [32, 96, 1024])
def test_block_sums(threads, order):
    rng = np.random.default_rng(threads)
    a = rng.standard_normal((5, 1001))
    out = rng.standard_normal(5)
    expected = np.exp(a).sum(1)
    kernels, before = sums(), out.copy()
    kernels.launch("row_sums", 5, threads, out, a, 1001, 1, order=order)
    np.testing.assert_allclose(out, expected + before, rtol=1e-14)
    kernels.launch("row_sums", 5, threads, out, a, 1001, 0, order=order)
    np.testing.assert_allclose(out, expected, rtol=1e-14)


def test_arguments_are_checked():
    kernels, a, out = sums(), np.ones((2, 4)), np.ones(2)
    for error, message, grid, block, *arguments in (
            (TypeError, "row_sums takes 4 arguments, not 1: out, a, n, add", 2, 32, out),
            (TypeError, "row_sums: a takes an array of float64 or None, not float32", 2, 32, out, np.float32(a), 4, 0),
            (ValueError, "row_sums: a takes an array that is C-contiguous", 2, 32, out, a.T, 4, 0),
            (TypeError, "row_sums: n takes int64, not 4.5", 2, 32, out, a, 4.5, 0),
            (OverflowError, "out of bounds for int32", 2, 32, out, a, 4, 2**31),
            (ValueError, "a block of 33 threads", 2, 33, out, a, 4, 0),
            (ValueError, "no grid of \\(2, 65536, 1\\)", (2, 65536), 32, out, a, 4, 0)):
        with pytest.raises(error, match=message):
            kernels.launch("row_sums", grid, block, *arguments)


def test_memory_that_arguments_share():
    """As `dx may be dy`: an array given twice, and a part of an array beside the whole."""
    kernels = compile_text(r"""
        extern "C" __global__ void shift(float* out, const float* a) { out[threadIdx.x] = a[threadIdx.x] + 1; }
    """)
    a = np.arange(64.0)
    kernels.launch("shift", 1, 64, a, a)
    np.testing.assert_array_equal(a, np.arange(64.0) + 1)
    kernels.launch("shift", 1, 32, a[32:], a)
    np.testing.assert_array_equal(a, np.concatenate([np.arange(32.0) + 1, np.arange(32.0) + 2]))
    with pytest.raises(RuntimeError, match="race: .* of out, a|race: .* of a, out"):
        kernels.launch("shift", 1, 32, a[1:33], a)


@pytest.mark.parametrize("order", ["forward", "reverse", 1])
@pytest.mark.parametrize(("name", "n", "message"), [
    ("barriers", 5, "deadlock: 27 lanes of warp [01] wait in __syncwarp, 5 in __syncthreads"),
    ("warps", 40, "lanes of warp 1 wait in __syncwarp, others in __shfl_xor_sync"),
    ("half_a_warp", 0xFFFF, "the mask is 0xffff, not all lanes"),
    ("outside", 64, "wrote outside of an array: element 64 of a"),
    ("outside", -1, "wrote outside of an array: element -1 of a"),
    ("outside", 575, "wrote outside of an array: element 575 of a"),
    ("index", 1, "index 64 is out of bounds of 'double \\[64\\]'"),
    ("alignment", 1, "a pointer that is not aligned, .* of type 'struct Pack'"),
    ("lanes", 0, "race: "),
    ("lanes_write", 0, "race: "),
    ("warps_race", 0, "race: "),
    ("blocks", 0, "race: written by two threads: element [0-9]+ of a"),
    ("blocks_read", 0, "race: .*: element [01] of a"),
])
def test_mistakes_are_found(mistakes, name, n, message, order):
    """Whatever the order of threads, also in one where they do no harm."""
    with pytest.raises(RuntimeError, match=f"^{name}: .*{message}.*block .*thread"):
        mistakes.launch(name, 2, 32 if name == "blocks_read" else 64, np.ones(64), n, order=order)


@pytest.mark.parametrize(("name", "n"), [("barriers", 0), ("barriers", 32), ("warps", 32), ("half_a_warp", -1),
                                         ("outside", 63), ("outside", 0), ("index", 0), ("alignment", 2), ("lanes", 1),
                                         ("lanes_write", 1), ("warps_race", 1)])
def test_what_is_no_mistake(mistakes, name, n):
    mistakes.launch(name, 1, 64, np.ones(64), n)


def test_blocks_do_not_race_where_they_write_apart(mistakes):
    a = np.zeros(64)
    mistakes.launch("blocks", 2, 32, a, 1)
    np.testing.assert_array_equal(a, 1)


def test_accesses_that_end_a_process(mistakes):
    """They end the launch, and the next one works."""
    a = np.ones(64, np.int32)
    with pytest.raises(RuntimeError, match="wild: no memory at address 0x"):
        mistakes.launch("wild", 1, 64, a, 2)
    with pytest.raises(RuntimeError, match="wild: no memory at address 0x"):
        mistakes.launch("wild", 1, 64, None, 2)
    with pytest.raises(RuntimeError, match="division: an integer was divided by zero"):
        mistakes.launch("division", 1, 64, a, 0)
    mistakes.launch("division", 1, 64, a, 2)
    np.testing.assert_array_equal(a, 2)


def test_reading_outside(mistakes):
    a, b = np.ones(65), np.full(64, np.nan)
    mistakes.launch("outside_read", 1, 64, a, b, 1)
    np.testing.assert_array_equal(b, 1)
    with pytest.raises(RuntimeError, match="read outside of an array: element 65 of a, at kernels.cu:16, block"):
        mistakes.launch("outside_read", 1, 64, a, b, 2)


def test_what_was_not_written_is_nan(mistakes):
    """In each block anew, and from lanes that have no value to give."""
    a = np.zeros(64)
    for n in (5, 50):
        mistakes.launch("unwritten", 1, 64, a, n)
        np.testing.assert_array_equal(np.isnan(a), np.arange(64) == n)
    mistakes.launch("gone", 1, 64, a, 30)
    np.testing.assert_array_equal(a[:31], 1)
    mistakes.launch("gone", 1, 64, a, 31)
    assert np.isnan(a[:31]).all()


def test_orders():
    """In which order warps and lanes come: the emulator's check for races would not let a kernel tell."""
    text = r"""
        static int turn;
        extern "C" __global__ void turns(int* out) {
            out[blockIdx.x * 64 + threadIdx.x] = turn++;
            __syncthreads();
        }
        extern "C" __global__ void restart(int* out) { turn = 0; }
    """

    def turns(**order):
        out = np.zeros(128, np.int32)
        kernels.launch("restart", 1, 32, out)
        kernels.launch("turns", 2, 64, out, **order)
        assert sorted(out) == list(range(128))
        return out.tolist()

    kernels = compile_text(text)
    assert turns(order="forward") == list(range(128))
    assert turns(order="reverse") == list(range(127, -1, -1))
    assert turns(order=7) == turns(order=7) != turns(order=8)
    assert turns() != turns()


# ---- Single instructions, against NumPy -----------------------------------------------------------------------------

INSTRUCTIONS = (HERE / "ptx_emulated.h").read_text() + r"""
// a (16, 16), b (16, 8), d (16, 8), laid out as the PTX manual has them: group = lane / 4, in_group = lane % 4.
extern "C" __global__ void mma_16_8_16(float* d, const unsigned short* a, const unsigned short* b) {
    const int group = threadIdx.x / 4, in_group = threadIdx.x % 4;
    unsigned left[4] = {}, right[2] = {};
    for (int i = 0; i < 8; i++) {
        const int row = group + (i / 2 % 2 ? 8 : 0), column = in_group * 2 + i % 2 + (i < 4 ? 0 : 8);
        left[i / 2] |= static_cast<unsigned>(a[row * 16 + column]) << i % 2 * 16;
    }
    for (int i = 0; i < 4; i++) {
        const int row = in_group * 2 + i % 2 + (i < 2 ? 0 : 8);
        right[i / 2] |= static_cast<unsigned>(b[row * 8 + group]) << i % 2 * 16;
    }
    float sums[4];
    for (int i = 0; i < 4; i++) sums[i] = d[(group + i / 2 * 8) * 8 + in_group * 2 + i % 2];
    mma_bfloat16(sums, left, right);
    for (int i = 0; i < 4; i++) d[(group + i / 2 * 8) * 8 + in_group * 2 + i % 2] = sums[i];
}

// a (16, 8), b (8, 8), d (16, 8)
extern "C" __global__ void mma_16_8_8(float* d, const float* a, const float* b) {
    const int group = threadIdx.x / 4, in_group = threadIdx.x % 4;
    float left[4], right[2], sums[4];
    for (int i = 0; i < 4; i++) left[i] = a[(group + i % 2 * 8) * 8 + in_group + i / 2 * 4];
    for (int i = 0; i < 2; i++) right[i] = b[(in_group + i * 4) * 8 + group];
    for (int i = 0; i < 4; i++) sums[i] = d[(group + i / 2 * 8) * 8 + in_group * 2 + i % 2];
    mma_tf32(sums, left, right);
    for (int i = 0; i < 4; i++) d[(group + i / 2 * 8) * 8 + in_group * 2 + i % 2] = sums[i];
}

// matrices (4, 8, 8) in shared memory -> what each lane gets: (32, 4) pairs. offset: in values, of the rows' addresses.
extern "C" __global__ void matrices(unsigned* out, const unsigned short* from, int transposed, int offset) {
    __shared__ __align__(16) unsigned short all[264];
    for (int i = threadIdx.x; i < 264; i += 32) all[i] = i < 256 ? from[i] : 0;
    __syncthreads();
    unsigned got[4];
    if (transposed) load_matrices_transposed(got, &all[threadIdx.x * 8 + offset]);
    else load_matrices(got, &all[threadIdx.x * 8 + offset]);
    for (int m = 0; m < 4; m++) out[threadIdx.x * 4 + m] = got[m];
}

// 64 floats on their way to shared memory, and `there` of them; what is seen before the wait and after it.
extern "C" __global__ void copies(
        float* before, float* after, const float* from, int there, int one_by_one, int offset) {
    __shared__ __align__(16) float all[64];
    const int each = one_by_one ? 1 : 16 / sizeof(float);
    for (int i = threadIdx.x * each; i < 64; i += 32 * each)
        if (one_by_one) start_copy_float(&all[i], from + i, i < there);
        else start_copy(&all[i], from + i + offset, i < there);
    for (int i = threadIdx.x * each; i < 64; i += 32 * each)
        for (int k = 0; k < each; k++) before[i + k] = all[i + k];
    wait_for_copies();
    __syncthreads();
    for (int i = threadIdx.x; i < 64; i += 32) after[i] = all[i];
}

"""


@pytest.fixture(scope="module")
def instructions():
    return compile_text(INSTRUCTIONS, "bfloat16", double=False)


def test_mma_bfloat16(instructions):
    rng = np.random.default_rng(0)
    a, b = (round_to_bfloat16(rng.standard_normal(shape)) for shape in ((16, 16), (16, 8)))
    d = rng.standard_normal((16, 8)).astype(np.float32)
    expected = d + widen(a).astype(np.float64) @ widen(b)
    instructions.launch("mma_16_8_16", 1, 32, d, a, b)
    np.testing.assert_allclose(d, expected, rtol=1e-5, atol=1e-5)


def test_mma_tf32(instructions):
    """The upper 19 bits of its operands count."""
    rng = np.random.default_rng(0)
    a, b, d = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 8), (8, 8), (16, 8)))
    cut_a, cut_b = ((x.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64) for x in (a, b))
    expected = d + cut_a @ cut_b
    instructions.launch("mma_16_8_8", 1, 32, d, a, b)
    np.testing.assert_allclose(d, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transposed", [0, 1])
def test_load_matrices(instructions, transposed):
    """Lane 4r + c gets columns 2c and 2c + 1 of row r of each matrix, or of its transpose."""
    matrices = np.random.default_rng(0).integers(1 << 16, size=(4, 8, 8), dtype=np.uint16)
    out = np.zeros((32, 4), np.uint32)
    instructions.launch("matrices", 1, 32, out, matrices, transposed, 0)
    rows = matrices.swapaxes(-1, -2) if transposed else matrices
    expected = np.stack([rows[m].reshape(32, 2) for m in range(4)], axis=1)     # (lane, matrix, pair)
    np.testing.assert_array_equal(out & 0xFFFF, expected[..., 0])
    np.testing.assert_array_equal(out >> 16, expected[..., 1])
    with pytest.raises(RuntimeError, match="not a multiple of 16"):
        instructions.launch("matrices", 1, 32, out, matrices, transposed, 2)


@pytest.mark.parametrize("one_by_one", [0, 1])
@pytest.mark.parametrize("double", [False, True])
def test_copies(double, one_by_one):
    """Nothing is there before the wait, and zeros for what is not there to be copied."""
    kernels, kind = compile_text(INSTRUCTIONS, double=double), np.float64 if double else np.float32
    rng = np.random.default_rng(0)
    before, after, given = (rng.standard_normal(64).astype(kind) for _ in range(3))
    kernels.launch("copies", 1, 32, before, after, given, 40, one_by_one, 0)
    assert np.isnan(before).all()
    np.testing.assert_array_equal(after, np.where(np.arange(64) < 40, given, 0))
    if not one_by_one:
        with pytest.raises(RuntimeError, match="not a multiple of 16"):
            kernels.launch("copies", 1, 32, before, after, given, 40, 0, 1)


def test_all_kernels_of_the_package_are_there():
    names = compile_kernels().names
    assert names == tuple(kernel_parameters(source())) and len(names) > 20
