"""Lesson 0: chain, twice, broadcast, difference."""

SOLUTIONS = r"""
layer chain
right | in one expression
    x, a, u, y = cache
    return dy * y * np.cos(u) * a, dy * y * np.cos(u) * x
wrong | dv = dy * np.log(y)
wrong | dv = dy
wrong | du = dv * np.sin(u)
wrong | du = -dv * np.cos(u)
wrong | du = dv * np.cos(x)
wrong | da = du * a
wrong | du * a  => du * x  @@ da = du * a
wrong | du = dv * np.cos(np.degrees(u))
layer twice
right | added up in place of an own array
    x, u, v = cache
    dx = dy * v * u
    dx += dy * u * np.cos(x)
    return dx
wrong | dx = dx_through_v
wrong | dx = dx_through_u * dx_through_v
wrong | dx = dx_through_u + dx_through_v => dx = dx_through_u\n    dx = dx_through_v \
  | at dx = dx_through_v
layer broadcast
right | sums in loops
    x, gain = cache
    dbias, dgain = np.zeros(x.shape[1]), np.zeros(gain.shape)
    for n in range(len(x)):
        dbias += dy[n]
        dgain[n] = dy[n] @ x[n]
    return dy * gain, dgain, dbias
wrong | dbias = dy
wrong | dbias = dy.mean(axis=0)
wrong | dgain = (dproduct * x).sum(axis=1)
wrong | dgain = dproduct.sum(axis=1, keepdims=True)
layer difference
right | the slope in one line
    f, x, h = cache
    return dy * (f(x + h) - f(x - h)) / (2.0 * h)
wrong | slope = (up - f(x)) / h
wrong | slope = (up - down) / h
wrong | slope = (up + down) / (2.0 * h)
wrong | dx = slope
wrong | up = f(x + h) => h = 1e-13\n    up = f(x + h) | at h = 1e-13
"""
