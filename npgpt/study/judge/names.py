"""Name a mistake: which one gives the same numbers in the package's backward?

A wrong gradient is compared with what the derivation's known mistakes, and all small mistakes in
the package's line for it, give. If the learner has other lines, the results are. The numbers have
to agree in all cases.
"""

import ast
import contextlib
import dataclasses
import itertools
import time

from npgpt.errors import UserError
from npgpt.study.exercises.exercise import key_of
from npgpt.study.exercises.findings import Finding
from npgpt.study.exercises.mathematics import read_notes
from npgpt.study.exercises.mutants import mistakes
from npgpt.study.exercises.walk import RESULT, Walk, changed_names
from npgpt.study.gradcheck.check import gradient_names
from npgpt.study.gradcheck.trace import is_floating
from npgpt.study.judge.outcome import run_case
from npgpt.study.judge.shapes import close, mistake_in_numbers, same

SECONDS = 4.0       # for a name; then the report goes without it


class NameSearch:
    """The search for the name of the first mistake of a `Judgement`. cases: in which it has to
    hold.
    """

    def __init__(self, judgement, cases):
        self.judgement, self.case = judgement, cases[0]
        self.end = time.monotonic() + SECONDS
        lesson = self.case.lesson
        backwards = [judgement.solution.lesson.backward, lesson.backward, lesson.long_way]
        self.ways = []      # (walks in the cases, notes) of the exercise's backward, then the other
        for backward in dict.fromkeys(filter(None, [] if lesson.is_own else backwards)):
            way = dataclasses.replace(lesson, backward=backward)
            walks = [Walk(case, way) for case in cases]
            self.ways.append((walks, read_notes(lesson, long=backward is lesson.long_way)))
        self.mine = [self.ran(case) for case in cases]

    def ran(self, case):
        """Return (line, name) -> value of the learner's lines, (None, "dx") -> of the results, in a
        case.
        """
        outcome = run_case(self.judgement.solution, case, traced=True)
        spelling = self.judgement.spelling
        found = {
            (each.line, spelling.get(each.name, each.name)): each.value for each in outcome.record
        }
        with contextlib.suppress(UserError, TypeError, AttributeError):  # no results of a backward
            found |= {
                (None, name): value for name, value in case.lesson.named(outcome.value).items()
            }
        return found

    def found(self, first, given):
        """Return the line, the gradient and the `Finding` of the first mistake that has a name, or
        None.

        first: the first wrong `Line`; given: lines that are right. The line is None if only the
        results are those of the mistake.
        """
        known = {
            **self.case.gradients,
            **{name: [true] for name, true in self.case.results.items()},
        }
        is_right = same
        if self.judgement.outcome.raised:       # else names of helpers and rows are free
            known, is_right = known | self.case.helpers, close
        filled = self.judgement.source.filled
        last = {name: line for line, name in self.mine[0] if line and name not in filled}
        places = [(line, name, (line, name)) for name, line in last.items()
                  if first.since <= line <= first.until and line not in given]
        places += [(first.line, first.name, (None, first.name))] * (
            (None, first.name) in self.mine[0]
        )
        for line, name, at in sorted(places, key=lambda each: each[0]):
            value, true = self.mine[0][at], known.get(name, ())
            if (
                len(true) == 1
                and is_floating(value)
                and is_floating(true[0])
                and not is_right(value, true[0])
                and (finding := self.of_value(at, name, value, true[0]))
            ):
                return line, name, finding
        finding = self.of_results() if first.name else None
        return (None, first.name, finding) if finding else None

    def of_value(self, at, name, value, true):
        """Return the `Finding` of a wrong value of a name in the package's backward, or None."""
        proved = mistake_in_numbers(value, true)
        if value.shape != true.shape or proved and proved.kind in ("zero", "sign"):
            return proved
        names = {name, *gradient_names(name[1:])}
        for walks, edits, finding in self.tries(names):
            end = max(edits)
            [key, *_] = changed_names(walks[0].statements[end]) & names
            if all(equal((walk.run(min(edits), edits, end + 1) or {}).get(key), mine.get(at))
                   for walk, mine in zip(walks, self.mine, strict=True)):
                return finding
        return None

    def of_results(self):
        """Return the `Finding` of a mistake in the package's backward that gives the learner's
        results, or None.
        """
        if self.gives(self.ways[0][0][0], self.mine[0], {}) if self.ways else True:
            return None             # but for rounding they are right
        for walks, edits, finding in self.tries():
            if all(self.gives(*each, edits) for each in zip(walks, self.mine, strict=True)):
                key, *_ = (
                    key_of(walks[0].statements[max(edits)]).replace(RESULT, "return").split("\n")
                )
                return finding if finding.kind == "known" else Finding("as if", [key, str(finding)])
        return None

    def gives(self, walk, mine, edits):
        """Return whether the package's backward with edits gives the learner's results."""
        after = walk.run(min(edits, default=0), edits)
        made = walk.lesson.named(after[RESULT]) if after else {}
        given = {name: mine.get((None, name)) for name in self.case.results}
        return bool(made) and all(equal(made.get(name), value) for name, value in given.items())

    def tries(self, names=None):
        """Yield (walks, {number: statement}, finding) of mistakes: all, or those in lines for one
        of the names.
        """
        for walks, notes in self.ways:
            walk = walks[0]
            wanted = [
                i
                for i, each in enumerate(walk.statements)
                if not names or changed_names(each) & names
            ]
            keys = [*map(key_of, walk.statements)]
            for text, message in itertools.chain(*(note.known for note in notes.values())):
                statements = ast.parse(text).body
                edits = {
                    keys.index(key): each for each in statements if (key := key_of(each)) in keys
                }
                if len(edits) == len(statements) and max(edits) in wanted:
                    yield walks, edits, Finding("known", [message])
            for i, _, _, sentence, new in mistakes(walk, wanted):
                if time.monotonic() > self.end:
                    return
                yield walks, {i: new}, Finding("mistake", [sentence])


def equal(a, b):
    """Return whether two gradients are equal except for rounding, or both None."""
    return close(a, b) or a is b is None
