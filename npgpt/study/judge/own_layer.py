"""The check of every line of a pair in a file of one's own, in a process with limits (see child.py)."""

import dataclasses

from npgpt.study.gradcheck.check import LineCheck, best_check
from npgpt.study.lessons.own import read_pairs

TIME_LIMIT = 20.0       # seconds


@dataclasses.dataclass(frozen=True)
class Answer:
    """layers: the checks of each pair; remarks: on those measured in float64; error: why there are none, to be said
    after the path.
    """

    layers: list[list[LineCheck]]
    remarks: list[str]
    error: str


def checked_pairs(file, name, inputs):
    """Return the `Answer` on a file, which runs in this process. inputs: texts of --input. Raises what it raises."""
    checks, remarks = [], []
    for pair in read_pairs(file, name or None, tuple(inputs)):
        found, remark = best_check(pair.at())
        checks.append(found)
        remarks += [remark] * bool(remark)
    return Answer(checks, remarks, "")
