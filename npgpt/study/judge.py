"""Judge a learner's backward: every gradient on every branch, line by line, and what the first mistake is.

It is right if it returns the true gradients in every `Case` and writes to none of its arguments. The names in it are
free: what is called dv is compared with the true dv, so that the first wrong line is found, but only the results
decide.
"""

import ast
import copy
import sys

import numpy as np

from npgpt.errors import one_line
from npgpt.study.exercise import find_function, is_blank, key_of, statements
from npgpt.study.explain import Explanation
from npgpt.study.gradcheck import (
    OK,
    TOLERANCE,
    WRONG,
    gradient_line,
    gradient_names,
    named_line,
    relative_error,
)
from npgpt.study.lessons import basics_and_lessons
from npgpt.study.repairs import silent
from npgpt.study.report import Fault, Line, Report
from npgpt.study.source import backward_tree, last_return, read_source
from npgpt.study.trace import is_floating, recording
from npgpt.study.truth import cases

EXCEPTION = 200             # characters of an exception's text that are shown
EXACT = 1e-9                # relative error of a right result: any order of the operations is far below it


class LearnerError(Exception):
    """The file cannot be judged. line: in the learner's file, or None."""

    def __init__(self, message, line=None):
        super().__init__(message)
        self.line = line


class Unfinished(Exception):
    """Raised in place of a `...` that no line of the package can fill."""


def judge_file(name, file):
    """The `Report` on the backward of the lesson `name` in a file. Raises LearnerError if the file does not run."""
    with open(file, "rb") as source:
        tree = ast.parse(source.read(), str(file))
    lesson = basics_and_lessons()[name]
    function = find_function(file, tree, lesson.backward)
    to_do = fill_blanks(tree, function, lesson)
    names = {"__name__": "exercise", "__file__": str(file), "__unfinished__": Unfinished}
    try:
        exec(compile(ast.fix_missing_locations(tree), str(file), "exec"), names)
    except BaseException as error:      # SystemExit too
        raise LearnerError(describe(error), raised_at(error, file)) from None
    return judge(name, names[function.name], function, to_do)


def fill_blanks(tree, function, lesson):
    """Replace each statement with a `...` in a function's tree by the package's. Returns the lines that had one.

    Then the finished lines can be judged. A statement that the package does not have ends the function.
    """
    answers = {key_of(each): each for each in statements(backward_tree(lesson))}
    left = [each for each in statements(function) if is_blank(each)]
    written = {key_of(each) for each in statements(function)}
    calls = [each for key, each in answers.items() if isinstance(each, ast.Expr) and key not in written]
    for blank in left:
        answer = answers.get(key_of(blank))
        if answer is None and isinstance(blank, ast.Expr) and len(calls) == 1 and len(function.body) > 3:
            answer = calls[0]               # a bare `...`: the line that assigns nothing
        answer = copy.deepcopy(answer) or ast.parse("raise __unfinished__").body[0]
        Replace(blank, answer).visit(tree)
    return [each.lineno for each in left]


class Replace(ast.NodeTransformer):
    """Puts a statement in the place, and on the line, of another."""

    def __init__(self, old, new):
        self.old, self.new = old, new

    def generic_visit(self, node):
        if node is not self.old:
            return super().generic_visit(node)
        for each in ast.walk(self.new):
            if hasattr(each, "lineno"):
                each.lineno, each.end_lineno = node.lineno, node.end_lineno
        return self.new


def judge(name, function, tree, to_do=()):
    """The `Report` on a function in place of the backward of the lesson `name`, on the first branch that is wrong.

    tree: the function's syntax tree, with the line numbers of its file; to_do: the lines that stand for a `...`.
    """
    reports = []
    for case in cases(name):
        report = Judgement(case, function, tree, to_do).report()
        if not report.sound:
            return report
        reports.append(report)
    main = reports[0]
    main.notes += grown(cases(name)[0].lesson, function) if main.right else []
    return main


