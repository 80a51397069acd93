"""One learner's solution of an exercise: what was written, and what a good teacher says about it."""

from typing import NamedTuple


class Solution(NamedTuple):
    """A backward. It is the package's own with changes, unless `body` holds all its statements.

    changes: new statements, each replacing the package's that assigns the same names, or replacements (old, new);
    of: the name of the solution whose body they change; says: what the message contains, None if the solution is right;
    at: a text in the first wrong line, None if the mistake is in no line; note: what is said about a right solution.
    """

    name: str
    changes: tuple
    body: str | None
    of: str | None
    says: str | None = None
    at: str | None = None
    note: str | None = None


def right(name, *changes, body=None, note=None):
    """A right solution. note: a phrase of the note that it deserves."""
    return Solution(name, changes, body, None, note=note)


def wrong(name, says, *changes, body=None, of=None, at=...):
    """A wrong solution. at: by default the first change."""
    if at is ...:
        at = changes[0] if isinstance(changes[0], str) else changes[0][1]
    return Solution(name, changes, body, of, says, at)
