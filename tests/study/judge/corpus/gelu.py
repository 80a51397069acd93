"""GELU in its two forms. x and dy (4, 5, 6)."""

SOLUTIONS = r"""
layer gelu_tanh
right | sqrt(2 / pi) with eleven digits
    x, t = cache
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * 0.79788456080 * (1 + 3 * 0.044715 * x**2))
right | dinner = dtanh * (1.0 - tanh * tanh) \
  => inner = SQRT_2_OVER_PI * (x + 0.044715 * x ** 3)\n    dinner = dtanh / np.cosh(inner) ** 2 \
  | the derivative of tanh as 1 / cosh^2
right | dinner = (1.0 - tanh) * (1.0 + tanh) * dtanh | 1 - tanh^2 in factors
right | dx added to in place
    x, tanh = cache
    dx = 0.5 * dy * (1.0 + tanh)
    dtanh = 0.5 * x * dy
    dinner = dtanh - dtanh * tanh ** 2
    dx += SQRT_2_OVER_PI * dinner
    dx += SQRT_2_OVER_PI * 0.134145 * x * x * dinner
    return dx
wrong | at return dy *
    x, t = cache
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * 0.7978846 * (1 + 3 * 0.044715 * x**2))
wrong | dinner = dtanh * (1.0 - tanh)
wrong | dinner = dtanh * (1.0 + tanh * tanh)
wrong | dinner = dtanh * (tanh * tanh - 1.0)
wrong | dinner = dtanh
wrong | dx_inside = dinner * (SQRT_2_OVER_PI * (1.0 + 0.044715 * (x * x)))
wrong | dx_inside = dinner * (SQRT_2_OVER_PI * (1.0 + 2.0 * 0.044715 * (x * x)))
wrong | dx_inside = dinner
wrong | dx_inside = dinner * (SQRT_2_OVER_PI * (3.0 * 0.044715 * (x * x)))
wrong | dx = dx_outside
wrong | dx = dx_outside * dx_inside
wrong | dinner = dy * (1.0 - tanh * tanh)
wrong | dinner = dtanh * (1.0 - np.tanh(tanh) ** 2)
wrong | x, tanh = cache => tanh, x = cache
wrong | dtanh = dy * (0.5 * x) / np.where(x > 0.0, 1.0, 0.0)
wrong | at return dy
    x, tanh = cache
    inner = SQRT_2_OVER_PI * (x + 0.044715 * x**3)
    density = np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)
    return dy * (0.5 * (1.0 + np.tanh(inner)) + x * density)
wrong | dx_inside = dinner * (SQRT_2_OVER_PI * (1.0 + 3.0 * 0.044715 * (x * x))) * 2.0 / 3.0
layer gelu_exact
right | density = np.exp(-(x ** 2) / 2.0) / math.sqrt(2.0 * math.pi) | density in the textbook's \
  form
right | by way of dphi and erf
    x, phi = cache
    dphi = dy * x
    derf = 0.5 * dphi
    dscaled = derf * (2.0 / math.sqrt(math.pi)) * np.exp(-(x * SQRT_HALF) ** 2)
    dx = dscaled * SQRT_HALF
    dx = dx + dy * phi
    return dx
right | density = np.exp(-0.5 * x**2) / np.sqrt(2.0 * np.pi) | np.sqrt makes float64
right | dy last
    x, cdf = cache
    pdf = 0.5 * SQRT_2_OVER_PI * np.exp(-0.5 * np.square(x))
    return (cdf + x * pdf) * dy
wrong | density = np.exp(0.5 * (x * x)) * (0.5 * SQRT_2_OVER_PI)
wrong | density = np.exp(-(x * x)) * (0.5 * SQRT_2_OVER_PI)
wrong | density = np.exp(-0.5 * x) * (0.5 * SQRT_2_OVER_PI)
wrong | density = np.exp(-0.5 * (x * x))
wrong | density = np.exp(-0.5 * (x * x)) * (0.5 * SQRT_HALF)
wrong | density = np.exp(-0.5 * (x * x)) / np.sqrt(2.0) * np.pi
wrong | at return dy
    x, phi = cache
    inner = SQRT_2_OVER_PI * (x + 0.044715 * x**3)
    tanh = np.tanh(inner)
    slope = SQRT_2_OVER_PI * (1.0 + 0.134145 * x * x)
    return dy * (0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh**2) * slope)
"""
