"""One learner's solution of an exercise: what was written, and what a good teacher says about it."""

from typing import NamedTuple


class Solution(NamedTuple):
    """edits: replacements (old, new) in the package's own backward, or body: all statements of another one.

    says: None if the solution is right, else the phrases of which the message contains one; the best comes first.
    at: texts of which the first wrong line contains one; empty if the mistake is in no line. note: what is said about a
    right solution.
    """

    layer: str
    name: str
    edits: tuple[tuple[str, str], ...]
    body: str | None
    says: tuple[str, ...] | None
    at: tuple[str, ...]
    note: str | None


def right(layer, name, *edits, body=None, note=None):
    """A right solution. note: a phrase of the note that it deserves."""
    return Solution(layer, name, edits, body, None, (), note)


def wrong(layer, name, says, *edits, body=None, at=...):
    """A wrong solution. says, at: one text or a tuple of alternatives; at=None: no line; left out: the first edit."""
    at = edits[0][1] if at is ... else () if at is None else at
    return Solution(layer, name, edits, body, strings(says), strings(at), None)


def strings(value):
    return (value,) if isinstance(value, str) else value
