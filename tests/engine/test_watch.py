"""Watched lines: each statement is seen once it has run, and the function is the same otherwise."""

import pytest

from npgpt.engine.watch import watched


def outer(factor):
    def inner(x, *, to=2):
        a, b = x, factor
        left: int
        for _ in range(2):
            a += b * to
        left = [a]
        left[0] = (lambda: left[0])()
        return inner(0) + left[0] if x else a

    return inner


class Holder:
    def method(self, x):
        y = x / 0
        return y


def test_lines_are_seen_in_order_and_may_get_other_values():
    seen, first = [], outer.__code__.co_firstlineno

    def watch(line, name, value):
        seen.append((line - first, name, value))
        return 100 if name == "b" else value

    assert watched(outer(10), watch)(1) == 40 + 401
    assert seen == [
        (1, "x", 1),
        (2, "a", 1),
        (2, "b", 10),
        (3, None, None),
        (5, "a", 201),
        (5, "a", 401),
        (6, "left", [401]),
        (7, None, None),
        (8, None, 441),
    ]


def test_a_line_that_raises_is_not_seen_and_is_in_the_traceback():
    seen = []
    with pytest.raises(ZeroDivisionError) as caught:
        watched(Holder().method, lambda line, name, value: (seen.append(name), value)[1])(1)
    assert seen == ["self", "x"] and str(caught.traceback[-1].statement).strip() == "y = x / 0"
