"""The check of every line of a pair in a file of one's own, in a process with limits (see child.py)."""

import dataclasses
import importlib.util

from npgpt.errors import UserError
from npgpt.study.gradcheck.check import LineCheck, check
from npgpt.study.gradcheck.measure import exact, upstream
from npgpt.study.lessons.own import input_of, read_pairs

TIME_LIMIT = 20.0       # seconds


@dataclasses.dataclass(frozen=True)
class Answer:
    """The checks of each pair; remarks: on those that were measured in float64; or why there are none, as in child.py.
    """

    checks: list[list[LineCheck]]
    remarks: list[str]
    error: str


def checked_pairs(file, name, inputs):
    """Return the `Answer` on a file, which runs in this process. inputs: texts of --input. Raises what it raises."""
    checks, remarks = [], []
    for pair in read_pairs(file, name or None, tuple(map(input_of, inputs))):
        found, remark = checked(pair.at())
        checks.append(found)
        remarks += [f"{pair.name}: {remark}"] * bool(remark)
    return Answer(checks, remarks, "")


def checked(pair, torch=True):
    """Return the `LineCheck`s of a pair with its arrays, and why they were measured in float64, or "".

    torch: compare with the file's function in torch, if it has one and torch is installed.
    """
    torch = torch and importlib.util.find_spec("torch") is not None
    y, cache = pair.run_forward(pair.inputs)
    pair.run_backward(upstream(pair, y), cache)         # what it raises is raised as it is
    try:
        return check(exact(pair), torch=torch), ""
    except UserError as error:      # mpmath is missing
        remark = str(error)
    except Exception as error:
        remark = f"its lines cannot compute with 60 digits ({type(error).__name__}: {error})"
    return check(pair, torch=torch), f"{remark}; measured in float64"
