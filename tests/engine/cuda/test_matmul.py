"""Matmuls by cublasLt: what we ask it for is what NumPy's line says, for every layout and type. No GPU is needed."""

import ctypes
import itertools
import types

import numpy as np
import pytest

from npgpt.engine.cuda import matmul as module
from npgpt.engine.cuda.matmul import Matmul
from npgpt.errors import UserError
from tests import strict_cupy
from tests.engine.cuda.cublaslt import Library, round_to_bfloat16, widen
from tests.strict_cupy import on_gpu

M, K, N = 5, 7, 6
STREAM = 0x57EA

TYPES = [(np.float32, np.float32), (np.uint16, np.uint16), (np.uint16, np.float32)]         # of the factors, of out
YES_AND_NO = (False, True)
TRANSPOSED = list(itertools.product(YES_AND_NO, YES_AND_NO))        # a, b


def current_stream():
    return types.SimpleNamespace(ptr=STREAM)


@pytest.fixture
def library(monkeypatch):
    strict_cupy.install(monkeypatch)
    library = Library()
    monkeypatch.setattr(module, "load_cublaslt", lambda: library)
    return library


@pytest.fixture
def matmul(library):
    return Matmul(current_stream, on_gpu(np.zeros(1024, np.uint8)))


def random(rng, shape, dtype, transposed=False, margin=3):
    """A matrix inside a larger one, or the transpose of such a one: the matrix, and all of the memory around it."""
    rows, cols = shape[::-1] if transposed else shape
    around = rng.standard_normal((rows + 1, cols + margin)).astype(np.float32)
    around = round_to_bfloat16(around) if dtype == np.uint16 else around
    inside = around[:rows, margin // 2:margin // 2 + cols]
    return inside.T if transposed else inside, around


def assert_product(out, a, b, bias=None, before=None):
    expected = widen(a).astype(np.float64) @ widen(b).astype(np.float64)
    expected += 0 if bias is None else widen(bias)
    expected += 0 if before is None else widen(before)
    tolerance = 2**-8 if out.dtype == np.uint16 else 1e-6
    np.testing.assert_allclose(widen(out), expected, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize(("dtype", "out_dtype"), TYPES, ids=["fp32", "bf16", "bf16-fp32"])
@pytest.mark.parametrize("margin", [0, 3], ids=["whole", "part of a matrix"])
@pytest.mark.parametrize(("a_transposed", "b_transposed"), TRANSPOSED)
@pytest.mark.parametrize("add", YES_AND_NO)
@pytest.mark.parametrize("with_bias", YES_AND_NO)
def test_is_numpys_product(matmul, library, a_transposed, b_transposed, margin, dtype, out_dtype, add, with_bias):
    rng = np.random.default_rng(0)
    a, _ = random(rng, (M, K), dtype, a_transposed, margin)
    b, _ = random(rng, (K, N), dtype, b_transposed, margin)
    bias = random(rng, (1, N), out_dtype)[0][0] if with_bias else None
    out, around = random(rng, (M, N), out_dtype, False, margin)
    if not add:
        out[...] = 0x7FC0 if out_dtype == np.uint16 else np.nan         # what is there may not matter
    before, around_before = out.copy(), around.copy()

    matmul(on_gpu(a), on_gpu(b), on_gpu(out), bias=None if bias is None else on_gpu(bias), add=add)

    assert_product(out, a, b, bias, before if add else None)
    around_before[:M, margin // 2:margin // 2 + N] = out
    np.testing.assert_array_equal(around, around_before)        # nothing is written beside it
    # No part of a sum is rounded to bfloat16, which cublasLt may do where it splits K.
    assert library.heuristics[-1][3] == (2 if out_dtype == np.uint16 else 0xFFFFFFFF)
    call = library.calls[-1]
    assert call["transposed"] == (b_transposed, a_transposed) and call["beta"] == add


@pytest.mark.parametrize(("a_transposed", "b_transposed"), TRANSPOSED)
@pytest.mark.parametrize("add", YES_AND_NO)
def test_an_output_that_is_a_transpose(matmul, a_transposed, b_transposed, add):
    rng = np.random.default_rng(1)
    a, _ = random(rng, (M, K), np.float32, a_transposed)
    b, _ = random(rng, (K, N), np.float32, b_transposed)
    out, _ = random(rng, (M, N), np.float32, transposed=True)
    before = out.copy()
    matmul(on_gpu(a), on_gpu(b), on_gpu(out), add=add)
    assert_product(out, a, b, before=before if add else None)
    with pytest.raises(ValueError, match="no bias"):
        matmul(on_gpu(a), on_gpu(b), on_gpu(out), bias=on_gpu(before[0].copy()))


@pytest.mark.parametrize("shape", [(1, K, N), (M, 1, N), (M, K, 1), (1, 1, 1)], ids=str)
def test_vectors_are_matrices_too(matmul, shape):
    rng = np.random.default_rng(2)
    m, k, n = shape
    for a_transposed, b_transposed in TRANSPOSED:
        a, _ = random(rng, (m, k), np.float32, a_transposed)
        b, _ = random(rng, (k, n), np.float32, b_transposed)
        out = np.full((m, n), np.nan, np.float32)
        matmul(on_gpu(a), on_gpu(b), on_gpu(out))
        assert_product(out, a, b)


@pytest.mark.parametrize(("dtype", "tf32", "compute"), [
    (np.float32, False, 68), (np.float32, True, 77), (np.uint16, False, 68), (np.uint16, True, 68)])
def test_sums_are_in_float32(library, dtype, tf32, compute):
    workspace = on_gpu(np.zeros(1024, np.uint8))
    matmul = Matmul(current_stream, workspace, tf32)
    a, b, out = (on_gpu(np.ones((4, 4), dtype)) for _ in range(3))
    matmul(a, b, out)
    (call,) = library.calls
    assert (call["compute"], call["scale"], call["pointer mode"], call["bias type"]) == (compute, 0, 0, -1)
    assert (call["stream"], call["workspace"], call["handle"]) == (STREAM, workspace.data.ptr, 0xACCE55)


def test_a_plan_serves_all_products_of_its_kind(matmul, library):
    rng = np.random.default_rng(4)
    memory = np.zeros(4096, np.float32)
    start = -memory.ctypes.data % 256 // 4              # of an address that 256 divides

    def array(shape, offset):
        part = memory[start + offset:][:np.prod(shape)].reshape(shape)
        part[...] = rng.standard_normal(shape)
        return part

    for i in range(2):                                  # other arrays at other addresses, and another bias
        a, b, out, bias = (array(s, 1024 * i + o) for s, o in (((M, K), 0), ((K, N), 64), ((M, N), 128), ((N,), 192)))
        for add in YES_AND_NO:
            before = out.copy()
            matmul(on_gpu(a), on_gpu(b), on_gpu(out), bias=on_gpu(bias), add=add)
            assert_product(out, a, b, bias, before if add else None)
    assert len(library.calls) == 4 and len(library.heuristics) == 1
    assert library.heuristics[0] == {1: 1024, 3: 0xFFFFFFFF, 5: 256, 6: 256, 7: 256, 8: 256, "bias": 256}

    # whatever the choice of an algorithm depends on makes a plan of its own
    others = [
        (a, b, out, None),
        (a[:4], b, out[:4], bias),
        (a, b, array((M, N), 128 + 4), bias),                   # 16 bytes on
        (a, b, out, array((N,), 192 + 1)),
        (array((M, K + 1), 256)[:, :K], b, out, bias),          # another leading dimension
        (array((K, M), 320).T, b, out, bias),
    ]
    for n, arrays in enumerate(others, 2):
        for _ in range(2):
            matmul(*(array if array is None else on_gpu(array) for array in arrays))
        assert_product(arrays[2], arrays[0], arrays[1], arrays[3])
        assert len(library.heuristics) == n
    assert [asked[8] for asked in library.heuristics] == [256, 256, 256, 16, 256, 256, 256]
    assert [asked["bias"] for asked in library.heuristics[2:5]] == [256, 256, 4]


def test_no_plan_is_made_while_a_graph_is_captured(matmul, library):
    a, b, out = (on_gpu(np.ones((4, 4), np.float32)) for _ in range(3))
    matmul(a, b, out)
    matmul.frozen = True
    matmul(a, b, out)
    with pytest.raises(RuntimeError, match="inside a CUDA graph: run it once before"):
        matmul(a.T, b, out)
    assert len(library.heuristics) == 1


@pytest.mark.parametrize(("status", "found", "state"), [(15, 0, 0), (0, 0, 0), (0, 1, 15)])
def test_a_gpu_without_an_algorithm_is_one_line(matmul, library, status, found, state):
    library.heuristic_status, library.algorithms_found, library.algorithm_state = status, found, state
    with pytest.raises(UserError, match=r"no algorithm on this GPU for a matmul \(2, 4\) @ \(4, 8\) of bfloat16 to "
                                        r"float32: use --dtype float32") as error:
        matmul(on_gpu(np.zeros((2, 4), np.uint16)), on_gpu(np.zeros((4, 8), np.uint16)),
               on_gpu(np.zeros((2, 8), np.float32)))
    assert "\n" not in str(error.value)


def test_other_errors_have_their_name(matmul, library):
    library.heuristic_status = 14
    a, b, out = (on_gpu(np.ones((4, 4), np.float32)) for _ in range(3))
    with pytest.raises(RuntimeError, match="cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_INTERNAL_ERROR"):
        matmul(a, b, out)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(("a", "b", "out", "bias", "message"), [
    (zeros(2, 3), zeros(4, 5), zeros(2, 5), None, "shapes do not fit"),
    (zeros(2, 3), zeros(3, 5), zeros(5, 2), None, "shapes do not fit"),
    (zeros(2, 3), zeros(3, 5), zeros(2, 5), zeros(2), "shapes do not fit"),
    (zeros(2, 3), zeros(3, 5), zeros(2, 10)[:, ::2], None, "neither row-major nor a transpose"),
    (zeros(2, 6)[:, ::2], zeros(3, 5), zeros(2, 5), None, "neither row-major nor a transpose"),
    (zeros(2, 3), zeros(3, 5)[::-1], zeros(2, 5), None, "neither row-major nor a transpose"),
    (np.lib.stride_tricks.as_strided(zeros(4), (2, 3), (4, 4)), zeros(3, 5), zeros(2, 5), None, "neither row-major"),
    (zeros(2, 3), zeros(3, 5, dtype=np.uint16), zeros(2, 5), None, "no matmul of float32 and uint16"),
    (zeros(2, 3), zeros(3, 5), zeros(2, 5, dtype=np.uint16), None, "no matmul"),
    (*(zeros(2, 2, dtype=np.float64),) * 3, None, "no matmul"),
    (zeros(2, 3), zeros(3, 5), zeros(2, 5), zeros(5, dtype=np.uint16), "the bias"),
    (zeros(2, 3), zeros(3, 5), zeros(2, 5), zeros(10)[::2], "the bias"),
], ids=range(12))
def test_arrays_that_cublaslt_would_misread(matmul, library, a, b, out, bias, message):
    with pytest.raises(ValueError, match=message):
        matmul(on_gpu(a), on_gpu(b), on_gpu(out), bias=None if bias is None else on_gpu(bias))
    assert not library.calls


def test_the_prototypes_are_those_of_the_header():
    for name, arguments in module.PROTOTYPES.items():
        theirs = Library.PROTOTYPES[name]
        assert [ctypes.sizeof(kind) for kind in arguments] == [ctypes.sizeof(kind) for kind in theirs], name
    assert ctypes.sizeof(module.HeuristicResult) == 96 and module.HeuristicResult.state.offset == 72


def test_a_missing_library_is_one_line(monkeypatch):
    pathfinder = pytest.importorskip("cuda.pathfinder", reason="cuda-pathfinder comes with CuPy")

    def missing(name):
        assert name == "cublasLt"
        raise pathfinder.DynamicLibNotFoundError("nowhere\nat all")

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", missing)
    module.load_cublaslt.cache_clear()
    with pytest.raises(UserError, match=r"npgpt\[cuda12\].*npgpt\[cuda13\]") as error:
        module.load_cublaslt()
    assert "\n" not in str(error.value)
