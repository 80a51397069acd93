"""Lesson 0: chain, twice, broadcast, difference."""

from tests.study.judge.corpus.solution import right, wrong

CHAIN = [
    right("in one expression", body="""
        x, a, u, y = cache
        return dy * y * np.cos(u) * a, dy * y * np.cos(u) * x
        """),
    wrong("np.log", "dv = dy * np.log(y)"),
    wrong("the factor y is missing", "dv = dy"),
    wrong("np.sin instead of np.cos", "du = dv * np.sin(u)"),
    wrong("its sign is wrong", "du = -dv * np.cos(u)"),
    wrong("uses x instead of u", "du = dv * np.cos(x)"),
    wrong("uses a instead of x", "da = du * a"),
    wrong("its right side and that of line", ("du * a ", "du * x "), "da = du * a"),
    wrong("np.degrees does not belong there", "du = dv * np.cos(np.degrees(u))"),
]

TWICE = [
    right("added up in place of an own array", body="""
        x, u, v = cache
        dx = dy * v * u
        dx += dy * u * np.cos(x)
        return dx
        """),
    wrong("the term dx_through_u is missing", "dx = dx_through_v"),
    wrong("a product instead of a sum", "dx = dx_through_u * dx_through_v"),
    wrong("overwrites", ("dx = dx_through_u + dx_through_v", "dx = dx_through_u\n    dx = dx_through_v"),
          at="dx = dx_through_v"),
]

BROADCAST = [
    right("sums in loops", body="""
        x, gain = cache
        dbias, dgain = np.zeros(x.shape[1]), np.zeros(gain.shape)
        for n in range(len(x)):
            dbias += dy[n]
            dgain[n] = dy[n] @ x[n]
        return dy * gain, dgain, dbias
        """),
    wrong("the sum over N is missing", "dbias = dy"),
    wrong("a mean instead of a sum", "dbias = dy.mean(axis=0)"),
    wrong("keepdims=True is missing", "dgain = (dproduct * x).sum(axis=1)"),
    wrong("the factor x is missing", "dgain = dproduct.sum(axis=1, keepdims=True)"),
]

DIFFERENCE = [
    right("the slope in one line", body="""
        f, x, h = cache
        return dy * (f(x + h) - f(x - h)) / (2.0 * h)
        """),
    wrong("one-sided", "slope = (up - f(x)) / h"),
    wrong("the factor 0.5 is missing", "slope = (up - down) / h"),
    wrong("the term down has the wrong sign", "slope = (up + down) / (2.0 * h)"),
    wrong("the factor dy is missing", "dx = slope"),
    wrong("uses 1e-13 instead of h", ("    up = ", "    h = 1e-13\n    up = ")),
]

SOLUTIONS = {"chain": CHAIN, "twice": TWICE, "broadcast": BROADCAST, "difference": DIFFERENCE}
