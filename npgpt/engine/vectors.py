"""Building blocks of the compiled loops: Numba's settings, and functions that become vector instructions."""

import hashlib
import math
from pathlib import Path

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

DIGEST = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
# What the compiler may assume. Sums are added in any order, or they would not fill a vector. NaN and infinity stay.
FAST = {"arcp", "contract", "nsz", "reassoc"}


def loop(function, fast=FAST):
    """Compile a function for the types of each first call.

    Numba caches the machine code in NUMBA_CACHE_DIR, __pycache__, or the user's cache. It compiles again if the
    function's file has changed, and because of the digest in the name also if this file has.
    """
    function.__qualname__ += f"-{DIGEST}"
    compiler = {"nogil": True, "error_model": "numpy", "fastmath": fast}
    try:
        return njit(function, cache=True, **compiler)
    except RuntimeError:        # no folder is writable
        return njit(function, **compiler)


def exp(x):
    """Compute e^x in a loop, by vector instructions, to 8e-8 in float32 and 1e-14 in float64.

    Subnormal results become 0; infinity from 2^127.5 on in float32, from 2^1023.5 on in float64.
    x = n ln 2 + r with |r| <= ln(2) / 2, so e^x = 2^n e^r: n becomes the exponent bits, e^r is a Taylor polynomial.
    """


@overload(exp, jit_options={"fastmath": {"contract"}})
def _exp(x):
    single = x == types.float32
    real, whole = (np.float32, np.int32) if single else (np.float64, np.int64)
    mantissa, bias, degree = (whole(23), whole(127), 7) if single else (whole(52), whole(1023), 13)
    coefficients = tuple(real(1.0 / math.factorial(k)) for k in range(degree, -1, -1))
    # n ln 2 in two parts: the first has so few bits that its product with n is exact.
    log2_e, ln2, rest = real(1.0 / math.log(2.0)), real(0.693359375), real(-2.121944400546905828e-4)
    least, most, shift = real(-math.log(2.0) * (bias + 0.1)), real(math.log(2.0) * (bias + 1.0)), real(bias + 0.5)

    def implementation(x):
        x = least if x < least else x           # exponent bits of 0, and so a result of 0; NaN stays
        x = most if x > most else x             # infinity
        exponent = whole(x * log2_e + shift)    # n + bias
        n = real(whole(exponent - bias))        # Numba makes int64 of a difference of two int32
        r = (x - n * ln2) - n * rest
        e_r = real(0.0)
        for coefficient in coefficients:
            e_r = e_r * r + coefficient
        return e_r * whole(exponent << mantissa).view(real)

    return implementation


@intrinsic
def maximum(typing, a, b):
    """Return the larger number by LLVM's instruction, which LLVM vectorizes, unlike `a if a > b else b`."""
    def generate(context, builder, signature, arguments):
        of_two = ir.FunctionType(arguments[0].type, 2 * [arguments[0].type])
        return builder.call(builder.module.declare_intrinsic("llvm.maximum", of_two.args[:1], of_two), arguments)

    return a(a, a), generate


@intrinsic
def prefetch(typing, row):
    """Start loading the first 64 bytes of an array into the cache, so that reading them later need not wait."""
    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        whole = ir.IntType(32)
        pointer = builder.bitcast(array.data, ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), (pointer.type, whole, whole, whole))
        to_read_soon = [whole(0), whole(3), whole(1)]       # not to write, in the nearest cache, data and not code
        builder.call(builder.module.declare_intrinsic("llvm.prefetch.p0", (), kind), [pointer, *to_read_soon])
        return context.get_dummy_value()

    return types.void(row), generate
