"""Functions that loops call, and that LLVM turns into vector instructions, unlike calls of the C
library.
"""

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

CONTRACT = {"fastmath": {"contract"}}  # a * b + c in one instruction


def exp(x):
    """Compute e^x, to 8e-8 in float32 and 1e-14 in float64.

    Subnormal results become 0; infinity from 2^127.5 on in float32, from 2^1023.5 on in float64.
    """


def tanh(x):
    """Compute (e^2x - 1) / (e^2x + 1), to 5e-7 in float32 and 1e-15 in float64, also relative to a
    small result.
    """


def split_exp(x):
    """Return 2^n and e^r - 1, for x = n ln 2 + r with |r| <= ln(2) / 2, so that e^x = 2^n + 2^n
    (e^r - 1).
    """


@overload(split_exp, jit_options=CONTRACT)
def _split_exp(x):
    real, whole = (np.float32, np.int32) if x == types.float32 else (np.float64, np.int64)
    mantissa, bias, degree = (23, 127, 7) if x == types.float32 else (52, 1023, 13)
    mantissa, bias = whole(mantissa), whole(bias)
    # Of Taylor's polynomial
    coefficients = tuple(real(1.0 / math.factorial(k)) for k in range(degree, 0, -1))
    # n ln 2 in two parts: the first has so few bits that its product with n is exact.
    log2_e, ln2, rest = real(1.0 / math.log(2.0)), real(0.693359375), real(-2.121944400546905828e-4)
    shift = real(bias + 0.5)

    def implementation(x):
        exponent = whole(x * log2_e + shift)  # n + bias, which are the bits of 2^n's exponent
        n = real(whole(exponent - bias))  # Numba makes int64 of a difference of two int32
        r = (x - n * ln2) - n * rest
        polynomial = real(0.0)
        for coefficient in coefficients:
            polynomial = polynomial * r + coefficient
        return whole(exponent << mantissa).view(real), polynomial * r

    return implementation


@overload(exp, jit_options=CONTRACT)
def _exp(x):
    real, bias = (np.float32, 127) if x == types.float32 else (np.float64, 1023)
    ln2, one = math.log(2.0), real(1.0)
    least, most = real(-ln2 * (bias + 0.1)), real(ln2 * (bias + 1.0))

    def implementation(x):
        x = least if x < least else x  # 2^n has exponent bits of 0, and so is 0; NaN stays
        x = most if x > most else x  # 2^n is infinity
        power, minus_one = split_exp(x)
        return (minus_one + one) * power

    return implementation


@overload(tanh, jit_options=CONTRACT)
def _tanh(x):
    real = np.float32 if x == types.float32 else np.float64
    most, one, two = real(20.0), real(1.0), real(2.0)  # tanh 20 rounds to 1

    def implementation(x):
        x = -most if x < -most else x
        x = most if x > most else x
        power, minus_one = split_exp(x + x)
        # e^2x - 1; near 0 the power is 1, and no digit is lost
        minus_one = minus_one * power + (power - one)
        return minus_one / (minus_one + two)

    return implementation


def erf(x):
    """Compute the error function: in float32 to 2e-7, in float64 by the C library, one value at a
    time.

    Below 1/2 it is a Taylor polynomial; beyond, 1 - e^(-x^2) P(t), where P interpolates e^(x^2)
    erfc(x) in t = (x - 2) / (x + 2).
    """


@overload(erf, jit_options=CONTRACT)
def _erf(x):
    if x != types.float32:
        return lambda x: math.erf(x)
    real, root = np.float32, math.sqrt(math.pi)
    of_t = np.polynomial.Chebyshev.interpolate(
        lambda t: [math.erfc(y) * math.exp(y * y) for y in 2 * (1 + t) / (1 - t)], 9, [-1.0, 0.5]
    )
    beyond = tuple(map(real, of_t.convert(kind=np.polynomial.Polynomial).coef[::-1]))
    below = tuple(
        real(2 / root * (-1) ** k / (math.factorial(k) * (2 * k + 1))) for k in range(6, -1, -1)
    )
    most, half, one, two = real(4.0), real(0.5), real(1.0), real(2.0)  # erf 4 rounds to 1

    def implementation(x):
        size = abs(x)
        size = most if size > most else size
        t, square = (size - two) / (size + two), size * size
        large = small = real(0.0)
        for coefficient in beyond:
            large = large * t + coefficient
        for coefficient in below:
            small = small * square + coefficient
        large = one - large * exp(-square)
        y = small * size if size < half else large
        return -y if x < 0 else y

    return implementation


@intrinsic
def maximum(typing, a, b):
    """Return the larger number, or NaN if one is NaN, by an instruction for vectors, unlike `a if a
    > b else b`.
    """

    def generate(context, builder, signature, arguments):
        of_two = ir.FunctionType(arguments[0].type, 2 * [arguments[0].type])
        function = builder.module.declare_intrinsic("llvm.maximum", of_two.args[:1], of_two)
        return builder.call(function, arguments, fastmath=("nsz",))  # 0 and -0 are alike

    return a(a, a), generate


def add(total, x):
    """Return total + x. A loop over it may add in any order: only so does a sum fill vectors."""


@overload(add, jit_options={"fastmath": {"reassoc", "contract", "nsz"}})
def _add(total, x):
    return lambda total, x: total + x