class Judgement:
    """The judging of one function in one case: `report()`."""

    def __init__(self, case, function, tree, to_do):
        self.case, self.function, self.tree, self.to_do = case, function, tree, list(to_do)
        self.lesson = case.lesson
        self.source = read_source(function)
        self.results, self.faults, self.record = {}, [], []
        self.finished = False
        self.run()

    def arguments(self):
        return copy.deepcopy((self.case.dy, self.case.cache))

    def run(self):
        """Run the function: its results by name, its assignments, and what is wrong beside the numbers."""
        dy, cache = self.arguments()
        ops = [self.lesson.constants["ops"]] if self.lesson.is_composite else []
        # What the function prints is shown once, in the lesson's own case.
        quiet = silent() if self.case.name else np.errstate(all="ignore")
        with quiet, recording([self.function]) as self.record:
            try:
                result = self.function(dy, cache, *ops)
            except Unfinished:
                return
            except KeyboardInterrupt:
                raise
            except BaseException as error:      # SystemExit too
                line = raised_at(error, self.function.__code__.co_filename)
                if line not in self.to_do or not isinstance(error, NameError):      # its names are the package's
                    self.faults.append(Fault(describe(error), line))
                return
        if changed_array((dy, cache), self.arguments()) is not None:
            self.faults.append(self.first_write(ops))
        misshapen = self.result_faults(result)
        self.faults += misshapen
        if not misshapen:
            self.results, self.finished = self.lesson.named(result), True

    def result_faults(self, result):
        """What is wrong with the results beside their numbers: how many there are, and their types."""
        lesson, line = self.lesson, last_return(self.source)
        names = [f"d{name}" for name in lesson.results] + ["dp"] * lesson.is_composite
        wanted = f"{len(names)} ({', '.join(names)})" if len(names) > 1 else \
            f"one {'tree' if lesson.is_composite else 'array'} ({names[0]})"
        number = len(result) if isinstance(result, tuple) else 1
        if result is None or number != len(names) or isinstance(result, tuple) != (len(names) > 1):
            what = f"{number} results" if isinstance(result, tuple) else "None" if result is None else \
                f"a {type(result).__name__}"
            return [Fault(f"{lesson.backward.__name__} returned {what}, not {wanted}", line)]
        last = result[-1] if isinstance(result, tuple) else result
        if lesson.is_composite and isinstance(result, tuple) and isinstance(result[0], dict):
            return [Fault("the results are returned in another order", line)]
        if lesson.is_composite and not isinstance(last, dict):
            return [Fault(f"dp is a {type(last).__name__}, not a tree of gradients (a dict)", line)]
        try:
            named = lesson.named(result)
        except RecursionError:
            return [Fault("dp contains itself", line)]
        return [fault for name in dict.fromkeys([*self.case.results, *named])
                if (fault := self.type_fault(name, named.get(name), name in named)) is not None]

    def type_fault(self, name, value, is_there):
        """A `Fault` for a result that is missing, there for nothing, or no floating array; or None."""
        true = self.case.results.get(name)
        line = named_line(self.source, name[1:])
        if name not in self.case.results:
            return Fault(f"dp has {name[1:]}, which is no parameter", line)
        if true is None:
            return None if value is None else Fault(f"{name} must be None", line)
        if not is_there:
            return Fault(f"{name} is missing in dp", line)
        if not is_floating(value):
            if any(each.name in gradient_names(name[1:]) for each in self.record):
                line = last_return(self.source)         # it was an array before
            what = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
            return Fault(f"{name} is {what}, not an array of floating numbers", line)
        return None

    def report(self):
        """The `Report` of this case."""
        lines = self.result_lines() + self.intermediate_lines()
        decided = self.finished and not self.faults and all(line.verdict == OK for line in self.result_lines())
        notes = []
        if decided:         # other names for other values are no mistake
            notes = [f"line {line.line}: {line.name} is not the gradient of {line.name[1:]}, but the results are right"
                     for line in lines if line.verdict == WRONG]
            lines = [line for line in lines if line.verdict == OK]
        lines.sort(key=lambda line: line.line or 0)
        if not decided:
            Explanation(self).explain(lines)
        # What is wrong at a line of the package has its cause above it.
        caused = [each for each in [*self.faults, *(line for line in lines if line.verdict == WRONG)]
                  if each.line in self.to_do]
        lines = [line for line in lines if line.line not in self.to_do]
        self.faults = [fault for fault in self.faults if fault.line not in self.to_do]
        if caused and not self.faults and all(line.verdict == OK for line in lines):
            notes = [f"line {caused[0].line} is not right with the package's code either: look at the lines above it"]
        if self.case.name:
            for each in lines:
                each.diagnosis = each.diagnosis and f"{self.case.name}: {each.diagnosis}"
            for each in self.faults:
                each.message = f"{self.case.name}: {each.message}"
        return Report(self.case.name, lines, self.faults, notes, self.to_do, list(self.case.results), self.differing())

    def result_lines(self):
        """A `Line` for each input: of its gradient in the results, or, if there are none, of what has its name."""
        lines = []
        for name in self.lesson.inputs:
            true = self.case.results[f"d{name}"]
            if self.finished and is_floating(given := self.results[f"d{name}"]):
                line = gradient_line(self.source, self.record, name, true, given)
                line = last_return(self.source) if line == self.source.first else line      # it has no name of its own
                lines.append(Line(f"d{name}", line, verdict(given, true, EXACT)))
            elif not self.finished and not self.case.gradients.keys() & {*gradient_names(name)}:
                made = [each for each in self.record if each.name in gradient_names(name)]
                lines += [Line(f"d{name}", made[-1].line, verdict(made[-1].value, true))] if made else []
        return lines

    def intermediate_lines(self):
        """A `Line` for each gradient that the learner computes under its name, beside those of the inputs.

        A variable of the forward that is assigned several times has several gradients, in the reverse order.
        """
        lines = []
        inputs = {name for each in self.lesson.inputs for name in gradient_names(each)} if self.finished else set()
        for name, values in self.case.gradients.items():
            made = [each for each in self.record if each.name == name]
            if not made or name in inputs or name in self.source.filled:
                continue
            if len({each.line for each in made}) < len(made) and np.shape(made[-1].value) != np.shape(values[-1]):
                continue        # a part of it in each turn of a loop
            at = 0
            for true in values:
                found = next((i for i in range(at, len(made)) if verdict(made[i].value, true) == OK), None)
                if found is None and at == len(made) and not self.finished:
                    break               # it did not get so far
                if found is None:
                    each = made[min(at, len(made) - 1) if len(values) > 1 else -1]
                    lines.append(Line(name, each.line, WRONG))
                    break
                lines.append(Line(name, made[found].line, OK))
                at = found + 1
        return lines

    def first_write(self, ops):
        """A `Fault` for the line that first changes an argument in place."""
        arguments, before = self.arguments(), self.arguments()
        found, last = None, self.source.first

        def trace(frame, event, _):
            nonlocal found, last
            if frame.f_code is not self.function.__code__:
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
                self.function(*arguments, *ops)
        finally:
            sys.settrace(outer)
        line, name = found or (None, "an argument")
        statement = self.source.statement_at(line) if line else None
        text = f"`{one_line(statement.text, 100)}` " if statement else ""
        return Fault(f"{text}changes {name}, which belongs to the caller: make a new array", line, True)

    def differing(self):
        """The names whose last value is another than in the package's backward, in its order."""
        differs = []
        for name, values in (self.case.gradients | self.case.helpers).items():
            theirs = [each.value for each in self.record if each.name == name]
            if theirs and relative_error(theirs[-1], values[-1]) > TOLERANCE:
                differs.append(name)
        return differs


