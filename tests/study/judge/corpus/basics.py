"""Lesson 0: chain, twice, broadcast, difference."""

from tests.study.judge.corpus.solution import right, wrong

DV, DU = "dv = dy * y                 # (...)", "du = dv * np.cos(u)         # (...)"
SUM = "dx = dx_through_u + dx_through_v            # (...)"
DBIAS = "dbias = dy.sum(axis=0)                              # (C,)"
DGAIN = "dgain = (dproduct * x).sum(axis=1, keepdims=True)   # (N, 1)"
SLOPE = "slope = (up - down) / (2.0 * h)     # (...) of f at x"

SOLUTIONS = [
    right("chain", "in one expression", body="""
        x, a, u, y = cache
        return dy * y * np.cos(u) * a, dy * y * np.cos(u) * x
    """),
    wrong("chain", "exp undone by log", "np.log", (DV, "dv = dy * np.log(y)")),
    wrong("chain", "exp forgotten", "the factor y is missing", (DV, "dv = dy")),
    wrong("chain", "sin for cos", "np.sin instead of np.cos", (DU, "du = dv * np.sin(u)")),
    wrong("chain", "the sign of the cosine", "its sign is wrong", (DU, "du = -dv * np.cos(u)")),
    wrong("chain", "cosine of the wrong variable", "uses x instead of u", (DU, "du = dv * np.cos(x)")),
    wrong("chain", "both with the same factor", "uses a instead of x", ("da = du * x ", "da = du * a ")),
    right("twice", "added up in place of an own array", body="""
        x, u, v = cache
        dx = dy * v * u
        dx += dy * u * np.cos(x)
        return dx
    """),
    wrong("twice", "only one use", ("the term dx_through_u is missing", "the term dx_through_v is missing"),
          (SUM, "dx = dx_through_v")),
    wrong("twice", "the uses multiplied", "a product instead of a sum", (SUM, "dx = dx_through_u * dx_through_v")),
    wrong("twice", "the second overwrites the first", "overwrites", body="""
        x, u, v = cache
        du = dy * v
        dv = dy * u
        dx = du * u
        dx = dv * np.cos(x)
        return dx
    """, at="dx = dv * np.cos(x)"),
    right("broadcast", "sums in loops", body="""
        x, gain = cache
        dbias, dgain = np.zeros(x.shape[1]), np.zeros(gain.shape)
        for n in range(len(x)):
            dbias += dy[n]
            dgain[n] = dy[n] @ x[n]
        return dy * gain, dgain, dbias
    """),
    wrong("broadcast", "bias not summed", "the sum over N is missing", (DBIAS, "dbias = dy")),
    wrong("broadcast", "bias averaged", "a mean instead of a sum", (DBIAS, "dbias = dy.mean(axis=0)")),
    wrong("broadcast", "keepdims forgotten", "keepdims=True is missing", (DGAIN, "dgain = (dproduct * x).sum(axis=1)")),
    wrong("broadcast", "gain without x", "the factor x is missing",
          (DGAIN, "dgain = dproduct.sum(axis=1, keepdims=True)")),
    right("difference", "the slope in one line", body="""
        f, x, h = cache
        return dy * (f(x + h) - f(x - h)) / (2.0 * h)
    """),
    wrong("difference", "a forward difference", "one-sided",
          (SLOPE, "slope = (up - f(x)) / h"), at=None),
    wrong("difference", "divided by h", ("the factor 2.0 is missing", "the division by 2.0 is missing", "2 times what"),
          (SLOPE, "slope = (up - down) / h")),
    wrong("difference", "added", "the term down has the wrong sign", (SLOPE, "slope = (up + down) / (2.0 * h)")),
    wrong("difference", "dy forgotten", "the factor dy is missing", ("dx = dy * slope", "dx = slope")),
]
