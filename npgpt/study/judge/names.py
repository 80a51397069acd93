"""The name of a mistake: the smallest edit of the learner's line that repairs the whole function in all cases."""

import ast

import numpy as np

from npgpt.study.exercises.exercise import key_of
from npgpt.study.exercises.findings import Finding, Rank
from npgpt.study.exercises.mathematics import read_notes
from npgpt.study.exercises.repairs import EDITS, hidden, mistakes, repairs
from npgpt.study.exercises.walk import (
    RESULT,
    Walk,
    can_walk,
    changed_names,
    is_text,
    made_at,
    package_walk,
    stored_names,
)
from npgpt.study.gradcheck.check import WRONG, relative_error
from npgpt.study.gradcheck.source import backward_tree, last_return, names_in
from npgpt.study.gradcheck.trace import is_floating
from npgpt.study.judge.outcome import encode, run_case
from npgpt.study.judge.report import Line
from npgpt.study.judge.shapes import EXACT, close

MOST = 3            # mistakes in one function that are named


class NameSearch:
    """Looks for the names of a function's mistakes: `repaired` and `recognised`.

    cases: the judged one and all others, in which a name must hold; walk: the learner's function statement by
    statement, or None if it cannot be run so; not_finite: whether NaN or infinity occurs in it.
    """

    def __init__(self, judgement, solution, cases, not_finite):
        self.case, self.lesson, self.record = judgement.case, judgement.lesson, judgement.record
        self.finished, self.source, self.to_do = judgement.finished, judgement.source, judgement.to_do
        self.solution, self.cases, self.not_finite = solution, cases, not_finite
        self.terms, self.walks, self.unread = {}, {}, set()
        self.walk = None
        if solution.tree is not None and can_walk(solution.tree):
            self.walk = self.walk_in(self.case)
            if self.finished and encode((self.walk.after or {}).get(RESULT)) != encode(judgement.outcome.value):
                self.walk = None        # something in it depends on more than its arguments
            loaded = {node.id for node in ast.walk(solution.tree)
                      if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
            self.unread = {*stored_names(solution.tree)} - loaded - {"_"}

    def repaired(self, first):
        """[(line, finding)] of the edits that repair the whole function in all cases, from the first wrong line on."""
        if self.walk is None:
            return []
        found, original = [], self.walk
        try:
            while True:
                starts, tried = self.starts(first), set()
                for i in starts:
                    if edit := self.smallest(i, self.all_right, tried=tried):
                        return [*found, edit[:2]]
                if len(found) == MOST - 1 or not (edit := self.smallest(starts[0], self.gradient_right(first), False)):
                    return []
                found.append(edit[:2])
                self.walk = self.walk_with(edit[2])
                first = self.next_wrong()
                if first is None:
                    return []
        finally:
            self.walk = original
            self.walks.clear()

    def starts(self, first):
        """The numbers of the statements from which a search goes back.

        They are the wrong line's, that of a wrong value of the package's names above it, and the last one.
        """
        last = len(self.walk.statements) - 1
        i = self.walk.index(first.line) if first.line is not None else None
        i = last if i is None else i
        helpers = self.case.helpers
        wrong = {each.name: each for each in reversed(self.walk.record()) if each.name in helpers
                 and not any(close(each.value, true) for true in helpers[each.name])}
        above = sorted(self.walk.index(each.line) for each in wrong.values())
        return [*dict.fromkeys([*[j for j in above if j < i][:1], i, last])]

    def smallest(self, i, is_right, everywhere=True, tried=None):
        """(line, finding, edits) of the likeliest edit before or in statement i that makes a walk right; or None.

        tried: the statements of earlier searches, which are left out, and noted. everywhere: the results must be right
        in all cases. If an edit of another line would do as well, either may be meant: the finding says both.
        """
        whole = self.window(i)
        window = [j for j in whole if j not in (tried or ())]
        if tried is not None:
            tried.update(window)
        found = {}          # line -> (finding, edits) of the likeliest edit there
        for rank, line, finding, edits in repairs(self.walk, window, whole, self.unfixed(), is_right, self.terms_for):
            if self.not_finite and rank >= Rank.EXTRA or rank == Rank.FAR and found:
                break       # what keeps NaN away need not be the mistake
            if line not in found and (not everywhere or self.holds_everywhere(edits)):
                found[line] = finding, edits
                if len(edits) > 1 or len(whole) == 1 or not everywhere:
                    break
        if not found:
            return None
        line, (finding, edits) = next(iter(found.items()))
        same = sorted(each for each in found if found[each][0] == finding)
        if same[1:]:
            line, finding = same[0], Finding("same in", [str(finding)], same[1:])
        elif others := [each for each in found if each != line]:
            finding = Finding("also", [str(finding), str(found[others[0]][0])], others[:1])
        return line, finding, edits

    def terms_for(self, statement):
        """text -> value of the parts of the package's line for what a statement of the learner's assigns."""
        terms, found = self.package_terms(self.case), {}
        for name in changed_names(statement):
            found |= terms.get(name, {})
        return found or self.powers(self.case)

    def window(self, i):
        """The numbers of the unfixed statements that a mistake in the value of statement i may come from, the nearest
        first. Statements above a true value are left out."""
        found, names, unfixed = [], None, self.unfixed()
        for j in range(min(i, len(self.walk.before) - 1), -1, -1):
            statement = self.walk.statements[j]
            if names is None or changed_names(statement) & names or self.is_loose(statement):
                if names is None or j in unfixed or statement.lineno in self.to_do:
                    names = (names or set()) | names_in(statement)
                found += [j] if j in unfixed else []
        return found

    def is_loose(self, statement):
        """Whether a statement may be wrong although its value is right: it changes a variable in place, which may be
        another one too, or it assigns what nothing reads."""
        return bool(stored_names(statement).keys() & self.unread) or any(
            isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) for node in ast.walk(statement))

    def lines_before(self, line):
        """The lines that a mistake in the value of a line may come from."""
        return [self.walk.statements[j].lineno for j in self.window(self.walk.index(line) or 0)]

    def unfixed(self):
        """The numbers of the statements that ran and that an edit may change.

        Not those that give a true value, and not those that are not the learner's.
        """
        known = {name: [value] for name, value in self.case.factors.items()} | self.case.gradients | self.case.helpers
        right, wrong = set(), set()
        for each in self.walk.record():
            if each.name in known:
                (right if any(close(each.value, true) for true in known[each.name]) else wrong).add(each.line)
        fixed = right - wrong | set(self.to_do)
        return [i for i, each in enumerate(self.walk.statements[:len(self.walk.before)])
                if self.is_loose(each) or not fixed.intersection(range(each.lineno, each.end_lineno + 1))]

    def results_right(self, case, names, wanted=None):
        """Whether all results, or the one that is wanted, are right at the end of a walk."""
        result = names.get(RESULT)
        if (len(result) if isinstance(result, tuple) else 1) != len(self.lesson.results) + self.lesson.is_composite:
            return False
        named = self.named(result)
        return all(named.get(each) is None if true is None else relative_error(named.get(each), true) <= EXACT
                   for each, true in case.results.items() if wanted is None or each == wanted)

    def named(self, result):
        """The results of a backward by name; none for what is no result of a backward."""
        try:
            return self.lesson.named(result)
        except (TypeError, KeyError, AttributeError, RecursionError):
            return {}

    def all_right(self, names):
        """Whether all results are right at the end of a walk."""
        return self.results_right(self.case, names)

    def gradient_right(self, line):
        """A test of the names at the end of a walk: whether the gradient of a wrong line is right."""
        if line.name in self.case.results and self.finished:
            return lambda names: self.results_right(self.case, names, line.name)
        true = (self.case.gradients | self.case.helpers).get(line.name, [None])[-1]
        return lambda names: true is not None and close(names.get(line.name), true)

    def next_wrong(self):
        """The first gradient that is wrong in the walk; None if it is none of those that are known."""
        known = self.case.gradients | self.case.helpers
        made = {each.name: each for each in self.walk.record()}
        for name, each in made.items():
            if name in known and not close(each.value, known[name][-1]):
                return Line(name, each.line, WRONG)
        wrong = next((name for name in self.case.results if self.walk.after is not None
                      and not self.results_right(self.case, self.walk.after, name)), None)
        return wrong and Line(wrong, None, WRONG)

    def walk_with(self, edits):
        """The walk of the function with edits."""
        tree = ast.FunctionDef("repaired", self.solution.tree.args, [], [])
        tree.body = [edits.get(i, each) for i, each in enumerate(self.walk.statements)]
        self.walks.clear()
        return self.walk_in(self.case, tree)

    def holds_everywhere(self, edits):
        """Whether the results of the walk with edits are right in all cases."""
        statements = [*self.walk.statements]
        for case in self.cases:
            key = id(case)
            if key not in self.walks:
                self.walks[key] = self.walk_in(case, ast.FunctionDef("", self.solution.tree.args, statements, []))
            after = self.walks[key].run(0, edits)
            if after is None or not self.results_right(case, after):
                return False
        return True

    def walk_in(self, case, tree=None):
        """The walk of the learner's function, or of another tree, in a case; with the values of the package's terms."""
        terms = {hidden(text): value for terms in [*self.package_terms(case).values(), self.powers(case)]
                 for text, value in terms.items()}
        return Walk(tree or self.solution.tree, {**self.solution.function.__globals__, **terms}, case.arguments())

    def package_terms(self, case):
        """name -> {text: value} of the parts of the package's line that assigns the name.

        The results are left out: in the line that fills an array its name holds half of it.
        """
        if id(case) not in self.terms:
            walk = package_walk(case)
            self.terms[id(case)] = terms = {}
            for statement, names in zip(walk.statements, walk.before, strict=False):
                found = {text: value for text, value in parts_of(statement, names).items() if text not in case.results}
                for name in changed_names(statement):
                    terms.setdefault(name, {}).update(found)
        return self.terms[id(case)]

    def powers(self, case):
        """text -> value for the lines of gradients that the package skips: powers of the forward's arrays."""
        names = {name: value for name, value in case.factors.items() if np.ndim(value)}
        return names | {f"{name}**{power}": value**power for name, value in names.items() for power in (2, 3)}

    def recognised(self, first, known):
        """[(line, finding)] if the results are those of the package's backward with a mistake, in all cases; else [].

        known: the mistakes that the derivation knows (`Note.known`), or else all small ones. For functions that cannot
        be walked, or that no small edit repairs.
        """
        if not self.finished:
            return []
        left = known_mistakes(self.lesson) if known else [
            ({i: new}, Finding("as if", [key_of(made_at(new, line)), str(finding)]))
            for i, line, finding, new in mistakes(package_walk(self.case))][:EDITS]
        for case in self.cases:
            outcome, walk = run_case(self.solution, case) if left else None, package_walk(case)
            left = [each for each in left if outcome.finished and not outcome.raised
                    and self.gives(walk, each[0], outcome.value)]
        if not left:
            return []
        edits, finding = left[0]
        last = first.line or last_return(self.source)
        return [(min(self.line_like(edits) or last, last), finding)]

    def line_like(self, edits):
        """The learner's line that assigns what a wrong line of the package does, by its value or its name; or None."""
        seen, known = [], self.case.gradients | self.case.helpers
        trues = [value for values in known.values() for value in values]
        package_walk(self.case).run(0, edits, seen)
        for i, statement in edits.items():
            for name in changed_names(statement):
                found = [each.line for each in self.record if close(each.value, seen[i].get(name))
                         and not any(close(each.value, true) for true in trues)]
                found += [each.line for each in self.record if each.name == name]
                if found:
                    return found[0]
        return None

    def gives(self, walk, edits, given):
        """Whether the package's backward with edits gives those results."""
        given, made = self.named(given), self.named((walk.run(0, edits) or {}).get(RESULT))
        same = (made.get(name) is None if given.get(name) is None else close(made.get(name), given[name])
                for name in self.case.results)
        return bool(made) and all(same)

    def lines_after(self, line):
        """The lines whose values may depend on that of a line: all, if the function cannot be walked."""
        start = self.walk.index(line) if self.walk else None
        if start is None:
            return {each.line for each in self.record} | {each.first for each in self.source.statements} | {None}
        reached, names = {line, None}, set()
        for statement in self.walk.statements[start:]:
            if not names or names_in(statement) & names:
                reached |= set(range(statement.lineno, statement.end_lineno + 1))
                names |= changed_names(statement)
        return reached


def known_mistakes(lesson):
    """[(number of a statement in the package's backward -> that statement with a mistake, the `Finding`), …]."""
    keys = [key_of(each) for each in backward_tree(lesson).body if not is_text(each)]
    return [({keys.index(key_of(each)): each for each in ast.parse(text).body}, Finding("known", [message]))
            for note in read_notes(lesson.name).values() for text, message in note.known]


def parts_of(statement, names):
    """text -> value of the floating parts of a statement's right side: names, products, sums, calls."""
    value = getattr(statement, "value", None)
    parts = {}
    for node in ast.walk(value) if value else []:
        is_number = isinstance(node, ast.Constant) and type(node.value) is float
        if is_number or isinstance(node, ast.BinOp | ast.Name | ast.Call | ast.UnaryOp) and node is not value:
            try:
                found = eval(compile(ast.Expression(node), "<part>", "eval"), names)
            except Exception:
                continue
            if is_floating(found) or isinstance(found, float):
                parts.setdefault(ast.unparse(node), found)
    return parts
