"""Name a mistake by the smallest edit of the learner's line that repairs the whole function in all cases.

And find the line of the package's backward that the mistake is in by the values, because the names may be others.
"""

import ast
import functools
import itertools

import numpy as np

from npgpt.errors import UserError
from npgpt.study.exercises.exercise import key_of, statements
from npgpt.study.exercises.findings import Finding, Rank
from npgpt.study.exercises.mathematics import read_notes
from npgpt.study.exercises.repairs import EDITS, hidden, mistakes, repairs
from npgpt.study.exercises.walk import RESULT, Walk, can_walk, changed_names, made_at, package_walk, stored_names
from npgpt.study.gradcheck.check import gradient_names, relative_error, tree_line
from npgpt.study.gradcheck.source import last_return, names_in, read_source
from npgpt.study.gradcheck.trace import is_floating
from npgpt.study.judge.outcome import contents, run_case
from npgpt.study.judge.shapes import CLOSE, EXACT, close, value_of
from npgpt.study.lessons.lesson import map_arrays

UNKNOWN = Finding("unknown")


class NameSearch:
    """The search for the names of a function's mistakes. walk: the learner's `Walk`, or None if it cannot be run so."""

    def __init__(self, judgement, cases, not_finite):
        self.judgement, self.case, self.lesson = judgement, judgement.case, judgement.lesson
        self.solution, self.cases, self.not_finite = judgement.solution, cases, not_finite
        solution = judgement.solution
        self.walk = None
        if solution.tree is not None and can_walk(solution.tree):
            self.walk = self.walk_in(self.case)
            result = (self.walk.after or {}).get(RESULT)
            given = (
                [self.named(result), judgement.results]
                if self.lesson.is_pair
                else [result, judgement.outcome.value]
            )
            if judgement.finished and contents(given[0]) != contents(given[1]):
                self.walk = None        # something in it depends on more than its arguments
            loaded = {node.id for node in ast.walk(solution.tree)
                      if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
            self.unread = {*stored_names(solution.tree)} - loaded - {"_"}
            self.terms = package_terms(self.case)

    def walk_in(self, case):
        """Return the walk of the learner's function in a case, with the values of the package's terms."""
        terms = {hidden(text): value for terms in package_terms(case).values() for text, value in terms.items()}
        names = {**self.solution.function.__globals__, **terms}
        return Walk(self.solution.tree, names, case.arguments())

    @functools.cached_property
    def walks(self):
        return [(case, self.walk_in(case)) for case in self.cases]

    def repaired(self, first):
        """Return (line, finding) of an edit that repairs the function in all cases, or None.

        first: the first wrong `Line`.
        """
        if self.walk is None:
            return None
        helpers, tried = self.case.helpers, []
        # The search begins at the line, or at one above it with a wrong value of the package's
        # names, then at the last.
        above = [self.walk.index(each.line) for each in self.walk.record() if each.name in helpers
                 and not any(close(each.value, true) for true in helpers[each.name])]
        start, last = self.walk.index(first.line or 0), len(self.walk.statements) - 1
        start = last if start is None else start
        for i in dict.fromkeys([min([*above, start]), last]):
            if found := self.smallest(i, tried):
                return found
            tried += self.window(i)
        return None

    def smallest(self, i, tried=()):
        """Return (line, finding) of the likeliest edit in or above statement i that repairs the
        results, or None.

        tried: statements to leave out.
        """
        whole, found = self.window(i), {}           # line -> finding of the likeliest edit there
        for rank, line, finding, edits in repairs(
                self.walk, [j for j in whole if j not in tried], whole, self.unfixed(),
                lambda names: self.is_right(self.case, names), self.terms_for):
            if self.not_finite and rank >= Rank.EXTRA or rank == Rank.FAR and found:
                break       # what keeps NaN away need not be the mistake
            if line not in found and all(self.is_right(case, walk.run(0, edits) or {})
                                         for case, walk in self.walks):
                found[line] = finding
                if len(edits) > 1 or len(whole) == 1:
                    break
        if not found:
            return None
        (line, finding), *others = found.items()
        same = sorted(each for each in found if found[each] == finding)
        if same[1:]:
            line, finding = same[0], Finding("same in", [str(finding)], same[1:])
        elif others:
            finding = Finding("also", [str(finding), str(others[0][1])], [others[0][0]])
        return line, finding

    def terms_for(self, statement):
        """Return text -> value of the parts of the package's line that assigns the names of a learner's statement."""
        found = {text: value for name in changed_names(statement) for text, value in self.terms.get(name, {}).items()}
        return found or self.terms[""]

    def window(self, i):
        """Return the unfixed statements that can make statement i wrong, the nearest first: none above a true value."""
        found, names, unfixed = [], None, self.unfixed()
        for j in range(min(i, len(self.walk.before) - 1), -1, -1):
            statement = self.walk.statements[j]
            if names is None or changed_names(statement) & names or self.is_loose(statement):
                if names is None or j in unfixed or statement.lineno in self.judgement.to_do:
                    names = (names or set()) | names_in(statement)
                found += [j] if j in unfixed else []
        return found

    def is_loose(self, statement):
        """Return whether a statement changes an array that others may share, or assigns a name that is never read."""
        return bool(stored_names(statement).keys() & self.unread) or any(
            isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) for node in ast.walk(statement))

    def unfixed(self):
        """Return the numbers of the learner's statements that ran and did not compute a true value."""
        known = {name: [value] for name, value in self.case.factors.items()} | self.case.gradients | self.case.helpers
        right, wrong = set(), set()
        for each in self.walk.record():
            if each.name in known:
                (right if any(close(each.value, true) for true in known[each.name]) else wrong).add(each.line)
        fixed = right - wrong | set(self.judgement.to_do)
        return [i for i, each in enumerate(self.walk.statements[:len(self.walk.before)])
                if self.is_loose(each) or not fixed.intersection(range(each.lineno, each.end_lineno + 1))]

    def is_right(self, case, names):
        """Return whether the results at the end of a walk are right."""
        given = self.named(names.get(RESULT))
        return bool(given) and all(given.get(name) is None if true is None else
                                   relative_error(given.get(name), true) <= EXACT
                                   for name, true in case.results.items())

    def named(self, result):
        """Return the results of a backward by name; {} if they are not those of a backward."""
        number = len(result) if isinstance(result, tuple) else 1
        try:
            return self.lesson.named(result) if number == len(self.lesson.results) + self.lesson.is_composite else {}
        except (TypeError, KeyError, AttributeError, RecursionError, UserError):
            return {}

    def recognised(self, first):
        """Return (line, finding) if a mistake in the package's backward gives the same results in
        all cases, or None.

        It is one that the derivation knows (`Note.known`) or, if the numbers say nothing, any small one.
        """
        if not self.judgement.finished or not self.judgement.source:
            return None
        ran = [(package_walk(case), self.named(run_case(self.solution, case).value)) for case in self.cases]
        keys = [*map(key_of, ran[0][0].statements)]
        known = (({keys.index(key_of(each)): each for each in ast.parse(text).body}, Finding("known", [message]))
                 for note in read_notes(self.lesson).values() for text, message in note.known)
        small = (({i: new}, Finding("as if", [key_of(made_at(new, line)), str(finding)]))
                 for i, line, finding, new in mistakes(package_walk(self.case)))
        small = itertools.islice(small, EDITS if first.mistakes == [UNKNOWN] else 0)
        for edits, finding in itertools.chain(known, small):
            if all(self.gives(walk, edits, given) for walk, given in ran):
                last = first.line or last_return(self.judgement.source)
                return min(self.line_like(edits) or last, last), finding
        return None

    def gives(self, walk, edits, given):
        """Return whether the package's backward with edits gives these results."""
        made = self.named((walk.run(0, edits) or {}).get(RESULT))
        return bool(made) and all(close(made.get(name), given.get(name)) or made.get(name) is given.get(name) is None
                                  for name in self.case.results)

    def line_like(self, edits):
        """Return the learner's last line that assigns a name of the package's edited lines, or
        None.
        """
        names = set().union(*map(changed_names, edits.values()))
        lines = [each.line for each in self.judgement.record if each.name in names]
        return lines[-1] if lines and lines[-1] != self.judgement.source.first else None

    def depends(self, line, on):
        """Return whether the value of a line may depend on another's; True if the function cannot be walked."""
        start = self.walk.index(on) if self.walk else None
        if start is None or line is None:
            return True
        names = set()
        for statement in self.walk.statements[start:]:
            if not names or names_in(statement) & names:
                names |= changed_names(statement)
                if statement.lineno <= line <= statement.end_lineno:
                    return True
        return False


