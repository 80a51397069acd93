"""What the judge finds, as records: programs read the kind; its sentence is for people."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
    """A mistake, or evidence of one.

    kind: a key of `SENTENCES`; operands: what fills the sentence; lines: in the file.
    """

    kind: str
    operands: list[str] = dataclasses.field(default_factory=list)
    lines: list[int] = dataclasses.field(default_factory=list)

    def __str__(self):
        return SENTENCES[self.kind].format(*self.operands, line=self.lines[0] if self.lines else "")


SENTENCES = {
    # what the numbers of a gradient prove
    "sign": "its sign is wrong",
    "zero": "it is 0 everywhere: its gradient is missing",
    "times": "every entry is {0} times the true one",
    "rounded": "it is right to {0} digits: is a constant rounded, an eps forgotten, or a smaller "
    "dtype used?",
    "only index": "it is right but for index {0} of axis {1}",
    "another order": "the right numbers in another order: look at the reshape, the transpose or "
    "the index",
    "axes order": "the numbers are right, its axes are in another order (transposed?)",
    "needs a reshape": "the numbers are right, it needs a reshape",
    "extra axis": "extra axis of length 1 (keepdims?)",
    "lost axis": "an axis of length 1 is missing (keepdims=True?)",
    "summed over": "it was summed over axis {0} too",
    "sum missing": "the sum over axis {0} is missing",
    # other names of mistakes
    "known": "{0}",  # a common one, of the derivation
    "mistake": "{0}",  # a small one, of mutants.py
    "as if": "the numbers are as if, in the line for {0}: {1}",
    "unknown": "I don't recognise this mistake",
    "rule": "I don't recognise this mistake. {0}",
    "follows": "follows from {0} (line {line})",
    "shares": "may have the same cause as {0} (line {line})",
    # errors, apart from the numbers
    "raised": "{0}",
    "clash": "{0}: the shapes {1} and {2} do not fit",
    "is None": "`{0}`, but {1} is None here",
    "cause": "{0}",
    "fails": "line {line} fails: {0}",
    "writes": "`{0}` changes {1}, which belongs to the caller: make a new array",
    "writes somewhere": "it changes an argument, which belongs to the caller: make a new array",
    "kept": "a result of an earlier call has changed: make a new array in each call",
    "again": "it is right alone, but not after other calls: keep nothing of an earlier call",
    "form": "{0} is {1}: it must be {2}",
    "results": "{0} returned {1}, not {2}",
    # evidence
    "shape": "its shape is {0}, not {1}",
    "begins": "{0} has {1}: it begins here",
    "worst": "{0} is {1}, the central difference {2}{3}",
    "worst of several": "{0} is {1}, the true value {2}",
}
