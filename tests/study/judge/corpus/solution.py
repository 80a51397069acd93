"""One learner's solution of an exercise: what was written, and what a good teacher says about it."""

from typing import NamedTuple

from npgpt.study.exercises.findings import SENTENCES

UNKNOWN = SENTENCES["unknown"]


class Solution(NamedTuple):
    """A backward. It is the package's own with changes, unless `body` holds all its statements.

    name: a wrong one is called what is said of it; changes: new statements, each replacing the package's that assigns
    the same names, or replacements (old, new); of: the name of the solution whose body they change; says: what the
    message contains, None if the solution is right; at: a text in the first wrong line, None if the mistake is in no
    line; key: of the package's line that the hints are about, "" for none; None: not tested.
    """

    name: str
    changes: tuple
    body: str | None
    of: str | None
    says: str | None = None
    at: str | None = None
    key: str | None = None


def right(name, *changes, body=None):
    """A right solution."""
    return Solution(name, changes, body, None)


def wrong(says, *changes, body=None, of=None, at=..., key=None):
    """A wrong solution. at: by default the first change."""
    if at is ...:
        at = changes[0] if isinstance(changes[0], str) else changes[0][1]
    return Solution(says, changes, body, of, says, at, key)
