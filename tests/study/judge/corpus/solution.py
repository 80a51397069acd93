"""One learner's solution of an exercise: what was written, whether it is right, and the first wrong line."""

from typing import NamedTuple


class Solution(NamedTuple):
    """A backward. It is the package's own with changes, unless `body` holds all its statements.

    name: of a right one, which others may change; changes: new statements, each replacing the package's
    that assigns the same names, or replacements (old, new); of: the name of the solution whose body they
    change; at: a text in the first wrong line, None if the mistake is in no line.
    """

    name: str
    changes: tuple
    body: str | None
    of: str | None
    is_right: bool
    at: str | None = None


def right(name, *changes, body=None):
    """A right solution."""
    return Solution(name, changes, body, None, True)


def wrong(*changes, body=None, of=None, at=...):
    """A wrong solution. at: by default the first change."""
    if at is ...:
        at = changes[0] if isinstance(changes[0], str) else changes[0][1]
    return Solution("", changes, body, of, False, at)