def verdict(given, true, tolerance=TOLERANCE):
    """OK or WRONG. The tolerance is that of the central differences, by which some intermediates are measured."""
    return OK if relative_error(given, true) <= tolerance else WRONG


def changed_array(after, before):
    """The first array that differs in two values of the same structure, or None."""
    if isinstance(before, np.ndarray):
        return None if np.array_equal(after, before, equal_nan=True) else after
    pairs = zip(after, before, strict=True) if isinstance(before, tuple | list) else \
        [(after[key], before[key]) for key in before] if isinstance(before, dict) else []
    return next((found for pair in pairs if (found := changed_array(*pair)) is not None), None)


def grown(lesson, function):
    """A note for each gradient that is not float32 although all inputs are."""
    lesson = lesson.astype(np.float32)
    y, cache = lesson.run_forward(lesson.inputs)
    try:
        with silent():
            result = lesson.run_backward(np.ones_like(y), cache, function)
    except Exception as error:
        return [f"with float32 inputs it raises {describe(error)}"]
    return [f"{name} is {value.dtype} for float32 inputs" for name, value in result.items()
            if value is not None and np.asarray(value).dtype != np.float32]


def raised_at(error, file):
    """The line of a file that raised an exception: the innermost of that file; or None."""
    line, step = None, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == str(file):
            line = step.tb_lineno
        step = step.tb_next
    return line


def describe(error):
    """An exception as one short line: its type and the first line of its text."""
    try:
        text = str(error).strip().split("\n", 1)[0]
    except BaseException:       # an exception whose __str__ fails
        text = ""
    return one_line(f"{type(error).__name__}: {text}" if text else type(error).__name__, EXCEPTION)
