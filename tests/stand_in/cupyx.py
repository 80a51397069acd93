"""What the tests use of cupyx."""

import contextlib

from tests.strict_cupy import gpu


@contextlib.contextmanager
def allow_synchronize(allow):
    before, gpu.may_wait = gpu.may_wait, allow
    try:
        yield
    finally:
        gpu.may_wait = before
