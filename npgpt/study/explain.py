"""What the first mistake of a wrong backward is, in words. Without proof it has no name: then only numbers are shown.

A mistake has a name if an edit of the learner's line mends the whole function in all cases (`repairs.py`), or if the
learner's numbers are in all cases those of a known mistake in the package's line.
"""

import ast
import math
import sys

import numpy as np

from npgpt.errors import one_line
from npgpt.study.exercise import key_of
from npgpt.study.gradcheck import (
    WRONG,
    gradient_names,
    input_gradient,
    intermediate_gradient,
    relative_error,
    traced_forward,
)
from npgpt.study.mathematics import read_notes
from npgpt.study.outcome import run_case, silent
from npgpt.study.repairs import hidden, repairs
from npgpt.study.report import Fault, Line
from npgpt.study.shapes import by_shape, clash, close
from npgpt.study.source import backward_tree, last_return
from npgpt.study.trace import is_floating
from npgpt.study.walk import RESULT, Walk, can_walk, is_text, stored_names

UNKNOWN = "I don't recognise this mistake"
MOST = 3            # mistakes in one function that are named
MOST_RANK = 5.5     # of an edit of another line that would do as well
EXACT = 1e-9        # as of the verdict: an edit that only comes close is no explanation


class Explanation:
    """The explanation of a `Judgement` that found something wrong: `explain(lines)`.

    cases: the judged one and all others, in which a name must hold; walk: the learner's function statement by
    statement, or None if it cannot be run so.
    """

    def __init__(self, judgement, solution, cases):
        self.case, self.record, self.results = judgement.case, judgement.record, judgement.results
        self.faults, self.finished, self.source = judgement.faults, judgement.finished, judgement.source
        self.to_do, self.lesson = judgement.to_do, judgement.lesson
        self.solution, self.cases = solution, cases
        self.terms, self.walks = {}, {}
        self.walk = None
        if solution.tree is not None and can_walk(solution.tree):
            self.walk = self.walk_in(self.case)
            if self.finished and (self.walk.after is None or not same(
                    self.lesson.named(self.walk.after.get(RESULT)), self.results)):
                self.walk = None        # something in it depends on more than its arguments

    def explain(self, lines):
        """Add diagnosis and evidence to each wrong line that does not follow from another one."""
        wrong = [line for line in lines if line.verdict == WRONG]
        for fault in self.faults:
            if fault.is_write:
                fault.message, fault.line = self.first_write()
            elif fault.line is not None and self.walk:
                self.explain_fault(fault)
        if self.source is None:
            for line in wrong:
                self.add_evidence(line)
            return
        if wrong and (begun := self.not_finite()) and begun.line <= (wrong[0].line or math.inf):
            if begun.line != wrong[0].line:
                lines.insert(lines.index(wrong[0]), begun)
                wrong.insert(0, begun)
            else:
                wrong[0].evidence = begun.evidence
        causes = [*self.faults]
        for line in [*wrong]:
            cause = self.cause_of(line, causes)
            if cause is None:
                self.add_evidence(line)
                line.diagnosis = UNKNOWN
                causes.append(line)
            else:
                line.diagnosis = f"may follow from line {cause.line}"
                line.line = max(line.line or 0, cause.line)         # so that the cause is the first
        first = next((each for each in wrong if each in causes), None)
        if first is None or any(fault.is_write for fault in self.faults):
            return
        names = self.told_by_dtype(first) or self.named(first) or self.recognised(first) or self.told(first)
        for line, message in names:
            self.put(lines, first, line, message)
        if not names and self.walk and first.line is not None:
            above = [self.walk.statements[j].lineno for j in self.window(self.walk.index(first.line) or 0)]
            above = sorted(line for line in above if line < first.line)
            if above:
                where = f"the mistake is in this line, or in line {' or '.join(map(str, above))}"
                first.evidence = f"{first.evidence}; {where}" if first.evidence else where
        for line in wrong if names else []:
            if line.diagnosis == UNKNOWN:           # the edits mend it too
                line.diagnosis, line.line = f"may follow from line {names[0][0]}", max(line.line or 0, names[0][0])

    def put(self, lines, first, line, message):
        """Put a name at its line: at what is wrong there, or in a `Line` of its own above the first wrong one."""
        there = next((each for each in lines if each.line == line and each.verdict == WRONG), None)
        if there is None and first.diagnosis == UNKNOWN and line > (first.line or 0):
            there = first                           # the line that was said to be the first can be right
            there.line = line
        if there is None:
            there = Line(self.assigned_at(line), line, WRONG, evidence=first.evidence)
            lines.insert(0, there)
        there.diagnosis = message

    def assigned_at(self, line):
        """The name that a line assigns, for the report."""
        statement = self.source.statement_at(line)
        return next(iter(statement.targets), "") if statement else ""

    def cause_of(self, line, causes):
        """The cause that a wrong line may follow from, or None.

        A write to an argument may explain everything. A cause may stand below a line: where an array is filled that the
        line made.
        """
        for cause in causes:
            above = isinstance(cause, Line) and cause.line is not None and (line.line or 0) <= cause.line
            is_write = isinstance(cause, Fault) and cause.is_write
            if cause.line is not None and (above or is_write or line.line in self.lines_after(cause.line)):
                return cause
        return None

    def lines_after(self, line):
        """The lines whose values may depend on that of a line: all, if the function cannot be walked."""
        start = self.walk.index(line) if self.walk else None
        if start is None:
            return {each.line for each in self.record} | {each.first for each in self.source.statements} | {None}
        reached, names = {line, None}, set()
        for statement in self.walk.statements[start:]:
            used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            if not names or used & names:
                reached |= set(range(statement.lineno, statement.end_lineno + 1))
                names |= changed_names(statement)
        return reached

    # The numbers

    def add_evidence(self, line):
        """Add the numbers of a wrong line: its shape, or the worst value beside the central difference."""
        given, true = self.given(line)
        if given is None or line.evidence:
            return
        if np.shape(given) != np.shape(true):
            line.evidence = by_shape(given, true, self.case.sizes)
        elif np.isfinite(given).all():
            line.evidence = self.worst(line.name, given, true)
            if given.dtype != np.float64 and relative_error(given, true) < 1e-3:
                line.evidence += f"; it is {given.dtype}, and so not exact: keep the dtype of the arguments"

    def given(self, line):
        """(value, true value) of the gradient on a wrong line; None for a line that no gradient is known of."""
        if line.name in self.results and line.name in self.case.results:
            return self.results[line.name], self.case.results[line.name]
        made = [each for each in self.record if each.line == line.line and each.name in gradient_names(line.name[1:])]
        true = self.case.gradients.get(line.name) or [self.case.results.get(line.name)]
        return (made[-1].value if made else None), true[-1]

    def worst(self, name, given, true):
        """The worst value of a gradient beside the central difference, in words."""
        at = np.unravel_index(np.abs(given - true).argmax(), np.shape(true))
        difference = None
        if name in self.case.results:
            difference = float(input_gradient(self.lesson, name[1:], self.case.dy, at))
        else:
            found = [each for each in traced_forward(self.lesson)[3] if each.name == name[1:]]
            if len(found) == 1:
                difference = float(intermediate_gradient(self.lesson, found[0], self.case.dy, at))
        place = f"{name}[{', '.join(map(str, at))}]" if at else name
        if difference is None:      # a variable that is assigned several times
            return f"{place} is {float(given[at]):.5g}, the true value {float(true[at]):.5g}"
        ratio = f", ratio {float(given[at]) / difference:.4g}" if difference else ""
        return f"{place} is {float(given[at]):.5g}, the central difference {difference:.5g}{ratio}"

    def not_finite(self):
        """A `Line` for the assignment with which NaN or infinity begins; or None.

        A mask may hold -inf, so infinity counts only in a gradient.
        """
        known = self.case.gradients | self.case.helpers
        for each in self.record:
            bad = np.isnan(each.value) if each.name not in known else ~np.isfinite(each.value)
            if bad.any() and each.line != self.source.first:
                at = np.argwhere(bad)[0]
                place = f"{each.name}[{', '.join(map(str, at))}]" if at.size else each.name
                return Line(each.name, each.line, WRONG, UNKNOWN, f"{place} is {each.value[tuple(at)]}: it begins here")
        return None

    def first_write(self):
        """(message, line) of the line that first changes an argument in place."""
        arguments, before = self.case.arguments(), self.case.arguments()
        found, last = None, None
        code = getattr(self.solution.function, "__code__", None)

        def trace(frame, event, _):
            nonlocal found, last
            if frame.f_code is not code:
                return None
            if found is None and event in ("line", "return"):
                array = changed_array(arguments, before)
                if array is not None:
                    names = [name for name, value in frame.f_locals.items() if value is array]
                    found = last, names[0] if names else "the cache"
                last = frame.f_lineno
            return trace

        outer = sys.gettrace()
        sys.settrace(trace)
        try:
            with silent():
                self.solution.function(*arguments)
        except BaseException as error:
            del error           # it is told elsewhere
        finally:
            sys.settrace(outer)
        line, name = found or (None, "an argument")
        statement = self.source.statement_at(line) if line and self.source else None
        text = f"`{one_line(statement.text, 100)}` changes" if statement else "it changes"
        return f"{text} {name}, which belongs to the caller: make a new array", line

    def explain_fault(self, fault):
        """Say more about an exception or a result of the wrong kind: the shapes that do not fit, and the mistake."""
        i = len(self.walk.before) - 1
        if self.walk.after is None and self.walk.index(fault.line) != i:
            return
        if self.walk.after is None:
            fault.message = clash(self.walk.statements[i], self.walk.before[i]) or fault.message
        i = min(i, len(self.walk.statements) - 1)
        if not (found := self.search(i, lambda names: self.results_right(self.case, names))):
            return
        line, fault.diagnosis, _ = found
        if line != fault.line and self.walk.after is None:
            fault.message = f"line {fault.line} fails: {fault.message}"
        fault.line = line

    # The names

    def named(self, first):
        """[(line, message)] of the edits that mend the whole function in all cases, from the first wrong line on."""
        if self.walk is None:
            return []
        found, original = [], self.walk
        try:
            while len(found) < MOST:
                starts, tried = self.starts(first), set()
                for i in starts:
                    if edit := self.search(i, lambda names: self.results_right(self.case, names), tried=tried):
                        return [*found, edit[:2]]
                if len(found) == MOST - 1 or not (edit := self.search(starts[0], self.gradient_right(first), False)):
                    return []
                found.append(edit[:2])
                self.walk = self.mended(edit[2])
                first = self.next_wrong()
                if first is None:
                    return []
            return []
        finally:
            self.walk = original
            self.walks.clear()

    def starts(self, first):
        """The numbers of the statements from which a search goes back: the wrong line's, that of a wrong value of the
        package's names above it, and the last one, because what is returned may be wrong."""
        last = len(self.walk.statements) - 1
        i = self.walk.index(first.line) if first.line is not None else None
        i = last if i is None else i
        helpers = self.case.helpers
        wrong = {each.name: each for each in reversed(self.walk.record()) if each.name in helpers
                 and not any(close(each.value, true) for true in helpers[each.name])}
        above = sorted(self.walk.index(each.line) for each in wrong.values())
        return [*dict.fromkeys([*[j for j in above if j < i][:1], i, last])]

    def search(self, i, is_right, everywhere=True, tried=None):
        """(line, message, edits) of the smallest edit before or in statement i that makes a walk right; or None.

        tried: the statements of earlier searches, which are left out, and noted. everywhere: the results must be
        right in all cases. If an edit of another line would do as well, nobody can know which was meant: the message
        says both.
        """
        begun, whole = self.not_finite(), self.window(i)
        window = [j for j in whole if j not in (tried or ())]
        if tried is not None:
            tried.update(window)
        found = {}          # line -> (rank, line, message, edits) of the smallest edit there
        for rank, line, message, edits in repairs(self.walk, window, whole, self.unfixed(), is_right, self.terms_for):
            if begun and rank >= 2 or rank > MOST_RANK and found:
                break       # what keeps NaN away need not be the mistake
            if line not in found and (not everywhere or self.holds_everywhere(edits)):
                found[line] = rank, line, message, edits
                if len(edits) > 1 or len(whole) == 1:
                    break
        if not found:
            return None
        best, *others = found.values()      # the smallest, the nearest of them, come first
        _, line, message, edits = best
        same = [each for each in others if each[2] == message]
        if same:
            line, *rest = sorted([line, *(each[1] for each in same)])
            message += f" (here, or in line {' or '.join(map(str, rest))})"
        elif others:
            message += f" (or, in line {others[0][1]}: {others[0][2]})"
        return line, message, edits

    def terms_for(self, statement):
        """text -> value of the parts of the package's line for what a statement of the learner's assigns."""
        terms, found = self.package_terms(self.case), {}
        for name in changed_names(statement):
            found |= terms.get(name, {})
        return found or self.powers(self.case)

    def window(self, i):
        """The numbers of the unfixed statements that a mistake in the value of statement i may come from, the nearest
        first. What a true value was computed from is no longer of interest."""
        found, names, unfixed = [], None, self.unfixed()
        for j in range(min(i, len(self.walk.before) - 1), -1, -1):
            statement = self.walk.statements[j]
            if names is None or changed_names(statement) & names:
                if names is None or j in unfixed or statement.lineno in self.to_do:
                    names = (names or set()) | {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
                else:
                    names = names - changed_names(statement)
                found += [j] if j in unfixed else []
        return found

    def unfixed(self):
        """The numbers of the statements that ran and that an edit may change.

        Not those that give a true value, and not those that are not the learner's.
        """
        known = self.case.gradients | self.case.helpers
        right, wrong = set(), set()
        for each in self.walk.record():
            if each.name in known:
                (right if any(close(each.value, true) for true in known[each.name]) else wrong).add(each.line)
        fixed = right - wrong | set(self.to_do)
        return [i for i, each in enumerate(self.walk.statements[:len(self.walk.before)])
                if not fixed.intersection(range(each.lineno, each.end_lineno + 1))]

    def results_right(self, case, names, wanted=None):
        """Whether the results of those names are right at the end of a walk."""
        try:
            result, named = names[RESULT], self.lesson.named(names[RESULT])
            if (len(result) if isinstance(result, tuple) else 1) != self.lesson.number_of_results:
                return False
            return all(named.get(each) is None if true is None else is_floating(named[each])
                       and relative_error(named[each], true) <= EXACT
                       for each, true in case.results.items() if wanted is None or each == wanted)
        except (TypeError, KeyError, AttributeError, RecursionError):
            return False

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

    def mended(self, edits):
        """The walk of the function with edits."""
        tree = ast.FunctionDef("mended", self.solution.tree.args, [], [])
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

    def recognised(self, first):
        """[(line, message)] if the results are those of a mistake that the derivation knows (`Note.known`); else [].

        For functions that cannot be walked, and for those that have another form than any edit can mend.
        """
        left = known_mistakes(self.lesson) if self.finished else []
        for case in self.cases:
            outcome = run_case(self.solution, case) if left else None
            left = [each for each in left if outcome.finished and not outcome.raised
                    and self.gives(package_walk(case), each, outcome.value)]
        if not left:
            return []
        # The line in which the learner assigns what the package's wrong line does, if there is one.
        names, line = changed_names(left[0][1]), first.line or last_return(self.source)
        same = [each.first for each in self.source.statements if names.intersection(each.targets)]
        return [(same[-1] if same and same[-1] <= line else line, left[0][2])]

    def gives(self, walk, mistake, given):
        """Whether the package's backward with a mistake gives those results."""
        i, statement, _ = mistake
        after = walk.run(i, {i: statement})
        try:
            given, made = self.lesson.named(given), self.lesson.named(after[RESULT])
        except (TypeError, KeyError, AttributeError, RecursionError):
            return False
        return all(made.get(name) is None if given.get(name) is None else close(made.get(name), given[name])
                   for name in self.case.results)

    def told(self, first):
        """[(line, message)] of what the numbers alone say for sure; else []."""
        given, true = self.given(first)
        if given is None or first.line is None:
            return []
        if np.shape(given) != np.shape(true):
            _, _, what = (first.evidence or "").partition(": ")
            return [(first.line, what)] if what else []
        if np.size(true) > 1 and close(np.sort(given, axis=None), np.sort(true, axis=None)):
            return [(first.line, "the right numbers in another order: look at the reshape, the transpose or the index")]
        for other, values in self.case.gradients.items():
            if any(close(given, value) for value in values):
                what = "before its last step" if other == first.name else "the gradient of another variable"
                return [(first.line, f"it is still {other}, {what}")]
        return []

    def told_by_dtype(self, first):
        """[(line, message)] if the numbers are only rounded, by a line in a smaller dtype; else []."""
        given, true = self.given(first)
        low = next((each for each in self.record if each.value.dtype.itemsize < 8), None)
        if low is None or given is None or low.line > (first.line or math.inf) or relative_error(given, true) > 0.05:
            return []
        return [(low.line, f"computed in {low.value.dtype}, whose rounding is seen: keep the dtype of the arguments")]


def known_mistakes(lesson):
    """[(number of the statement in the package's backward, the statement with a mistake, message), …]."""
    keys = [key_of(each) for each in backward_tree(lesson).body if not is_text(each)]
    return [(keys.index(key), ast.parse(text).body[0], message)
            for key, note in read_notes(lesson.name).items() for text, message in note.known]


def package_walk(case):
    """The walk of the package's backward in a case."""
    return Walk(backward_tree(case.lesson), case.lesson.backward.__globals__, case.arguments())


def changed_names(statement):
    """The names that a statement assigns or may change: of `np.add.at(dwte, …)` all, of `dx[0] = …` dx."""
    names = {*stored_names(statement)}
    for node in ast.walk(statement):
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
        if isinstance(node, ast.Expr):
            names |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return names - {"np", "math"}


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


def same(named, others):
    """Whether two dicts of results are equal, to the last bit."""
    return named.keys() == others.keys() and all(
        np.array_equal(named[name], others[name], equal_nan=True) if is_floating(named[name])
        else named[name] is others[name] for name in named)


def changed_array(after, before):
    """The first array that differs in two values of the same structure, or None."""
    if isinstance(before, np.ndarray):
        return None if np.array_equal(after, before, equal_nan=True) else after
    pairs = zip(after, before, strict=False) if isinstance(before, tuple | list) else \
        [(after.get(key), before[key]) for key in before] if isinstance(before, dict) else []
    return next((found for pair in pairs if (found := changed_array(*pair)) is not None), None)