def package_terms(case):
    """Return name -> {text: value} of the parts of the package's line that assigns the name.

    "" holds those for skipped gradients: the forward's arrays and their powers.
    """
    arrays = {name: value for name, value in case.factors.items() if np.ndim(value) and is_floating(value)}
    terms = {"": arrays | {f"{name}**{power}": value**power for name, value in arrays.items() for power in (2, 3)}}
    walk = package_walk(case)
    for statement, names in zip(walk.statements, walk.before, strict=False):
        # While an array is filled, its value is unfinished: no results.
        found = {text: value for text, value in parts_of(statement, names).items() if text not in case.results}
        for name in changed_names(statement):
            terms.setdefault(name, {}).update(found)
    return terms


def parts_of(statement, names):
    """Return text -> value of the floating parts of a statement's right side: names, products, sums, calls."""
    whole, parts = getattr(statement, "value", None), {}
    for node in ast.walk(whole) if whole else []:
        is_number = isinstance(node, ast.Constant) and type(node.value) is float
        if is_number or isinstance(node, ast.BinOp | ast.Name | ast.Call | ast.UnaryOp) and node is not whole:
            value = value_of(node, names)
            if is_floating(value) or isinstance(value, float):
                parts.setdefault(ast.unparse(node), value)
    return parts


