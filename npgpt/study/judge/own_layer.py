"""The check of every line of a pair in a file of one's own, in a process with limits (see child.py)."""

import dataclasses

from npgpt.files import run_python
from npgpt.study.gradcheck.check import LineCheck, best_check
from npgpt.study.lessons.own import read_pairs
from npgpt.study.lessons.own_block import block_lesson


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
    names = run_python(file)[1]
    block, checks, remarks = block_lesson(file, names), [], []
    only_block = block and (name == "block" or not any(each.endswith("_forward") for each in names))
    lessons = [] if only_block else read_pairs(file, name or None, tuple(inputs))
    for lesson in [*lessons, block] if block and name in ("", "block") else lessons:
        found, remark = best_check(lesson.at())
        checks.append(found)
        remarks += [remark] * bool(remark)
    return Answer(checks, remarks, "")
