"""GELU in its two forms. x and dy (4, 5, 6)."""

from tests.study.judge.corpus.solution import right, wrong

OUTSIDE = "dx_outside = dy * (0.5 * (1.0 + tanh))"
DTANH = "dtanh = dy * (0.5 * x)"
DINNER = "dinner = dtanh * (1.0 - tanh * tanh)"
INSIDE = "dx_inside = dinner * (SQRT_2_OVER_PI * (1.0 + 3.0 * 0.044715 * (x * x)))"
SUM = "dx = dx_outside + dx_inside"
DENSITY = "density = np.exp(-0.5 * (x * x)) * (0.5 * SQRT_2_OVER_PI)"
DX_PHI = "dx_outside = dy * phi"
DX_DENSITY = "dx_inside = dy * (x * density)"

SOLUTIONS = [
    wrong("gelu_tanh", "sqrt(2 / pi) with seven digits", "is a constant rounded?", body="""
        x, t = cache
        return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * 0.7978846 * (1 + 3 * 0.044715 * x**2))
        """, at="return dy *"),
    right("gelu_tanh", "sqrt(2 / pi) with eleven digits", body="""
        x, t = cache
        return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * 0.79788456080 * (1 + 3 * 0.044715 * x**2))
        """),
    right("gelu_tanh", "one line", body="""
        x, t = cache
        slope = SQRT_2_OVER_PI * (1 + 3 * 0.044715 * x**2)
        return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * slope)
        """),
    right("gelu_tanh", "the derivative of tanh as 1 / cosh^2",
          (DINNER, """inner = SQRT_2_OVER_PI * (x + 0.044715 * x ** 3)
    dinner = dtanh / np.cosh(inner) ** 2""")),
    right("gelu_tanh", "1 - tanh^2 in factors", (DINNER, "dinner = (1.0 - tanh) * (1.0 + tanh) * dtanh")),
    right("gelu_tanh", "dx added to in place", body="""
        x, tanh = cache
        dx = 0.5 * dy * (1.0 + tanh)
        dtanh = 0.5 * x * dy
        dinner = dtanh - dtanh * tanh ** 2
        dx += SQRT_2_OVER_PI * dinner
        dx += SQRT_2_OVER_PI * 0.134145 * x * x * dinner
        return dx
        """),
    right("gelu_tanh", "every step of the cube", body="""
        x, tanh = cache
        dtanh = dy * (0.5 * x)
        dinner = dtanh * (1.0 - tanh * tanh)
        dcubic = dinner * SQRT_2_OVER_PI
        dcube = dcubic * 0.044715
        dx = dcube * (3.0 * x * x)
        dx = dx + dcubic
        dx = dx + dy * (0.5 * (1.0 + tanh))
        return dx
        """),
    right("gelu_tanh", "np.sqrt makes float64", (INSIDE, INSIDE.replace("SQRT_2_OVER_PI", "np.sqrt(2.0 / np.pi)")),
          note="dx is float64 for float32 inputs"),
    right("gelu_tanh", "a diagonal Jacobian", body="""
        x, tanh = cache
        slope = 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * SQRT_2_OVER_PI * (1.0 + 0.134145 * x * x)
        jacobian = np.diag(slope.ravel())
        return (jacobian.T @ dy.ravel()).reshape(x.shape)
        """),
    right("gelu_tanh", "a loop over the numbers", body="""
        x, tanh = cache
        dx = np.empty_like(x)
        for i in np.ndindex(x.shape):
            outside = 0.5 * (1.0 + tanh[i])
            inside = 0.5 * x[i] * (1.0 - tanh[i] ** 2) * SQRT_2_OVER_PI * (1.0 + 3.0 * 0.044715 * x[i] ** 2)
            dx[i] = dy[i] * (outside + inside)
        return dx
        """),

    wrong("gelu_tanh", "1 - tanh", ("the factor tanh is missing", "tanh instead of tanh * tanh"),
          (DINNER, "dinner = dtanh * (1.0 - tanh)")),
    wrong("gelu_tanh", "1 + tanh^2",
          ("the term tanh * tanh has the wrong sign", "the term (tanh * tanh) has the wrong sign"),
          (DINNER, "dinner = dtanh * (1.0 + tanh * tanh)")),
    wrong("gelu_tanh", "tanh^2 - 1", "its sign is wrong", (DINNER, "dinner = dtanh * (tanh * tanh - 1.0)")),
    wrong("gelu_tanh", "derivative of tanh forgotten",
          ("the factor 1.0 - tanh * tanh is missing", "the factor (1.0 - tanh * tanh) is missing"),
          (DINNER, "dinner = dtanh  "), at="dinner = dtanh"),
    wrong("gelu_tanh", "3 forgotten", ("3.0 is missing", "factor 3 is missing"),
          (INSIDE, INSIDE.replace("3.0 * ", ""))),
    wrong("gelu_tanh", "2 for 3", "2.0 instead of 3.0", (INSIDE, INSIDE.replace("3.0", "2.0"))),
    wrong("gelu_tanh", "0.044715 forgotten", "0.044715 is missing", (INSIDE, INSIDE.replace("0.044715 * ", ""))),
    wrong("gelu_tanh", "0.44715", "0.44715 instead of 0.044715", (INSIDE, INSIDE.replace("0.044715", "0.44715"))),
    wrong("gelu_tanh", "x^3 kept", "the factor x does not belong there",
          (INSIDE, INSIDE.replace("x * x", "x * x * x"))),
    wrong("gelu_tanh", "inner derivative forgotten",
          ("the factor SQRT_2_OVER_PI * (1", "the factor (SQRT_2_OVER_PI * (1"),
          (INSIDE, "dx_inside = dinner")),
    wrong("gelu_tanh", "sqrt(2/pi) forgotten", "the factor SQRT_2_OVER_PI is missing",
          (INSIDE, INSIDE.replace("SQRT_2_OVER_PI * ", ""))),
    wrong("gelu_tanh", "the 1 of the inner derivative forgotten",
          ("the term 1.0 is missing", "1.0 is missing", "the term 1 is missing"),
          (INSIDE, INSIDE.replace("1.0 + ", ""))),
    wrong("gelu_tanh", "only the outside", "the term dx_inside is missing", (SUM, "dx = dx_outside"),
          at="dx = dx_outside"),
    wrong("gelu_tanh", "only the inside", "the term dx_outside is missing", (SUM, "dx = dx_inside")),
    wrong("gelu_tanh", "the parts multiplied", ("a product instead of a sum", "* instead of +"),
          (SUM, "dx = dx_outside * dx_inside")),
    wrong("gelu_tanh", "the parts subtracted", "the term dx_inside has the wrong sign",
          (SUM, "dx = dx_outside - dx_inside")),
    wrong("gelu_tanh", "x forgotten in dtanh", "the factor x is missing", (DTANH, "dtanh = dy * 0.5")),
    wrong("gelu_tanh", "0.5 forgotten in dtanh",
          ("0.5 is missing", "it is 2 times what it should be", "factor 1/2 is missing"),
          (DTANH, "dtanh = dy * x")),
    wrong("gelu_tanh", "dy forgotten", "the factor dy is missing", (OUTSIDE, "dx_outside = 0.5 * (1.0 + tanh)")),
    wrong("gelu_tanh", "dy for dtanh", "uses dy instead of dtanh", (DINNER, DINNER.replace("dtanh *", "dy *"))),
    wrong("gelu_tanh", "dy twice in the inside", ("the factor dy does not belong there",),
          (INSIDE, INSIDE.replace("dinner *", "dy * dinner *"))),
    wrong("gelu_tanh", "dx_outside is dy, changed in place", "changes dy, which belongs to the caller",
          (OUTSIDE, "dx_outside = dy\n    dx_outside *= 0.5 * (1.0 + tanh)"), at="dx_outside *="),
    wrong("gelu_tanh", "x squared in place", "changes x, which belongs to the caller",
          (INSIDE, "squared = x\n    squared *= x\n    " + INSIDE.replace("x * x", "squared")),
          at="squared *= x"),
    wrong("gelu_tanh", "a constant of the other form", "NameError: name 'SQRT_HALF' is not defined",
          (INSIDE, INSIDE.replace("SQRT_2_OVER_PI", "SQRT_HALF"))),
    wrong("gelu_tanh", "the cached tanh taken for the inner value",
          ("np.tanh does not belong there", "tanh is already"),
          (DINNER, "dinner = dtanh * (1.0 - np.tanh(tanh) ** 2)")),
    wrong("gelu_tanh", "cache unpacked the wrong way round",
          ("uses tanh instead of x", "x, tanh = cache", "uses x instead of tanh"),
          ("x, tanh = cache", "tanh, x = cache"), at=("tanh, x = cache", OUTSIDE)),

    right("gelu_exact", "density in the textbook's form",
          (DENSITY, "density = np.exp(-(x ** 2) / 2.0) / math.sqrt(2.0 * math.pi)")),
    right("gelu_exact", "by way of dphi and erf", body="""
        x, phi = cache
        dphi = dy * x
        derf = 0.5 * dphi
        dscaled = derf * (2.0 / math.sqrt(math.pi)) * np.exp(-(x * SQRT_HALF) ** 2)
        dx = dscaled * SQRT_HALF
        dx = dx + dy * phi
        return dx
        """),
    right("gelu_exact", "np.sqrt makes float64", (DENSITY, "density = np.exp(-0.5 * x**2) / np.sqrt(2.0 * np.pi)"),
          note="dx is float64 for float32 inputs"),
    right("gelu_exact", "dy last", body="""
        x, cdf = cache
        pdf = 0.5 * SQRT_2_OVER_PI * np.exp(-0.5 * np.square(x))
        return (cdf + x * pdf) * dy
        """),

    wrong("gelu_exact", "exponent positive", ("0.5 instead of -0.5", "the sign of the exponent"),
          (DENSITY, DENSITY.replace("-0.5", "0.5"))),
    wrong("gelu_exact", "half forgotten in the exponent", ("0.5 is missing", "factor 1/2 is missing"),
          (DENSITY, DENSITY.replace("-0.5 * (x * x)", "-(x * x)"))),
    wrong("gelu_exact", "x for x^2 in the exponent", "the factor x is missing",
          (DENSITY, DENSITY.replace("(x * x)", "x"))),
    wrong("gelu_exact", "density not normalized",
          ("the factor 0.5 * SQRT_2_OVER_PI is missing", "the factor (0.5 * SQRT_2_OVER_PI) is missing",
          "2.50663 times what it should be"),
          (DENSITY, "density = np.exp(-0.5 * (x * x))")),
    wrong("gelu_exact", "sqrt(2/pi) for 1/sqrt(2 pi)",
          ("0.5 is missing", "it is 2 times what it should be", "factor 1/2 is missing"),
          (DENSITY, "density = np.exp(-0.5 * (x * x)) * SQRT_2_OVER_PI")),
    wrong("gelu_exact", "the wrong constant", "uses SQRT_HALF instead of SQRT_2_OVER_PI",
          (DENSITY, DENSITY.replace("SQRT_2_OVER_PI", "SQRT_HALF"))),
    wrong("gelu_exact", "x forgotten inside", "the factor x is missing", (DX_DENSITY, "dx_inside = dy * density")),
    wrong("gelu_exact", "phi for the density", "uses phi instead of density",
          (DX_DENSITY, "dx_inside = dy * (x * phi)")),
    wrong("gelu_exact", "x for phi", "uses x instead of phi", (DX_PHI, "dx_outside = dy * x")),
    wrong("gelu_exact", "only the outside", "the term dx_inside is missing", (SUM, "dx = dx_outside"),
          at="dx = dx_outside"),
    wrong("gelu_exact", "the sign of the inside", "the term dx_inside has the wrong sign",
          (SUM, "dx = dx_outside - dx_inside")),
    wrong("gelu_exact", "dy forgotten inside", "the factor dy is missing", (DX_DENSITY, "dx_inside = x * density")),
    wrong("gelu_exact", "dy changed in place", "changes dy, which belongs to the caller",
          (DX_PHI, "dy *= phi\n    dx_outside = dy"),
          at="dy *= phi"),
    wrong("gelu_exact", "a second result", ("returned 2 results, not 1 (dx)", "not 1 (dx)"),
          ("return dx", "return dx, None"), at=None),
    wrong("gelu_exact", "the tanh form's derivative", ("I don't recognise this mistake",), body="""
        x, phi = cache
        tanh = 2.0 * phi - 1.0
        dinner = dy * (0.5 * x) * (1.0 - tanh * tanh)
        dx = dy * phi + dinner * (SQRT_2_OVER_PI * (1.0 + 3.0 * 0.044715 * (x * x)))
        return dx
        """, at="dx = dy * phi + dinner"),
]