def counterpart(judgement, wrong):
    """Return the key of the package's line in which the gradients in `wrong` go wrong, or "" if it is not clear.

    It is the only line whose arrays the learner has computed, under any name, but not its result.
    """
    case, source = judgement.case, read_source(judgement.lesson.backward)
    have = [case.dy, *(each.value for each in judgement.record), *judgement.results.values()]
    map_arrays(have.append, case.cache)
    have = [*map(np.asarray, filter(is_floating, have))]
    wanted = {other for name in wrong for other in gradient_names(name[1:])} | {*wrong}
    in_tree = (tree_line(source, wrong[0][1:]) or 0) - source.first + 1         # of a parameter's gradient
    walk, found = package_walk(case), set()
    for outer, before, after in reversed([*zip(walk.statements, walk.before, walk.before[1:], strict=False)]):
        for name in changed_names(outer) - {RESULT}:
            value = after.get(name)
            if not is_floating(value) or not value.any() or has(have, value):
                continue
            statement = [each for each in statements(outer) if name in changed_names(each)][-1]
            if name in wanted or statement.lineno == in_tree:
                wanted |= names_in(statement.value)
                if all(has(have, before[each]) for each in names_in(statement.value) if is_floating(before.get(each))):
                    found.add(key_of(statement))
    return found.pop() if len(found) == 1 else ""


def has(values, true):
    """Return whether an array is among the values, perhaps in another shape or order, but not without keepdims."""
    true = np.asarray(true)
    return any(each.shape == true.shape and close(each, true) or each.squeeze().shape != true.squeeze().shape
               and np.abs(np.sort(each, axis=None) - np.sort(true, axis=None)).max() <= CLOSE * np.abs(true).max()
               for each in values if each.size == true.size)
