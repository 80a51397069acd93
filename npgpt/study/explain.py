"""What the first mistake of a wrong backward is, in words: by an edit that mends it, or by its numbers."""

import ast
import copy
import itertools
import math

import numpy as np

from npgpt.study.diagnosis import by_shape, close, diagnose
from npgpt.study.gradcheck import (
    WRONG,
    gradient_names,
    input_gradient,
    intermediate_gradient,
    relative_error,
    traced_forward,
)
from npgpt.study.repairs import RESULT, Walk, hidden, repair, straight_line
from npgpt.study.report import Fault, Line
from npgpt.study.source import backward_tree, last_return
from npgpt.study.trace import is_floating

UNKNOWN = "I don't recognise this mistake"
NONE = "is None here"


class Explanation:
    """The explanation of a `Judgement` that found something wrong: `explain(lines)`.

    walk: the learner's function statement by statement, or None if it has another form than `straight_line` needs;
    terms: name -> {text: value} of the parts of the package's line that assigns the name.
    """

    def __init__(self, judgement):
        self.case, self.record, self.results = judgement.case, judgement.record, judgement.results
        self.faults, self.finished, self.source = judgement.faults, judgement.finished, judgement.source
        self.function, self.tree, self.to_do = judgement.function, judgement.tree, judgement.to_do
        self.lesson = judgement.case.lesson
        self.terms = self.package_terms()
        self.walk = self.learner_walk()

    def explain(self, lines):
        """Add diagnosis and evidence to each wrong line that does not follow from another one.

        A line of an intermediate result that is the cause of the first wrong gradient is put before it.
        """
        wrong = [line for line in lines if line.verdict == WRONG]
        for fault in self.faults:
            self.explain_exception(fault)
        if wrong and self.swapped_results():
            for line in wrong:
                line.line, line.diagnosis = last_return(self.source), "the results are returned in another order"
            return
        causes = [*self.faults]
        if wrong and self.cause_of(wrong[0], causes) is None and (helper := self.helper_line(wrong[0])) is not None:
            lines.insert(lines.index(wrong[0]), helper)
            causes.append(helper)
        for line in wrong:
            cause = self.cause_of(line, causes)
            if cause is None:
                self.explain_line(line)
                causes.append(line)
            else:
                line.diagnosis = f"may follow from line {cause.line}"
                line.line = max(line.line or 0, cause.line)         # so that the cause is the first

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
        """The lines whose values may depend on that of a line: all, if the function has no straight form."""
        start = self.walk.index(line) if self.walk and line is not None else None
        if start is None:
            return {each.line for each in self.record} | {each.first for each in self.source.statements} | {None}
        reached, names = {line, None}, set()
        for statement in self.walk.statements[start:]:
            used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            if not names or used & names:
                reached |= set(range(statement.lineno, statement.end_lineno + 1))
                stored = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)
                          and (isinstance(node.ctx, ast.Store) or isinstance(statement, ast.Expr))}
                names |= stored
        return reached

    def explain_line(self, line):
        """Add the diagnosis and the evidence to a wrong line."""
        made, given, truths = self.given(line)
        true = truths[-1]
        line.evidence = self.evidence(line.name, given, true)
        shape = by_shape(given, true, self.case.sizes) if np.shape(given) != np.shape(true) else ""
        if ":" in shape:
            line.diagnosis = shape
            return
        if close(given, true):
            line.diagnosis = (f"it is close, but its relative error is {relative_error(given, true):.1e}: "
                              "is a constant rounded?")
            return
        found = self.mend(made if len(truths) == 1 else None, line, truths)
        if found:
            line.line, message = found
        else:
            message = diagnose(line.name, given, true, self.case) if not shape else None
        line.diagnosis = ": ".join(part for part in (shape, message) if part) or UNKNOWN

    def given(self, line):
        """(name, value, true values) of the gradient on a wrong line; the name is None if it is only in the results."""
        names = gradient_names(line.name[1:])
        made = [each for each in self.record if each.line == line.line and each.name in names]
        if line.name in self.results and line.name in self.case.results:
            value = self.results[line.name]
            return (made[-1].name if made and close(made[-1].value, value) else None, value,
                    [self.case.results[line.name]])
        return made[-1].name, made[-1].value, self.case.gradients.get(line.name) or [self.case.results[line.name]]

    def arguments(self, tree):
        """The arguments of a backward by their names in its tree; arrays of their own."""
        values = [*copy.deepcopy((self.case.dy, self.case.cache)), self.lesson.constants.get("ops")]
        return dict(zip([each.arg for each in tree.args.args], values, strict=False))

    def package_terms(self):
        """See `terms`. The results are left out: in the line that fills an array its name holds half of it."""
        package = backward_tree(self.lesson)
        arguments = self.arguments(package)
        walk = Walk(straight_line(package), {**self.lesson.backward.__globals__, **arguments}, arguments)
        terms = {}
        for statement, names in zip(walk.statements, walk.before, strict=False):
            found = {text: value for text, value in parts_of(statement, names).items() if text not in self.case.results}
            for node in ast.walk(statement):        # of `np.add.at(dwte, …)` the name is dwte
                if isinstance(node, ast.Name) and (isinstance(node.ctx, ast.Store)
                                                   or isinstance(statement, ast.Expr) and node.id[0] == "d"):
                    terms.setdefault(node.id, {}).update(found)
        return terms

    def learner_walk(self):
        """See `walk`."""
        body = straight_line(self.tree)
        if body is None:
            return None
        arguments = self.arguments(self.tree)
        terms = {hidden(text): value for terms in [*self.terms.values(), self.powers()]
                 for text, value in terms.items()}
        return Walk(body, {**self.function.__globals__, **terms, **arguments}, arguments)

    def mend(self, made, line, truths):
        """(line, message) of the edit that makes the gradient of a wrong line right, or None.

        made: its name in the function; None if it is only in the results.
        """
        first = self.walk.index(line.line) if self.walk and line.line is not None else None
        if first is None:
            return None
        terms = next((self.terms[each] for each in gradient_names(line.name[1:]) if each in self.terms), {})
        terms = terms or self.powers()
        if made:
            return repair(self.walk, first, first, lambda names: close(names.get(made), truths[0]), terms,
                          self.verified())
        wanted = [line.name] if line.name in self.case.results else self.case.results
        return repair(self.walk, first, len(self.walk.statements) - 1,
                      lambda names: self.results_right(names, wanted), terms, self.verified())

    def results_right(self, names, wanted):
        """Whether the results of those names are right at the end of a walk."""
        try:
            named = self.lesson.named(names[RESULT])
            return all(self.case.results[each] is None or close(named[each], self.case.results[each])
                       for each in wanted)
        except (TypeError, KeyError, AttributeError, RecursionError):
            return False

    def powers(self):
        """text -> value for the lines of gradients that the package skips: powers of the forward's arrays."""
        names = {name: value for name, value in self.case.factors.items() if np.ndim(value)}
        return names | {f"{name}**{power}": value**power for name, value in names.items() for power in (2, 3)}

    def verified(self):
        """The lines that no edit may change: those that give a true value, and those that are not the learner's."""
        known = self.case.gradients | self.case.helpers
        right, wrong = set(), set()
        for each in self.record:
            if each.name in known:
                (right if any(close(each.value, true) for true in known[each.name]) else wrong).add(each.line)
        return right - wrong | set(self.to_do)

    def helper_line(self, first):
        """A `Line` for an intermediate result that is the cause of the first wrong gradient, if mending it is possible.

        It is the first one that has another value than in the package's backward and that one edit of its line mends.
        An array that is filled later counts as it was made.
        """
        filled = {name: values for name, values in self.case.gradients.items() if name in self.case.results
                  and not close(values[-1], self.case.results[name])}
        end = math.inf if first.name in filled or first.line is None else first.line
        made = {}
        for name, values in (self.case.helpers | filled).items():
            found = [each for each in self.record if each.name == name]
            if found and found[0].line < end and not any(close(each.value, true) for each in found for true in values):
                made[found[0].line] = name, values
        for line, (name, values) in sorted(made.items()):
            wrong = Line(name, line, WRONG)
            if line not in self.to_do and (found := self.mend(name, wrong, values)) and found[0] == line:
                wrong.diagnosis = found[1]
                return wrong if name not in filled or line != first.line else None
        return None

    def swapped_results(self):
        """Whether the results are right, but in another order."""
        names = [f"d{name}" for name in self.lesson.results]
        if not self.finished or len(names) < 2 or any(self.case.results.get(name) is None for name in names):
            return False
        return any(all(close(self.results[name], self.case.results[other]) for name, other in zip(names, order,
                                                                                                  strict=True))
                   for order in itertools.permutations(names) if list(order) != names)

    def evidence(self, name, given, true):
        """The worst value of a gradient beside the central difference, in words; None if the shape is wrong."""
        if np.shape(given) != np.shape(true) or not np.isfinite(given).all():
            return None
        at = np.unravel_index(np.abs(given - true).argmax(), np.shape(true))
        if name in self.case.results:
            difference = float(input_gradient(self.lesson, name[1:], self.case.dy, at))
        else:
            found = [each for each in traced_forward(self.lesson)[3] if each.name == name[1:]]
            if len(found) != 1:
                return None
            difference = float(intermediate_gradient(self.lesson, found[0], self.case.dy, at))
        ratio = f", ratio {float(given[at]) / difference:.4g}" if difference else ""
        return (f"{name}[{', '.join(map(str, at))}] is {float(given[at]):.5g}, the central difference "
                f"{difference:.5g}{ratio}")

    def explain_exception(self, fault):
        """Say more about an exception in a line: the shapes that do not fit, and what to do."""
        i = self.walk.index(fault.line) if self.walk and fault.line is not None else None
        if i is None or i != len(self.walk.before) - 1:
            return
        says = clash(self.walk.statements[i], self.walk.before[i]) or fault.message
        line, message = not says.endswith(NONE) and self.mend_exception(i) or (None, None)
        if message is None:
            fault.message = says
        elif line != fault.line:
            fault.message, fault.line = f"{message}; line {fault.line} fails: {says}", line
        elif message.endswith("should be transposed") and " and " not in message:
            fault.message = f"{says}; transpose {message.removesuffix(' should be transposed')}?"
        else:
            fault.message = f"{says}; {message}"

    def mend_exception(self, i):
        """(line, message) of the edit of statement i, which raises, that makes the next gradient right; or None."""
        known = self.case.gradients | self.case.helpers | {
            name: [value] for name, value in self.case.results.items() if value is not None}
        for last in range(i, len(self.walk.statements)):
            targets = [node.id for node in ast.walk(self.walk.statements[last])
                       if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
            name = next((each for each in targets if each in known), None)
            if RESULT in targets:
                return repair(self.walk, i, last, lambda names: self.results_right(names, self.case.results), {},
                              self.verified())
            if name:
                return repair(self.walk, i, last, lambda names, name=name: close(names.get(name), known[name][-1]),
                              self.terms.get(name, {}), self.verified())
        return None


def parts_of(statement, names):
    """text -> value of the floating parts of a statement's right side: names, products, sums, calls."""
    value = getattr(statement, "value", None)
    parts = {}
    if value is None:
        return parts
    for node in ast.walk(value):
        if isinstance(node, ast.BinOp | ast.Name | ast.Call | ast.UnaryOp) and node is not value:
            try:
                found = eval(compile(ast.Expression(node), "<part>", "eval"), names)
            except Exception:
                continue
            if is_floating(found) or isinstance(found, float):
                parts.setdefault(ast.unparse(node), found)
    return parts


def clash(statement, names):
    """The innermost operation of a statement whose shapes do not fit, in words; None if there is none."""
    signs = {ast.MatMult: "@", ast.Mult: "*", ast.Add: "+", ast.Sub: "-", ast.Div: "/"}

    def value(node):
        return eval(compile(ast.fix_missing_locations(ast.Expression(node)), "<part>", "eval"), dict(names))

    for node in reversed([*ast.walk(statement)]):
        if not isinstance(node, ast.BinOp) or type(node.op) not in signs:
            continue
        try:
            left, right = value(node.left), value(node.right)
        except Exception:
            continue
        for side, operand in ((node.left, left), (node.right, right)):
            if operand is None:
                return f"`{ast.unparse(node)}`, but {ast.unparse(side)} {NONE}"
        if not all(isinstance(operand, np.ndarray | np.number | float) for operand in (left, right)):
            continue
        try:
            value(node)
        except ValueError:
            a, b = np.shape(left), np.shape(right)
            says = f"{ast.unparse(node.left)} {a} {signs[type(node.op)]} {ast.unparse(node.right)} {b}"
            if isinstance(node.op, ast.MatMult) and len(a) > 1 and len(b) > 1 and a[-1] != b[-2]:
                return f"{says}: {a[-1]} is not {b[-2]}"
            pairs = [(i, j) for i, j in zip(reversed(a), reversed(b), strict=False) if i != j and 1 not in (i, j)]
            return f"{says}: {pairs[0][0]} is not {pairs[0][1]}" if pairs else says
        except Exception:
            continue
    return None


