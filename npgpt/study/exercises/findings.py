"""What the judge finds, as records: a kind and its operands. Programs read the kind; its sentence is for people."""

import dataclasses
import enum

# How likely a kind of mistake is, the likeliest first: of several repairs the first one names the mistake. SHAPE: also
# of the results; CACHE: another one; NAME, MISSING: of a variable in the package's line; COUNT: a number; PART: a
# variable instead of a part of the line; FAR: often right by accident.
Rank = enum.IntEnum("Rank", """SIGN PART_SIGN SHAPE LINES_SWAPPED AXIS BRACKETS CACHE EXTRA COUNT
    MISSING_NUMBER MISSING NAME MISSING_COUNT OTHER_NAME PART MISSING_OTHER FAR""")


@dataclasses.dataclass(frozen=True)
class Finding:
    """A mistake, or evidence of one: a key of `SENTENCES`, and what fills the sentence. lines: others in the file."""

    kind: str
    operands: list[str] = dataclasses.field(default_factory=list)
    lines: list[int] = dataclasses.field(default_factory=list)
    where: str = ""

    def __str__(self):
        said = SENTENCES[self.kind].format(*self.operands, lines=" or ".join(map(str, self.lines)))
        return f"{said}, in `{self.where}`" if self.where else said


SENTENCES = {
    # mistakes
    "unknown": "I don't recognise this mistake",
    "follows": "may follow from line {lines}",
    "sign": "its sign is wrong",
    "term sign": "the term {0} has the wrong sign",
    "part sign": "the sign of {0} is wrong",
    "divided": "divided by {0} instead of multiplied",
    "multiplied": "multiplied by {0} instead of divided",
    "reduction": "a {0} instead of a {1}",
    "repeats": "only the last gradient is kept of an index that occurs several times: they have to be added",
    "matmul order": "the factors are in the wrong order",
    "transposed": "{0} should be transposed",
    "not transposed": "{0} should not be transposed",
    "keepdims missing": "keepdims=True is missing",
    "keepdims": "extra axis of length 1 (keepdims?)",
    "axis": "axis {0} instead of axis {1}",
    "axis missing": "axis={0} is missing",
    "loop order": "the loop runs in the wrong order: reversed is missing",
    "results order": "the results are returned in another order",
    "overwrites": "= instead of +=: it overwrites what was there before",
    "lines swapped": "its right side and that of line {lines} are swapped",
    "swapped": "{0} and {1} are swapped",
    "not assigned": "result {0} of `{1}` is not assigned to {2}",
    "brackets": "brackets are missing: {0}",
    "extra factor": "the factor {0} does not belong there",
    "extra division": "divided by {0}, which does not belong there",
    "extra term": "the term {0} does not belong there",
    "extra call": "{0} does not belong there",
    "instead": "{0} instead of {1}",
    "uses": "uses {0} instead of {1}",
    "factor": "the factor {0} is missing",
    "call": "the call of {0} is missing",
    "division": "the division by {0} is missing",
    "term": "the term {0} is missing",
    "subtraction": "the term {0} is missing: it must be subtracted",
    "subtracted from": "it must be subtracted from {0}",
    "zero": "it is 0 everywhere: its gradient is missing",
    "another order": "the right numbers in another order: look at the reshape, the transpose or the index",
    "dtype": "computed in {0}, whose rounding is seen: keep the dtype of the arguments",
    "known": "{0}",             # a common mistake that the derivation names
    "as if": "the numbers are as if, in the line for {0}: {1}",
    "also": "{0} (or, in line {lines}: {1})",
    "same in": "{0} (here, or in line {lines})",
    # faults, apart from the numbers
    "raised": "{0}",
    "clash": "{0}: the shapes {1} and {2} do not fit",
    "is None": "`{0}`, but {1} is None here",
    "fails": "line {lines} fails: {0}",
    "writes": "`{0}` changes {1}, which belongs to the caller: make a new array",
    "writes somewhere": "it changes an argument, which belongs to the caller: make a new array",
    "kept": "a result of an earlier call has changed: make a new array in each call",
    "results": "{0} returned {1}, not {2}",
    "no tree": "dp is {0}, not a tree of gradients (a dict)",
    "missing": "{0} is missing in dp",
    "not returned": "{0} is neither returned nor kept",
    "no parameter": "dp has {0}, which is no parameter",
    "not None": "{0} must be None",
    "no array": "{0} is {1}, not an array of floating numbers",
    # evidence
    "shape": "its shape is {0}, not {1}",
    "axes order": "the numbers are right, its axes are in another order (transposed?)",
    "needs a reshape": "the numbers are right, it needs a reshape",
    "summed over": "it was summed over axis {0} too",
    "sum missing": "the sum over axis {0} is missing",
    "begins": "{0} is {1}: it begins here",
    "worst": "{0} is {1}, the central difference {2}{3}",
    "worst of several": "{0} is {1}, the true value {2}",
    "times": "every entry is {0} times the true one",
    "here": "the mistake is in this line, or a line before it is missing",
    "above": "the mistake is in this line or in line {lines}, or a line between them is missing",
}
