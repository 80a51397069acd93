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

SECONDS = 4.0  # for a name; then the report goes without it


class NameSearch:
    """The search for the name of the first mistake of a `Judgement`.

    cases: those in which the name must hold
    ways: (walks in the cases, notes) of the exercise's backward, then of the other
    mine: the learner's values in the cases
    """

    def __init__(self, judgement, cases):
        self.judgement, self.case = judgement, cases[0]
        self.end = time.monotonic() + SECONDS
        lesson = self.case.lesson
        backwards = [judgement.solution.lesson.backward, lesson.backward, lesson.long_way]
        self.ways = []
        for backward in dict.fromkeys(filter(None, [] if lesson.is_own else backwards)):
            way = dataclasses.replace(lesson, backward=backward)
            walks = [Walk(case, way) for case in cases]
            self.ways.append((walks, read_notes(way)))
        self.mine = [self.ran(case) for case in cases]

    def ran(self, case):
        """Return (line, name) -> value of the learner's lines, (None, "dx") -> of the results."""
        outcome = run_case(self.judgement.solution, case, traced=True)
        found = {(each.line, each.name): each.value for each in outcome.record}
        with contextlib.suppress(UserError, TypeError, AttributeError):  # no results of a backward
            for name, value in case.lesson.named(outcome.value).items():
                found[None, name] = value
        return found

    def found(self, first, given, means_another):
        """Return (line, gradient, `Finding`) of the first mistake that has a name, or None.

        first: the first wrong `Line`; given: lines that are right; means_another: a method of
        `Blame`. The line is None if only the results are those of the mistake.
        """
        known, mine = dict(self.case.gradients), self.mine[0]
        known |= {name: [true] for name, true in self.case.results.items()}
        is_right = same
        if self.judgement.outcome.raised:  # else names of helpers and rows are free
            known, is_right = known | self.case.helpers, close
        filled = self.judgement.source.filled
        last = {name: line for line, name in mine if line and name not in filled}
        places = [
            (line, name, (line, name))
            for name, line in last.items()
            if first.since <= line <= first.until and line not in given
        ]
        if (None, first.name) in mine:
            places.append((first.line, first.name, (None, first.name)))
        for line, name, at in sorted(places, key=lambda each: each[0]):
            value, [true, *more] = mine[at], known.get(name) or [None]
            can_differ = not more and is_floating(value) and is_floating(true)
            if can_differ and not is_right(value, true):
                finding = self.of_value(at, name, value, true)
                if finding and not (at[0] and means_another((name, line), value, true)):
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
            if all(
                equal((walk.run_edited(min(edits), edits, end + 1) or {}).get(key), mine.get(at))
                for walk, mine in zip(walks, self.mine, strict=True)
            ):
                return finding
        return None

    def of_results(self):
        """Return the `Finding` of a mistake with which the package's results are these, or None."""
        if not self.ways or self.gives(self.ways[0][0][0], self.mine[0], {}):
            return None  # but for rounding they are right
        for walks, edits, finding in self.tries():
            if all(self.gives(*each, edits) for each in zip(walks, self.mine, strict=True)):
                if finding.kind == "known":
                    return finding
                key = key_of(walks[0].statements[max(edits)]).replace(RESULT, "return")
                return Finding("as if", [key.split("\n")[0], str(finding)])
        return None

    def gives(self, walk, mine, edits):
        """Return whether the package's backward with edits gives the learner's results."""
        after = walk.run_edited(min(edits, default=0), edits)
        made = walk.lesson.named(after[RESULT]) if after else {}
        given = {name: mine.get((None, name)) for name in self.case.results}
        return bool(made) and all(equal(made.get(name), value) for name, value in given.items())

    def tries(self, names=None):
        """Yield (walks, {number: statement}, finding) of mistakes.

        names: only mistakes in lines for one of these.
        """
        for walks, notes in self.ways:
            walk = walks[0]
            keys = [*map(key_of, walk.statements)]
            changed = [*map(changed_names, walk.statements)]
            wanted = [i for i, each in enumerate(changed) if not names or each & names]
            for text, message in itertools.chain(*(note.known for note in notes.values())):
                statements = {key_of(each): each for each in ast.parse(text).body}
                edits = {keys.index(key): statements[key] for key in statements if key in keys}
                if len(edits) == len(statements) and max(edits) in wanted:
                    yield walks, edits, Finding("known", [message])
            for i, _, _, sentence, new in mistakes(walk, wanted):
                if time.monotonic() > self.end:
                    return
                yield walks, {i: new}, Finding("mistake", [sentence])


def equal(a, b):
    """Return whether two gradients are equal except for rounding, or both None."""
    return close(a, b) or a is b is None
